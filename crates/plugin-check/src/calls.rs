//! Checks of calls: every method with valid and invalid arguments, recorded calls, and load.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::future::try_join_all;
use gob::{DecodeError, Decoder};
use rollouts_rpc::host::{AnyClient, HostSession};
use rollouts_rpc::testing::{LIMITS, Recording, recordings};
use serde::de::IgnoredAny;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::time::{Instant, timeout};

use crate::process::{Plugin, RpcError, Seen, Serving, of_call, patient, quoted, text};
use crate::report::Level::{Must, Should};
use crate::report::Report;
use crate::start::yes;
use crate::{Args, Kind};

/// How long InitPlugin may take.
const INIT: Duration = Duration::from_secs(1);

gob::gob_struct! {
    struct Odd as "Odd" {
        weight: String as "DesiredWeight",
        rollout: i64 as "Rollout",
    }

    struct Nothing as "Nothing" {
        unused: bool as "Unused",
    }
}

gob::gob_interface! {
    enum Argument {
        Unregistered(Odd) as "NoSuchArgs",
        Text(String) as "string",
        UpdateHash(Nothing) as "UpdateHashArgs",
        Weight(Nothing) as "SetWeightAndVerifyWeightArgs",
        Header(Nothing) as "SetHeaderArgs",
        Mirror(Nothing) as "SetMirrorArgs",
        Remove(Nothing) as "RemoveManagedRoutesArgs",
        Run(Nothing) as "RunArgs",
        Resume(Nothing) as "TerminateAndResumeArgs",
        Collect(Nothing) as "GarbageCollectArgs",
        Metadata(Nothing) as "GetMetadataArgs",
        StepRun(Nothing) as "step.RunArgs",
        StepTerminate(Nothing) as "step.TerminateArgs",
        StepAbort(Nothing) as "step.AbortArgs",
    }
}

/// Returns the argument type of the method without any field, which is an argument of zero values in Go.
fn empty(kind: Kind, method: &str) -> Argument {
    let nothing = Nothing { unused: true };
    match (kind, method) {
        (Kind::Router, "UpdateHash") => Argument::UpdateHash(nothing),
        (Kind::Router, "SetWeight" | "VerifyWeight") => Argument::Weight(nothing),
        (Kind::Router, "SetHeaderRoute") => Argument::Header(nothing),
        (Kind::Router, "SetMirrorRoute") => Argument::Mirror(nothing),
        (Kind::Router, _) => Argument::Remove(nothing),
        (Kind::Metric, "Run") => Argument::Run(nothing),
        (Kind::Metric, "Resume" | "Terminate") => Argument::Resume(nothing),
        (Kind::Metric, "GarbageCollect") => Argument::Collect(nothing),
        (Kind::Metric, _) => Argument::Metadata(nothing),
        (Kind::Step, "Run") => Argument::StepRun(nothing),
        (Kind::Step, "Terminate") => Argument::StepTerminate(nothing),
        (Kind::Step, _) => Argument::StepAbort(nothing),
    }
}

/// Makes the recorded calls, each recording in a process of its own, as a controller dispenses a plugin once.
pub(crate) async fn recorded(args: &Args, report: &mut Report) {
    for recording in recordings(args.kind.plugin()) {
        if !report.starts(&format!("call.{}", recording.version)) {
            continue;
        }
        let version = recording.version;
        let rule = format!("a plugin for controller {version} is dispensed");
        let serving = match Serving::start(args).await {
            Ok(serving) => serving,
            Err(error) => return report.essential(format!("call.{version}"), rule, Err(error)),
        };
        report.watch(&serving);
        let dispensed = serving.session.dispense_stream(args.kind.plugin());
        match patient(args, dispensed).await {
            Ok(stream) => {
                report.must(format!("call.{version}"), rule, Ok(()));
                replay(args, report, stream, recording).await;
            }
            Err(error) => report.essential(format!("call.{version}"), rule, Err(error)),
        }
        report.must(
            format!("call.{version}.ping"),
            "a ping is answered after all calls",
            patient(args, serving.session.ping()).await,
        );
        report.must(
            format!("call.{version}.log"),
            "no log line crashes the controller",
            log(&serving.plugin.log().lines()),
        );
        report.unwatch(serving).await;
    }
}

/// Makes many calls.
pub(crate) async fn load(args: &Args, report: &mut Report) {
    let rule = "the plugin can be dispensed and initialized";
    let (serving, client) = match Serving::initialized(args).await {
        Ok(opened) => opened,
        Err(error) => return report.essential("load.opens", rule, Err(error)),
    };
    report.essential("load.opens", rule, Ok(()));
    report.watch(&serving);
    many(args, report, &client, &serving.plugin).await;
    report.unwatch(serving).await;
}

/// Calls every method with arguments that no controller sends, in a process of its own.
pub(crate) async fn arguments(args: &Args, report: &mut Report) {
    let rule = "the plugin is called with arguments that no controller sends";
    let (serving, client) = match Serving::initialized(args).await {
        Ok(opened) => opened,
        Err(error) => return report.should("argument.init", rule, Err(error)),
    };
    report.watch(&serving);
    odd(args, report, &serving.session, &client).await;
    report.unwatch(serving).await;
}

async fn odd(args: &Args, report: &mut Report, session: &HostSession, client: &AnyClient) {
    for method in methods(args.kind) {
        let check = |name: &str| format!("argument.{method}.{name}");
        let rule = |what: &str| format!("{method} with {what} is answered, and the next call too");
        let nil = answered(args, client, method, &None);
        let name = check("nil");
        report.run(Should, &name, rule("nil"), nil).await;
        let string = Some(Argument::Text("text".to_owned()));
        let string = answered(args, client, method, &string);
        let name = check("string");
        report.run(Should, &name, rule("a string"), string).await;
        let empty = Some(empty(args.kind, method));
        let empty = answered(args, client, method, &empty);
        let name = check("empty");
        report
            .run(Should, &name, rule("an empty argument"), empty)
            .await;
    }
    // On separate streams, because Go's server loses its position in the stream. One check: no author can mend it there.
    let unregistered = async {
        for method in methods(args.kind) {
            let client = session.dispense_any(args.kind.plugin());
            let client = patient(args, client).await?;
            let argument = Some(Argument::Unregistered(Odd::default()));
            let answered = answered(args, &client, method, &argument).await;
            answered.map_err(|error| format!("{method}: {error}; Go's net/rpc does that too"))?;
        }
        Ok(())
    };
    let rule = "each method with a type that is not registered is answered, and the next call too";
    report
        .run(Should, "argument.unregistered", rule, unregistered)
        .await;
}

/// Returns `Ok` if the call is answered, also with an error, and the next call is answered too.
async fn answered(
    args: &Args,
    client: &AnyClient,
    method: &str,
    argument: &Option<Argument>,
) -> Seen {
    use rollouts_rpc::host::CallError;
    let method = format!("Plugin.{method}");
    let call = client.answer(&method, argument);
    match timeout(args.patience(), call).await {
        Err(_elapsed) => return Err(format!("no answer within {} s", args.patience)),
        Ok(Ok(_) | Err(CallError::Refused(_))) => {}
        Ok(Err(error)) => return Err(of_call(&error)),
    }
    let next = client.type_name();
    patient(args, next).await.map(drop)
}

fn one_line(text: &str) -> Seen {
    if text.contains(['\n', '\r', '%']) {
        Err(quoted(text))
    } else {
        Ok(())
    }
}

/// Makes the recorded calls of a released controller, and decodes the replies as it does.
async fn replay(
    args: &Args,
    report: &mut Report,
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    recording: &Recording,
) {
    let version = recording.version;
    let mut replies = Decoder::new(LIMITS);
    let mut called = BTreeSet::new();
    for (seq, (method, call)) in (0..).zip(recording.calls()) {
        let exchange = async {
            stream.write_all(call).await.map_err(text)?;
            stream.flush().await.map_err(text)?;
            reply(&mut stream, &mut replies, args.kind, method, seq).await
        };
        let begun = Instant::now();
        let answered = timeout(args.patience(), exchange).await;
        let took = begun.elapsed();
        let answered = answered.map_err(|_| format!("no answer within {} s", args.patience));
        let (reply, goes_on) = match answered.and_then(|it| it) {
            Ok(reply) => (reply, true),
            Err(error) => (Err(error), false),
        };
        let check = format!("call.{version}.{method}");
        // Each method is recorded a second time with almost no values, which tests the encoding; no controller makes such a call.
        let (level, what) = match called.insert(method) {
            true => (Must, String::new()),
            false => (Should, " without values".to_owned()),
        };
        let rule = format!("{method}{what} of controller {version} is answered as it reads it");
        report.judge(level, check.clone(), rule, reply.clone().map(drop));
        if method == "InitPlugin" && goes_on {
            report.should(
                format!("{check}.time"),
                "InitPlugin is answered within 1 s: all plugins of its kind wait for it",
                yes("it takes longer")(took < INIT),
            );
        }
        // Type returns a name and never an error.
        if let (Ok(refusal), true) = (reply, method != "Type") {
            let rule = format!("the error of {method} is one line without %");
            report.should(format!("{check}.text"), rule, one_line(&refusal));
        }
        if !goes_on {
            return;
        }
    }
}

async fn reply(
    stream: &mut (impl AsyncRead + Unpin),
    replies: &mut Decoder,
    kind: Kind,
    method: &str,
    seq: u64,
) -> Seen<Seen<String>> {
    let mut header: Option<Response> = None;
    let mut chunk = vec![0; 16 * 1024];
    loop {
        if header.is_none() {
            header = replies.poll_like_go().map_err(text)?;
        }
        if let Some(found) = &header {
            if found.seq != seq {
                return Err(format!("the reply is to call {}, not {seq}", found.seq));
            }
            if !found.error.is_empty() {
                if replies.poll_value::<IgnoredAny>().map_err(text)?.is_some() {
                    return Ok(Err(found.error.clone()));
                }
            } else if let Some(body) = body(kind, method, replies).map_err(text)? {
                return Ok(body);
            }
        }
        match stream.read(&mut chunk).await.map_err(text)? {
            0 => return Err("the plugin closed the stream".to_owned()),
            read => replies
                .handle_input(chunk.get(..read).unwrap_or_default())
                .map_err(text)?,
        }
    }
}

async fn many(args: &Args, report: &mut Report, client: &AnyClient, plugin: &Plugin) {
    let at_once = async {
        let calls = (0..50).map(|_| client.type_name());
        let names: BTreeSet<String> = try_join_all(calls).await?.into_iter().collect();
        Ok(names.len())
    };
    let at_once = patient(args, at_once).await;
    let same = at_once.and_then(|names| match names {
        1 => Ok(()),
        names => Err(format!("there are {names} different answers")),
    });
    report.must(
        "load.at-once",
        "fifty concurrent calls get the same answer",
        same,
    );
    let dropped = async {
        for _ in 0..10 {
            let call = client.type_name();
            drop(timeout(Duration::from_micros(50), call).await);
        }
        client.type_name().await.map(drop)
    };
    report.must(
        "load.given-up",
        "a call is answered after the host stopped waiting for ten others",
        patient(args, dropped).await,
    );
    let big = Some(Argument::Text("x".repeat(1 << 20)));
    let before = plugin.memory();
    let first = methods(args.kind).first().copied().unwrap_or("Type");
    let answers = async {
        for _ in 0..20 {
            answered(args, client, first, &big).await?;
        }
        Ok(())
    };
    // No controller sends them.
    report.should(
        "load.big",
        "twenty arguments of 1 MiB are answered",
        answers.await,
    );
    let many = async {
        for _ in 0..500 {
            let call = client.type_name();
            patient(args, call).await?;
        }
        Ok(())
    };
    report.must(
        "load.many",
        "five hundred calls in a row are answered",
        many.await,
    );
    let limit = args.memory << 20;
    let memory = before
        .and(plugin.memory())
        .and_then(|memory| match memory <= limit {
            true => Ok(()),
            false => Err(format!("it uses {} MiB", memory >> 20)),
        });
    report.must(
        "load.memory",
        format!("it stays below {} MiB", args.memory),
        memory,
    );
}

/// Checks that no log line crashes the host. It parses a JSON object as a record, and panics if one of three keys is not a string.
pub(crate) fn log(lines: &[String]) -> Seen {
    for line in lines {
        let Ok(serde_json::Value::Object(record)) = serde_json::from_str(line) else {
            continue;
        };
        for key in ["@level", "@message", "@timestamp"] {
            if record.get(key).is_some_and(|value| !value.is_string()) {
                return Err(format!("{key} is not a string in {}", quoted(line)));
            }
        }
    }
    Ok(())
}

// All fields of the replies: Go compares the types of those that a controller does not use too.
gob::gob_struct! {
    struct Response as "Response" {
        method: String as "ServiceMethod",
        seq: u64 as "Seq",
        error: String as "Error",
    }

    struct VerifyWeightResponse as "VerifyWeightResponse" {
        verified: i32 as "Verified",
        error: RpcError as "Err",
    }

    struct Measurement as "Measurement" {
        phase: String as "Phase",
        message: String as "Message",
        started_at: Option<gob::Time> as "StartedAt",
        finished_at: Option<gob::Time> as "FinishedAt",
        value: String as "Value",
        metadata: BTreeMap<String, String> as "Metadata",
        resume_at: Option<gob::Time> as "ResumeAt",
    }

    struct StepResponse as "Response" {
        result: StepResult as "Result",
        error: RpcError as "Error",
    }

    struct StepResult as "RpcStepResult" {
        phase: String as "Phase",
        message: String as "Message",
        requeue_after: i64 as "RequeueAfter",
        status: gob::Bytes as "Status",
    }
}

/// Returns the methods of a kind that take an argument.
fn methods(kind: Kind) -> &'static [&'static str] {
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

/// Decodes the body of a reply as a controller does. Returns `None` if more bytes are needed, and otherwise the text of the plugin's
/// error, which is empty after success.
fn body(
    kind: Kind,
    method: &str,
    stream: &mut Decoder,
) -> Result<Option<Seen<String>>, DecodeError> {
    let phase = |phase: &str, known: &[&str]| match known.contains(&phase) {
        true => Ok(String::new()),
        false => Err(format!("its phase is {}", quoted(phase))),
    };
    Ok(match (kind, method) {
        (_, "Type") => stream.poll_like_go::<String>()?.map(|_| Ok(String::new())),
        (Kind::Router, "VerifyWeight") => {
            stream
                .poll_like_go::<VerifyWeightResponse>()?
                .map(|reply| match reply.verified {
                    0..=2 => Ok(reply.error.text),
                    other => Err(format!("Verified is {other}")),
                })
        }
        (Kind::Metric, "Run" | "Resume" | "Terminate") => {
            stream.poll_like_go::<Measurement>()?.map(|reply| {
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
            let found = stream.poll_like_go::<BTreeMap<String, String>>()?;
            found.map(|mut reply| Ok(reply.remove("error").unwrap_or_default()))
        }
        (Kind::Step, "Run" | "Terminate" | "Abort") => {
            stream.poll_like_go::<StepResponse>()?.map(|reply| {
                if reply.error.text.is_empty() {
                    phase(
                        &reply.result.phase,
                        &["Running", "Successful", "Failed", "Error"],
                    )?;
                    let status = &reply.result.status.0;
                    let is_json = status.is_empty()
                        || serde_json::from_slice::<serde_json::Value>(status).is_ok();
                    if !is_json {
                        return Err("its status is not JSON".to_owned());
                    }
                }
                Ok(reply.error.text)
            })
        }
        _ => stream
            .poll_like_go::<RpcError>()?
            .map(|reply| Ok(reply.text)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_that_would_crash_the_controller_is_found() {
        let lines = |text: &str| [text.to_owned()];
        assert!(
            log(&lines(
                r#"{"@level": "info", "@message": "m", "@timestamp": "t"}"#
            ))
            .is_ok()
        );
        assert!(log(&lines(r#"{"level": 3}"#)).is_ok());
        assert!(log(&lines("plain")).is_ok());
        assert!(log(&lines(r#"{"@message": 3}"#)).is_err());
    }

    #[test]
    fn an_error_text_is_one_line_without_percent() {
        assert!(one_line("no: not at all").is_ok());
        assert!(one_line("50%").is_err());
        assert!(one_line("a\nb").is_err());
    }
}
