//! Checks with the plugin's own configuration: its calls succeed and have an effect, pings are answered meanwhile, and another
//! process can go on.

use std::path::Path;
use std::pin::pin;
use std::time::Duration;

use rollouts_rpc::goplugin::handshake::PluginKind;
use rollouts_rpc::host::{CallError, HostSession, MetricClient, RouterClient, StepClient};
use rollouts_rpc::rollout::RawJson;
use rollouts_rpc::testing::{CallStream, recordings};
use rollouts_rpc::{
    AnalysisPhase, AnalysisRun, Measurement, Metric, PodHashes, Rollout, RouterCall, StepContext,
    StepPhase, Verification,
};
use rustix::process::Signal;
use tokio::process::Command;
use tokio::time::{Instant, sleep, timeout};

use crate::process::{Seen, Serving, patient, quoted, text};
use crate::report::Report;
use crate::{Args, Config, Kind};

/// The weights of the rounds. The plugin is killed and started again after the first.
const WEIGHTS: [i32; 3] = [20, 20, 60];

/// A call that takes longer is long enough for a ping.
const LONG: Duration = Duration::from_secs(1);

/// The time between two calls of the same kind. A controller waits longer.
const AGAIN: Duration = Duration::from_millis(200);

/// How long a killed process may take to exit.
const KILLED: Duration = Duration::from_secs(10);

pub(crate) async fn checks(args: &Args, report: &mut Report) {
    match args.kind {
        Kind::Router => check(args, report, Weights::new(args)).await,
        Kind::Metric => check(args, report, Measuring::new(args)).await,
        Kind::Step => check(args, report, Stepping::new(args)).await,
    }
}

/// The calls of one kind of plugin, and the state that a controller keeps between them.
trait Work {
    type Client;

    /// The method of the rounds, and the last one.
    const METHODS: [&str; 2];

    /// Dispenses the plugin and calls InitPlugin.
    async fn open(session: &HostSession) -> Result<Self::Client, CallError>;

    /// Makes the call of a round, and with `complete` repeats it until the plugin has done the work.
    async fn call(&mut self, args: &Args, to: &Self::Client, weight: i32, complete: bool) -> Seen;

    /// Checks the effect of the call as the controller does.
    async fn verify(&self, _: &Args, _: &Self::Client, _weight: i32) -> Seen {
        Ok(())
    }

    async fn end(&mut self, args: &Args, to: &Self::Client) -> Seen;
}

/// The rounds, or a failure: the name of its check, and the text.
type Played<T = ()> = Result<T, (&'static str, String)>;

async fn check<W: Work>(args: &Args, report: &mut Report, work: Seen<W>) {
    let [method, end] = W::METHODS;
    let mut checks = vec![
        (method, "the call succeeds"),
        ("ping", "pings are answered while a call runs"),
        ("restart", "after a kill, a new process continues"),
        (end, "the last call succeeds"),
    ];
    if args.kind == Kind::Router {
        let rule = "VerifyWeight after SetWeight is true, or not implemented";
        checks.insert(1, ("VerifyWeight", rule));
        if args.probe.is_some() {
            let rule = "SetWeight changes what --probe prints, and the same weight does not";
            checks.insert(4, ("probe", rule));
        }
    }
    let mut held = Vec::new();
    let failure = match work {
        Ok(work) => rounds(args, work, &mut held).await.err(),
        Err(error) => Some((method, error)),
    };
    for (name, rule) in checks {
        let (check, rule) = (format!("configured.{name}"), rule.to_owned());
        match &failure {
            Some((at, error)) if *at == name => report.must(check, rule, Err(error.clone())),
            _ if held.contains(&name) => report.must(check, rule, Ok(())),
            _ => report.not_run(check, rule),
        }
    }
}

/// Plays the rounds, and adds to `held` the name of each check that held as far as the rounds came.
async fn rounds<W: Work>(args: &Args, mut work: W, held: &mut Vec<&'static str>) -> Played {
    let [method, end] = W::METHODS;
    let mut printed = Vec::new();
    let (mut serving, mut client) = open::<W>(args).await.map_err(|error| (method, error))?;
    for (round, weight) in WEIGHTS.into_iter().enumerate() {
        if round == 1 {
            drop(client);
            let restarted = restart::<W>(args, serving).await;
            (serving, client) = restarted.map_err(|error| ("restart", error))?;
        }
        let called = async {
            let call = work.call(args, &client, weight, round > 0);
            let (called, pinged) = pinging(args, &serving.session, call).await;
            called.map_err(|error| (method, error))?;
            held.push(method);
            pinged.map_err(|error| ("ping", error))?;
            held.push("ping");
            let verified = work.verify(args, &client, weight).await;
            verified.map_err(|error| ("VerifyWeight", error))?;
            held.push("VerifyWeight");
            Ok(())
        };
        if let Err((check, mut error)) = called.await {
            if serving.frames.is_closed() {
                error += &serving.plugin.last_words().await;
            }
            // The same call succeeded before the restart.
            return Err((if round == 1 { "restart" } else { check }, error));
        }
        if round == 1 {
            held.push("restart");
        }
        if let Some(command) = args.probe.as_ref().filter(|_| args.kind == Kind::Router) {
            printed.push(
                probe(args, command)
                    .await
                    .map_err(|error| ("probe", error))?,
            );
        }
    }
    effect(&printed).map_err(|error| ("probe", error))?;
    held.push("probe");
    let ended = work.end(args, &client).await;
    ended.map_err(|error| (end, error))?;
    held.push(end);
    Ok(())
}

async fn open<W: Work>(args: &Args) -> Seen<(Serving, W::Client)> {
    let serving = Serving::start(args).await?;
    match patient(args, W::open(&serving.session)).await {
        Ok(client) => Ok((serving, client)),
        Err(error) => Err(error + serving.plugin.last_words().await.as_str()),
    }
}

async fn restart<W: Work>(args: &Args, serving: Serving) -> Seen<(Serving, W::Client)> {
    serving.plugin.signal(Signal::KILL)?;
    serving.plugin.ended(KILLED).await?;
    open::<W>(args).await
}

/// Makes a call, and calls Ping until it is answered. Fails if a ping waits for most of a long call.
async fn pinging(
    args: &Args,
    session: &HostSession,
    call: impl Future<Output = Seen>,
) -> (Seen, Seen) {
    let mut call = pin!(call);
    let begun = Instant::now();
    let (mut longest, mut pinged) = (Duration::ZERO, Ok(()));
    let called = loop {
        let sent = Instant::now();
        tokio::select! {
            called = &mut call => {
                longest = longest.max(sent.elapsed());
                break called;
            }
            ping = patient(args, session.ping()) => {
                longest = longest.max(sent.elapsed());
                pinged = pinged.and(ping);
            }
        }
        tokio::select! {
            called = &mut call => break called,
            () = sleep(AGAIN / 10) => {}
        }
    };
    (called, pinged.and(in_time(longest, begun.elapsed())))
}

/// Judges the longest ping during a call. It is compared with the call, because a machine may be slow.
fn in_time(ping: Duration, call: Duration) -> Seen {
    if call < LONG || ping < call / 2 {
        return Ok(());
    }
    let (ping, call) = (ping.as_secs_f32(), call.as_secs_f32());
    Err(format!("a ping took {ping:.1} s of a call of {call:.1} s"))
}

/// Returns what the command of `--probe` prints.
async fn probe(args: &Args, command: &str) -> Seen<String> {
    let mut shell = Command::new("sh");
    shell.args(["-c", command]).kill_on_drop(true);
    let output = timeout(args.patience(), shell.output()).await;
    let output = output
        .map_err(|_| "the command does not end".to_owned())?
        .map_err(text)?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        return Err(format!("the command fails: {}", quoted(stderr.trim())));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Compares what the probe printed after each weight of [`WEIGHTS`].
fn effect(printed: &[String]) -> Seen {
    match printed {
        [first, second, _] if first != second => Err(format!(
            "it prints {} and {} for the same weight",
            quoted(first),
            quoted(second)
        )),
        [first, _, third] if first == third => {
            Err(format!("it prints {} for both weights", quoted(first)))
        }
        _ => Ok(()),
    }
}

/// Reads the Rollout of the calls, with the plugin's configuration.
fn rollout(path: Option<&Path>, config: Option<&Config>) -> Seen<Rollout> {
    let mut rollout = match path {
        Some(path) => {
            let at = |error: String| format!("{}: {error}", path.display());
            let yaml = std::fs::read_to_string(path).map_err(|error| at(error.to_string()))?;
            let json: serde_json::Value =
                serde_saphyr::from_str(&yaml).map_err(|error| at(error.to_string()))?;
            serde_json::from_value(json).map_err(|error| at(error.to_string()))?
        }
        None => recorded().ok_or("there is no recorded Rollout")?,
    };
    let canary = rollout.spec.strategy.canary.get_or_insert_default();
    let routing = canary.traffic_routing.get_or_insert_default();
    if let Some(Config { name, json }) = config {
        let json = RawJson(json.to_string().into_bytes());
        routing.plugins.insert(name.clone(), json);
    }
    Ok(rollout)
}

/// Returns the Rollout of the newest recorded SetWeight.
fn recorded() -> Option<Rollout> {
    let newest = recordings(PluginKind::TrafficRouter).last()?;
    let calls = CallStream::default().decode(newest.stream).ok()?;
    calls.into_iter().find_map(|call| match call {
        RouterCall::SetWeight(rollout, ..) => Some(*rollout),
        _ => None,
    })
}

fn config(args: &Args) -> Seen<&Config> {
    let missing = || "--config NAME=JSON is missing".to_owned();
    args.config.as_ref().ok_or_else(missing)
}

/// Waits before the same call is repeated, until the time in `--patience` is over.
async fn again(args: &Args, begun: Instant, what: &str) -> Seen {
    if begun.elapsed() >= args.patience() {
        return Err(format!("{what} after {} s", args.patience));
    }
    sleep(AGAIN).await;
    Ok(())
}

struct Weights {
    rollout: Rollout,
}

impl Weights {
    fn new(args: &Args) -> Seen<Self> {
        let rollout = rollout(args.rollout.as_deref(), args.config.as_ref())?;
        Ok(Self { rollout })
    }
}

impl Work for Weights {
    type Client = RouterClient;

    const METHODS: [&str; 2] = ["SetWeight", "RemoveManagedRoutes"];

    async fn open(session: &HostSession) -> Result<RouterClient, CallError> {
        let client = session.dispense_router().await?;
        client.init_plugin().await?;
        Ok(client)
    }

    async fn call(&mut self, args: &Args, to: &RouterClient, weight: i32, _: bool) -> Seen {
        let status = &self.rollout.status;
        let hashes = PodHashes {
            canary: status.current_pod_hash.clone(),
            stable: status.stable_rs.clone(),
        };
        patient(args, to.update_hash(&self.rollout, &hashes, &[])).await?;
        patient(args, to.set_weight(&self.rollout, weight, &[])).await
    }

    async fn verify(&self, args: &Args, to: &RouterClient, weight: i32) -> Seen {
        let begun = Instant::now();
        loop {
            match patient(args, to.verify_weight(&self.rollout, weight, &[])).await? {
                Verification::NotVerified => again(args, begun, "it is still false").await?,
                _ => return Ok(()),
            }
        }
    }

    async fn end(&mut self, args: &Args, to: &RouterClient) -> Seen {
        self.call(args, to, 0, true).await?;
        patient(args, to.remove_managed_routes(&self.rollout)).await
    }
}

struct Measuring {
    run: AnalysisRun,
    metric: Metric,
    measurement: Measurement,
}

impl Measuring {
    fn new(args: &Args) -> Seen<Self> {
        let Config { name, json } = config(args)?;
        Ok(Self {
            run: AnalysisRun::named("shop", "demo"),
            metric: Metric::new("demo", name, json),
            measurement: Measurement::default(),
        })
    }
}

impl Work for Measuring {
    type Client = MetricClient;

    const METHODS: [&str; 2] = ["Run", "GarbageCollect"];

    async fn open(session: &HostSession) -> Result<MetricClient, CallError> {
        let client = session.dispense_metric_provider().await?;
        client.init_plugin().await?;
        Ok(client)
    }

    async fn call(&mut self, args: &Args, to: &MetricClient, _: i32, complete: bool) -> Seen {
        let begun = Instant::now();
        loop {
            self.measurement = if self.measurement.phase == AnalysisPhase::Running {
                patient(args, to.resume(&self.run, &self.metric, &self.measurement)).await?
            } else {
                patient(args, to.run(&self.run, &self.metric)).await?
            };
            match self.measurement.phase {
                AnalysisPhase::Running if complete => {
                    again(args, begun, "the measurement is still running").await?;
                }
                AnalysisPhase::Error => {
                    return Err(format!(
                        "phase Error: {}",
                        quoted(&self.measurement.message)
                    ));
                }
                _ => return Ok(()),
            }
        }
    }

    async fn end(&mut self, args: &Args, to: &MetricClient) -> Seen {
        let metadata = patient(args, to.metadata(&self.metric)).await?;
        if let Some(error) = metadata.get("error").filter(|text| !text.is_empty()) {
            return Err(format!("GetMetadata: {}", quoted(error)));
        }
        patient(args, to.garbage_collect(&self.run, &self.metric, 10)).await
    }
}

struct Stepping {
    rollout: Rollout,
    context: StepContext,
    running: bool,
}

impl Stepping {
    fn new(args: &Args) -> Seen<Self> {
        let Config { name, json } = config(args)?;
        Ok(Self {
            rollout: rollout(args.rollout.as_deref(), None)?,
            context: StepContext::new(name, json),
            running: false,
        })
    }
}

impl Work for Stepping {
    type Client = StepClient;

    const METHODS: [&str; 2] = ["Run", "Abort"];

    async fn open(session: &HostSession) -> Result<StepClient, CallError> {
        let client = session.dispense_step().await?;
        client.init_plugin().await?;
        Ok(client)
    }

    async fn call(&mut self, args: &Args, to: &StepClient, _: i32, complete: bool) -> Seen {
        let begun = Instant::now();
        loop {
            if !self.running {
                self.context.status = RawJson::default();
            }
            let result = patient(args, to.run(&self.rollout, &self.context)).await?;
            if let Some(status) = &result.status {
                self.context.status = status.into();
            }
            self.running = result.phase == StepPhase::Running;
            match result.phase {
                StepPhase::Running if complete => {
                    again(args, begun, "the step is still running").await?;
                }
                StepPhase::Error => {
                    return Err(format!("phase Error: {}", quoted(&result.message)));
                }
                _ => return Ok(()),
            }
        }
    }

    async fn end(&mut self, args: &Args, to: &StepClient) -> Seen {
        patient(args, to.abort(&self.rollout, &self.context))
            .await
            .map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_effect_differs_between_the_weights_and_only_there() {
        let check = |printed: &[&str], expect: bool| {
            let printed: Vec<String> = printed.iter().map(|it| (*it).to_owned()).collect();
            assert_eq!(effect(&printed).is_ok(), expect, "{printed:?}");
        };
        check(&[], true);
        check(&["20", "20", "60"], true);
        check(&["20", "20", "20"], false);
        check(&["20", "21", "60"], false);
    }

    #[test]
    fn a_ping_may_not_wait_for_a_long_call() {
        let check = |ping: u64, call: u64, expect: bool| {
            let [ping, call] = [ping, call].map(Duration::from_millis);
            assert_eq!(in_time(ping, call).is_ok(), expect, "{ping:?} {call:?}");
        };
        check(900, 900, true);
        check(400, 1000, true);
        check(1500, 1500, false);
    }

    #[test]
    fn the_recorded_rollout_gets_the_configuration() {
        let config: Config = "a/b={\"c\": 7}".parse().unwrap();
        let rollout = rollout(None, Some(&config)).unwrap();
        assert_eq!(rollout.metadata.name, "demo");
        let json: serde_json::Value = rollout.config("a/b").unwrap();
        assert_eq!(json, config.json);
    }
}
