//! The flags of the plugin, some of which commands share.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use clap::builder::{ArgPredicate, PossibleValuesParser, TypedValueParser};
use clap::{ArgAction, Args, ValueEnum};
use gloo_router::Policy;
use gloo_router::background::Settings;
use gloo_types::is_object_name;
use rollouts_rpc::goplugin::log::LogFormat;
use route_store::{KubeAccess, RequestLimits};
use tracing::level_filters::LevelFilter;

/// Flags of the plugin: `args` of its entry in the ConfigMap `argo-rollouts-config`, or environment variables for controllers
/// before 1.7, which do not support `args`.
#[derive(Debug, Clone, Args)]
pub struct Flags {
    #[command(flatten)]
    cluster: ClusterFlags,

    /// Requests per second to one API server, on average. Watches are not counted. Default: no limit.
    #[arg(long, env = "GLOO_PLUGIN_QPS", value_name = "NUMBER", value_parser = rate)]
    qps: Option<f64>,

    /// With --qps: burst of requests to one API server after a quiet time. A fifth of it is reserved for traffic back to stable.
    #[arg(long, env = "GLOO_PLUGIN_BURST", value_name = "NUMBER", default_value = "100", value_parser = clap::value_parser!(u32).range(1..))]
    burst: u32,

    /// The least severe records to log.
    #[arg(
        long,
        env = "GLOO_PLUGIN_LOG_LEVEL",
        value_name = "LEVEL",
        default_value = "info",
        value_parser = PossibleValuesParser::new(["error", "warn", "info", "debug", "trace"])
            .try_map(|level| level.parse::<LevelFilter>())
    )]
    pub log_level: LevelFilter,

    /// Format of the log records on stderr; the controller reads both.
    #[arg(
        long,
        env = "GLOO_PLUGIN_LOG_FORMAT",
        value_name = "FORMAT",
        default_value = "json",
        value_parser = PossibleValuesParser::new(["json", "text"]).map(|format| match &*format {
            "text" => LogFormat::Text,
            _ => LogFormat::Json,
        })
    )]
    pub log_format: LogFormat,

    /// Use the YAML files of this directory instead of a cluster.
    #[arg(long, env = "GLOO_PLUGIN_ROUTE_TABLES_DIR", value_name = "DIR", conflicts_with_all = ["kubeconfig", "context"])]
    pub route_tables_dir: Option<PathBuf>,

    /// Deadline of each call of the controller, in seconds. Must be longer than --request-timeout.
    #[arg(long, env = "GLOO_PLUGIN_CALL_TIMEOUT", value_name = "SECONDS", default_value = "5", value_parser = seconds)]
    pub call_timeout: Duration,

    /// Serve metrics for Prometheus at this address, for example 0.0.0.0:8091. Default: no metrics are served.
    #[arg(long, env = "GLOO_PLUGIN_METRICS_ADDRESS", value_name = "ADDRESS")]
    pub metrics_address: Option<SocketAddr>,

    /// Add the weight of each Rollout to the metrics, for at most 2,000 Rollouts.
    #[arg(long, env = "GLOO_PLUGIN_METRICS_PER_ROLLOUT")]
    pub metrics_per_rollout: bool,

    /// Hold a promotion until the stable Service routes to the new Pods.
    #[arg(
        long,
        env = "GLOO_PLUGIN_PROMOTION_GUARD",
        value_name = "SWITCH",
        default_value = "on",
        action = ArgAction::Set,
        value_parser = switch()
    )]
    pub promotion_guard: bool,

    /// Repair a table that another client changes during an update: write the weights of the last call again.
    #[arg(
        long,
        env = "GLOO_PLUGIN_REPAIR",
        value_name = "SWITCH",
        default_value = "on",
        action = ArgAction::Set,
        value_parser = switch()
    )]
    repair: bool,

    /// Delay between the deletion of a Rollout and the restore of its tables, in seconds.
    #[arg(long, env = "GLOO_PLUGIN_GC_AFTER", value_name = "SECONDS", default_value = "30", value_parser = seconds)]
    gc_after: Duration,

    /// Protocol of the host; the Rollouts controller supports netrpc only.
    #[arg(
        long,
        env = "GLOO_PLUGIN_PROTOCOL",
        value_name = "PROTOCOL",
        default_value = "netrpc",
        hide_possible_values = true
    )]
    pub protocol: Protocol,
}

/// What Rollouts may configure, and how to reach the cluster.
#[derive(Debug, Clone, Args)]
pub(crate) struct ClusterFlags {
    /// Another name under which the ConfigMap registers the plugin; repeatable.
    #[arg(
        long = "plugin-name",
        env = "GLOO_PLUGIN_NAME",
        value_delimiter = ',',
        value_name = "OWNER/NAME"
    )]
    plugin_names: Vec<String>,

    /// Namespaces whose RouteTables Rollouts may select, comma separated. Default: all.
    #[arg(
        long,
        env = "GLOO_PLUGIN_ALLOWED_ROUTE_TABLE_NAMESPACES",
        value_name = "NAMESPACES",
        value_delimiter = ','
    )]
    allowed_route_table_namespaces: Vec<String>,

    /// Namespaces in which destinations may be, besides each Rollout's own, comma separated. Default: none.
    #[arg(
        long,
        env = "GLOO_PLUGIN_ALLOWED_DESTINATION_NAMESPACES",
        value_name = "NAMESPACES",
        value_delimiter = ','
    )]
    allowed_destination_namespaces: Vec<String>,

    /// Allow headerRoutePlacement: top, with which a Rollout can take requests from earlier routes of other owners.
    #[arg(long, env = "GLOO_PLUGIN_ALLOW_TOP_PLACEMENT")]
    allow_top_placement: bool,

    /// Kubeconfig of the management cluster with the RouteTables, if they are not in the cluster of the Rollouts.
    #[arg(long, env = "GLOO_PLUGIN_KUBECONFIG", value_name = "FILE")]
    kubeconfig: Option<PathBuf>,

    /// Context within the kubeconfig.
    #[arg(long, env = "GLOO_PLUGIN_CONTEXT", value_name = "NAME")]
    context: Option<String>,

    /// With --kubeconfig: name of the Rollouts' cluster, unique within the management cluster. Default: remote.
    #[arg(long, env = "GLOO_PLUGIN_CLUSTER_NAME", value_name = "NAME", default_value_if("kubeconfig", ArgPredicate::IsPresent, "remote"), value_parser = cluster_name)]
    cluster_name: Option<String>,

    /// Deadline of each request to the API server, in seconds. With more than 8 the plugin may write nothing between the calls.
    #[arg(long, env = "GLOO_PLUGIN_REQUEST_TIMEOUT", value_name = "SECONDS", default_value = "3", value_parser = seconds)]
    request_timeout: Duration,
}

/// `--call-timeout` is not longer than `--request-timeout`.
#[derive(Debug, thiserror::Error)]
#[error(
    "--call-timeout is {} s, it must be longer than --request-timeout, which is {} s",
    call.as_secs_f32(),
    request.as_secs_f32()
)]
pub struct WrongTimeouts {
    call: Duration,
    request: Duration,
}

/// The longest request for which a Lease of Argo Rollouts leaves enough time. A leader has it for 15 s and renews it every 2 s.
/// After a request and 2 s of reserve, 5 s are left, in which one renewal may fail.
const LONGEST_REQUEST: Duration = Duration::from_secs(8);

/// `--request-timeout` is so long that the plugin does not know for the duration of a request that its controller is the leader.
#[derive(Debug, thiserror::Error)]
#[error(
    "--request-timeout is {} s: with more than {} s the plugin may write nothing between the calls, because the Lease of the \
     controller ends before such a request",
    request.as_secs_f32(),
    LONGEST_REQUEST.as_secs()
)]
pub struct LongRequests {
    request: Duration,
}

/// The protocol of the host.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum Protocol {
    /// Go's net/rpc over yamux, as the controller speaks it.
    Netrpc,
    #[cfg(feature = "grpc")]
    /// gRPC.
    Grpc,
}

impl Flags {
    /// Returns what Rollouts may configure.
    #[must_use]
    pub fn policy(&self) -> Policy {
        self.cluster.policy()
    }

    /// Checks the flags that depend on each other.
    ///
    /// # Errors
    /// Returns `Err` if a call could end before the API server had to answer. Then no call could name the slow table.
    pub fn check(&self) -> Result<(), WrongTimeouts> {
        let (call, request) = (self.call_timeout, self.cluster.request_timeout);
        match call > request {
            true => Ok(()),
            false => Err(WrongTimeouts { call, request }),
        }
    }

    /// Returns a warning if requests may take so long that repairs and other work between the calls do not happen.
    #[must_use]
    pub fn long_requests(&self) -> Option<LongRequests> {
        let request = self.cluster.request_timeout;
        (request > LONGEST_REQUEST).then_some(LongRequests { request })
    }

    /// Returns how to reach the cluster of the Rollouts, and the management cluster if there is one.
    #[must_use]
    pub fn kube_access(&self) -> (KubeAccess, Option<KubeAccess>) {
        let burst = self.burst;
        let limited = |access| KubeAccess {
            limits: self.qps.map(|qps| RequestLimits { qps, burst }),
            ..access
        };
        let (local, tables) = self.cluster.access();
        (limited(local), tables.map(limited))
    }

    /// Returns the settings of the work outside of calls.
    pub fn background_settings(&self) -> Settings {
        Settings {
            repair: self.repair,
            collect_after: self.gc_after,
            request_timeout: self.cluster.request_timeout,
        }
    }
}

impl ClusterFlags {
    /// Returns what Rollouts of the cluster may configure.
    pub(crate) fn policy(&self) -> Policy {
        let cluster = self.cluster_name.clone();
        let mut policy = Policy {
            route_table_namespaces: self.allowed_route_table_namespaces.clone(),
            destination_namespaces: self.allowed_destination_namespaces.clone(),
            allow_top_placement: self.allow_top_placement,
            cluster: cluster.filter(|_| self.kubeconfig.is_some()),
            ..Policy::default()
        };
        policy.plugin_names.extend_from_slice(&self.plugin_names);
        policy
    }

    /// Returns how to reach the cluster of the Rollouts, and the management cluster if there is one.
    pub(crate) fn access(&self) -> (KubeAccess, Option<KubeAccess>) {
        let local = KubeAccess {
            user_agent: crate::user_agent(),
            request_timeout: self.request_timeout,
            ..KubeAccess::default()
        };
        let named = KubeAccess {
            kubeconfig: self.kubeconfig.clone(),
            context: self.context.clone(),
            ..local.clone()
        };
        match self.kubeconfig {
            Some(_) => (local, Some(named)),
            None => (named, None),
        }
    }
}

fn switch() -> impl TypedValueParser<Value = bool> {
    PossibleValuesParser::new(["on", "off"]).map(|switch| switch == "on")
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().map(Duration::try_from_secs_f32);
    match seconds {
        Some(Ok(timeout)) if !timeout.is_zero() => Ok(timeout),
        Some(_) => Err("expected a number of seconds above 0".to_owned()),
        None => Err("expected a number of seconds".to_owned()),
    }
}

/// Parses a DNS subdomain name. It contains neither `@` nor `_`, which end the name of a Rollout in a mark.
fn cluster_name(text: &str) -> Result<String, String> {
    let is_name = text.len() <= 63 && is_object_name(text);
    let name = is_name.then(|| text.to_owned());
    name.ok_or_else(|| "expected a name of lower case letters, digits, - and .".to_owned())
}

pub(crate) fn whole<N: std::str::FromStr>(text: &str) -> Result<N, String> {
    text.parse()
        .map_err(|_| "use a whole number, such as 10".to_owned())
}

fn rate(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(rate) if rate > 0.0 && f64::is_finite(rate) => Ok(rate),
        _ => Err("expected a number above 0".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;

    use clap::{CommandFactory as _, Parser};

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        flags: Flags,
    }

    #[track_caller]
    fn check_by<T: PartialEq + Debug>(
        show: fn(&Flags) -> T,
        args: &[&str],
        expect: Result<T, &str>,
    ) {
        let parsed = Line::try_parse_from(["plugin"].iter().chain(args));
        match (parsed.map(|line| show(&line.flags)), expect) {
            (Ok(shown), Ok(expect)) => assert_eq!(shown, expect),
            (Err(error), Err(expect)) => assert!(error.to_string().contains(expect), "{error}"),
            (shown, _) => panic!("{shown:?}"),
        }
    }

    #[track_caller]
    fn check(args: &[&str], expect: Result<&str, &str>) {
        let show = |flags: &Flags| {
            let (names, access) = (flags.policy().plugin_names, flags.kube_access().0);
            format!("{names:?} {:?}", access.request_timeout)
        };
        check_by(show, args, expect.map(str::to_owned));
    }

    /// For example, `--log-level` has the variable `GLOO_PLUGIN_LOG_LEVEL`.
    #[test]
    fn every_flag_has_a_variable_named_after_it() {
        for flag in Line::command().get_arguments() {
            let name = flag.get_long().unwrap().trim_start_matches("plugin-");
            let variable = format!("GLOO_PLUGIN_{}", name.to_uppercase().replace('-', "_"));
            assert_eq!(flag.get_env().unwrap(), variable.as_str(), "--{name}");
        }
    }

    #[test]
    fn plugin_names_add_up_and_timeouts_are_seconds() {
        check(
            &[],
            Ok(r#"["solo-io/glooplatform", "solo-io/glooplatformAPI"] 3s"#),
        );
        check(
            &["--plugin-name", "acme/gloo", "--request-timeout=0.5"],
            Ok(r#"["solo-io/glooplatform", "solo-io/glooplatformAPI", "acme/gloo"] 500ms"#),
        );
        check(&["--request-timeout=0"], Err("above 0"));
        check(
            &["--request-timeout=soon"],
            Err("expected a number of seconds"),
        );
        check(&["--request-timeout=-1"], Err("above 0"));
    }

    #[test]
    fn each_request_names_the_plugin_and_its_version() {
        let Line { flags } = Line::try_parse_from(["plugin", "--kubeconfig=a"]).unwrap();
        let (local, tables) = flags.kube_access();
        for access in [local, tables.unwrap()] {
            let program = format!(
                "rollouts-plugin-trafficrouter-glooplatform/{}",
                env!("CARGO_PKG_VERSION")
            );
            assert!(
                access.user_agent.starts_with(&program),
                "{}",
                access.user_agent
            );
        }
    }

    #[test]
    fn a_kubeconfig_is_for_tables_only_and_rollouts_are_marked_with_their_cluster() {
        #[track_caller]
        fn check(args: &[&str], expect: Result<&str, &str>) {
            let show = |flags: &Flags| {
                let (local, tables) = flags.kube_access();
                let tables = tables.map(|tables| tables.to_string());
                format!("{local}; {tables:?}; {:?}", flags.policy().cluster)
            };
            check_by(show, args, expect.map(str::to_owned));
        }
        check(&[], Ok("the API server; None; None"));
        check(
            &["--context=a"],
            Ok("the API server (context a); None; None"),
        );
        check(
            &["--kubeconfig=/f"],
            Ok(r#"the API server; Some("the API server of kubeconfig /f"); Some("remote")"#),
        );
        check(
            &["--kubeconfig=/f", "--context=a", "--cluster-name=east-1"],
            Ok(
                r#"the API server; Some("the API server of kubeconfig /f (context a)"); Some("east-1")"#,
            ),
        );
        // A variable that is set for the plugin does not disturb the commands.
        check(&["--cluster-name=east"], Ok("the API server; None; None"));
        for nonsense in ["", "a@b", "a_b", "a/b", "-a", "a-", "A", &"a".repeat(64)] {
            let name = format!("--cluster-name={nonsense}");
            check(&["--kubeconfig=/f", &name], Err("expected a name"));
        }
    }

    #[test]
    fn rate_limits_are_positive() {
        #[track_caller]
        fn check(args: &[&str], expect: Result<Option<(f64, u32)>, &str>) {
            let show = |flags: &Flags| {
                let limits = flags.kube_access().0.limits;
                limits.map(|it| (it.qps, it.burst))
            };
            check_by(show, args, expect);
        }
        check(&[], Ok(None));
        check(&["--burst=1"], Ok(None));
        check(&["--qps=50"], Ok(Some((50.0, 100))));
        check(&["--qps=0.5", "--burst=1"], Ok(Some((0.5, 1))));
        for nonsense in ["0", "-1", "NaN", "inf", "many", ""] {
            let qps = format!("--qps={nonsense}");
            check(&[&qps], Err("expected a number above 0"));
        }
        check(&["--burst=0"], Err("0 is not in 1.."));
        check(&["--burst=-1"], Err("-1 is not in 1.."));
        check(&["--burst=1.5"], Err("invalid digit"));
    }

    #[track_caller]
    fn check_timeouts(args: &[&str], expect: Option<&str>) {
        let line = Line::try_parse_from(["plugin"].iter().chain(args)).unwrap();
        let refused = line.flags.check().err();
        assert_eq!(refused.map(|error| error.to_string()).as_deref(), expect);
    }

    #[test]
    fn the_call_timeout_is_longer_than_the_request_timeout() {
        check_timeouts(&[], None);
        check_timeouts(&["--call-timeout=3.5"], None);
        check_timeouts(
            &["--call-timeout=3"],
            Some("--call-timeout is 3 s, it must be longer than --request-timeout, which is 3 s"),
        );
        check_timeouts(
            &["--request-timeout=7.5"],
            Some("--call-timeout is 5 s, it must be longer than --request-timeout, which is 7.5 s"),
        );
    }

    #[test]
    fn long_requests_are_a_warning() {
        let warning = |timeout: &str| {
            let line = Line::try_parse_from(["plugin", timeout]).unwrap();
            line.flags
                .long_requests()
                .map(|warning| warning.to_string())
        };
        assert_eq!(warning("--request-timeout=8"), None);
        let long = warning("--request-timeout=8.5").unwrap();
        let expected = "--request-timeout is 8.5 s: with more than 8 s the plugin may write nothing between the calls";
        assert!(long.starts_with(expected), "{long}");
    }

    #[test]
    fn a_directory_and_a_cluster_exclude_each_other() {
        check(
            &["--route-tables-dir=x", "--kubeconfig=y"],
            Err("cannot be used with"),
        );
    }
}
