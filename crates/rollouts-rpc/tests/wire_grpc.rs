//! gRPC mode over its own socket, called with the generated client.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

#[path = "support/records.rs"]
mod records;

use std::future::pending;
use std::path::Path;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use rollouts_rpc::goplugin::env::COOKIE_VARIABLE;
use rollouts_rpc::grpc::proto;
use rollouts_rpc::grpc::proto::traffic_router_client::TrafficRouterClient;
use rollouts_rpc::testing::FnRouter;
use rollouts_rpc::{
    DesiredWeight, PluginEnv, Rollout, Router, RouterCall, RouterError, ServeConfig, ServeError,
    Shutdown, TrafficRouter, Verification, WeightDestination, grpc,
};
use tokio::net::UnixStream;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use crate::records::Records;

/// A plugin that is served, and a client.
struct Session {
    line: String,
    client: TrafficRouterClient<Channel>,
    served: JoinHandle<Result<Shutdown, ServeError>>,
    dir: tempfile::TempDir,
}

fn env(dir: &Path, more: &[(&str, &str)]) -> PluginEnv {
    let vars = [
        (COOKIE_VARIABLE, "trafficrouter"),
        ("TMPDIR", dir.to_str().unwrap()),
    ];
    PluginEnv::from_vars(vars.iter().chain(more).copied())
}

async fn connect(socket: String) -> Channel {
    // The connector ignores the address.
    Endpoint::from_static("http://localhost")
        .connect_with_connector(tower::service_fn(move |_| {
            let socket = socket.clone();
            async move { UnixStream::connect(socket).await.map(TokioIo::new) }
        }))
        .await
        .unwrap()
}

impl Session {
    async fn start(config: ServeConfig) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let env = env(dir.path(), &[]);
        let (announce, line) = oneshot::channel();
        let announce = |line: &str| {
            announce.send(line.to_owned()).unwrap();
            Ok(())
        };
        let served = tokio::spawn(async move {
            grpc::serve(&config, &env, announce, Router(FnRouter(answer))).await
        });
        let line = line.await.unwrap();
        let socket = line.split('|').nth(3).unwrap().to_owned();
        Self {
            line,
            client: TrafficRouterClient::new(connect(socket).await),
            served,
            dir,
        }
    }

    async fn set_weight(&mut self, rollout: &str) -> Result<(), Status> {
        let request = proto::SetWeightRequest {
            rollout: rollout.into(),
            desired_weight: 7,
            additional_destinations: Vec::new(),
        };
        self.client.set_weight(request).await.map(drop)
    }

    fn sockets(&self) -> usize {
        std::fs::read_dir(self.dir.path()).unwrap().count()
    }
}

/// Acts according to the name of the Rollout.
async fn answer(call: RouterCall) -> Result<Verification, RouterError> {
    let (rollout, desired) = match &call {
        RouterCall::SetWeight(rollout, desired, _)
        | RouterCall::VerifyWeight(rollout, desired, _) => (rollout, desired),
        other => return Err(shown(other).into()),
    };
    match rollout.metadata.name.as_str() {
        "panics" => panic!("at {}", desired.value),
        "hangs" => pending().await,
        "refuses" => Err(format!("no {}\nof {}", desired.value, desired.max).into()),
        _ => Ok(Verification::Verified),
    }
}

/// Returns a call and its arguments.
fn shown(call: &RouterCall) -> String {
    match call {
        RouterCall::UpdateHash(rollout, hashes, additional) => {
            let additional = additional.iter().map(|it| {
                format!(
                    ", {} to {} {}",
                    it.weight, it.service_name, it.pod_template_hash
                )
            });
            format!(
                "UpdateHash of {}: {}, {}{}",
                rollout.metadata.name,
                hashes.canary,
                hashes.stable,
                additional.collect::<String>(),
            )
        }
        RouterCall::SetHeaderRoute(rollout, route) => {
            format!(
                "SetHeaderRoute of {}: {}",
                rollout.metadata.name, route.name
            )
        }
        RouterCall::SetMirrorRoute(rollout, route) => {
            format!(
                "SetMirrorRoute of {}: {}",
                rollout.metadata.name, route.name
            )
        }
        RouterCall::RemoveManagedRoutes(rollout) => {
            format!("RemoveManagedRoutes of {}", rollout.metadata.name)
        }
        other => format!("{other:?}"),
    }
}

fn named(name: &str) -> String {
    format!(
        r#"{{"metadata": {{"name": "{name}"}}, "spec": {{"strategy": {{"canary": {{"trafficRouting": {{"maxTrafficWeight": 50}}}}}}}}}}"#
    )
}

#[track_caller]
fn check_status(outcome: Result<(), Status>, code: Code, message: &str) {
    let status = outcome.unwrap_err();
    assert_eq!((status.code(), status.message()), (code, message));
}

/// Checks the error of the router.
#[track_caller]
fn check_refused<T>(outcome: Result<T, Status>, message: &str) {
    check_status(outcome.map(drop), Code::FailedPrecondition, message);
}

#[tokio::test]
async fn an_error_has_the_documented_status() {
    let config = ServeConfig::new().with_call_deadline(Duration::from_secs(1));
    let mut session = Session::start(config).await;
    assert!(session.line.ends_with("|grpc|\n"), "{}", session.line);
    session.set_weight(&named("works")).await.unwrap();
    check_status(
        session.set_weight(&named("refuses")).await,
        Code::FailedPrecondition,
        "no 7 of 50",
    );
    check_status(
        session.set_weight("{").await,
        Code::InvalidArgument,
        "SetWeight: invalid argument: rollout: EOF while parsing an object at line 1 column 1",
    );
    check_status(
        session.set_weight(&named("panics")).await,
        Code::Internal,
        "SetWeight panicked: at 7; the plugin's log says where",
    );
    check_status(
        session.set_weight(&named("hangs")).await,
        Code::DeadlineExceeded,
        "SetWeight took longer than 1 s and was aborted; the plugin's log shows its progress",
    );
}

#[tokio::test]
async fn every_call_reaches_the_router_with_its_arguments() {
    let mut session = Session::start(ServeConfig::new()).await;
    let client = &mut session.client;
    let r#type = client.r#type(proto::TypeRequest {}).await.unwrap();
    assert_eq!(r#type.into_inner().r#type, "FnRouter");
    let rollout: Vec<u8> = named("web").into();
    let additional = proto::WeightDestination {
        weight: 5,
        service_name: "trial".into(),
        pod_template_hash: "t1".into(),
    };
    let request = proto::UpdateHashRequest {
        rollout: rollout.clone(),
        canary_hash: "c1".into(),
        stable_hash: "s1".into(),
        additional_destinations: vec![additional],
    };
    check_refused(
        client.update_hash(request).await,
        "UpdateHash of web: c1, s1, 5 to trial t1",
    );
    let request = proto::SetHeaderRouteRequest {
        rollout: rollout.clone(),
        set_header_route: r#"{"name": "beta"}"#.into(),
    };
    check_refused(
        client.set_header_route(request).await,
        "SetHeaderRoute of web: beta",
    );
    let request = proto::SetMirrorRouteRequest {
        rollout: rollout.clone(),
        set_mirror_route: r#"{"name": "copy"}"#.into(),
    };
    check_refused(
        client.set_mirror_route(request).await,
        "SetMirrorRoute of web: copy",
    );
    let request = proto::RemoveManagedRoutesRequest { rollout };
    check_refused(
        client.remove_managed_routes(request).await,
        "RemoveManagedRoutes of web",
    );
}

#[tokio::test]
async fn a_failed_verification_is_not_verified_and_logged_as_an_error() {
    use proto::Verification::{NotVerified, Verified};
    let config = ServeConfig::new().with_call_deadline(Duration::from_secs(1));
    for (rollout, expect, record) in [
        (named("works"), Verified, ""),
        (named("panics"), NotVerified, "VerifyWeight panicked: at 0"),
        (
            named("hangs"),
            NotVerified,
            "VerifyWeight took longer than 1 s",
        ),
        (named("refuses"), NotVerified, "no 0 of 50"),
        ("{".to_owned(), NotVerified, "rollout: EOF while parsing"),
    ] {
        let (log, _guard) = Records::start();
        let mut session = Session::start(config).await;
        let request = proto::VerifyWeightRequest {
            rollout: rollout.clone().into(),
            ..Default::default()
        };
        let reply = session.client.verify_weight(request).await.unwrap();
        assert_eq!(reply.into_inner().verification(), expect, "{rollout}");
        log.check_errors(record);
    }
}

#[tokio::test]
async fn a_host_may_reconnect_until_the_session_timeout() {
    let config = ServeConfig::new().with_session_timeout(Duration::from_secs(2));
    let mut session = Session::start(config).await;
    session.set_weight(&named("works")).await.unwrap();
    let socket = session.line.split('|').nth(3).unwrap().to_owned();
    session.client = TrafficRouterClient::new(connect(socket).await);
    session.set_weight(&named("works")).await.unwrap();
    assert_eq!(session.sockets(), 1);

    let Session {
        client,
        served,
        dir,
        ..
    } = session;
    drop(client);
    assert_eq!(served.await.unwrap().unwrap(), Shutdown::HostGone);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

/// A router with background work.
struct Working(mpsc::UnboundedSender<()>);

impl TrafficRouter for Working {
    async fn set_weight(
        &self,
        _: &Rollout,
        _: DesiredWeight,
        _: &[WeightDestination],
    ) -> Result<(), RouterError> {
        Ok(())
    }

    async fn stop(&self) {
        let _ = self.0.send(());
    }
}

#[tokio::test]
async fn the_background_work_stops_after_the_last_connection() {
    let dir = tempfile::tempdir().unwrap();
    let env = env(dir.path(), &[]);
    let (stopped, mut stops) = mpsc::unbounded_channel();
    let (announce, line) = oneshot::channel();
    let announce = |line: &str| {
        announce.send(line.to_owned()).unwrap();
        Ok(())
    };
    let served = tokio::spawn(async move {
        let config = ServeConfig::new().with_session_timeout(Duration::from_millis(200));
        grpc::serve(&config, &env, announce, Router(Working(stopped))).await
    });
    let line = line.await.unwrap();
    let socket = line.split('|').nth(3).unwrap().to_owned();
    drop(UnixStream::connect(socket).await.unwrap());
    assert_eq!(served.await.unwrap().unwrap(), Shutdown::HostGone);
    assert_eq!(stops.recv().await, Some(()));
    assert_eq!(stops.recv().await, None);
}

#[tokio::test]
async fn a_plugin_without_a_connection_exits() {
    let dir = tempfile::tempdir().unwrap();
    let config = ServeConfig::new().with_session_timeout(Duration::from_millis(50));
    let served = grpc::serve(
        &config,
        &env(dir.path(), &[]),
        |_| Ok(()),
        Router(FnRouter(answer)),
    )
    .await;
    assert!(
        matches!(served, Err(ServeError::NoSession(_))),
        "{served:?}"
    );
}

#[tokio::test]
async fn a_host_with_tls_is_refused_before_the_announcement() {
    let dir = tempfile::tempdir().unwrap();
    let env = env(dir.path(), &[("PLUGIN_CLIENT_CERT", "-----BEGIN")]);
    let announce = |line: &str| panic!("announced {line}");
    let router = Router(FnRouter(answer));
    let served = grpc::serve(&ServeConfig::new(), &env, announce, router).await;
    let error = served.unwrap_err().to_string();
    assert!(error.contains("PLUGIN_CLIENT_CERT"), "{error}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}
