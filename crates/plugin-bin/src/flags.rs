//! The command line: `args` of the plugin's entry in the ConfigMap `argo-rollouts-config`.

use std::{path::PathBuf, time::Duration};

use clap::{Parser, ValueEnum};
use rollouts_rpc::goplugin::log::LogFormat;
use route_store::KubeAccess;

/// Names under which the plugin is registered unless `--plugin-name` adds others.
pub const DEFAULT_PLUGIN_NAMES: [&str; 2] = ["solo-io/glooplatform", "solo-io/glooplatformAPI"];

/// Argo Rollouts traffic router for Solo.io Gloo Platform.
///
/// The Rollouts controller starts this program; it is not meant to be run by hand. Register it in
/// the ConfigMap `argo-rollouts-config` under `trafficRouterPlugins`, flags go into `args` there.
#[derive(Debug, Clone, Parser)]
#[command(version, max_term_width = 100)]
pub struct Flags {
    /// A further name under which the plugin is registered in the ConfigMap; repeatable.
    #[arg(long = "plugin-name", value_name = "OWNER/NAME")]
    plugin_names: Vec<String>,

    /// The least severe records to log.
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    pub log_level: LogLevel,

    /// How records are written to stderr; the controller reads both.
    #[arg(long, value_name = "FORMAT", default_value = "json")]
    log_format: Format,

    /// Kubeconfig of the cluster that holds the RouteTables, when it is not the controller's own.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,

    /// Context within the kubeconfig.
    #[arg(long, value_name = "NAME")]
    context: Option<String>,

    /// Deadline of each request to the API server, in seconds.
    #[arg(long, value_name = "SECONDS", default_value = "3", value_parser = seconds)]
    request_timeout: Duration,

    /// Use the YAML files of this directory instead of a cluster.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["kubeconfig", "context"])]
    pub route_tables_dir: Option<PathBuf>,

    /// Namespaces whose RouteTables Rollouts may select, comma separated. Default: all.
    #[arg(long, value_name = "NAMESPACES", value_delimiter = ',')]
    pub allowed_route_table_namespaces: Vec<String>,

    /// Namespaces in which destinations may be, comma separated, beside each Rollout's own. Default: none.
    #[arg(long, value_name = "NAMESPACES", value_delimiter = ',')]
    pub allowed_destination_namespaces: Vec<String>,
}

/// Severity of log records.
#[derive(Debug, Clone, Copy, ValueEnum)]
#[expect(
    missing_docs,
    reason = "the names say it, and doc comments would clutter --help"
)]
pub enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Format {
    Json,
    Text,
}

impl Flags {
    /// The names a Rollout may use for the plugin.
    #[must_use]
    pub fn plugin_names(&self) -> Vec<String> {
        let defaults = DEFAULT_PLUGIN_NAMES.map(str::to_owned);
        defaults
            .into_iter()
            .chain(self.plugin_names.iter().cloned())
            .collect()
    }

    /// How to reach the API server.
    #[must_use]
    pub fn kube_access(&self) -> KubeAccess {
        KubeAccess {
            kubeconfig: self.kubeconfig.clone(),
            context: self.context.clone(),
            request_timeout: self.request_timeout,
        }
    }

    /// How records are written.
    #[must_use]
    pub const fn log_format(&self) -> LogFormat {
        match self.log_format {
            Format::Json => LogFormat::Json,
            Format::Text => LogFormat::Text,
        }
    }
}

impl From<LogLevel> for tracing::level_filters::LevelFilter {
    fn from(level: LogLevel) -> Self {
        match level {
            LogLevel::Error => Self::ERROR,
            LogLevel::Warn => Self::WARN,
            LogLevel::Info => Self::INFO,
            LogLevel::Debug => Self::DEBUG,
            LogLevel::Trace => Self::TRACE,
        }
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f32 = text
        .parse()
        .map_err(|_| "expected a number of seconds".to_owned())?;
    match Duration::try_from_secs_f32(seconds) {
        Ok(timeout) if !timeout.is_zero() => Ok(timeout),
        _ => Err("expected a number of seconds above 0".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[track_caller]
    fn check(args: &[&str], expect: Result<&str, &str>) {
        let parsed = Flags::try_parse_from(["plugin"].iter().chain(args));
        let shown = parsed.map(|flags| {
            format!(
                "{:?} {:?}",
                flags.plugin_names(),
                flags.kube_access().request_timeout
            )
        });
        match (shown, expect) {
            (Ok(shown), Ok(expect)) => assert_eq!(shown, expect),
            (Err(error), Err(expect)) => assert!(error.to_string().contains(expect), "{error}"),
            (shown, _) => panic!("{shown:?}"),
        }
    }

    #[test]
    fn the_command_line_is_consistent() {
        Flags::command().debug_assert();
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
    fn a_directory_and_a_cluster_exclude_each_other() {
        check(
            &["--route-tables-dir=x", "--kubeconfig=y"],
            Err("cannot be used with"),
        );
    }
}
