//! The page of `cargo xtask demo --web --cluster`, by its commands and its events: the behaviour of an API server and the released
//! controller. `traffic_page` tests the page in a browser.

use std::fmt::Write as _;
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};
use e2e_tests::{DEADLINE, Demo, Events};
use serde_json::{Value, json};
use tokio::process::Command;

/// Lifetime of the demo. A test ends it earlier.
const SECONDS: u64 = 600;

/// A demo, and the state of its page.
struct Watched {
    demo: Demo,
    events: Events,
    last: Value,
    /// The lines of the log, as `who: text`.
    log: Vec<String>,
}

impl Watched {
    async fn open() -> Result<Self> {
        let program = Command::new(env!("CARGO_BIN_EXE_traffic_cluster"));
        let demo = Demo::start_program(program, SECONDS).await?;
        let events = demo.events().await?;
        Ok(Self {
            demo,
            events,
            last: Value::Null,
            log: Vec::new(),
        })
    }

    /// Sends a command, and waits until the state is as expected.
    async fn does(
        &mut self,
        what: &str,
        expect: &str,
        is_done: impl Fn(&State<'_>) -> bool,
    ) -> Result<()> {
        let ordered = self.demo.order(what).await;
        ordered.with_context(|| self.describe())?;
        self.sees(expect, is_done).await
    }

    /// Reads events until the state is as expected.
    async fn sees(&mut self, expect: &str, is_done: impl Fn(&State<'_>) -> bool) -> Result<()> {
        let begun = Instant::now();
        while begun.elapsed() < DEADLINE {
            let event = self.events.next().await?;
            let entries = event.get("log").and_then(Value::as_array);
            for entry in entries.into_iter().flatten() {
                let text = |key: &str| entry.get(key).and_then(Value::as_str).unwrap_or_default();
                self.log.push(format!(
                    "{}: {} {}",
                    text("who"),
                    text("text"),
                    text("said")
                ));
            }
            let is_first = self.last.is_null();
            if is_first {
                ensure!(
                    event.pointer("/first/cluster") == Some(&json!(true)),
                    "{event}"
                );
            }
            self.last = event;
            if is_done(&self.state()) {
                return Ok(());
            }
        }
        bail!("never came true: {expect}\n{}", self.describe())
    }

    fn state(&self) -> State<'_> {
        State {
            event: &self.last,
            log: &self.log,
        }
    }

    /// Checks that no request has failed.
    fn lost_nothing(&self, what: &str) -> Result<()> {
        ensure!(
            self.state().number("/totals/failed") == 0,
            "{what} lost requests\n{}",
            self.describe()
        );
        Ok(())
    }

    fn describe(&self) -> String {
        let mut text = self.last.to_string();
        for line in &self.log {
            let _ = write!(text, "\n{line}");
        }
        text
    }
}

/// The last event and the log so far.
struct State<'a> {
    event: &'a Value,
    log: &'a [String],
}

impl State<'_> {
    fn number(&self, pointer: &str) -> u64 {
        let value = self.event.pointer(pointer).and_then(Value::as_f64);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "shares and counts are small and positive"
        )]
        value.map_or(0, |value| value.round() as u64)
    }

    fn text(&self, pointer: &str) -> &str {
        let value = self.event.pointer(pointer).and_then(Value::as_str);
        value.unwrap_or_default()
    }

    fn is(&self, pointer: &str) -> bool {
        self.event.pointer(pointer) == Some(&json!(true))
    }

    /// Whether the Rollout pauses at a step.
    fn pauses_at(&self, step: u64) -> bool {
        self.text("/rollout/phase") == "Paused"
            && self.event.pointer("/rollout/step") == Some(&json!(step))
    }

    /// Whether this version is stable, and has all requests with the owner's table.
    fn is_promoted(&self, version: u64) -> bool {
        self.text("/rollout/phase") == "Healthy"
            && self.number("/rollout/stable/number") == version
            && self.number("/weights/written") == 0
            && self.number(&format!("/personas/0/shares/{version}")) == 100
    }

    /// Whether the plugin has written the tables after the last log line with this text.
    fn is_written_after(&self, text: &str) -> bool {
        let last = |text: &str| self.log.iter().rposition(|line| line.starts_with(text));
        last(text).is_some_and(|at| last("plugin: writes the tables") > Some(at))
    }

    fn count(&self, text: &str) -> usize {
        let lines = self.log.iter();
        lines.filter(|line| line.starts_with(text)).count()
    }

    fn logged(&self, text: &str) -> bool {
        self.count(text) > 0
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_button_of_the_page_works_with_an_api_server() -> Result<()> {
    let mut page = Watched::open().await?;
    page.sees("version 1 has all requests", |it| {
        it.is_promoted(1) && it.number("/totals/requests") > 0
    })
    .await?;
    page.does(
        "new",
        "testers reach version 2, everyone else does not",
        |it| {
            it.pauses_at(4)
                && it.number("/personas/1/shares/2") == 100
                && it.number("/personas/2/shares/2") == 100
                && it.number("/personas/0/shares/1") == 100
                && it.number("/totals/copies/2") > 20
        },
    )
    .await?;
    page.does(
        "promote",
        "weight 25 is requested, written and measured",
        |it| {
            it.pauses_at(9)
                && it.number("/weights/asked") == 25
                && it.number("/weights/written") == 25
                && it.number("/weights/measured").abs_diff(25) < 15
        },
    )
    .await?;

    // The controller reconciles every 10 s, so its call may restore the weights before the plugin repairs them.
    for reverts in 1..=5 {
        page.does("revert", "the table has the weights again", |it| {
            it.count("fault: GitOps restores the owner's table") == reverts
                && it.is_written_after("fault: GitOps restores the owner's table")
                && it.number("/weights/written") == 25
        })
        .await?;
        if page.state().logged("plugin: TrafficDriftRepaired") {
            break;
        }
    }
    page.sees(
        "the plugin has repaired the table between the calls",
        |it| it.logged("plugin: TrafficDriftRepaired"),
    )
    .await?;
    page.does("kill", "the controller starts the plugin again", |it| {
        it.number("/plugin/starts") == 2 && it.text("/rollout/phase") == "Paused"
    })
    .await?;
    page.does("away", "the switch is on", |it| it.is("/switches/away"))
        .await?;
    page.does("promote", "calls fail, and the weight stays", |it| {
        it.log
            .iter()
            .any(|line| line.starts_with("call: SetWeight"))
            && it.number("/weights/written") == 25
    })
    .await?;
    page.does("away", "the weight of the next step is written", |it| {
        !it.is("/switches/away") && it.number("/weights/written") == 50
    })
    .await?;
    page.lost_nothing("a fault")?;

    // With the guard a promotion waits until the gateway has the endpoints.
    page.does("late", "the switch is on", |it| it.is("/switches/late"))
        .await?;
    page.does("at_once", "the switch is on", |it| {
        it.is("/switches/at_once")
    })
    .await?;
    page.sees("version 2 is promoted after a hold", |it| {
        it.is_promoted(2)
            && it.logged("plugin: PromotionHeld")
            && it.event.pointer("/pods") == Some(&json!([[2, 3]]))
    })
    .await?;
    page.lost_nothing("a promotion with the guard")?;
    // Without the guard the gateway knows no Pods of the stable Service.
    page.does("guard_off", "another plugin is started", |it| {
        it.is("/switches/guard_off") && it.number("/plugin/starts") == 3
    })
    .await?;
    page.does("new", "version 3 has Pods", |it| {
        it.pauses_at(4) && it.number("/personas/1/shares/3") == 100
    })
    .await?;
    page.does("promote", "weight 25 is written", |it| it.pauses_at(9))
        .await?;
    page.lost_nothing("a split without the guard")?;
    page.does("promote", "requests fail", |it| {
        it.number("/totals/failed") > 20
    })
    .await?;
    page.sees("version 3 is promoted nevertheless", |it| it.is_promoted(3))
        .await?;
    page.does("guard_off", "the guard is on", |it| {
        !it.is("/switches/guard_off") && it.number("/plugin/starts") == 4
    })
    .await?;
    page.does("late", "the switch is off", |it| !it.is("/switches/late"))
        .await?;
    page.does("at_once", "the switch is off", |it| {
        !it.is("/switches/at_once")
    })
    .await?;

    // A failing version, paused, aborted and tried again.
    page.does("bad", "version 4 fails requests of testers", |it| {
        it.pauses_at(4)
            && it.is("/rollout/current/fails")
            && it.number("/totals/failures/500 -") > 5
    })
    .await?;
    page.does("pause", "it is paused", |it| it.is("/rollout/paused"))
        .await?;
    page.does("pause", "it continues", |it| !it.is("/rollout/paused"))
        .await?;
    page.does("abort", "version 3 has all requests", |it| {
        it.is("/rollout/aborted") && it.number("/personas/1/shares/3") == 100
    })
    .await?;
    page.does("retry", "version 4 is tried again", |it| it.pauses_at(4))
        .await?;

    page.does("promote", "weight 10 is written", |it| {
        it.number("/weights/written") >= 10
    })
    .await?;
    page.does(
        "deleted",
        "the plugin restores the table of the deleted Rollout",
        |it| {
            it.text("/rollout/phase") == "Deleted"
                && it.logged("plugin: TrafficRestored")
                && it.number("/weights/written") == 0
                && it.number("/personas/0/shares/3") == 100
        },
    )
    .await?;
    page.does("deleted", "the Rollout is created again", |it| {
        !it.is("/switches/deleted") && it.is_promoted(3)
    })
    .await?;
    page.does("new", "it has a new version", |it| it.pauses_at(4))
        .await?;
    page.does("full", "it is promoted without the steps", |it| {
        it.is_promoted(5)
    })
    .await?;
    Ok(())
}
