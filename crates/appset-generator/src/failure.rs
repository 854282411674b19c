//! Every way in which a call is refused, with its status and its body.

use serde::Serialize;
use strict_json::Problem;

use crate::FieldError;

/// Longest message in a body, in characters: the controller copies it into three conditions of the ApplicationSet.
const MAX_MESSAGE: usize = 512;
/// Longest value of a parameter in a message, in characters.
const MAX_VALUE: usize = 64;

/// A call that is answered with an error. The controller then keeps every Application of the set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The controller never sends such a body.
    #[error("the body is no request for parameters: {0}")]
    Body(String),
    /// A parameter is unknown, or holds what it must not.
    #[error("parameters: {0}")]
    Parameter(Problem),
    /// A parameter that is to stand in the output cannot.
    #[error(transparent)]
    Field(#[from] FieldError),
    /// No source is named, and there is not exactly one.
    #[error("source is missing: set it to one of {0}")]
    NoSource(String),
    /// There is no such source.
    #[error("there is no source {name}: it is one of {known}")]
    UnknownSource {
        /// The source that was asked for.
        name: String,
        /// The sources that there are for this caller.
        known: String,
    },
    /// A template arrived as it was written.
    #[error(
        "parameter {path} is {text:?}, an unresolved template: only the second generator of a matrix is templated; set missingkey=error to find the missing key"
    )]
    UnresolvedTemplate {
        /// Path of the parameter.
        path: String,
        /// What it holds.
        text: String,
    },
    /// The request has no token.
    #[error("no token was sent: the Secret key behind the ConfigMap's token is empty")]
    NoToken,
    /// The token is not one of the configured tokens.
    #[error(
        "the token is not known here: compare the Secret behind the ConfigMap's token with the generator's"
    )]
    WrongToken,
    /// Argo CD found no such key in the Secret, and sent the reference to it.
    #[error("Argo CD sent the reference to a token instead of a token: its Secret has no such key")]
    TokenReference,
    /// What was asked for is not for this caller.
    #[error("{0}")]
    Forbidden(String),
    /// The path names a profile that does not exist.
    #[error(
        "there is no profile {0}: baseUrl must end in /profiles/<name>, or name none where there are none"
    )]
    UnknownProfile(String),
    /// There is nothing at the path.
    #[error("nothing is here: baseUrl is wrong, the path after it is /api/v1/getparams.execute")]
    UnknownPath,
    /// Parameters are asked for with POST.
    #[error("only POST is answered here")]
    Method,
    /// No set was found, and the input does not allow that.
    #[error(
        "{0} found nothing: an empty list would delete every Application of the set; if that is meant, set onEmpty: allow"
    )]
    Empty(String),
    /// Fewer sets were found than the input demands.
    #[error("{found} sets were found, minItems is {min}")]
    TooFew {
        /// How many there are.
        found: usize,
        /// How many there have to be.
        min: usize,
    },
    /// More sets were found than the input allows.
    #[error("{found} sets were found, maxItems is {max}")]
    TooMany {
        /// How many there are.
        found: usize,
        /// How many there may be.
        max: usize,
    },
    /// An image is not there, and the input takes that for an error.
    #[error("image {0} is not there: wait for its build, or set onMissing: skip")]
    MissingImage(String),
    /// An image is there, but not for the platform. `onMissing` does not hide that, since no later build is awaited.
    #[error(
        "image {image} is there for {there}, not for {platform}: build it for that, or correct platform"
    )]
    MissingPlatform {
        /// The image.
        image: String,
        /// What was asked for.
        platform: String,
        /// What there is.
        there: String,
    },
    /// A table that is selected by name is not there.
    #[error(transparent)]
    MissingTable(#[from] gloo_types::NoSuchTable),
    /// A Workspace that is selected by name is not there.
    #[error("Workspace {0} not found: create it or correct workspaces")]
    MissingWorkspace(gloo_types::ObjectKey),
    /// The head of the request cannot be read, for which HTTP has this status.
    #[error("{}", head(*.0))]
    Head(u16),
    /// The body is too long.
    #[error("the body is longer than {0} bytes")]
    BodyTooLarge(usize),
    /// Too many calls run already.
    #[error("{0} calls are running already: try again, or raise --max-concurrent")]
    Busy(usize),
    /// A bug of the generator.
    #[error("the generator failed: its log has more under this requestId")]
    Internal,
    /// What a source reads from did not give the answer.
    #[error("{0}")]
    Upstream(String),
    /// A registry did not give the digest of an image.
    #[error("registry {registry}, asked for {repository}:{tag}, {what}")]
    Registry {
        /// The registry.
        registry: String,
        /// The image's repository.
        repository: String,
        /// Its tag, which a log must not have.
        tag: String,
        /// What the registry did, and what helps.
        what: String,
    },
    /// The source has not seen everything yet.
    #[error("{0}")]
    NotReady(String),
    /// The answer took too long.
    #[error("no answer within {seconds} s: {waiting}")]
    Deadline {
        /// The deadline.
        seconds: u64,
        /// What it was waiting for.
        waiting: String,
    },
}

/// What clients and metrics tell failures apart by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code {
    /// HTTP status. All but 2xx are the same to the controller.
    pub status: u16,
    /// Stable name.
    pub name: &'static str,
}

impl Failure {
    /// An object contradicts its API, so that its sets cannot be told.
    pub(crate) fn unreadable(error: impl std::fmt::Display) -> Self {
        Self::Upstream(error.to_string())
    }

    /// The same, and it names the cluster whose objects are to blame.
    #[must_use]
    pub fn in_cluster(self, name: &str) -> Self {
        let placed = |text: String| format!("cluster {name}: {text}");
        match self {
            Self::MissingTable(gloo_types::NoSuchTable { what }) => {
                Self::MissingTable(gloo_types::NoSuchTable { what: placed(what) })
            }
            Self::Upstream(what) => Self::Upstream(placed(what)),
            Self::NotReady(what) => Self::NotReady(placed(what)),
            other => other,
        }
    }

    /// Status and stable name.
    #[must_use]
    pub const fn code(&self) -> Code {
        let (status, name) = match self {
            Self::Body(_)
            | Self::Parameter(_)
            | Self::Field(_)
            | Self::NoSource(_)
            | Self::UnknownSource { .. }
            | Self::UnresolvedTemplate { .. } => (400, "invalid_input"),
            // Argo CD's documents want 403, whether a token is missing or wrong.
            Self::NoToken => (403, "unauthenticated"),
            Self::WrongToken | Self::TokenReference | Self::Forbidden(_) => (403, "forbidden"),
            Self::UnknownProfile(_) => (404, "unknown_profile"),
            Self::UnknownPath => (404, "unknown_path"),
            Self::Method => (405, "method"),
            Self::Empty(_) => (409, "guard_empty"),
            Self::TooFew { .. } => (409, "guard_min_items"),
            Self::TooMany { .. } => (409, "guard_max_items"),
            Self::MissingImage(_) => (409, "missing_image"),
            Self::MissingPlatform { .. } => (409, "missing_platform"),
            Self::MissingTable(_) => (409, "missing_table"),
            Self::MissingWorkspace(_) => (409, "missing_workspace"),
            Self::BodyTooLarge(_) => (413, "too_large"),
            Self::Head(414..=431) => (431, "head_too_large"),
            Self::Head(_) => (400, "invalid_head"),
            Self::Busy(_) => (429, "busy"),
            Self::Internal => (500, "internal"),
            Self::Upstream(_) | Self::Registry { .. } => (502, "upstream"),
            Self::NotReady(_) => (503, "not_ready"),
            Self::Deadline { .. } => (504, "deadline"),
        };
        Code { status, name }
    }

    /// The body of the response. `request_id` is what the log has.
    #[must_use]
    pub fn to_body(&self, request_id: &str) -> Vec<u8> {
        let body = Body {
            message: &one_line(&self.to_string()),
            code: self.code().name,
            request_id,
        };
        // Three strings can always be written, and no status of ours is 2xx.
        serde_json::to_vec(&body).unwrap_or_default()
    }

    /// The text for the log, without anything that the request sent. The caller gets the whole message, with the same request ID.
    #[must_use]
    pub fn to_log(&self) -> String {
        match self {
            Self::Parameter(problem) => format!("parameter {} is wrong", problem.path()),
            Self::UnresolvedTemplate { path, .. } => {
                format!("parameter {path} is an unresolved template")
            }
            Self::Body(_) => "the body is no request for parameters".to_owned(),
            Self::Field(_) => "a parameter cannot be in the output".to_owned(),
            Self::UnknownSource { known, .. } => format!("no such source: it is one of {known}"),
            Self::Forbidden(_) => "what was asked for is not allowed".to_owned(),
            Self::UnknownProfile(_) => "no such profile".to_owned(),
            Self::MissingImage(_) => "an image is not there".to_owned(),
            Self::MissingPlatform { .. } => "an image is not there for the platform".to_owned(),
            Self::Registry {
                registry,
                repository,
                what,
                ..
            } => format!("registry {registry}, asked for {repository}, {what}"),
            Self::MissingTable(_) => "a RouteTable is not there".to_owned(),
            Self::MissingWorkspace(_) => "a Workspace is not there".to_owned(),
            Self::NoSource(_)
            | Self::NoToken
            | Self::WrongToken
            | Self::TokenReference
            | Self::UnknownPath
            | Self::Method
            | Self::Empty(_)
            | Self::TooFew { .. }
            | Self::TooMany { .. }
            | Self::Head(_)
            | Self::BodyTooLarge(_)
            | Self::Busy(_)
            | Self::Internal
            | Self::Upstream(_)
            | Self::NotReady(_)
            | Self::Deadline { .. } => self.to_string(),
        }
    }
}

impl From<Problem> for Failure {
    fn from(mut problem: Problem) -> Self {
        match &mut problem {
            Problem::Value { path, found, .. } => {
                *path = shown(path);
                *found = shown(found);
            }
            Problem::Type { path, .. }
            | Problem::UnknownKey { path, .. }
            | Problem::Empty { path, .. }
            | Problem::Conflict { path, .. } => *path = shown(path),
        }
        Self::Parameter(problem)
    }
}

/// The part of `text`, which a request sent, that a message may show.
pub(crate) fn shown(text: &str) -> String {
    limited(text, MAX_VALUE)
}

const fn head(status: u16) -> &'static str {
    match status {
        414..=431 => "the head of the request is too large: 16 KiB and 64 headers are the most",
        _ => "the head of the request is not HTTP/1.1",
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Body<'a> {
    message: &'a str,
    code: &'a str,
    request_id: &'a str,
}

/// `text` on one line, of at most [`MAX_MESSAGE`] characters.
fn one_line(text: &str) -> String {
    limited(&text.replace(char::is_control, " "), MAX_MESSAGE)
}

/// The first `most` characters of `text`.
fn limited(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        None => text.to_owned(),
        Some(_) => text.chars().take(most - 3).chain("...".chars()).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Whatever a message quotes, a body is one JSON object with a short line.
        #[test]
        fn a_body_is_one_short_line_of_json(text in "(\\PC|[\n\r\t\u{0}\"\\\\]){0,700}") {
            let failures = [
                Failure::Body(text.clone()),
                Failure::Forbidden(text.clone()),
                Failure::Upstream(text.clone()),
                Failure::UnresolvedTemplate { path: text.clone(), text },
            ];
            for failure in failures {
                let body: serde_json::Value = serde_json::from_slice(&failure.to_body("id")).unwrap();
                let message = body["message"].as_str().unwrap();
                prop_assert!(message.chars().count() <= MAX_MESSAGE);
                prop_assert!(!message.contains(char::is_control));
                prop_assert!(!(200..300).contains(&failure.code().status));
            }
        }
    }

    #[test]
    fn values_are_cut_in_answers_and_left_out_of_logs() {
        let value = format!("hush{}", "x".repeat(100));
        let failures = [
            Failure::from(Problem::Value {
                path: "tag".to_owned(),
                found: value.clone(),
                expected: "a tag".into(),
            }),
            Failure::UnresolvedTemplate {
                path: "tag".to_owned(),
                text: shown(&value),
            },
            Failure::UnknownSource {
                name: shown(&value),
                known: "hello".to_owned(),
            },
        ];
        for failure in failures {
            let text = failure.to_string();
            assert!(
                text.contains("hush") && !text.contains(&"x".repeat(61)),
                "{text}"
            );
            let log = failure.to_log();
            assert!(!log.contains("hush"), "{log}");
        }
    }

    #[test]
    fn a_body() {
        let body = Failure::Empty("source hello".to_owned()).to_body("4f");
        insta::assert_snapshot!(String::from_utf8(body).unwrap(), @r#"{"message":"source hello found nothing: an empty list would delete every Application of the set; if that is meant, set onEmpty: allow","code":"guard_empty","requestId":"4f"}"#);
    }
}
