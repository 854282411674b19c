//! Checks of a session: streams, pings, Dispense and unknown methods.

use std::time::Duration;

use rollouts_rpc::host::{CallError, HostSession};
use tokio::time::{Instant, sleep, timeout};

use crate::process::{Frames, RpcError, Seen, Serving, of_call, patient};
use crate::report::Report;
use crate::start::yes;
use crate::{Args, Kind};

/// The stream of the first plugin that is dispensed: a host counts by two, and has three streams of its own.
const DISPENSED: u32 = 7;

pub(crate) async fn checks(args: &Args, report: &mut Report) {
    let rule = "the host's three streams can be opened";
    let serving = match Serving::start(args).await {
        Ok(serving) => serving,
        Err(error) => return report.essential("session.opens", rule, Err(error)),
    };
    report.essential("session.opens", rule, Ok(()));
    report.watch(&serving);
    calls(args, report, &serving).await;
    report.unwatch(serving).await;
}

async fn calls(args: &Args, report: &mut Report, serving: &Serving) {
    let Serving {
        session, frames, ..
    } = serving;
    for (stream, name) in [(1, "control"), (3, "stdout"), (5, "stderr")] {
        let acknowledged = until(|| frames.has_acknowledged(stream)).await;
        let rule =
            format!("the {name} stream is acknowledged: a host waits 75 s for it and hangs up");
        report.must(format!("session.acknowledges-{name}"), rule, acknowledged);
    }
    report.must(
        "session.keep-alive",
        "yamux pings are answered",
        pong(args, session, frames).await,
    );
    report.must(
        "session.ping",
        "Control.Ping is answered with a struct",
        patient(args, session.ping()).await,
    );
    let pings = async {
        for _ in 0..100 {
            session.ping().await?;
        }
        Ok(())
    };
    report.must(
        "session.pings",
        "a hundred pings are answered",
        patient(args, pings).await,
    );

    let kind = args.kind.plugin();
    let rule = "its own kind is dispensed";
    let plugin = match patient(args, session.dispense_any(kind)).await {
        Ok(plugin) => plugin,
        Err(error) => return report.essential("session.dispense", rule, Err(error)),
    };
    report.essential("session.dispense", rule, Ok(()));
    report.must(
        "session.acknowledges-plugin",
        "the stream of a dispensed plugin is acknowledged too",
        until(|| frames.has_acknowledged(DISPENSED)).await,
    );
    let named = plugin.type_name();
    let named = patient(args, named).await;
    let has_name = named
        .map(|name| !name.trim().is_empty())
        .and_then(yes("it is empty"));
    report.must("session.type", "Type returns a name", has_name);

    // No released controller sends what follows.
    let no_such = "NoSuchPlugin".to_owned();
    let unknown = session.control::<_, u32>("Dispenser.Dispense", &no_such);
    report.should(
        "session.unknown-plugin",
        "Dispense of an unknown plugin is refused with an error",
        refused(args, unknown).await,
    );
    for (other, name) in [
        (Kind::Router, "router"),
        (Kind::Metric, "metric"),
        (Kind::Step, "step"),
    ] {
        if other != args.kind {
            let name_of_other = other.plugin().dispense_name().to_owned();
            let dispensed = session.control::<_, u32>("Dispenser.Dispense", &name_of_other);
            let rule = format!("Dispense of a {name} plugin is refused with an error");
            report.should(
                format!("session.no-{name}"),
                rule,
                refused(args, dispensed).await,
            );
        }
    }
    let control = session.control::<_, RpcError>("Control.NoSuchMethod", &true);
    report.should(
        "session.unknown-control",
        "an unknown method of the control stream is refused with an error",
        refused(args, control).await,
    );
    let ping = patient(args, session.ping()).await;
    report.should(
        "session.goes-on",
        "a ping is answered after the refused calls",
        ping,
    );
    let argument = "argument".to_owned();
    for (method, name) in [
        ("Plugin.NoSuchMethod", "method"),
        ("NoSuchService.Type", "service"),
        ("NoDot", "name"),
    ] {
        let call = plugin.answer(method, &argument);
        let rule = format!("{method} is refused with an error");
        report.should(
            format!("session.unknown-{name}"),
            rule,
            refused(args, call).await,
        );
    }
    let future = if args.kind == Kind::Router {
        "GetWeightUpdateDeadline"
    } else {
        "NotYetInvented"
    };
    let method = format!("Plugin.{future}");
    // Not with nil, which Go's server cannot skip.
    let call = plugin.answer(&method, &argument);
    report.should(
        "session.future-method",
        "a method of a later controller is refused with an error",
        refused(args, call).await,
    );
    let named = patient(args, plugin.type_name()).await;
    report.should(
        "session.in-step",
        "Type is answered after the refused calls",
        named.map(drop),
    );

    let again = async {
        let second = session.dispense_any(kind).await?;
        let named = second.type_name().await;
        named.map(drop)
    };
    report.should(
        "session.dispense-again",
        "a second Dispense returns a plugin that answers",
        patient(args, again).await,
    );
    let first = plugin.type_name();
    report.should(
        "session.first-goes-on",
        "the first plugin still answers",
        patient(args, first).await.map(drop),
    );
}

/// Checks that the plugin answers a yamux ping. The host's yamux crate sends pings while a session is in use.
async fn pong(args: &Args, session: &HostSession, frames: &Frames) -> Seen {
    let begin = Instant::now();
    while frames.pongs() == 0 && begin.elapsed() < Duration::from_secs(15) {
        patient(args, session.ping()).await?;
        sleep(Duration::from_millis(50)).await;
    }
    yes("no ping was answered within 15 s")(frames.pongs() > 0)
}

/// Waits up to 2 s until `holds` returns true.
async fn until(holds: impl Fn() -> bool) -> Seen {
    for _ in 0..100 {
        if holds() {
            return Ok(());
        }
        sleep(Duration::from_millis(20)).await;
    }
    Err("it is not acknowledged within 2 s".to_owned())
}

/// Checks that a call is refused with an error of net/rpc.
async fn refused<T>(args: &Args, call: impl Future<Output = Result<T, CallError>>) -> Seen {
    match timeout(args.patience(), call).await {
        Err(_elapsed) => Err(format!("no answer within {} s", args.patience)),
        Ok(Ok(_)) => Err("it is not refused".to_owned()),
        Ok(Err(CallError::Refused(text))) if !text.is_empty() => Ok(()),
        Ok(Err(other)) => Err(of_call(&other)),
    }
}
