//! A running generator, an HTTP client that can stop in the middle of a request, and a fake HTTP server.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use std::{fs, thread};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

/// The timeout after which a test fails.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Writes a kubeconfig, without a login, for the API server at `host`.
pub(crate) fn kubeconfig(dir: &Path, host: &str) -> PathBuf {
    let file = dir.join("kubeconfig");
    let text = format!(
        "apiVersion: v1
kind: Config
current-context: any
contexts: [{{name: any, context: {{cluster: any, user: any}}}}]
clusters: [{{name: any, cluster: {{server: 'http://{host}'}}}}]
users: [{{name: any, user: {{}}}}]
"
    );
    fs::write(&file, text).unwrap();
    file
}

/// A running generator. Dropping it ends the process.
pub(crate) struct Generator {
    dir: TempDir,
    process: Child,
    records: Receiver<Value>,
    /// Log records that were already read.
    seen: Vec<Value>,
    api: String,
    ops: String,
}

/// A response.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) body: String,
    head: String,
}

impl Generator {
    /// Starts the generator with a configuration and tokens, each a name and a value.
    pub(crate) fn start(config: &str, tokens: &[(&str, &str)]) -> Self {
        Self::start_with(config, tokens, &[])
    }

    pub(crate) fn start_with(config: &str, tokens: &[(&str, &str)], flags: &[&str]) -> Self {
        Self::start_in(&[], config, tokens, flags)
    }

    /// Starts the generator with environment variables.
    pub(crate) fn start_in(
        environment: &[(&str, &str)],
        config: &str,
        tokens: &[(&str, &str)],
        flags: &[&str],
    ) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let tokens_dir = dir.path().join("tokens");
        fs::create_dir(&tokens_dir).unwrap();
        for (name, token) in tokens {
            fs::write(tokens_dir.join(name), token).unwrap();
        }
        let tokens = format!("--tokens-dir={}", tokens_dir.display());
        Self::spawn(
            dir,
            environment,
            config,
            &[&[tokens.as_str()], flags].concat(),
        )
    }

    /// Starts the generator with one token in the file `token`.
    pub(crate) fn start_with_token_file(config: &str, token: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("token");
        fs::write(&file, token).unwrap();
        let flag = format!("--token-file={}", file.display());
        Self::spawn(dir, &[], config, &[&flag])
    }

    /// Starts the generator with a directory of tokens that does not exist.
    pub(crate) fn start_in_missing_tokens(config: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let flag = format!("--tokens-dir={}", dir.path().join("tokens").display());
        Self::spawn(dir, &[], config, &[&flag])
    }

    /// Starts the generator without tokens, but with flags that may name some.
    pub(crate) fn start_alone(config: &str, flags: &[&str]) -> Self {
        Self::spawn(tempfile::tempdir().unwrap(), &[], config, flags)
    }

    fn spawn(dir: TempDir, environment: &[(&str, &str)], config: &str, flags: &[&str]) -> Self {
        let config_file = dir.path().join("config.yaml");
        fs::write(&config_file, config).unwrap();

        let mut process = Command::new(env!("CARGO_BIN_EXE_gloo-appset-generator"))
            .args(["--listen=127.0.0.1:0", "--ops-listen=127.0.0.1:0"])
            .args(["--shutdown-delay=0", "--config"])
            .arg(config_file)
            .args(flags)
            .envs(environment.iter().copied())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stderr = BufReader::new(process.stderr.take().unwrap());
        let (send, records) = channel();
        thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                let record = serde_json::from_str(&line).unwrap_or(Value::String(line));
                if send.send(record).is_err() {
                    break;
                }
            }
        });
        let mut generator = Self {
            dir,
            process,
            records,
            seen: Vec::new(),
            api: String::new(),
            ops: String::new(),
        };
        generator.api = generator.address("api");
        generator.ops = generator.address("ops");
        generator
    }

    /// Returns the address of the port for Argo CD.
    pub(crate) fn api(&self) -> &str {
        &self.api
    }

    /// Returns the directory with `config.yaml`, and `tokens` or `token`.
    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Requests parameters below `path` with a bearer token.
    pub(crate) fn post(&self, path: &str, token: Option<&str>, body: &str) -> Reply {
        let token = token.map(|token| ("authorization", format!("Bearer {token}")));
        let path = format!("{path}/api/v1/getparams.execute");
        self.send("POST", &path, token.as_slice(), body)
    }

    pub(crate) fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, String)],
        body: &str,
    ) -> Reply {
        let mut call = self.begin(method, path, headers, body.len());
        // The server may refuse the request before it reads the body.
        call.0.write_all(body.as_bytes()).ok();
        call.reply()
    }

    /// Sends the head of a request whose body has `length` bytes.
    pub(crate) fn begin(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, String)],
        length: usize,
    ) -> Call {
        let mut call = self.connect();
        let headers: String = headers
            .iter()
            .map(|(name, value)| format!("{name}: {value}\r\n"))
            .collect();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: any.\r\ncontent-length: {length}\r\n{headers}\r\n"
        );
        call.0.write_all(head.as_bytes()).unwrap();
        call
    }

    /// Opens a connection to the port for Argo CD.
    pub(crate) fn connect(&self) -> Call {
        Call(TcpStream::connect(&self.api).unwrap())
    }

    /// Opens a connection to the port for the kubelet and Prometheus.
    pub(crate) fn connect_ops(&self) -> Call {
        Call(TcpStream::connect(&self.ops).unwrap())
    }

    /// Returns the resident memory of the process in bytes.
    pub(crate) fn memory(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.id())).unwrap();
        let line = status
            .lines()
            .find(|line| line.starts_with("VmRSS:"))
            .unwrap();
        let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
        kib << 10
    }

    /// Returns the time on a processor that the process has used, in hundredths of a second.
    pub(crate) fn cpu_ticks(&self) -> u64 {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.process.id())).unwrap();
        let (_name, fields) = stat.rsplit_once(") ").unwrap();
        let times = fields.split(' ').skip(11).take(2);
        times.map(|time| time.parse::<u64>().unwrap()).sum()
    }

    /// Sends the bytes of a whole request.
    pub(crate) fn replay(&self, request: &[u8]) -> Reply {
        let mut call = self.connect();
        call.0.write_all(request).unwrap();
        call.reply()
    }

    /// Sends a GET to the port for the kubelet and Prometheus.
    pub(crate) fn ops(&self, path: &str) -> Reply {
        let mut call = Call(TcpStream::connect(&self.ops).unwrap());
        let head = format!("GET {path} HTTP/1.1\r\nhost: any\r\n\r\n");
        call.0.write_all(head.as_bytes()).unwrap();
        call.reply()
    }

    /// Waits until the metrics contain a line.
    #[track_caller]
    pub(crate) fn wait_for(&self, line: &str) {
        self.wait_until("/metrics", line);
    }

    /// Waits until the response at `path` contains `part`.
    #[track_caller]
    pub(crate) fn wait_until(&self, path: &str, part: &str) {
        let started = Instant::now();
        while !self.ops(path).body.contains(part) {
            assert!(started.elapsed() < TIMEOUT, "{path} never had {part}");
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until all files that may have changed are read again.
    pub(crate) fn reload(&self) {
        let reloads = || -> u64 {
            let metrics = self.ops("/metrics").body;
            let mut lines = metrics.lines();
            let count = lines.find_map(|line| line.strip_prefix("gloo_appset_reloads_total "));
            count.unwrap().parse().unwrap()
        };
        // A reload that was going on may have read a file before the change.
        for _ in 0..2 {
            let before = reloads();
            self.signal(Signal::HUP);
            let started = Instant::now();
            while reloads() == before {
                assert!(started.elapsed() < TIMEOUT, "the files were never read");
                thread::sleep(Duration::from_millis(2));
            }
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).unwrap();
    }

    pub(crate) fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Terminates the process and returns its log.
    pub(crate) fn stop(mut self) -> Vec<Value> {
        self.terminate();
        self.end()
    }

    /// Waits for the end of the process and returns its log.
    pub(crate) fn end(&mut self) -> Vec<Value> {
        assert!(self.process.wait().unwrap().success());
        let mut records = std::mem::take(&mut self.seen);
        records.extend(self.records.iter());
        records
    }

    fn address(&mut self, role: &str) -> String {
        loop {
            let record = self.records.recv().expect("a generator that listens");
            let found = (record["role"] == role).then(|| record["address"].clone());
            self.seen.push(record);
            if let Some(Value::String(address)) = found {
                return address;
            }
        }
    }
}

impl Drop for Generator {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

/// A connection on which a request may have begun.
pub(crate) struct Call(TcpStream);

impl Call {
    /// Waits until the server closes the connection without a response.
    pub(crate) fn closed(mut self) {
        self.0.set_read_timeout(Some(TIMEOUT)).unwrap();
        assert_eq!(self.0.read(&mut [0]).unwrap(), 0);
    }

    pub(crate) fn send(&mut self, text: &str) {
        self.0.write_all(text.as_bytes()).unwrap();
    }

    /// Sends text, and ignores an error.
    pub(crate) fn try_send(&mut self, text: &str) {
        self.0.write_all(text.as_bytes()).ok();
    }

    /// Reads the response: the head, and a body of `content-length` bytes.
    pub(crate) fn reply(self) -> Reply {
        let mut stream = BufReader::new(self.0);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert_ne!(stream.read_line(&mut head).unwrap(), 0, "cut short: {head}");
        }
        let mut reply = Reply {
            status: head.split(' ').nth(1).unwrap().parse().unwrap(),
            body: String::new(),
            head,
        };
        let length: usize = reply.header("content-length").unwrap().parse().unwrap();
        let mut body = vec![0; length];
        stream.read_exact(&mut body).unwrap();
        reply.body = String::from_utf8(body).unwrap();
        reply
    }
}

impl Reply {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let value = line.strip_prefix(name)?.strip_prefix(": ")?;
            Some(value.trim())
        })
    }
}

/// A fake HTTP server on loopback for registries, API servers and proxies. It records its requests.
pub(crate) struct FakeServer {
    pub(crate) host: String,
    requests: Arc<Mutex<Vec<String>>>,
}

/// A response: status, additional headers, body.
pub(crate) type Response = (u16, Vec<(&'static str, String)>, String);

impl FakeServer {
    /// Starts the server. `answer` gets `METHOD /path` and the Authorization header. If it returns `None`, the request gets no
    /// response.
    pub(crate) fn start(
        answer: impl Fn(&str, &str) -> Option<Response> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let host = listener.local_addr().unwrap().to_string();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (seen, answer) = (Arc::clone(&requests), Arc::new(answer));
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (seen, answer) = (Arc::clone(&seen), Arc::clone(&answer));
                thread::spawn(move || serve(stream, &seen, &*answer));
            }
        });
        Self { host, requests }
    }

    /// Returns `METHOD /path` of every request so far.
    pub(crate) fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }
}

fn serve(
    stream: TcpStream,
    seen: &Mutex<Vec<String>>,
    answer: &dyn Fn(&str, &str) -> Option<Response>,
) {
    let mut writer = stream.try_clone().unwrap();
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    while let Some(first) = lines.next() {
        let mut authorization = String::new();
        let mut user_agent = String::new();
        for line in lines.by_ref().take_while(|line| !line.is_empty()) {
            if let Some((name, value)) = line.split_once(": ") {
                if name.eq_ignore_ascii_case("authorization") {
                    value.clone_into(&mut authorization);
                }
                if name.eq_ignore_ascii_case("user-agent") {
                    value.clone_into(&mut user_agent);
                }
            }
        }
        let is_ours = user_agent.starts_with("gloo-appset-generator/");
        // The server reads a body as further requests, and a request for a tunnel has no User-Agent. A panic leaves the request
        // without a response.
        let is_request = first.ends_with(" HTTP/1.1") && !first.starts_with("CONNECT ");
        assert!(is_ours || !is_request, "{first}: {user_agent}");
        let asked = first.trim_end_matches(" HTTP/1.1").to_owned();
        seen.lock().unwrap().push(asked.clone());
        let Some((status, headers, body)) = answer(&asked, &authorization) else {
            // Keeps the connection open.
            lines.next();
            return;
        };
        let headers: String = headers
            .iter()
            .map(|(name, value)| format!("{name}: {value}\r\n"))
            .collect();
        let length = body.len();
        let body = if asked.starts_with("HEAD") { "" } else { &body };
        let response =
            format!("HTTP/1.1 {status} X\r\ncontent-length: {length}\r\n{headers}\r\n{body}");
        if writer.write_all(response.as_bytes()).is_err() {
            return;
        }
    }
}
