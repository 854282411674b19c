//! The errors of kube's client as people read them: kube prints the answer of the API server in Rust's debug form.

use std::error::Error;
use std::time::Duration;
use std::{io, iter};

use kube::core::Status;
use rustls::CertificateError;
use tower::BoxError;

/// An error of kube's client, in words. Each `kube::Error` that reaches a person is converted to it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The API server answered with an error status.
    #[error("the API server answered {code}{detail}")]
    Answered {
        /// The HTTP status.
        code: u16,
        /// The message in one line, after a separator; empty without a message.
        detail: String,
        /// The pause that the API server asks for.
        after: Option<Duration>,
    },
    /// There is no answer, or it cannot be read. Has the first cause: the layers above it name parts of the client.
    #[error("{0}")]
    Other(String),
}

impl From<kube::Error> for ClientError {
    fn from(error: kube::Error) -> Self {
        let kube::Error::Api(status) = error else {
            return Self::Other(first_cause(&error));
        };
        let message = one_line(&status.message);
        let separator = if message.is_empty() { "" } else { ": " };
        Self::Answered {
            code: status.code,
            detail: format!("{separator}{message}"),
            after: retry_after(&status),
        }
    }
}

/// Returns the pause that the API server asks for in an answer.
pub(super) fn retry_after(status: &Status) -> Option<Duration> {
    let seconds = status.details.as_ref()?.retry_after_seconds;
    (seconds > 0).then(|| Duration::from_secs(seconds.into()))
}

/// Returns an error and its causes, the first cause last.
fn causes<'e>(error: &'e (dyn Error + 'static)) -> impl Iterator<Item = &'e (dyn Error + 'static)> {
    iter::successors(Some(error), |&error| {
        match error.downcast_ref::<io::Error>() {
            // Its `source` is that of the error that it was made of, which may be another I/O error.
            Some(error) => error.get_ref().map(|inner| inner as &(dyn Error + 'static)),
            None => error.source(),
        }
    })
}

/// Returns the first cause in one line, after the address of the API server if the error is about its connection.
pub(super) fn first_cause(error: &(dyn Error + 'static)) -> String {
    if let Some(fault) = causes(error).find_map(CertificateFault::of) {
        return fault.to_string();
    }
    let server = causes(error).filter_map(|it| it.downcast_ref::<NoAnswerFrom>());
    let text = causes(error).last().map(|it| one_line(&it.to_string()));
    let text = match text.unwrap_or_default() {
        text if text.starts_with("failed to lookup address") => {
            "its host name is not known".to_owned()
        }
        text => text.split(" (os error").take(1).collect(),
    };
    let first = text.chars().take(1).map(|it| it.to_ascii_lowercase());
    let text: String = first.chain(text.chars().skip(1)).collect();
    match server.last() {
        Some(NoAnswerFrom(at, _)) => format!("{at}: {text}"),
        None => text,
    }
}

/// An error of a connection, with the address of the API server: the errors of sockets and of TLS do not name the other side.
#[derive(Debug, thiserror::Error)]
#[error("{0}: {1}")]
pub(super) struct NoAnswerFrom(pub(super) String, #[source] pub(super) BoxError);

pub(super) fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Why the certificate of the API server is refused. rustls prints some of the reasons in Rust's debug form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CertificateFault {
    /// It is the certificate of an authority, which kubectl accepts from a server and rustls does not: whoever has the key of
    /// an authority can also issue certificates for other servers.
    #[error(
        "the certificate of the API server is that of a certificate authority (CA:TRUE): give the API server a certificate with CA:FALSE, signed by it"
    )]
    Authority,
    /// Its issuer is not known, or has the name of a known one and another key, as after a cluster was created again.
    #[error(
        "the certificate of the API server is signed by an unknown authority: correct certificate-authority in the kubeconfig"
    )]
    UnknownIssuer,
    /// It is for other names.
    #[error(
        "the certificate of the API server is for another host name: correct server or tls-server-name in the kubeconfig"
    )]
    OtherName,
    /// Its time is over, or has not begun.
    #[error(
        "the certificate of the API server has expired or is not valid yet: renew it, or correct the clock"
    )]
    Expired,
    /// Another reason.
    #[error("the certificate of the API server is refused: check it with openssl x509")]
    Refused,
}

impl CertificateFault {
    fn of(error: &(dyn Error + 'static)) -> Option<Self> {
        match error.downcast_ref()? {
            rustls::Error::InvalidCertificate(fault) => Some(Self::new(fault)),
            _ => None,
        }
    }

    fn new(fault: &CertificateError) -> Self {
        match fault {
            CertificateError::UnknownIssuer | CertificateError::BadSignature => Self::UnknownIssuer,
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                Self::OtherName
            }
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. } => Self::Expired,
            CertificateError::Other(other) => match other.0.downcast_ref() {
                Some(webpki::Error::CaUsedAsEndEntity) => Self::Authority,
                _ => Self::Refused,
            },
            _ => Self::Refused,
        }
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    #[track_caller]
    fn check(error: kube::Error, expect: &str) {
        assert_eq!(ClientError::from(error).to_string(), expect);
    }

    #[test]
    fn no_error_is_in_debug_form() {
        let status = Status::failure("no such\nroute", "NotFound").with_code(404);
        check(
            kube::Error::Api(Box::new(status)),
            "the API server answered 404: no such route",
        );
        check(
            kube::Error::Service("connection refused".into()),
            "connection refused",
        );
        let refused = io::Error::other("Connection refused (os error 111)");
        let refused = NoAnswerFrom("https://shop:6443/".to_owned(), refused.into());
        check(
            kube::Error::Service(refused.into()),
            "https://shop:6443/: connection refused",
        );
        let authority = CertificateError::Other(rustls::OtherError(std::sync::Arc::new(
            webpki::Error::CaUsedAsEndEntity,
        )));
        for (fault, expect) in [
            (authority, CertificateFault::Authority),
            (
                CertificateError::UnknownIssuer,
                CertificateFault::UnknownIssuer,
            ),
            (CertificateError::Expired, CertificateFault::Expired),
            (
                CertificateError::NotValidForName,
                CertificateFault::OtherName,
            ),
            (CertificateError::Revoked, CertificateFault::Refused),
        ] {
            let broken = io::Error::other(rustls::Error::InvalidCertificate(fault));
            let broken = io::Error::other(broken);
            check(kube::Error::Service(broken.into()), &expect.to_string());
        }
    }
}
