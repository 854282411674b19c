//! The errors with which a call is refused, each with its status and body.

use gloo_types::{NoSuchTable, ObjectKey};
use serde_json::json;
use strict_json::Problem;

use crate::FieldError;

/// The longest message in a body, in characters. The controller copies it into three conditions of the ApplicationSet.
const MAX_MESSAGE: usize = 512;
/// The longest value of a parameter in a message, in characters.
const MAX_VALUE: usize = 64;

/// The reason why a call is answered with an error. The controller then keeps every Application of the set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The body does not have the form that the controller sends.
    #[error("the body is not a request for parameters: {0}")]
    Body(String),
    /// A parameter is unknown or has an invalid value.
    #[error("parameters: {0}")]
    Parameter(Problem),
    /// A value cannot be in the output.
    #[error(transparent)]
    Field(#[from] FieldError),
    /// The request names no source, and the profile does not offer exactly one: the text about a key of the request that may be
    /// meant, which may be empty, and the sources that the profile offers.
    #[error("source is missing{0}: set it to one of {1}")]
    NoSource(String, String),
    /// The request names a source that the profile does not offer: the name, and the sources that it offers.
    #[error("unknown source {0}: use one of {1}")]
    UnknownSource(String, String),
    /// A parameter contains a template that Argo CD did not resolve: the path of the parameter, and its value.
    #[error(
        "parameter {0} is \"{text}\", an unresolved template: only the second generator of a matrix is templated; set missingkey=error to find the missing key",
        text = .1.escape_debug()
    )]
    UnresolvedTemplate(String, String),
    /// The request has no header with a token.
    #[error(
        "the request has no token: the ConfigMap's token must refer to a key of a Secret that is not empty, or add the header Authorization: Bearer <token>"
    )]
    NoToken,
    /// The request has a header for a token, with another scheme.
    #[error(
        "the request has no token: the header Authorization must begin with Bearer and a space"
    )]
    OtherScheme,
    /// The request has an empty token.
    #[error(
        "the request has no token: the key of the Secret to which the ConfigMap's token refers is empty"
    )]
    EmptyToken,
    /// The token is not one of the configured tokens.
    #[error(
        "the token is unknown: compare the Secret to which the ConfigMap's token refers with the generator's Secret"
    )]
    WrongToken,
    /// The request has two Authorization headers.
    #[error("the request has more than one Authorization header: send one")]
    TwoTokens,
    /// Argo CD did not find the key in the Secret, and sent the reference itself.
    #[error("Argo CD sent a reference instead of a token: its Secret has no such key")]
    TokenReference,
    /// The configuration or the profile does not allow the request.
    #[error("{0}")]
    Forbidden(String),
    /// The path names a profile that does not exist.
    #[error(
        "unknown profile {0}: baseUrl must end in /profiles/<name>, unless the configuration has no profiles"
    )]
    UnknownProfile(String),
    /// The path is not one of this service.
    #[error("unknown path: correct baseUrl, to which Argo CD appends /api/v1/getparams.execute")]
    UnknownPath,
    /// The method of the request is not POST.
    #[error("the method must be POST")]
    Method,
    /// The source found no set, and the request does not allow an empty answer.
    #[error(
        "{0} found nothing: an empty list would delete every Application of the set; if that is meant, set onEmpty: allow"
    )]
    Empty(String),
    /// The source found this number of sets, which is less than `minItems`.
    #[error("{0} sets were found, minItems is {1}")]
    TooFew(usize, usize),
    /// The source found this number of sets, which is more than `maxItems`.
    #[error("{0} sets were found, maxItems is {1}")]
    TooMany(usize, usize),
    /// An image does not exist, and the request does not allow to answer without it.
    #[error(
        "image {0} not found: correct the image or its tag; for a preview that waits for its build, set onMissing: skip and onEmpty: allow"
    )]
    MissingImage(String),
    /// An image exists, but not for the platform. `onMissing` has no effect, since the image is already built.
    #[error(
        "image {image} exists for {there}, not for {platform}: build it for that platform, or correct platform"
    )]
    MissingPlatform {
        /// The image.
        image: String,
        /// The platform in the request.
        platform: String,
        /// The platforms for which the image exists.
        there: String,
    },
    /// A RouteTable that is selected by name does not exist.
    #[error(transparent)]
    MissingTable(#[from] NoSuchTable),
    /// A Workspace that is selected by name does not exist.
    #[error("Workspace {0} not found: create it or correct workspaces")]
    MissingWorkspace(ObjectKey),
    /// The body is longer than this number of bytes.
    #[error("the body is longer than {0} bytes")]
    BodyTooLarge(usize),
    /// The answer is longer than this number of bytes.
    #[error(
        "the answer is longer than {0} bytes: ask for fewer sets or shorter parameters, or raise --max-answer"
    )]
    AnswerTooLarge(usize),
    /// This number of calls is the limit.
    #[error(
        "too many concurrent calls: the limit is {0}, and half of it for one of several tokens: try again, or raise --max-concurrent"
    )]
    Busy(usize),
    /// The bodies and answers in progress use this number of MiB, which is the limit.
    #[error(
        "too much memory for requests and answers in progress: the limit is {0} MiB, and half of it for one of several tokens: try again, or raise --memory"
    )]
    Memory(usize),
    /// The generator has a bug.
    #[error("the generator failed: search its log for this requestId")]
    Internal,
    /// An object that a source reads is invalid, or a system that it asks returned an error.
    #[error("{0}")]
    Upstream(String),
    /// A registry did not give the digest of an image.
    #[error("registry {registry}, asked for {repository}:{tag}, {what}")]
    Registry {
        /// The registry.
        registry: String,
        /// The image's repository.
        repository: String,
        /// The image's tag, which must not be in a log.
        tag: String,
        /// What the registry did, and the remedy.
        what: String,
    },
    /// The source does not know all objects yet.
    #[error("{0}")]
    NotReady(String),
    /// The deadline of the call passed: its length in seconds, and what the call was waiting for.
    #[error("no answer within {0} s: {1}")]
    Deadline(u64, String),
}

/// The class of a failure, for clients and metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code {
    /// The HTTP status. The controller treats all but 2xx in the same way.
    pub status: u16,
    /// A name that does not change between versions.
    pub name: &'static str,
}

impl Failure {
    /// Makes the failure for an object that does not conform to its API, so that its sets are unknown.
    pub(crate) fn unreadable(error: impl std::fmt::Display) -> Self {
        Self::Upstream(error.to_string())
    }

    /// Adds the name of the cluster whose objects caused the failure.
    #[must_use]
    pub fn in_cluster(self, name: &str) -> Self {
        let placed = |text: String| format!("cluster {name}: {text}");
        match self {
            Self::MissingTable(NoSuchTable { what }) => NoSuchTable { what: placed(what) }.into(),
            Self::Upstream(what) => Self::Upstream(placed(what)),
            Self::NotReady(what) => Self::NotReady(placed(what)),
            other => other,
        }
    }

    /// Returns the status and the name of this failure.
    #[must_use]
    pub const fn code(&self) -> Code {
        let (status, name) = match self {
            Self::Body(_)
            | Self::Parameter(_)
            | Self::Field(_)
            | Self::NoSource(..)
            | Self::UnknownSource(..)
            | Self::UnresolvedTemplate(..) => (400, "invalid_input"),
            // The documentation of Argo CD requires 403 for a missing token as well as for a wrong one.
            Self::NoToken | Self::OtherScheme | Self::EmptyToken => (403, "unauthenticated"),
            Self::WrongToken | Self::TokenReference | Self::Forbidden(_) => (403, "forbidden"),
            Self::UnknownProfile(_) => (404, "unknown_profile"),
            Self::UnknownPath => (404, "unknown_path"),
            Self::Method => (405, "method"),
            Self::Empty(_) => (409, "guard_empty"),
            Self::TooFew(..) => (409, "guard_min_items"),
            Self::TooMany(..) => (409, "guard_max_items"),
            Self::MissingImage(_) => (409, "missing_image"),
            Self::MissingPlatform { .. } => (409, "missing_platform"),
            Self::MissingTable(_) => (409, "missing_table"),
            Self::MissingWorkspace(_) => (409, "missing_workspace"),
            Self::BodyTooLarge(_) => (413, "too_large"),
            Self::AnswerTooLarge(_) => (413, "answer_too_large"),
            Self::TwoTokens => (400, "invalid_head"),
            Self::Busy(_) | Self::Memory(_) => (429, "busy"),
            Self::Internal => (500, "internal"),
            Self::Upstream(_) | Self::Registry { .. } => (502, "upstream"),
            Self::NotReady(_) => (503, "not_ready"),
            Self::Deadline(..) => (504, "deadline"),
        };
        Code { status, name }
    }

    /// Returns the body of the response. `request_id` identifies the call in the log.
    #[must_use]
    pub fn to_body(&self, request_id: &str) -> Vec<u8> {
        let line = self.to_string().replace(char::is_control, " ");
        let message = limited(&line, MAX_MESSAGE);
        let code = self.code().name;
        let body = json!({"message": message, "code": code, "requestId": request_id});
        body.to_string().into_bytes()
    }

    /// Returns the text for the log, which has no value of the request. The caller gets the whole message with the same request ID.
    #[must_use]
    pub fn to_log(&self) -> String {
        match self {
            Self::Parameter(problem) => format!("parameter {} is wrong", problem.path()),
            Self::UnresolvedTemplate(path, _) => {
                format!("parameter {path} is an unresolved template")
            }
            Self::Body(_) => "the body is not a request for parameters".to_owned(),
            Self::Field(_) => "a value cannot be in the output".to_owned(),
            Self::UnknownSource(_, known) => format!("unknown source: use one of {known}"),
            Self::NoSource(_, known) => format!("source is missing: set it to one of {known}"),
            Self::Forbidden(_) => "the request is not allowed".to_owned(),
            Self::UnknownProfile(_) => "unknown profile".to_owned(),
            Self::MissingImage(_) => "image not found".to_owned(),
            Self::MissingPlatform { .. } => "image not found for the platform".to_owned(),
            Self::Registry {
                registry,
                repository,
                what,
                ..
            } => format!("registry {registry}, asked for {repository}, {what}"),
            Self::MissingTable(_) => "RouteTable not found".to_owned(),
            Self::MissingWorkspace(_) => "Workspace not found".to_owned(),
            Self::NoToken
            | Self::OtherScheme
            | Self::EmptyToken
            | Self::WrongToken
            | Self::TokenReference
            | Self::UnknownPath
            | Self::Method
            | Self::Empty(_)
            | Self::TooFew(..)
            | Self::TooMany(..)
            | Self::BodyTooLarge(_)
            | Self::AnswerTooLarge(_)
            | Self::Busy(_)
            | Self::Memory(_)
            | Self::TwoTokens
            | Self::Internal
            | Self::Upstream(_)
            | Self::NotReady(_)
            | Self::Deadline(..) => self.to_string(),
        }
    }
}

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Self {
        Self::Parameter(problem.map(shown))
    }
}

/// Returns the part of `text`, a value of a request, that a message may contain.
pub(crate) fn shown(text: &str) -> String {
    limited(text, MAX_VALUE)
}

/// Returns `text`, shortened to `most` characters.
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
        /// The body is one JSON object with a short line for any quoted text.
        #[test]
        fn a_body_is_one_short_line_of_json(text in "(\\PC|[\n\r\t\u{0}\"\\\\]){0,700}") {
            let failures = [
                Failure::Body(text.clone()),
                Failure::Forbidden(text.clone()),
                Failure::Upstream(text.clone()),
                Failure::UnresolvedTemplate(text.clone(), text),
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
    fn values_are_shortened_in_answers_and_omitted_in_logs() {
        let value = format!("hush{}", "x".repeat(100));
        let failures = [
            (
                Failure::from(Problem::Value {
                    path: "tag".to_owned(),
                    found: value.clone(),
                    expected: "a tag".into(),
                }),
                "parameter tag is wrong",
            ),
            (
                Failure::UnresolvedTemplate("tag".to_owned(), shown(&value)),
                "parameter tag is an unresolved template",
            ),
            (
                Failure::UnknownSource(shown(&value), "hello".to_owned()),
                "unknown source: use one of hello",
            ),
        ];
        for (failure, log) in failures {
            let text = failure.to_string();
            assert!(
                text.contains("hush") && !text.contains(&"x".repeat(61)),
                "{text}"
            );
            assert_eq!(failure.to_log(), log);
        }
    }

    #[test]
    fn a_body_has_message_code_and_request_id() {
        let body = Failure::Empty("source hello".to_owned()).to_body("4f");
        insta::assert_snapshot!(String::from_utf8(body).unwrap(), @r#"{"message":"source hello found nothing: an empty list would delete every Application of the set; if that is meant, set onEmpty: allow","code":"guard_empty","requestId":"4f"}"#);
    }
}
