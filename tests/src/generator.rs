//! The ApplicationSet generator as a process, and requests like those of Argo CD and the kubelet.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::eventually;
use crate::process::Process;

/// A running generator. Dropping it ends the process.
#[derive(Debug)]
pub struct Generator {
    process: Process,
    /// Contains the log, and possibly the configuration.
    _directory: TempDir,
    api: String,
    ops: String,
}

/// An answer of the generator.
#[derive(Debug)]
pub struct Reply {
    /// The status code.
    pub status: u16,
    /// JSON from the API port; a line or metrics from the ops port.
    pub body: String,
}

impl Generator {
    /// Starts `$GENERATOR_BINARY` on free ports, with only `variables` as its environment, and waits until it listens.
    ///
    /// # Errors
    /// Returns `Err` with the end of its log if it does not start.
    pub async fn start(args: &[impl AsRef<OsStr>], variables: &[(&str, &Path)]) -> Result<Self> {
        Self::start_in(tempfile::tempdir()?, args, variables).await
    }

    /// Starts the generator with a configuration and a token for the cluster of a kubeconfig.
    ///
    /// # Errors
    /// See [`Generator::start`].
    pub async fn start_with(config: &str, token: &str, kubeconfig: &Path) -> Result<Self> {
        let directory = tempfile::tempdir()?;
        let file = directory.path().join("config.yaml");
        let tokens = directory.path().join("tokens");
        fs::write(&file, config)?;
        fs::create_dir(&tokens)?;
        fs::write(tokens.join("argocd"), token)?;
        let variables = [
            ("GLOO_APPSET_CONFIG", file.as_path()),
            ("GLOO_APPSET_TOKENS_DIR", &tokens),
            ("GLOO_APPSET_KUBECONFIG", kubeconfig),
        ];
        Self::start_in(directory, &[] as &[&str], &variables).await
    }

    async fn start_in(
        directory: TempDir,
        args: &[impl AsRef<OsStr>],
        variables: &[(&str, &Path)],
    ) -> Result<Self> {
        let mut command = Command::new(generator_binary()?);
        command
            .args(args)
            .env_clear()
            // So that it does not read the kubeconfig of the tests' user.
            .env("HOME", directory.path())
            .envs(variables.iter().copied());
        for listen in ["GLOO_APPSET_LISTEN", "GLOO_APPSET_OPS_LISTEN"] {
            command.env(listen, "127.0.0.1:0");
        }
        let mut process = Process::start("gloo-appset-generator", directory.path(), &mut command)?;
        let [api, ops] = eventually("the generator listens or ends", async || {
            if process.exit_status()?.is_some() {
                return Ok(None);
            }
            let log = fs::read_to_string(process.log())?;
            let address =
                |role| address(&log, role).with_context(|| format!("no {role} in: {log}"));
            Ok(Some([address("api")?, address("ops")?]))
        })
        .await?
        .with_context(|| process.log_tail())?;
        Ok(Self {
            process,
            _directory: directory,
            api,
            ops,
        })
    }

    /// Returns the output of `--help` in one line.
    ///
    /// # Errors
    /// Returns `Err` if it does not start.
    pub fn help() -> Result<String> {
        let output = Command::new(generator_binary()?).arg("--help").output()?;
        let lines = String::from_utf8(output.stdout)?;
        Ok(lines.split_whitespace().collect::<Vec<_>>().join(" "))
    }

    /// Requests parameter sets like Argo CD. `path` is the path of the `baseUrl`.
    ///
    /// # Errors
    /// Returns `Err` if there is no answer.
    pub async fn ask(&self, path: &str, token: &str, parameters: &Value) -> Result<Reply> {
        let body = json!({ "applicationSetName": "any", "input": { "parameters": parameters } })
            .to_string();
        let head = format!(
            "POST {path}/api/v1/getparams.execute HTTP/1.1\r\nauthorization: Bearer {token}\r\ncontent-length: {}",
            body.len()
        );
        send(&self.api, &head, &body).await
    }

    /// Sends a GET to the ops port, like the kubelet and Prometheus.
    ///
    /// # Errors
    /// Returns `Err` if there is no answer.
    pub async fn get(&self, path: &str) -> Result<Reply> {
        send(&self.ops, &format!("GET {path} HTTP/1.1"), "").await
    }

    /// Returns the last lines of the log.
    #[must_use]
    pub fn log_tail(&self) -> String {
        self.process.log_tail()
    }
}

impl Reply {
    /// Checks the status, and that the body has `text`.
    ///
    /// # Errors
    /// Returns `Err` if one of them is wrong.
    pub fn check(&self, status: u16, text: &str) -> Result<()> {
        ensure!(
            self.status == status && self.body.contains(text),
            "not {status} with {text:?}: {self:?}"
        );
        Ok(())
    }
}

/// Returns the path in `$GENERATOR_BINARY`.
fn generator_binary() -> Result<PathBuf> {
    let binary = PathBuf::from(env::var_os("GENERATOR_BINARY").unwrap_or_default());
    ensure!(
        binary.is_absolute() && binary.is_file(),
        "GENERATOR_BINARY must be the absolute path of the generator, it is {binary:?}"
    );
    Ok(binary)
}

/// Returns the address of a role that the generator has logged.
fn address(log: &str, role: &str) -> Option<String> {
    log.lines().find_map(|line| {
        let record: Value = serde_json::from_str(line).ok()?;
        (record.get("role")? == role).then(|| Some(record.get("address")?.as_str()?.to_owned()))?
    })
}

/// Sends one request over HTTP, and reads the answer.
pub(crate) async fn send(address: &str, head: &str, body: &str) -> Result<Reply> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("{head}\r\nhost: any\r\nconnection: close\r\n\r\n{body}");
    stream.write_all(request.as_bytes()).await?;
    let mut reply = String::new();
    stream.read_to_string(&mut reply).await?;
    let (head, body) = reply.split_once("\r\n\r\n").context("cut short")?;
    let status = head.split(' ').nth(1).context("no status")?;
    Ok(Reply {
        status: status.parse()?,
        body: body.to_owned(),
    })
}
