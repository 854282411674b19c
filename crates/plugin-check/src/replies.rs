//! What the methods return, as a controller reads it.

use std::collections::BTreeMap;

use gob::{DecodeError, Decoder};

use crate::Kind;
use crate::report::Seen;

gob::gob_struct! {
    pub(crate) struct Response as "Response" {
        pub(crate) seq: u64 as "Seq",
        pub(crate) error: String as "Error",
    }

    struct RpcError as "RpcError" {
        text: String as "ErrorString",
    }

    struct VerifyWeightResponse as "VerifyWeightResponse" {
        verified: i32 as "Verified",
        error: RpcError as "Err",
    }

    struct Measurement as "Measurement" {
        phase: String as "Phase",
        message: String as "Message",
    }

    struct StepResponse as "Response" {
        result: StepResult as "Result",
        error: RpcError as "Error",
    }

    struct StepResult as "RpcStepResult" {
        phase: String as "Phase",
        status: gob::Bytes as "Status",
    }
}

/// The methods of a kind that take an argument, with the names of their argument types.
pub(crate) fn methods(kind: Kind) -> &'static [&'static str] {
    match kind {
        Kind::Router => &[
            "UpdateHash",
            "SetWeight",
            "VerifyWeight",
            "SetHeaderRoute",
            "SetMirrorRoute",
            "RemoveManagedRoutes",
        ],
        Kind::Metric => &[
            "Run",
            "Resume",
            "Terminate",
            "GarbageCollect",
            "GetMetadata",
        ],
        Kind::Step => &["Run", "Terminate", "Abort"],
    }
}

/// Reads the body of a reply. `None` if there are too few bytes; otherwise the text of the refusal, which may be empty.
pub(crate) fn body(
    kind: Kind,
    method: &str,
    stream: &mut Decoder,
) -> Result<Option<Seen<String>>, DecodeError> {
    let phase = |phase: &str, known: &[&str]| match known.contains(&phase) {
        true => Ok(String::new()),
        false => Err(format!("its phase is {phase:?}")),
    };
    Ok(match (kind, method) {
        (_, "Type") => stream.poll_value::<String>()?.map(|_| Ok(String::new())),
        (Kind::Router, "VerifyWeight") => {
            stream
                .poll_value::<VerifyWeightResponse>()?
                .map(|reply| match reply.verified {
                    0..=2 => Ok(reply.error.text),
                    other => Err(format!("Verified is {other}")),
                })
        }
        (Kind::Metric, "Run" | "Resume" | "Terminate") => {
            stream.poll_value::<Measurement>()?.map(|reply| {
                let known = [
                    "Pending",
                    "Running",
                    "Successful",
                    "Failed",
                    "Error",
                    "Inconclusive",
                ];
                phase(&reply.phase, &known)?;
                Ok(reply.message)
            })
        }
        (Kind::Metric, "GetMetadata") => {
            let found = stream.poll_value::<BTreeMap<String, String>>()?;
            found.map(|mut reply| Ok(reply.remove("error").unwrap_or_default()))
        }
        (Kind::Step, "Run" | "Terminate" | "Abort") => {
            stream.poll_value::<StepResponse>()?.map(|reply| {
                if reply.error.text.is_empty() {
                    phase(
                        &reply.result.phase,
                        &["Running", "Successful", "Failed", "Error"],
                    )?;
                    let status = &reply.result.status.0;
                    let is_json = status.is_empty()
                        || serde_json::from_slice::<serde_json::Value>(status).is_ok();
                    if !is_json {
                        return Err("its status is no JSON".to_owned());
                    }
                }
                Ok(reply.error.text)
            })
        }
        _ => stream.poll_value::<RpcError>()?.map(|reply| Ok(reply.text)),
    })
}
