//! The judge of `go/gloo`, which reads objects by the protos of Gloo's vendor, and what it is asked about.

pub mod random;
pub mod reading;

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use anyhow::{Context as _, Result};
use serde::Deserialize;
use serde_json::Value;

use crate::program;

/// A running judge.
#[derive(Debug)]
pub struct Judge {
    child: Child,
    questions: ChildStdin,
    answers: BufReader<ChildStdout>,
    /// The schemas that follow from the protos, by message, such as `RouteTableSpec`.
    pub definitions: Value,
}

/// The judgement about an object.
#[derive(Debug, Deserialize)]
pub struct Judgement {
    /// Why Gloo refuses it.
    #[serde(default)]
    pub refused: Vec<String>,
    /// What Gloo reads of `metadata` and `spec`, without fields that have their default.
    pub read: Value,
}

impl Judge {
    /// Starts the judge.
    ///
    /// # Errors
    /// Returns `Err` if the judge is not built, or cannot read the protos.
    pub fn start() -> Result<Self> {
        let module = Path::new(env!("CARGO_MANIFEST_DIR")).join("go/gloo");
        let mut child = program("gloo")?
            .arg(module)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut judge = Self {
            questions: child.stdin.take().context("no stdin")?,
            answers: BufReader::new(child.stdout.take().context("no stdout")?),
            child,
            definitions: Value::Null,
        };
        judge.definitions = serde_json::from_str(&judge.answer()?)?;
        Ok(judge)
    }

    /// Judges an object.
    ///
    /// # Errors
    /// Returns `Err` if the judge has ended.
    pub fn judge(&mut self, object: &Value) -> Result<Judgement> {
        writeln!(self.questions, "{object}")?;
        let answer = self.answer()?;
        serde_json::from_str(&answer).with_context(|| answer)
    }

    fn answer(&mut self) -> Result<String> {
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        Ok(line)
    }
}

impl Drop for Judge {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
