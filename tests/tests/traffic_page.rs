//! The page of the demo in a real browser: it shows the counts of the server, and every button works.
//!
//! With `PICTURES` set to a directory, a test writes the pictures and the recording of the documentation there.

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use e2e_tests::{Browser, Demo, Screen, eventually};
use serde_json::{Map, Value, json};
use tokio::sync::Mutex;
use tokio::time::sleep;

/// Maximum size of the page and its script together, in bytes.
const MAX_SIZE: usize = 100_000;
const DESKTOP: Screen = Screen {
    width: 1280,
    height: 800,
    is_dark: true,
};
const PHONE: Screen = Screen {
    width: 360,
    height: 740,
    is_dark: false,
};
/// Lifetime of the demo. A test ends it earlier.
const SECONDS: u64 = 600;

/// Returns a list of the differences between the page and the last event.
const DIFFERENCES: &str = include_str!("../testdata/page_differences.js");

/// The tests need the whole machine, so one runs at a time.
static SERIAL: Mutex<()> = Mutex::const_new(());

/// A demo, and its page in a browser after the first event.
struct Watched {
    demo: Demo,
    browser: Browser,
}

impl Watched {
    #[expect(clippy::print_stdout, reason = "a person reads it")]
    async fn open(screen: Screen) -> Result<Self> {
        let demo = Demo::start(SECONDS).await?;
        let mut browser = Browser::start().await?;
        let begun = Instant::now();
        browser.open(&demo.address(), screen).await?;
        browser.wait_for("window.demo.events > 0").await?;
        let event = begun.elapsed();
        browser.wait_for("window.demo.drawn > 0").await?;
        let is_dark = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).every(part => part < 128)";
        let is_dark = browser.evaluate(is_dark).await?;
        ensure!(is_dark == screen.is_dark, "the page is dark: {is_dark}");
        println!(
            "first event after {event:.1?}, first bubble after {:.1?}",
            begun.elapsed()
        );
        Ok(Self { demo, browser })
    }

    /// Clicks a button, and waits until the last event is as expected.
    async fn does(&mut self, button: &str, expect: &str) -> Result<()> {
        self.browser.click(&format!("[data-do={button}]")).await?;
        let done = self.sees(expect).await;
        done.with_context(|| button.to_owned())?;
        self.agrees().await.with_context(|| button.to_owned())
    }

    /// Checks that the page shows the last event.
    async fn agrees(&mut self) -> Result<()> {
        let differences = self.browser.evaluate(DIFFERENCES).await?;
        ensure!(
            differences == json!([]),
            "the page differs from the event: {differences}"
        );
        Ok(())
    }

    /// Waits until an expression over the last event `it` is true.
    async fn sees(&mut self, expect: &str) -> Result<()> {
        let expression = format!("(() => {{ const it = window.demo.last; return {expect}; }})()");
        self.browser.wait_for(&expression).await
    }

    /// Returns the text of an element.
    async fn text(&mut self, id: &str) -> Result<String> {
        let text = format!("document.getElementById('{id}').innerText");
        let text = self.browser.evaluate(&text).await?;
        Ok(text.as_str().context("no text")?.to_owned())
    }

    /// Checks that the page logged no error.
    fn has_no_errors(self) -> Result<()> {
        let errors = self.browser.errors();
        ensure!(errors.is_empty(), "the page had errors: {errors:#?}");
        Ok(())
    }
}

/// Returns the number of requests in the totals of an event.
fn requests(event: &Value) -> Result<u64> {
    let requests = event.pointer("/totals/requests").and_then(Value::as_u64);
    requests.context("no totals in an event")
}

#[tokio::test]
async fn the_page_shows_each_response_and_the_servers_counts() -> Result<()> {
    let _serial = SERIAL.lock().await;
    let mut page = Watched::open(DESKTOP).await?;
    page.browser
        .wait_for("window.demo.colours().v1 > 1000")
        .await?;
    page.does("new", "it.rollout.current.number === 2").await?;
    page.sees("it.personas[1].shares['2'] === 100 && it.personas[2].shares['2'] === 100")
        .await?;
    page.browser
        .wait_for("window.demo.colours().v1 > 1000 && window.demo.colours().v2 > 1000")
        .await?;
    // Mirrored requests reach the new version while the old one answers everyone.
    page.sees("it.totals.copies['2'] > 20 && it.personas[0].shares['1'] === 100")
        .await?;
    page.browser.wait_for("window.demo.outlines > 20").await?;

    // The count of the server is between two counts of the page.
    page.agrees().await?;
    let last = page.browser.evaluate("window.demo.last").await?;
    let server = page.demo.events().await?.next().await?;
    let after = page
        .browser
        .evaluate("new Promise(done => setTimeout(() => done(window.demo.last), 300))")
        .await?;
    let (first, counted, then) = (requests(&last)?, requests(&server)?, requests(&after)?);
    ensure!(
        first <= counted && counted <= then,
        "the page had {first}, the server {counted}, the page then {then}"
    );
    page.has_no_errors()
}

#[tokio::test]
async fn every_button_works() -> Result<()> {
    let _serial = SERIAL.lock().await;
    let mut page = Watched::open(DESKTOP).await?;
    // Without an update, the button to promote is disabled.
    let refused =
        "document.querySelector('[data-do=promote]').getAttribute('aria-disabled') === 'true'";
    page.browser.wait_for(refused).await?;
    page.agrees().await?;

    page.does("new", "it.rollout.step === 4").await?;
    page.does(
        "promote",
        "it.weights.asked === 25 && it.weights.written === 25",
    )
    .await?;
    page.sees("Math.abs(it.weights.measured - 25) < 15").await?;
    // The chart has curves of the written and of the measured weight.
    page.browser
        .wait_for(
            "window.demo.colours('shares').mark > 50 && window.demo.colours('shares').ink > 50",
        )
        .await?;
    let table = page.text("tables").await?;
    ensure!(table.contains("reviews-canary"), "{table}");
    page.browser
        .wait_for("document.querySelector('#tables .mine') !== null")
        .await?;
    let log = page.text("log").await?;
    for call in [
        "SetHeaderRoute testers",
        "SetMirrorRoute copies",
        "SetWeight 25",
        "verified",
    ] {
        ensure!(log.contains(call), "{call} is not in {log}");
    }

    page.does("kill", "it.plugin.starts === 2 && it.plugin.id !== null")
        .await?;
    let reverted = "document.getElementById('log').innerText.includes('GitOps restores')";
    page.does("revert", reverted).await?;
    let written = "[...document.querySelectorAll('#log li')].filter(it => it.querySelector('details') && \
                   it.querySelector('code')?.textContent === 'SetWeight 25').length";
    page.browser.wait_for(&format!("{written} === 2")).await?;
    page.sees("it.weights.written === 25").await?;
    page.does("away", "it.switches.away").await?;
    page.browser
        .wait_for("document.querySelector('#log .no') !== null")
        .await?;
    page.does("away", "!it.switches.away").await?;
    page.sees("it.totals.failed === 0 && it.weights.written === 25")
        .await?;

    page.does("pause", "it.rollout.paused").await?;
    let go_on = "document.querySelector('[data-do=pause]').textContent.startsWith('Resume')";
    page.browser.wait_for(go_on).await?;
    page.does("pause", "!it.rollout.paused").await?;
    page.does(
        "abort",
        "it.rollout.phase === 'Degraded' && it.weights.written === 0",
    )
    .await?;
    page.sees("it.personas[0].shares['1'] === 100").await?;
    page.does(
        "retry",
        "it.rollout.phase === 'Paused' && it.rollout.step === 4",
    )
    .await?;
    page.does(
        "full",
        "it.rollout.phase === 'Healthy' && it.rollout.stable.number === 2",
    )
    .await?;
    page.sees("it.weights.written === 0 && it.personas[0].shares['2'] === 100")
        .await?;
    // No abort, promotion or fault has lost a request.
    page.sees("it.totals.failed === 0 && it.pods.length === 1")
        .await?;
    let table = page.text("tables").await?;
    ensure!(!table.contains("reviews-canary"), "{table}");

    page.does("bad", "it.rollout.current.fails && it.rollout.step === 4")
        .await?;
    page.does("promote", "it.totals.failed > 5").await?;
    page.browser.wait_for("window.demo.crosses > 20").await?;
    page.browser
        .wait_for("window.demo.colours().bad > 300 && window.demo.colours('faults').bad > 300")
        .await?;
    page.agrees().await?;
    page.does(
        "abort",
        "it.rollout.aborted && it.personas[0].shares['2'] === 100",
    )
    .await?;

    // The failure that the guard prevents: the gateway knows no Pods of the stable Service.
    page.does("late", "it.switches.late").await?;
    page.does("at_once", "it.switches.at_once").await?;
    page.does(
        "new",
        "it.rollout.step === 4 && it.rollout.current.number === 4",
    )
    .await?;
    page.sees("it.personas[1].shares['4'] === 100").await?;
    page.does(
        "full",
        "it.totals.failures['503 UF'] + it.totals.failures['503 UH'] > 20 || \
                       it.totals.failures['503 UF'] > 20 || it.totals.failures['503 UH'] > 20",
    )
    .await?;
    page.does("late", "!it.switches.late").await?;
    page.does("at_once", "!it.switches.at_once").await?;

    // Buttons that need an API server say so.
    for button in ["guard", "delete"] {
        page.browser.click(&format!("[data-why={button}]")).await?;
        page.browser
            .wait_for("document.getElementById('said').textContent.includes('API server')")
            .await
            .with_context(|| button.to_owned())?;
    }
    page.has_no_errors()
}

#[tokio::test]
async fn the_page_works_on_a_phone_and_with_the_keyboard() -> Result<()> {
    let _serial = SERIAL.lock().await;
    let mut page = Watched::open(PHONE).await?;
    page.browser.press("n").await?;
    page.sees("it.rollout.step === 4").await?;
    // Three times the tab key from the top of the page: the third button promotes.
    page.browser
        .evaluate("document.activeElement.blur()")
        .await?;
    for _ in 0..3 {
        page.browser.press("Tab").await?;
    }
    page.browser
        .wait_for("document.activeElement.dataset.do === 'promote'")
        .await?;
    page.browser.press("Enter").await?;
    page.sees("it.weights.asked >= 10").await?;
    let overflows = "[document.documentElement.scrollWidth, innerWidth]";
    let widths = page.browser.evaluate(overflows).await?;
    ensure!(widths == json!([PHONE.width, PHONE.width]), "{widths}");
    page.browser
        .wait_for("window.demo.colours().v1 > 1000 && window.demo.colours().v2 > 1000")
        .await?;
    page.has_no_errors()
}

#[tokio::test]
async fn another_site_can_neither_read_events_nor_send_commands() -> Result<()> {
    let _serial = SERIAL.lock().await;
    let demo = Demo::start(SECONDS).await?;
    let port = demo.port();
    let host = format!("host: 127.0.0.1:{port}");
    let origin = format!("origin: http://127.0.0.1:{port}");
    let json = "content-type: application/json";
    let order = json!({"what": "new"}).to_string();
    let cases: [(&str, Vec<&str>, &str, u16); 11] = [
        ("GET /", vec![&host], "", 200),
        ("GET /app.js", vec![&host], "", 200),
        ("GET /", vec!["host: evil.example"], "", 403),
        ("GET /events", vec!["host: evil.example"], "", 403),
        (
            "POST /do",
            vec![&host, "origin: https://evil.example", json],
            &order,
            403,
        ),
        (
            "POST /do",
            vec!["host: evil.example", "origin: http://evil.example", json],
            &order,
            403,
        ),
        ("POST /do", vec![&host, json], &order, 403),
        (
            "POST /do",
            vec![&host, &origin, "content-type: text/plain"],
            &order,
            415,
        ),
        ("POST /do", vec![&host, &origin, json], "{}", 400),
        (
            "POST /do",
            vec![&host, &origin, json],
            "{\"what\":\"promote\"}",
            409,
        ),
        ("POST /do", vec![&host, &origin, json], &order, 204),
    ];
    let mut size = 0;
    for (line, headers, body, expect) in cases {
        let answer = demo.request(line, &headers, body).await?;
        ensure!(
            answer.status == expect,
            "{line} {headers:?} {body}: {answer:?}"
        );
        if expect == 200 {
            size += answer.body.len();
            ensure!(
                answer
                    .head
                    .contains("content-security-policy: default-src 'none'"),
                "{}",
                answer.head
            );
            for foreign in ["http:", "https:", "url("] {
                ensure!(!answer.body.contains(foreign), "{line} contains {foreign}");
            }
        }
    }
    ensure!(
        size > 10_000 && size <= MAX_SIZE,
        "the page has {size} bytes"
    );
    Ok(())
}

#[tokio::test]
async fn the_demo_ends_after_its_time_and_leaves_no_process() -> Result<()> {
    let _serial = SERIAL.lock().await;
    let mut demo = Demo::start(2).await?;
    let children = demo.children()?;
    ensure!(
        children.len() == 2,
        "an Envoy and a plugin, not {children:?}"
    );
    // An open page does not keep the demo running.
    let mut events = demo.events().await?;
    events.next().await?;
    let ended = demo.ended().await?;
    ensure!(ended.success(), "{ended}");
    eventually("no process is left", async || {
        let left = |child: &&u32| PathBuf::from(format!("/proc/{child}")).exists();
        let left: Vec<&u32> = children.iter().filter(left).collect();
        ensure!(left.is_empty(), "{left:?}");
        Ok(())
    })
    .await?;
    Ok(())
}

/// The commands in the recording, each after a number of seconds.
const COMMANDS: [(u64, &str); 7] = [
    (3, "new"),
    (9, "promote"),
    (20, "kill"),
    (25, "promote"),
    (43, "bad"),
    (48, "promote"),
    (54, "abort"),
];
/// Seconds of the recording.
const RECORDED: u64 = 59;
/// The recording has every second event of the server.
const EVERY: usize = 2;

/// Without `PICTURES` the test writes no files, but still checks that a short recording plays.
#[tokio::test]
async fn a_recording_plays_without_a_server() -> Result<()> {
    let _serial = SERIAL.lock().await;
    let directory = env::var_os("PICTURES").map(PathBuf::from);
    let recorded = if directory.is_some() { RECORDED } else { 5 };
    let demo = Demo::start(SECONDS).await?;
    let recording = record(&demo, recorded).await?;
    ensure!(
        recording.len() < 400_000,
        "the recording has {} bytes",
        recording.len()
    );

    let site = tempfile::tempdir()?;
    let page = demo
        .request("GET /", &[&format!("host: 127.0.0.1:{}", demo.port())], "")
        .await?;
    let script = demo
        .request(
            "GET /app.js",
            &[&format!("host: 127.0.0.1:{}", demo.port())],
            "",
        )
        .await?;
    let own = "<script src=\"app.js\"";
    let page = page.body.replace(
        own,
        &format!("<script src=\"recording.js\" defer></script>\n{own}"),
    );
    for (name, text) in [
        ("index.html", &page),
        ("app.js", &script.body),
        ("recording.js", &recording),
    ] {
        fs::write(site.path().join(name), text)?;
    }
    drop(demo);
    let mut browser = Browser::start().await?;
    let address = format!("file://{}", site.path().join("index.html").display());
    browser.open(&address, DESKTOP).await?;
    browser
        .wait_for("window.demo.events > 5 && window.demo.colours().v1 > 1000")
        .await?;
    browser
        .wait_for("window.demo.last.rollout.current.number === 2")
        .await?;
    ensure!(browser.errors().is_empty(), "{:?}", browser.errors());
    drop(browser);

    if let Some(directory) = directory {
        fs::create_dir_all(&directory)?;
        fs::write(directory.join("recording.js"), &recording)?;
        pictures(&directory).await?;
    }
    Ok(())
}

/// Records events as a script. Each entry has only the fields that differ from the previous one.
async fn record(demo: &Demo, seconds: u64) -> Result<String> {
    let mut events = demo.events().await?;
    let begun = Instant::now();
    let mut commands = COMMANDS.iter().map(|(at, what)| {
        if seconds < RECORDED {
            (0, what)
        } else {
            (*at, what)
        }
    });
    let mut next = commands.next();
    let mut script = "window.recording = [\n".to_owned();
    let mut before = Map::new();
    let mut kept = Map::new();
    let mut count = 0;
    while begun.elapsed() < Duration::from_secs(seconds) {
        let event = events.next().await?;
        if let Some((at, what)) = next
            && begun.elapsed() >= Duration::from_secs(at)
        {
            demo.order(what).await?;
            next = if seconds < RECORDED {
                None
            } else {
                commands.next()
            };
        }
        for (key, value) in event.as_object().context("an event is no object")? {
            match (key.as_str(), kept.get_mut(key)) {
                ("bubbles", Some(Value::String(bubbles))) => {
                    bubbles.push_str(value.as_str().unwrap_or_default());
                }
                ("log" | "points", Some(Value::Array(list))) => {
                    list.extend(value.as_array().cloned().unwrap_or_default());
                }
                _ => drop(kept.insert(key.clone(), value.clone())),
            }
        }
        count += 1;
        if count % EVERY == 0 {
            let news = kept
                .iter()
                .filter(|(key, value)| before.get(*key) != Some(value));
            let news: Map<String, Value> = news
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect();
            let at = begun.elapsed().as_millis();
            writeln!(script, "[{at},{}],", Value::Object(news))?;
            before = std::mem::take(&mut kept);
        }
    }
    script.push_str("];\n");
    Ok(script)
}

/// Takes pictures at four moments, at both widths and in both themes.
async fn pictures(directory: &std::path::Path) -> Result<()> {
    let demo = Demo::start(SECONDS).await?;
    let mut browser = Browser::start().await?;
    let tall = |screen: Screen, height| Screen { height, ..screen };
    let moments: [(&str, &[(&str, u64)]); 4] = [
        ("start", &[]),
        ("middle", &[("new", 5), ("promote", 13)]),
        ("promoted", &[("full", 4)]),
        ("aborted", &[("bad", 4), ("promote", 12), ("abort", 2)]),
    ];
    for (moment, orders) in moments {
        for (what, seconds) in orders {
            demo.order(what).await?;
            sleep(Duration::from_secs(*seconds)).await;
        }
        for (name, screen) in [
            ("desktop", tall(DESKTOP, 1500)),
            (
                "light",
                Screen {
                    is_dark: false,
                    ..tall(DESKTOP, 800)
                },
            ),
            ("phone", tall(PHONE, 2700)),
            (
                "readme",
                Screen {
                    width: 1200,
                    ..tall(DESKTOP, 690)
                },
            ),
        ] {
            browser.open(&demo.address(), screen).await?;
            browser
                .wait_for("window.demo && window.demo.drawn > 0")
                .await?;
            // Until bubbles fill the canvas.
            sleep(Duration::from_secs(3)).await;
            browser.wait_for("window.demo.shown > 400").await?;
            let kind = if name == "readme" { "webp" } else { "png" };
            browser
                .picture(&directory.join(format!("{moment}-{name}.{kind}")))
                .await?;
        }
    }
    Ok(())
}
