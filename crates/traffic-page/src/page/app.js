"use strict";
// Shows the events of the demo, from /events or from a recording (window.recording). All numbers come from the server.

const $ = (id) => document.getElementById(id);
const make = (tag, text, kind) => {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  if (kind) element.className = kind;
  return element;
};
const percent = (value) => (value === null || value === undefined ? "–" : Math.round(value * 10) / 10 + "\u00a0%");
const number = (value) => value.toLocaleString("en");
const brief = (ms) => (ms < 10 ? ms : number(Math.round(ms)));
const calm = matchMedia("(prefers-reduced-motion: reduce)");
const FAILURES = {
  "500 -": "answered 500 by a Pod",
  "503 UH": "503: the Service has no Pods",
  "503 UF": "503: the Pod is gone",
  "503 UC": "503: the Pod hung up",
};

// ---------------------------------------------------------------- state

const state = { now: null, steps: [], personas: [], log: [], points: [], lines: new Set(), bubbles: [], bands: new Map() };
/** For tests: counts of drawn shapes and received events. */
window.demo = { drawn: 0, outlines: 0, crosses: 0, events: 0, last: null, colours };

let colour = {};
function readColours() {
  const style = getComputedStyle(document.documentElement);
  for (const name of ["bg", "card", "ink", "dim", "line", "soft", "v1", "v2", "v3", "v4", "bad", "mark", "on"]) {
    colour[name] = style.getPropertyValue("--" + name).trim();
  }
}
readColours();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", readColours);
const versionColour = (version) => colour["v" + (((version + 3) % 4) + 1)];

function receive(event) {
  const now = performance.now();
  window.demo.events += 1;
  window.demo.last = event;
  state.now = event;
  if (event.first) {
    state.steps = event.first.steps;
    state.personas = event.first.personas;
    state.log = [];
    state.points = [];
    state.lines = new Set();
    $("log").replaceChildren();
    showSteps();
    if (event.first.cluster) showCluster(event.switches);
  }
  if (event.points) state.points = state.points.concat(event.points).slice(-240);
  if (event.tables) showTables(event.tables);
  if (event.log) event.log.forEach(showEntry);
  spawn(event.bubbles, now);
  show(event);
}

// ---------------------------------------------------------------- text

function set(id, text) {
  const element = $(id);
  if (element.textContent !== text) element.textContent = text;
}

function show(event) {
  const { rollout, weights, totals, plugin } = event;
  set("phase", rollout.phase);
  $("phase").dataset.phase = rollout.phase;
  set("message", rollout.message);
  // Before the first deployment, the button "New version" is highlighted.
  document.body.toggleAttribute("data-fresh", rollout.current.number === 1 && !window.recording);
  const starts = plugin.starts === 1 ? "" : ", started " + plugin.starts + " times";
  set("plugin", plugin.id === null ? "the plugin is dead" : "plugin: process " + plugin.id + starts + ", " + number(plugin.calls) + " calls");
  set("asked", percent(weights.asked));
  set("written", percent(weights.written));
  set("measured", percent(weights.measured));
  set("requests", number(totals.requests));
  set("failed", number(totals.failed));
  $("failed").classList.toggle("bad", totals.failed > 0);
  set("latency", totals.p50 === null ? "–" : brief(totals.p50) + " / " + brief(totals.p99));
  const counts = [];
  for (const [version, count] of Object.entries(totals.versions)) counts.push(["answered by version " + version, count]);
  for (const [version, count] of Object.entries(totals.copies)) counts.push(["copies to version " + version, count]);
  for (const [kind, count] of Object.entries(totals.failures)) counts.push([FAILURES[kind] || kind, count]);
  rows("counts", counts.map(([name, count]) => [name, number(count)]));
  rows("personas", event.personas.map((persona, index) => {
    const shares = Object.entries(persona.shares).map(([key, share]) => (key === "failed" ? "failed " : "version " + key + ": ") + share + "\u00a0%");
    const header = (state.personas[index] || {}).header;
    return [persona.name + (header ? " (" + header + ")" : ""), shares.join(", ") || "–"];
  }));
  [...$("steps").children].forEach((item, index) => {
    const here = index === rollout.step;
    item.classList.toggle("here", here);
    item.classList.toggle("done", rollout.step !== null && index < rollout.step);
    if (here) item.setAttribute("aria-current", "step");
    else item.removeAttribute("aria-current");
  });
  for (const button of document.querySelectorAll("[data-do]")) {
    const what = button.dataset.do;
    const known = Object.hasOwn(event.switches, what);
    if (known) button.setAttribute("aria-checked", String(event.switches[what]));
    const isFault = known || what === "kill" || what === "revert";
    const allowed = isFault ? what !== "kill" || plugin.id !== null : event.allowed.includes(what);
    button.setAttribute("aria-disabled", String(!allowed || Boolean(window.recording)));
  }
  $("pause").firstChild.data = rollout.paused ? "Resume" : "Pause";
}

/** Updates the rows of a table; cells without a change are not touched. */
function rows(id, wanted) {
  const body = $(id);
  while (body.rows.length > wanted.length) body.deleteRow(-1);
  wanted.forEach(([name, value], index) => {
    let row = body.rows[index];
    if (!row) {
      row = body.insertRow();
      const head = make("th");
      head.scope = "row";
      row.append(head, make("td"));
    }
    const [head, cell] = row.children;
    if (head.textContent !== name) head.textContent = name;
    if (cell.textContent !== value) cell.textContent = value;
  });
}

function showSteps() {
  $("steps").replaceChildren(...state.steps.map((words) => make("li", words)));
}

/** Shows the texts and switches of a stage with an API server. */
function showCluster(switches) {
  for (const element of document.querySelectorAll("[data-cluster]")) element.textContent = element.dataset.cluster;
  for (const button of document.querySelectorAll("[data-why]")) button.hidden = true;
  for (const button of document.querySelectorAll("[role=switch]")) button.hidden = !Object.hasOwn(switches, button.dataset.do);
}

function showTables(files) {
  const before = state.lines;
  const isFirst = before.size === 0;
  state.lines = new Set();
  $("tables").replaceChildren(...files.map(({ file, lines }) => {
    const block = make("pre");
    block.append(make("b", "# " + file));
    lines.forEach(([text, isMine], index) => {
      const key = file + (isMine ? "+" : " ") + text + (lines[index - 1] || [""])[0];
      state.lines.add(key);
      const line = make("span", text || " ", isMine ? "mine" : "");
      if (!isFirst && isMine && !before.has(key)) line.classList.add("new");
      block.append(line);
    });
    return block;
  }));
  // Scrolls the box, not the page, to the last new line.
  const news = $("tables").querySelectorAll(".new");
  const line = news[news.length - 1];
  if (line) $("tables").scrollTop = line.offsetTop - $("tables").offsetTop - $("tables").clientHeight * 0.7;
}

function showEntry(entry) {
  const item = make("li");
  item.append(make("time", (entry.at / 1000).toFixed(1) + " s"), make("em", entry.who, entry.who));
  item.append(make(entry.who === "call" ? "code" : "span", entry.text));
  if (entry.ms !== undefined) item.append(make("small", " " + entry.ms.toFixed(1) + " ms"));
  if (entry.said) item.append(make("small", " " + entry.said, entry.ok ? "" : "no"));
  const changed = entry.changed || [];
  if (changed.length) {
    const details = make("details");
    const lines = make("pre");
    changed.forEach((line) => lines.append(make("span", line, line[0] === "+" ? "plus" : "minus")));
    details.append(make("summary", "changed " + changed.length + " lines"), lines);
    item.append(details);
  }
  $("log").prepend(item);
  const who = { you: "You: ", call: "The controller calls " }[entry.who] || "";
  set("latest", who + entry.text + (entry.ok === false ? ": " + entry.said : ""));
  $("latest").className = entry.ok === false ? "no" : entry.who;
  while ($("log").children.length > 120) $("log").lastChild.remove();
}

// ---------------------------------------------------------------- orders

async function send(what) {
  set("said", "");
  try {
    const headers = { "content-type": "application/json" };
    const answer = await fetch("do", { method: "POST", headers, body: JSON.stringify({ what }) });
    // Only errors are shown: a late answer must not clear the error of the next click.
    if (!answer.ok) set("said", await answer.text());
  } catch {
    set("said", "the demo has ended");
  }
}

const WHY = { guard: "why-guard", delete: "why-delete" };
document.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  if (button.dataset.why) set("said", $(WHY[button.dataset.why]).textContent);
  else if (window.recording) set("said", "This is a recording: cargo xtask demo --web has buttons that work.");
  else if (button.getAttribute("aria-disabled") !== "true") send(button.dataset.do);
});
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey || event.repeat) return;
  const button = document.querySelector('[data-key="' + CSS.escape(event.key.toLowerCase()) + '"]');
  if (button) button.click();
});

// ---------------------------------------------------------------- bubbles

const LIFE = 2600; // ms
const FLIGHT = 420; // ms, from the client to the gateway, and again from there to the version

function spawn(text, now) {
  if (document.hidden) return;
  const count = text.length / 3;
  for (let index = 0; index < count; index += 1) {
    const [persona, version, fate] = text.slice(index * 3, index * 3 + 3);
    state.bubbles.push({
      born: now + (100 * index) / count,
      persona: parseInt(persona, 36),
      version: parseInt(version, 36),
      fate,
      x: Math.random(),
      y: Math.random(),
    });
  }
  if (state.bubbles.length > 1500) state.bubbles.splice(0, state.bubbles.length - 1500);
}

/** Clears a canvas. It has the resolution of the screen, and its coordinates are CSS pixels. */
function surface(id) {
  const canvas = $(id);
  const [width, height, scale] = [canvas.clientWidth, canvas.clientHeight, devicePixelRatio || 1];
  if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
  }
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  return [context, width, height];
}

const SHAPES = [
  (c, x, y, r) => c.arc(x, y, r, 0, 7),
  (c, x, y, r) => { c.moveTo(x, y - r * 1.25); c.lineTo(x + r * 1.25, y); c.lineTo(x, y + r * 1.25); c.lineTo(x - r * 1.25, y); c.closePath(); },
  (c, x, y, r) => { c.moveTo(x, y - r * 1.2); c.lineTo(x + r * 1.15, y + r); c.lineTo(x - r * 1.15, y + r); c.closePath(); },
  (c, x, y, r) => c.rect(x - r * 0.95, y - r * 0.95, r * 1.9, r * 1.9),
];
const shape = (context, version, x, y, r) => {
  context.beginPath();
  SHAPES[(version + 3) % 4](context, x, y, r);
};
const cross = (context, x, y, r) => {
  context.beginPath();
  context.moveTo(x - r, y - r);
  context.lineTo(x + r, y + r);
  context.moveTo(x + r, y - r);
  context.lineTo(x - r, y + r);
  context.stroke();
  window.demo.crosses += 1;
};
const ease = (t) => t * t * (3 - 2 * t);
const mix = (from, to, t) => from + (to - from) * t;

/** Returns the versions with Pods or answers. Their height is their share, with a minimum. */
function bands(height) {
  const event = state.now;
  if (!event) return [];
  const pods = new Map(event.pods);
  const { stable, current } = event.rollout;
  const wanted = new Map();
  for (const version of pods.keys()) wanted.set(version, 0.16);
  const all = new Map();
  const everyone = (event.personas[0] || { shares: {} }).shares;
  event.personas.forEach((persona, index) => {
    for (const [version, share] of Object.entries(persona.shares)) {
      const rate = (state.personas[index] || {}).rate || 0;
      if (version !== "failed") all.set(Number(version), (all.get(Number(version)) || 0) + (share * rate) / 20000);
    }
  });
  for (const [version, share] of all) if (share > 0.004) wanted.set(version, Math.max(share, 0.16));
  const sum = [...wanted.values()].reduce((a, b) => a + b, 0) || 1;
  for (const version of state.bands.keys()) if (!wanted.has(version)) wanted.set(version, 0);
  for (const [version, share] of wanted) {
    const before = state.bands.get(version) ?? 0;
    const after = mix(before, share / sum, calm.matches ? 1 : 0.07);
    if (share === 0 && after < 0.01) state.bands.delete(version);
    else state.bands.set(version, after);
  }
  const total = [...state.bands.values()].reduce((a, b) => a + b, 0) || 1;
  let y = 0;
  return [...state.bands].sort(([a], [b]) => a - b).map(([version, share]) => {
    const band = { version, y, height: (height * share) / total, pods: pods.get(version) || 0, share: everyone[version] || 0 };
    y += band.height;
    const isCanary = version === current.number && version !== stable.number;
    band.role = version === stable.number ? "stable" : isCanary ? (event.rollout.aborted ? "aborted" : "canary") : "leaving";
    band.fails = version === current.number && current.fails;
    return band;
  });
}

function drawRiver(now) {
  const [context, width, height] = surface("river");
  const narrow = width < 560;
  const foot = 26; // height of the strip for failures without a version
  const left = narrow ? 54 : 160;
  const gate = narrow ? 96 : width * 0.27;
  const right = narrow ? 134 : width * 0.35;
  const all = bands(height - foot);
  const sources = [0.5, 0.17, 0.83].map((y) => y * (height - foot));
  const radius = narrow ? 4 : 5.2;
  context.lineJoin = "round";

  for (const band of all) {
    context.globalAlpha = 0.09;
    context.fillStyle = versionColour(band.version);
    context.fillRect(right, band.y, width - right, band.height);
    context.globalAlpha = 0.22;
    context.beginPath();
    context.moveTo(gate, (height - foot) / 2 - 3);
    context.lineTo(right, band.y);
    context.lineTo(right, band.y + band.height);
    context.lineTo(gate, (height - foot) / 2 + 3);
    context.fill();
    context.globalAlpha = 1;
    context.fillRect(right, band.y, 3, band.height);
  }
  context.strokeStyle = colour.line;
  context.lineWidth = 1.5;
  for (const y of sources) {
    context.beginPath();
    context.moveTo(left, y);
    context.bezierCurveTo((left + gate) / 2, y, (left + gate) / 2, (height - foot) / 2, gate, (height - foot) / 2);
    context.stroke();
  }

  state.bubbles = state.bubbles.filter((bubble) => now - bubble.born < LIFE);
  window.demo.shown = state.bubbles.length;
  for (const bubble of state.bubbles) {
    const age = now - bubble.born;
    if (age < 0) continue;
    const band = all.find((it) => it.version === bubble.version);
    const isLost = bubble.version === 0 || !band;
    const inset = 12;
    const target = isLost
      ? [gate + (width - gate - 20) * bubble.x, height - foot / 2]
      : [right + inset + (width - right - 2 * inset) * bubble.x, band.y + inset + Math.max(0, band.height - 2 * inset) * bubble.y];
    const middle = (height - foot) / 2;
    let [x, y] = target;
    if (!calm.matches && age < FLIGHT && bubble.fate !== "o") {
      const t = ease(age / FLIGHT);
      const from = sources[bubble.persona] ?? middle;
      x = mix(left, gate, t);
      y = mix(from, middle, ease(t));
    } else if (!calm.matches && age < 2 * FLIGHT) {
      const t = ease(bubble.fate === "o" ? age / (2 * FLIGHT) : (age - FLIGHT) / FLIGHT);
      x = mix(gate, target[0], t);
      y = mix(middle, target[1], t);
    }
    const r = bubble.persona ? radius * 1.6 : radius;
    context.globalAlpha = Math.min(1, (LIFE - age) / 700);
    if (bubble.fate === "x") {
      context.strokeStyle = colour.bad;
      context.lineWidth = 2.6;
      cross(context, x, y, r);
    } else if (bubble.fate === "o") {
      context.strokeStyle = versionColour(bubble.version);
      context.lineWidth = 1.6;
      shape(context, bubble.version, x, y, radius * 1.5);
      context.stroke();
      window.demo.outlines += 1;
    } else {
      context.fillStyle = versionColour(bubble.version);
      shape(context, bubble.version, x, y, r);
      context.fill();
      if (bubble.persona) {
        context.strokeStyle = colour.ink;
        context.lineWidth = 1.5;
        context.stroke();
        context.fillStyle = colour.on;
        context.font = "800 " + Math.round(r * 1.25) + "px system-ui, sans-serif";
        context.textAlign = "center";
        context.textBaseline = "middle";
        context.fillText("TB"[bubble.persona - 1] ?? "", x, y + 0.5);
      }
    }
    window.demo.drawn += 1;
  }
  context.globalAlpha = 1;

  // The gateway.
  context.fillStyle = colour.ink;
  context.beginPath();
  context.roundRect(gate - 25, (height - foot) / 2 - 20, 50, 40, 10);
  context.fill();
  context.fillStyle = colour.card;
  context.font = "700 11px system-ui, sans-serif";
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.fillText("Envoy", gate, (height - foot) / 2);

  // The personas.
  state.personas.forEach((persona, index) => {
    const y = sources[index];
    context.fillStyle = colour.ink;
    context.textAlign = "left";
    context.font = "700 " + (narrow ? 11 : 14) + "px system-ui, sans-serif";
    const [first, last] = narrow ? persona.name.split(" ") : [persona.name];
    context.fillText(first === "everyone" && narrow ? "all" : first, narrow ? 6 : 16, y - (narrow ? 0 : 8));
    if (last) context.fillText(last, 6, y + 12);
    if (!narrow) {
      context.font = "12px ui-monospace, monospace";
      context.fillStyle = colour.dim;
      context.fillText(persona.header || persona.rate + " requests/s", 16, y + 9);
    }
  });

  // The labels of the versions, on top of their bubbles.
  for (const band of all) {
    if (band.height < 30) continue;
    const title = "version " + band.version;
    const more = band.role + (band.fails ? " · fails 1 in 3" : "") + (narrow ? "" : " · " + band.pods + (band.pods === 1 ? " Pod" : " Pods"));
    const y = band.y + 8;
    context.font = "800 " + (narrow ? 14 : 18) + "px system-ui, sans-serif";
    context.textBaseline = "top";
    const titleWidth = context.measureText(title).width;
    context.font = "600 12px system-ui, sans-serif";
    const moreWidth = context.measureText(more).width;
    const boxWidth = narrow ? Math.max(titleWidth + 20, moreWidth) + 16 : titleWidth + moreWidth + 50;
    context.globalAlpha = 0.88;
    context.fillStyle = colour.card;
    context.beginPath();
    context.roundRect(right + 10, y - 3, boxWidth, narrow ? 39 : 27, 8);
    context.fill();
    context.globalAlpha = 1;
    context.fillStyle = versionColour(band.version);
    shape(context, band.version, right + 24, y + (narrow ? 8 : 10), 6);
    context.fill();
    context.fillStyle = colour.ink;
    context.textAlign = "left";
    context.font = "800 " + (narrow ? 14 : 18) + "px system-ui, sans-serif";
    context.fillText(title, right + 36, y);
    context.font = "600 12px system-ui, sans-serif";
    context.fillStyle = band.fails || band.role === "aborted" ? colour.bad : colour.dim;
    context.fillText(more, narrow ? right + 18 : right + 46 + titleWidth, y + (narrow ? 19 : 5));
    const share = band.share + " %" + (narrow ? "" : " of everyone");
    context.font = "800 " + (narrow ? 17 : 24) + "px system-ui, sans-serif";
    context.textAlign = "right";
    const shareWidth = context.measureText(share).width;
    context.globalAlpha = 0.88;
    context.fillStyle = colour.card;
    context.beginPath();
    context.roundRect(width - shareWidth - 24, y - 3, shareWidth + 16, narrow ? 24 : 32, 8);
    context.fill();
    context.globalAlpha = 1;
    context.fillStyle = colour.ink;
    context.fillText(share, width - 16, y + 1);
  }
  if (state.now) {
    const failed = state.now.totals.failed;
    context.textBaseline = "middle";
    context.textAlign = "left";
    context.font = "600 12px system-ui, sans-serif";
    context.fillStyle = failed ? colour.bad : colour.dim;
    context.fillText("✕ failed: " + number(failed) + (narrow ? "" : " of " + number(state.now.totals.requests)), narrow ? 6 : 16, height - foot / 2);
  }
}

// ---------------------------------------------------------------- curves

const SPAN = 60; // seconds

function drawCurves() {
  const points = state.points;
  const end = points.length ? points[points.length - 1][0] : 0;
  {
    const [context, width, height] = surface("shares");
    const [low, high, right] = [height - 16, 8, width - 50];
    const x = (t) => right - ((end - t) / SPAN) * right;
    const y = (share) => low - (share / 100) * (low - high);
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    for (const share of [0, 25, 50, 75, 100]) {
      context.strokeStyle = colour.line;
      context.lineWidth = 1;
      context.beginPath();
      context.moveTo(0, y(share));
      context.lineTo(right, y(share));
      context.stroke();
      context.fillStyle = colour.dim;
      context.fillText(share + " %", right + 5, y(share));
    }
    context.textBaseline = "bottom";
    context.fillText(SPAN + " s ago", 0, height);
    const line = (column, stroke, lineWidth, dash, isStep) => {
      context.strokeStyle = stroke;
      context.lineWidth = lineWidth;
      context.setLineDash(dash);
      context.beginPath();
      let before = null;
      for (const point of points) {
        const value = point[column];
        if (value === null) { before = null; continue; }
        if (before === null) context.moveTo(x(point[0]), y(value));
        else {
          if (isStep) context.lineTo(x(point[0]), y(before));
          context.lineTo(x(point[0]), y(value));
        }
        before = value;
      }
      context.stroke();
      context.setLineDash([]);
    };
    line(3, colour.ink, 3, [], false);
    line(2, colour.mark, 1.8, [], true);
    line(1, colour.dim, 2, [5, 4], true);
  }
  {
    const [context, width, height] = surface("faults");
    const [low, right] = [height - 2, width - 50];
    const x = (t) => right - ((end - t) / SPAN) * right;
    const shown = points.filter((point) => end - point[0] <= SPAN);
    const most = Math.max(10, ...shown.map((point) => point[4]));
    const slowest = Math.max(5, ...shown.map((point) => point[5] || 0));
    context.fillStyle = colour.bad;
    for (const point of shown) {
      const bar = (point[4] / most) * (low - 8);
      context.fillRect(x(point[0]) - 2, low - bar, 4, bar);
    }
    context.strokeStyle = colour.mark;
    context.lineWidth = 1.8;
    context.beginPath();
    shown.forEach((point, index) => {
      const y = low - ((point[5] || 0) / slowest) * (low - 8);
      if (index) context.lineTo(x(point[0]), y);
      else context.moveTo(x(point[0]), y);
    });
    context.stroke();
    context.strokeStyle = colour.line;
    context.beginPath();
    context.moveTo(0, low);
    context.lineTo(right, low);
    context.stroke();
    context.fillStyle = colour.dim;
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "top";
    context.fillText(slowest < 1000 ? Math.round(slowest) + " ms" : (slowest / 1000).toFixed(1) + " s", right + 5, 4);
    context.fillStyle = colour.bad;
    context.fillText(most + " ✕", right + 5, 18);
  }
}

/** For tests: counts the pixels of a canvas in each colour of versions, failures and curves. */
function colours(id = "river") {
  const canvas = $(id);
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const wanted = ["v1", "v2", "v3", "v4", "bad", "ink", "mark"].map((name) => {
    const hex = colour[name].slice(1);
    const full = hex.length === 3 ? [...hex].map((digit) => digit + digit).join("") : hex;
    return [name, parseInt(full, 16)];
  });
  const counts = Object.fromEntries(wanted.map(([name]) => [name, 0]));
  for (let at = 0; at < data.length; at += 4) {
    if (data[at + 3] < 250) continue;
    const pixel = (data[at] << 16) | (data[at + 1] << 8) | data[at + 2];
    for (const [name, value] of wanted) if (pixel === value) counts[name] += 1;
  }
  return counts;
}

let curvesAt = 0;
function frame(now) {
  drawRiver(now);
  if (now - curvesAt > 250) {
    curvesAt = now;
    drawCurves();
  }
  requestAnimationFrame(frame);
}
requestAnimationFrame(frame);

// ---------------------------------------------------------------- events

if (window.recording) {
  document.querySelector("h1").textContent += " · a recording";
  const play = () => {
    const begun = performance.now();
    let next = 0;
    const step = () => {
      const at = performance.now() - begun;
      while (next < window.recording.length && window.recording[next][0] <= at) {
        // A recorded event has only the fields that differ from the previous event.
        const { log, points, tables, first, bubbles, ...kept } = { ...state.now };
        receive({ bubbles: "", ...kept, ...window.recording[next][1] });
        next += 1;
      }
      if (next < window.recording.length) setTimeout(step, 30);
      else setTimeout(play, 3000);
    };
    step();
  };
  play();
} else {
  const source = new EventSource("events");
  source.onmessage = (message) => receive(JSON.parse(message.data));
  source.onerror = () => set("message", "no connection to the demo: it has ended or is busy");
}
