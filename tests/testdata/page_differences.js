// Differences between the page of the demo and its last event. The script runs before the next event is read.
(() => {
  const it = window.demo.last;
  const plain = (text) => text.replaceAll(",", "").replaceAll("\u00a0", " ");
  const text = (id) => plain(document.getElementById(id).textContent);
  const differences = [];
  const same = (what, shown, expect) => { if (shown !== expect) differences.push(`${what}: ${shown}, not ${expect}`); };
  const tenths = (value) => (value === null ? "–" : Math.round(value * 10) / 10 + " %");
  const { p50, p99, versions, copies, failures, requests, failed } = it.totals;
  const ms = (value) => (value < 10 ? value : Math.round(value));
  const isUpdate = it.rollout.current.number !== it.rollout.stable.number;
  same("phase", text("phase"), it.rollout.phase);
  same("message", text("message"), plain(it.rollout.message));
  same("asked", text("asked"), tenths(it.weights.asked));
  same("written", text("written"), tenths(it.weights.written));
  same("measured", text("measured"), tenths(it.weights.measured));
  same("measured at rest", it.weights.measured === null, !isUpdate);
  same("requests", text("requests"), String(requests));
  same("failed", text("failed"), String(failed));
  same("latency", text("latency"), p50 === null ? "–" : `${ms(p50)} / ${ms(p99)}`);
  same("plugin", text("plugin").match(/process (\d+)/)?.[1], it.plugin.id === null ? undefined : String(it.plugin.id));

  // Each request is counted once: answered by a version, or failed.
  const sum = (counts) => Object.values(counts).reduce((a, b) => a + b, 0);
  same("failed in all", sum(failures), failed);
  same("requests in all", sum(versions) + failed, requests);
  const cells = (id) => [...document.querySelectorAll(`#${id} td`)].map((cell) => plain(cell.textContent)).join();
  same("counts", cells("counts"), [versions, copies, failures].flatMap(Object.values).join());
  const shares = (persona) => Object.entries(persona.shares)
    .map(([key, share]) => (key === "failed" ? "failed " : `version ${key}: `) + share + " %").join(" ") || "–";
  same("personas", cells("personas"), it.personas.map(shares).join());

  const steps = [...document.querySelectorAll("#steps li")];
  same("steps", steps.length > 0, true);
  same("step", steps.findIndex((step) => step.classList.contains("here")), it.rollout.step ?? -1);
  for (const button of document.querySelectorAll("[data-do]")) {
    const what = button.dataset.do;
    const isOn = it.switches[what];
    if (isOn !== undefined) same(what, button.getAttribute("aria-checked"), String(isOn));
    else if (button.closest("section").querySelector("#steps")) {
      same(what, button.getAttribute("aria-disabled"), String(!it.allowed.includes(what)));
    }
  }
  return differences;
})()
