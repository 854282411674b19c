//! Every message of this crate that a person sees, once, as a file to read from top to bottom.
//!
//! Each `after` matches all variants and returns the example that follows, so a new variant does not compile until it is listed.

use std::fmt;
use std::time::Duration;

use kube::core::Status;

use crate::StoreError;
use crate::kube_api::{CertificateFault, ClientError, ConnectError};

fn list<M: fmt::Display>(first: M, after: impl Fn(&M) -> Option<M>) -> String {
    let all = std::iter::successors(Some(first), after);
    all.map(|it| format!("{it}\n")).collect()
}

fn after_store(it: &StoreError) -> Option<StoreError> {
    use StoreError as E;
    let (verb, what) = ("get", "RouteTable shop/web".to_owned());
    Some(match it {
        E::NotFound { .. } => E::Conflict(what),
        E::Conflict(_) => E::Rejected {
            what,
            reason: "admission webhook denied the request".to_owned(),
        },
        E::Rejected { .. } => E::Forbidden {
            verb,
            what,
            resource: "routetables.networking.gloo.solo.io".to_owned(),
            reason: "User \"jane\" cannot get resource".to_owned(),
        },
        E::Forbidden { .. } => E::Timeout {
            verb,
            what,
            after: Duration::from_secs(3),
        },
        E::Timeout { .. } => E::CallEnded { verb, what },
        E::CallEnded { .. } => E::Failing {
            verb,
            what,
            reason: "connection refused".into(),
        },
        E::Failing { .. } => E::Throttled { verb, what },
        E::Throttled { .. } => E::Withdrawn { verb, what },
        E::Withdrawn { .. } => E::Unreachable {
            verb,
            what,
            source: "connection refused".into(),
        },
        E::Unreachable { .. } => E::Unreadable {
            what,
            kind: "RouteTable",
            source: "must be a list, found an object".into(),
        },
        E::Unreadable { .. } => return None,
    })
}

fn after_fault(it: &CertificateFault) -> Option<CertificateFault> {
    Some(match it {
        CertificateFault::Authority => CertificateFault::UnknownIssuer,
        CertificateFault::UnknownIssuer => CertificateFault::OtherName,
        CertificateFault::OtherName => CertificateFault::Expired,
        CertificateFault::Expired => CertificateFault::Refused,
        CertificateFault::Refused => return None,
    })
}

fn after_client(it: &ClientError) -> Option<ClientError> {
    match it {
        ClientError::Answered { .. } => Some(ClientError::Other("connection refused".to_owned())),
        ClientError::Other(_) => None,
    }
}

fn after_connect(it: &ConnectError) -> Option<ConnectError> {
    Some(match it {
        ConnectError::Infer(_) => ConnectError::Kubeconfig {
            path: "/home/jane/.kube/config".to_owned(),
            reason: "it has no context east".to_owned(),
        },
        ConnectError::Kubeconfig { .. } => ConnectError::Proxy {
            server: "https://10.0.0.1:6443".to_owned(),
        },
        ConnectError::Proxy { .. } => {
            ConnectError::Client(ClientError::Other("no private key".to_owned()))
        }
        ConnectError::Client(_) => return None,
    })
}

#[test]
fn every_message() {
    let gone = StoreError::NotFound {
        what: "RouteTable shop/web".to_owned(),
    };
    let status = Status::failure("no such route", "NotFound").with_code(404);
    let answered = ClientError::from(kube::Error::Api(Box::new(status)));
    let faults = list(CertificateFault::Authority, after_fault);
    let infer = ConnectError::Infer("there is none".to_owned());
    let parts = [
        ("An object is not read or written", list(gone, after_store)),
        (
            "The cause in the API server or the connection",
            list(answered, after_client) + &faults,
        ),
        ("There is no connection", list(infer, after_connect)),
    ];
    let text: String = parts
        .map(|(head, lines)| format!("# {head}\n\n{lines}\n"))
        .concat();
    insta::assert_snapshot!(text);
}
