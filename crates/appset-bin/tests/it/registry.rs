//! A registry that says what a test wants, and remembers what it was asked.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

/// A registry on loopback. It ends with the test's process.
pub(crate) struct Registry {
    pub(crate) host: String,
    requests: Arc<Mutex<Vec<String>>>,
}

/// A response: status, further headers, body.
pub(crate) type Said = (u16, Vec<(&'static str, String)>, String);

impl Registry {
    /// Answers every request as `answer` says, which gets `METHOD /path` and the Authorization header; never if it says
    /// nothing.
    pub(crate) fn start(
        answer: impl Fn(&str, &str) -> Option<Said> + Send + Sync + 'static,
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

    /// `METHOD /path` of every request until now.
    pub(crate) fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }
}

fn serve(
    stream: TcpStream,
    seen: &Mutex<Vec<String>>,
    answer: &dyn Fn(&str, &str) -> Option<Said>,
) {
    let mut writer = stream.try_clone().unwrap();
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    while let Some(first) = lines.next() {
        let mut authorization = String::new();
        for line in lines.by_ref().take_while(|line| !line.is_empty()) {
            if let Some((name, value)) = line.split_once(": ")
                && name.eq_ignore_ascii_case("authorization")
            {
                value.clone_into(&mut authorization);
            }
        }
        let asked = first.trim_end_matches(" HTTP/1.1").to_owned();
        seen.lock().unwrap().push(asked.clone());
        let Some((status, headers, body)) = answer(&asked, &authorization) else {
            // Keeps the connection, and says nothing.
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
