//! Checks the plugin's file: the one that the controller reads or downloads, compared with the checksum of the entry.
//!
//! The controller checks only downloads, and only against a checksum of 64 lower-case digits (upstream
//! `utils/plugin/downloader.go`).

use std::time::Duration;

use http::header::LOCATION;
use http::{Request, StatusCode, Uri};
use http_body_util::BodyExt as _;
use kube::client::Body;
use kube::{Client, Config};
use ring::digest::{SHA256, digest};
use rollouts_rpc::error_chain;
use route_store::{ClientError, user_agent_header};

use super::Finding;
use super::config_map::Entry;

const SUBJECT: &str = "plugin file";

/// Longest time of a download.
const PATIENCE: Duration = Duration::from_secs(60);

/// A release page redirects to the server with the files. As many as Go's client follows.
const REDIRECTS: usize = 10;

/// Reads or downloads the file of an entry, and compares it.
pub(super) async fn check(entry: &Entry) -> Finding {
    if let Some(problem) = mistake(entry) {
        return Finding::problem(SUBJECT, problem);
    }
    let Entry { name, location, .. } = entry;
    let read = match location.strip_prefix("file://") {
        Some(path) => std::fs::read(path).map_err(|_| {
            format!("{path} is not on this machine: run doctor in the controller's container to check it")
        }),
        None => download(location).await.map_err(|error| {
            format!("{location} cannot be downloaded from this machine, so its checksum is not checked: {error}")
        }),
    };
    match read {
        Ok(bytes) => compare(entry, &bytes),
        Err(reason) => Finding::warning(SUBJECT, format!("{name}: {reason}")),
    }
}

/// Returns a mistake of the entry that keeps the controller from starting.
fn mistake(entry: &Entry) -> Option<String> {
    let (name, digits) = (&entry.name, &entry.sha256);
    let is_digit = |c| matches!(c, '0'..='9' | 'a'..='f');
    if !digits.is_empty() && (digits.len() != 64 || !digits.chars().all(is_digit)) {
        return Some(format!(
            "{name}: sha256 must be 64 lower-case hexadecimal digits"
        ));
    }
    let mut schemes = ["file://", "https://", "http://"].iter();
    let is_known = schemes.any(|scheme| entry.location.starts_with(scheme));
    (!is_known).then(|| format!("{name}: location must start with file://, https:// or http://"))
}

/// Compares the checksum of the file with that of the entry.
fn compare(entry: &Entry, bytes: &[u8]) -> Finding {
    let (name, location, expected) = (&entry.name, &entry.location, &entry.sha256);
    let digest = digest(&SHA256, bytes);
    let digits = digest.as_ref().iter().map(|byte| format!("{byte:02x}"));
    let actual: String = digits.collect();
    let path = location.strip_prefix("file://");
    let place = path.unwrap_or(location);
    if !expected.is_empty() && actual != *expected {
        let message = format!(
            "{name}: {place} has sha256 {actual}, the entry says {expected}: correct one of them"
        );
        return Finding::problem(SUBJECT, message);
    }
    match path {
        Some(path) => Finding::ok(SUBJECT, format!("{name}: {path}, sha256 {actual}")),
        None if expected.is_empty() => {
            let message = format!(
                "{name}: the controller does not check what it downloads: add sha256: {actual} to the entry"
            );
            Finding::warning(SUBJECT, message)
        }
        None => Finding::ok(
            SUBJECT,
            format!("{name}: downloaded from {location}, sha256 {actual} as in the entry"),
        ),
    }
}

/// Downloads a file, with the HTTP client that reaches the API server.
async fn download(location: &str) -> Result<Vec<u8>, String> {
    tokio::time::timeout(PATIENCE, follow(location))
        .await
        .unwrap_or_else(|_| Err(format!("no answer within {} s", PATIENCE.as_secs())))
}

async fn follow(location: &str) -> Result<Vec<u8>, String> {
    let mut next: Uri = location.parse().map_err(|_| "not a URL".to_owned())?;
    for _ in 0..=REDIRECTS {
        let (code, redirect, bytes) = fetch(&next)
            .await
            .map_err(|error| error_chain(&ClientError::from(error)))?;
        match redirect {
            Some(target) if code.is_redirection() => next = resolve(&next, &target)?,
            _ if code == StatusCode::OK => return Ok(bytes),
            _ => return Err(format!("the server answered {code}")),
        }
    }
    Err(format!("more than {REDIRECTS} redirects"))
}

/// Returns the code of the answer, the target of a redirect, and the body.
async fn fetch(uri: &Uri) -> Result<(StatusCode, Option<String>, Vec<u8>), kube::Error> {
    let mut parts = uri.clone().into_parts();
    let path = parts
        .path_and_query
        .replace(http::uri::PathAndQuery::from_static("/"));
    let server = Uri::from_parts(parts).map_err(|error| kube::Error::HttpError(error.into()))?;
    let mut config = Config::new(server);
    config
        .headers
        .extend(user_agent_header(&crate::user_agent()));
    let client = Client::try_from(config)?;
    let path = path.map_or_else(|| "/".to_owned(), |path| path.to_string());
    let request = Request::get(path).body(Body::empty());
    let answer = client
        .send(request.map_err(kube::Error::HttpError)?)
        .await?;
    let code = answer.status();
    let redirect = answer.headers().get(LOCATION);
    let redirect = redirect
        .and_then(|target| target.to_str().ok())
        .map(str::to_owned);
    let body = answer.into_body().collect().await?;
    Ok((code, redirect, body.to_bytes().to_vec()))
}

/// Returns the target of a redirect, which may be a path of the same server.
fn resolve(from: &Uri, target: &str) -> Result<Uri, String> {
    let absolute = match (from.scheme_str(), from.authority()) {
        (Some(scheme), Some(authority)) if target.starts_with('/') => {
            format!("{scheme}://{authority}{target}")
        }
        _ => target.to_owned(),
    };
    absolute
        .parse()
        .map_err(|_| "a redirect to an invalid URL".to_owned())
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;

    use super::super::Verdict;
    use super::*;

    const DIGEST: &str = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";

    #[track_caller]
    fn judge(location: &str, sha256: &str, expect: (Verdict, &str)) {
        let entry = Entry {
            name: "solo-io/glooplatform".to_owned(),
            location: location.to_owned(),
            sha256: sha256.to_owned(),
            args: Vec::new(),
        };
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let finding = runtime.block_on(check(&entry));
        assert_eq!(finding.verdict, expect.0, "{}", finding.message);
        assert!(finding.message.contains(expect.1), "{}", finding.message);
    }

    #[test]
    fn an_entry_that_no_controller_loads_is_a_problem() {
        let upper = DIGEST.to_uppercase();
        judge("https://x/y", &upper, (Verdict::Problem, "64 lower-case"));
        judge(
            "/plugins/x",
            "",
            (Verdict::Problem, "must start with file://"),
        );
    }

    #[test]
    fn a_file_is_compared_where_it_is() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "hello").unwrap();
        let location = format!("file://{}", file.path().display());
        let other = DIGEST.replace('2', "3");
        judge(&location, DIGEST, (Verdict::Ok, DIGEST));
        judge(&location, "", (Verdict::Ok, DIGEST));
        judge(&location, &other, (Verdict::Problem, "correct one of them"));
        let elsewhere = (Verdict::Warning, "/nowhere is not on this machine");
        judge("file:///nowhere", DIGEST, elsewhere);
    }

    /// A server that redirects to the file, and the URL of the redirect.
    fn server() -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut request = [0; 4096];
                let length = stream.read(&mut request).unwrap();
                let request = String::from_utf8_lossy(&request[..length]).into_owned();
                let answer = match request.split(' ').nth(1).unwrap() {
                    "/latest" => "302 Found\r\nlocation: /v1/plugin",
                    "/v1/plugin" => "200 OK",
                    _ => "404 Not Found",
                };
                let answer = format!(
                    "HTTP/1.1 {answer}\r\ncontent-length: 5\r\nconnection: close\r\n\r\nhello"
                );
                stream.write_all(answer.as_bytes()).unwrap();
            }
        });
        format!("http://{address}")
    }

    #[test]
    fn a_download_is_claimed_only_if_it_was_made() {
        let server = server();
        let latest = format!("{server}/latest");
        let other = DIGEST.replace('2', "3");
        judge(&latest, DIGEST, (Verdict::Ok, "as in the entry"));
        judge(&latest, &other, (Verdict::Problem, "correct one of them"));
        judge(
            &latest,
            "",
            (Verdict::Warning, &format!("add sha256: {DIGEST}")),
        );
        judge(
            &format!("{server}/none"),
            DIGEST,
            (Verdict::Warning, "the server answered 404"),
        );
        // Nothing listens there.
        let closed = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap();
        judge(
            &format!("http://{closed}/x"),
            DIGEST,
            (Verdict::Warning, "its checksum is not checked"),
        );
    }
}
