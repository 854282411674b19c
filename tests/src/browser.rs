//! A headless Chromium, controlled by the DevTools protocol over a pipe, so that no driver, port or WebSocket is needed.
//!
//! With `--remote-debugging-pipe` it reads commands from file descriptor 3 and writes to 4. Each message is JSON followed by a
//! NUL byte. A shell connects its stdin and stdout to these descriptors.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context as _, Result, bail, ensure};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use rustix::process::geteuid;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::fs;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

use crate::{DEADLINE, eventually};

/// The environment variable with the path of the browser.
const VARIABLE: &str = "CHROMIUM_BINARY";
/// Names of the program in Debian's and other packages.
const NAMES: [&str; 5] = [
    "chromium-headless-shell",
    "chromium",
    "chromium-browser",
    "google-chrome",
    "chrome",
];

/// Returns the path in `$CHROMIUM_BINARY`, or of a Chromium on the `PATH`.
///
/// # Errors
/// Returns `Err` if there is none. The error says what to install.
pub fn chromium_binary() -> Result<PathBuf> {
    if let Some(path) = env::var_os(VARIABLE).filter(|path| !path.is_empty()) {
        let path = PathBuf::from(path);
        ensure!(
            path.is_file(),
            "{VARIABLE} is {}, which is not a file",
            path.display()
        );
        return Ok(path);
    }
    let path = env::var_os("PATH").unwrap_or_default();
    let mut found = NAMES.iter().flat_map(|name| {
        let directories: Vec<PathBuf> = env::split_paths(&path).collect();
        directories
            .into_iter()
            .map(move |directory| directory.join(name))
    });
    found.find(|path| path.is_file()).with_context(|| {
        format!(
            "there is no Chromium: install the package chromium or chromium-headless-shell, or set {VARIABLE} to the path of one"
        )
    })
}

/// A browser with one page. Dropping it kills the process.
pub struct Browser {
    commands: ChildStdin,
    messages: BufReader<ChildStdout>,
    next: u64,
    session: String,
    errors: Vec<String>,
    _child: Child,
    _profile: TempDir,
}

/// Size and colour scheme of the page.
#[derive(Clone, Copy, Debug)]
pub struct Screen {
    /// Width in pixels.
    pub width: u32,
    /// Height in pixels.
    pub height: u32,
    /// Whether the user prefers dark pages.
    pub is_dark: bool,
}

impl Browser {
    /// Starts the browser with an empty page.
    ///
    /// # Errors
    /// Returns `Err` if there is no Chromium, or it does not start.
    pub async fn start() -> Result<Self> {
        let profile = TempDir::new()?;
        let mut command = Command::new("sh");
        command
            .args([
                "-c",
                "exec \"$@\" 3<&0 4>&1 </dev/null >/dev/null 2>&1",
                "sh",
            ])
            .arg(chromium_binary()?)
            .args([
                "--headless",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--no-first-run",
            ])
            .args(["--remote-debugging-pipe", "--hide-scrollbars"])
            .arg(format!("--user-data-dir={}", profile.path().display()));
        if geteuid().is_root() {
            // As root, Chromium only runs without its sandbox.
            command.arg("--no-sandbox");
        }
        command.arg("about:blank");
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let mut browser = Self {
            commands: child.stdin.take().context("no stdin")?,
            messages: BufReader::new(child.stdout.take().context("no stdout")?),
            next: 1,
            session: String::new(),
            errors: Vec::new(),
            _child: child,
            _profile: profile,
        };
        let target = browser
            .command("Target.createTarget", json!({"url": "about:blank"}))
            .await?;
        let attach = json!({"targetId": text(&target, "/targetId")?, "flatten": true});
        let attached = browser.command("Target.attachToTarget", attach).await?;
        browser.session = text(&attached, "/sessionId")?;
        for domain in ["Page", "Runtime", "Log"] {
            browser
                .command(&format!("{domain}.enable"), json!({}))
                .await?;
        }
        Ok(browser)
    }

    /// Opens an address.
    ///
    /// # Errors
    /// Returns `Err` if the browser reports an error.
    pub async fn open(&mut self, address: &str, screen: Screen) -> Result<()> {
        let Screen {
            width,
            height,
            is_dark,
        } = screen;
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600});
        self.command("Emulation.setDeviceMetricsOverride", size)
            .await?;
        let scheme = if is_dark { "dark" } else { "light" };
        let features = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.command("Emulation.setEmulatedMedia", features).await?;
        let opened = self
            .command("Page.navigate", json!({"url": address}))
            .await?;
        ensure!(opened.get("errorText").is_none(), "{address}: {opened}");
        Ok(())
    }

    /// Evaluates an expression in the page, and awaits a promise.
    ///
    /// # Errors
    /// Returns `Err` if the expression throws.
    pub async fn evaluate(&mut self, expression: &str) -> Result<Value> {
        let params = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let result = self.command("Runtime.evaluate", params).await?;
        if let Some(thrown) = result.get("exceptionDetails") {
            bail!("{expression}: {thrown}");
        }
        Ok(result.pointer("/result/value").cloned().unwrap_or_default())
    }

    /// Waits until an expression is true in the page.
    ///
    /// # Errors
    /// Returns `Err` if that is not so before the deadline.
    pub async fn wait_for(&mut self, expression: &str) -> Result<()> {
        let held = eventually(expression, async || {
            // The expression throws while an element does not exist yet.
            let value = self.evaluate(expression).await?;
            ensure!(value == true, "it is {value}");
            Ok(())
        });
        held.await
    }

    /// Clicks the middle of an element with the mouse.
    ///
    /// # Errors
    /// Returns `Err` if there is no such element, or another one covers it.
    pub async fn click(&mut self, selector: &str) -> Result<()> {
        let selector = json!(selector);
        let place = format!(
            "(() => {{ const it = document.querySelector({selector}); it.scrollIntoView({{block: 'center'}}); \
             const box = it.getBoundingClientRect(); const [x, y] = [box.x + box.width / 2, box.y + box.height / 2]; \
             return [x, y, it.contains(document.elementFromPoint(x, y))]; }})()"
        );
        let place = self.evaluate(&place).await?;
        ensure!(
            place.pointer("/2") == Some(&json!(true)),
            "{selector} is covered: {place}"
        );
        for kind in ["mousePressed", "mouseReleased"] {
            let event = json!({
                "type": kind, "button": "left", "clickCount": 1,
                "x": place.pointer("/0"), "y": place.pointer("/1"),
            });
            self.command("Input.dispatchMouseEvent", event).await?;
        }
        Ok(())
    }

    /// Presses a key.
    ///
    /// # Errors
    /// Returns `Err` if the browser reports an error.
    pub async fn press(&mut self, key: &str) -> Result<()> {
        let (text, code) = match key {
            "Enter" => ("\r", 13),
            "Tab" => ("", 9),
            key => (key, 0),
        };
        for kind in ["keyDown", "keyUp"] {
            let text = if kind == "keyDown" { text } else { "" };
            let event =
                json!({"type": kind, "key": key, "text": text, "windowsVirtualKeyCode": code});
            self.command("Input.dispatchKeyEvent", event).await?;
        }
        Ok(())
    }

    /// Writes a screenshot. The extension of the file is its format.
    ///
    /// # Errors
    /// Returns `Err` if the browser reports an error, or the file cannot be written.
    pub async fn picture(&mut self, file: &Path) -> Result<()> {
        let format = file.extension().and_then(|it| it.to_str()).unwrap_or("png");
        let mut params = json!({"format": format});
        if format != "png"
            && let Some(params) = params.as_object_mut()
        {
            params.insert("quality".to_owned(), 82.into());
        }
        let picture = self.command("Page.captureScreenshot", params).await?;
        let picture = BASE64_STANDARD.decode(text(&picture, "/data")?)?;
        fs::write(file, picture)
            .await
            .with_context(|| file.display().to_string())
    }

    /// Returns the page's exceptions, logged errors and failed loads so far.
    #[must_use]
    pub fn errors(&self) -> &[String] {
        &self.errors
    }

    /// Sends a command and waits for its result.
    async fn command(&mut self, method: &str, params: Value) -> Result<Value> {
        let id = self.next;
        self.next += 1;
        let mut command = json!({"id": id, "method": method, "params": params});
        if let Some(command) = command.as_object_mut().filter(|_| !self.session.is_empty()) {
            command.insert("sessionId".to_owned(), self.session.clone().into());
        }
        let command = format!("{command}\0");
        self.commands.write_all(command.as_bytes()).await?;
        let result = async {
            loop {
                let message = self.message().await?;
                if message.get("id").and_then(Value::as_u64) != Some(id) {
                    self.errors.extend(error_of(&message));
                } else if let Some(error) = message.get("error") {
                    bail!("{method}: {error}");
                } else {
                    return Ok(message.get("result").cloned().unwrap_or_default());
                }
            }
        };
        let result = timeout(DEADLINE, result).await;
        result.with_context(|| format!("{method}: Chromium does not answer"))?
    }

    async fn message(&mut self) -> Result<Value> {
        let mut message = Vec::new();
        self.messages.read_until(0, &mut message).await?;
        ensure!(message.pop() == Some(0), "Chromium has ended");
        Ok(serde_json::from_slice(&message)?)
    }
}

/// Returns the text of an event if it reports an error of the page.
fn error_of(event: &Value) -> Option<String> {
    let method = event.get("method")?.as_str()?;
    let is_error = match method {
        "Runtime.exceptionThrown" => true,
        "Runtime.consoleAPICalled" => event.pointer("/params/type")? == "error",
        "Log.entryAdded" => event.pointer("/params/entry/level")? == "error",
        _ => false,
    };
    is_error.then(|| event.to_string())
}

fn text(value: &Value, pointer: &str) -> Result<String> {
    let text = value.pointer(pointer).and_then(Value::as_str);
    let text = text.with_context(|| format!("no {pointer} in {value}"))?;
    Ok(text.to_owned())
}
