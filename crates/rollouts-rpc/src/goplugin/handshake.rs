//! Deciding, from the environment alone, whether and how to serve; and the one line that tells the
//! host.
//!
//! Everything here is a pure function; `serve` carries the decision out.

use std::path::{Path, PathBuf};

use super::env::PluginEnv;

/// go-plugin's own protocol version, the first handshake field (`CoreProtocolVersion` in go-plugin
/// `client.go`).
const CORE_PROTOCOL: u32 = 1;

/// A Unix socket path is limited to 108 bytes with its terminator, and the file name needs its
/// share of that.
const MAX_SOCKET_DIR: usize = 80;

/// The kinds of plugin an Argo Rollouts controller loads, each from its own list in
/// `argo-rollouts-config`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PluginKind {
    /// Moves traffic between the services of a Rollout.
    TrafficRouter,
    /// Measures for an analysis.
    MetricProvider,
    /// Runs as a step of a canary.
    Step,
}

/// What a plugin is and speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandshakeConfig {
    /// The kind of plugin this process offers.
    pub kind: PluginKind,
    /// The application protocol versions it speaks; Argo Rollouts knows only 1.
    pub versions: &'static [u32],
}

/// What host and plugin speak once they are connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Protocol {
    /// Go's net/rpc over yamux, the only one the controller accepts.
    NetRpc,
    /// gRPC, for other hosts.
    Grpc,
}

/// The outcome of [`negotiate`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Negotiated {
    /// The application protocol version to announce.
    pub version: u32,
    /// Whether the host reads a seventh field.
    pub multiplex_grpc: bool,
    /// Entries of the host's version list that are not numbers; worth a warning, as in go-plugin.
    pub ignored_versions: Vec<String>,
}

/// Why this process must not serve in the environment it was started in.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HandshakeError {
    /// There is no cookie: a person ran the binary.
    #[error(
        "this program is an Argo Rollouts {} plugin and is started by the controller; list it under {} in the ConfigMap \
         argo-rollouts-config instead of running it by hand",
        .0.noun(), .0.config_key()
    )]
    NotStartedByHost(PluginKind),
    /// The controller started the binary as another kind of plugin.
    #[error(
        "the controller started this {} plugin with the cookie {found:?}; move its entry to {} in the ConfigMap \
         argo-rollouts-config",
        kind.noun(), kind.config_key()
    )]
    OtherKind {
        /// What this process is.
        kind: PluginKind,
        /// The cookie the host sent.
        found: String,
    },
    /// The host wants mutual TLS, which takes feature `grpc`.
    #[error(
        "the host asks for AutoMTLS (PLUGIN_CLIENT_CERT is set), which this plugin does not support; unset it"
    )]
    ClientCertificate,
    /// The host accepts other protocol versions only.
    #[error(
        "the host accepts version {offered} of the plugin protocol, this plugin speaks {ours}; install a plugin made for \
         this controller"
    )]
    Version {
        /// What the host accepts, as it said it (`PLUGIN_PROTOCOL_VERSIONS`).
        offered: String,
        /// What this plugin speaks.
        ours: String,
    },
    /// The directory cannot be part of a handshake line or of a socket address.
    #[error(
        "the socket directory {dir:?} cannot be used: it must be Unicode without '|' or control characters and at most \
         {MAX_SOCKET_DIR} bytes long; set TMPDIR or PLUGIN_UNIX_SOCKET_DIR"
    )]
    SocketDir {
        /// The directory the environment asks for.
        dir: PathBuf,
    },
}

/// Decides whether to serve, and in which version.
///
/// The highest version both sides know is chosen, or the lowest of ours for a host that names none, as in
/// go-plugin's `server.go`. Without a common one that would announce its lowest and be killed; to end
/// by itself leaves a reason in the log and no socket.
///
/// # Errors
///
/// [`HandshakeError`] says why the process must end instead.
pub fn negotiate(config: &HandshakeConfig, env: &PluginEnv) -> Result<Negotiated, HandshakeError> {
    match env.cookie.as_deref() {
        Some(cookie) if cookie == config.kind.cookie() => {}
        None => return Err(HandshakeError::NotStartedByHost(config.kind)),
        Some(found) => {
            return Err(HandshakeError::OtherKind {
                kind: config.kind,
                found: found.to_owned(),
            });
        }
    }
    if env.client_cert.is_some() && cfg!(not(feature = "grpc")) {
        return Err(HandshakeError::ClientCertificate);
    }
    if !is_announceable(env.socket_dir()) {
        return Err(HandshakeError::SocketDir {
            dir: env.socket_dir().to_owned(),
        });
    }

    let mut offered = Vec::new();
    let mut ignored_versions = Vec::new();
    for text in env
        .protocol_versions
        .iter()
        .flat_map(|list| list.split(','))
    {
        match text.parse::<u32>() {
            Ok(version) => offered.push(version),
            Err(_) => ignored_versions.push(text.to_owned()),
        }
    }
    let ours = config.versions.iter().copied();
    let common = ours
        .clone()
        .filter(|version| offered.contains(version))
        .max();
    if common.is_none() && !offered.is_empty() {
        return Err(HandshakeError::Version {
            offered: listed(&offered),
            ours: listed(config.versions),
        });
    }
    let version = common.or(ours.min()).unwrap_or(1);
    Ok(Negotiated {
        version,
        multiplex_grpc: env.multiplex_grpc,
        ignored_versions,
    })
}

impl HandshakeConfig {
    /// A plugin of this kind, in the protocol version that every released controller speaks.
    #[must_use]
    pub const fn of(kind: PluginKind) -> Self {
        Self {
            kind,
            versions: &[1],
        }
    }
}

impl Negotiated {
    /// The line that goes to stdout, with its newline: core version, version, network, address,
    /// protocol, certificate.
    ///
    /// `certificate` is empty unless the host asked for AutoMTLS: any other host that finds one there
    /// crashes. A host that asked for it also learns whether gRPC connections can be multiplexed,
    /// which they cannot; in net/rpc all are.
    #[must_use]
    pub fn handshake_line(&self, socket: &Path, protocol: Protocol, certificate: &str) -> String {
        let protocol_name = match protocol {
            Protocol::NetRpc => "netrpc",
            Protocol::Grpc => "grpc",
        };
        let multiplexed = match protocol {
            _ if !self.multiplex_grpc => "",
            Protocol::NetRpc => "|true",
            Protocol::Grpc => "|false",
        };
        format!(
            "{CORE_PROTOCOL}|{}|unix|{}|{protocol_name}|{certificate}{multiplexed}\n",
            self.version,
            socket.display()
        )
    }
}

impl PluginKind {
    /// The cookie's value for this kind (`plugin/client/client.go` of each kind in Argo Rollouts).
    #[must_use]
    pub const fn cookie(self) -> &'static str {
        match self {
            Self::TrafficRouter => "trafficrouter",
            Self::MetricProvider => "metricprovider",
            Self::Step => "step",
        }
    }

    /// The name the host dispenses this kind by.
    #[must_use]
    pub const fn dispense_name(self) -> &'static str {
        match self {
            Self::TrafficRouter => "RpcTrafficRouterPlugin",
            Self::MetricProvider => "RpcMetricProviderPlugin",
            Self::Step => "RpcStepPlugin",
        }
    }

    /// The key of the ConfigMap `argo-rollouts-config` that lists plugins of this kind.
    #[must_use]
    pub const fn config_key(self) -> &'static str {
        match self {
            Self::TrafficRouter => "trafficRouterPlugins",
            Self::MetricProvider => "metricProviderPlugins",
            Self::Step => "stepPlugins",
        }
    }

    pub(crate) const fn noun(self) -> &'static str {
        match self {
            Self::TrafficRouter => "traffic router",
            Self::MetricProvider => "metric provider",
            Self::Step => "step",
        }
    }
}

fn listed(versions: &[u32]) -> String {
    let versions: Vec<_> = versions.iter().map(u32::to_string).collect();
    versions.join(", ")
}

fn is_announceable(dir: &Path) -> bool {
    dir.to_str().is_some_and(|dir| {
        dir.len() <= MAX_SOCKET_DIR && !dir.contains(|c: char| c == '|' || c.is_control())
    })
}

#[cfg(test)]
mod tests {
    use super::super::env::COOKIE_VARIABLE;
    use super::*;

    fn env(vars: &[(&str, &str)]) -> PluginEnv {
        let cookie = [(COOKIE_VARIABLE, "trafficrouter")];
        PluginEnv::from_vars(cookie.iter().chain(vars).copied())
    }

    #[track_caller]
    fn check_line(versions: &'static [u32], vars: &[(&str, &str)], expect: &str) {
        let config = HandshakeConfig {
            kind: PluginKind::TrafficRouter,
            versions,
        };
        let negotiated = negotiate(&config, &env(vars)).unwrap();
        let line = negotiated.handshake_line(Path::new("/tmp/plugin1"), Protocol::NetRpc, "");
        assert_eq!(line, expect);
    }

    #[track_caller]
    fn check_grpc_line(certificate: &str, vars: &[(&str, &str)], expect: &str) {
        let negotiated =
            negotiate(&HandshakeConfig::of(PluginKind::TrafficRouter), &env(vars)).unwrap();
        let line = negotiated.handshake_line(Path::new("/p"), Protocol::Grpc, certificate);
        assert_eq!(line, expect);
    }

    #[track_caller]
    fn check_error(vars: &[(&str, &str)], expect: &str) {
        let error = negotiate(
            &HandshakeConfig::of(PluginKind::TrafficRouter),
            &PluginEnv::from_vars(vars.iter().copied()),
        );
        let text = error.unwrap_err().to_string();
        assert!(text.contains(expect), "{text}");
        assert!(!text.contains(['\n', '%']), "{text}");
    }

    #[test]
    fn the_highest_common_version_wins() {
        check_line(
            &[1],
            &[("PLUGIN_PROTOCOL_VERSIONS", "1")],
            "1|1|unix|/tmp/plugin1|netrpc|\n",
        );
        check_line(
            &[1, 2, 3],
            &[("PLUGIN_PROTOCOL_VERSIONS", "1,2,9")],
            "1|2|unix|/tmp/plugin1|netrpc|\n",
        );
        check_line(
            &[3, 1, 2],
            &[("PLUGIN_PROTOCOL_VERSIONS", "3,2")],
            "1|3|unix|/tmp/plugin1|netrpc|\n",
        );
    }

    #[test]
    fn to_a_host_that_names_no_version_our_lowest_is_announced() {
        check_line(&[3, 2], &[], "1|2|unix|/tmp/plugin1|netrpc|\n");
        check_line(
            &[1],
            &[("PLUGIN_PROTOCOL_VERSIONS", "x")],
            "1|1|unix|/tmp/plugin1|netrpc|\n",
        );
    }

    #[test]
    fn a_host_without_a_common_version_is_refused() {
        check_error(
            &[
                (COOKIE_VARIABLE, "trafficrouter"),
                ("PLUGIN_PROTOCOL_VERSIONS", "2,3"),
            ],
            "accepts version 2, 3 of the plugin protocol, this plugin speaks 1;",
        );
    }

    #[test]
    fn a_version_that_is_no_number_is_skipped_and_reported() {
        let negotiated = negotiate(
            &HandshakeConfig::of(PluginKind::TrafficRouter),
            &env(&[("PLUGIN_PROTOCOL_VERSIONS", "x,1,-2")]),
        )
        .unwrap();
        assert_eq!(negotiated.version, 1);
        assert_eq!(negotiated.ignored_versions, ["x", "-2"]);
    }

    #[test]
    fn a_seventh_field_is_sent_only_to_a_host_that_asked() {
        check_line(
            &[1],
            &[("PLUGIN_MULTIPLEX_GRPC", "true")],
            "1|1|unix|/tmp/plugin1|netrpc||true\n",
        );
        check_line(
            &[1],
            &[("PLUGIN_MULTIPLEX_GRPC", "")],
            "1|1|unix|/tmp/plugin1|netrpc|\n",
        );
    }

    #[test]
    fn in_grpc_mode_the_line_says_so_and_that_nothing_is_multiplexed() {
        check_grpc_line("", &[], "1|1|unix|/p|grpc|\n");
        check_grpc_line("TUlJ", &[], "1|1|unix|/p|grpc|TUlJ\n");
        let asked = [("PLUGIN_MULTIPLEX_GRPC", "true")];
        check_grpc_line("TUlJ", &asked, "1|1|unix|/p|grpc|TUlJ|false\n");
    }

    #[test]
    fn without_a_cookie_the_program_explains_itself() {
        check_error(&[], "list it under trafficRouterPlugins");
    }

    #[test]
    fn another_kinds_cookie_names_the_right_list() {
        check_error(
            &[(COOKIE_VARIABLE, "step")],
            "\"step\"; move its entry to trafficRouterPlugins",
        );
    }

    #[test]
    #[cfg(not(feature = "grpc"))]
    fn a_host_that_wants_tls_is_refused() {
        check_error(
            &[
                (COOKIE_VARIABLE, "trafficrouter"),
                ("PLUGIN_CLIENT_CERT", "x"),
            ],
            "PLUGIN_CLIENT_CERT",
        );
    }

    #[test]
    fn a_directory_that_breaks_the_line_is_refused() {
        for dir in ["/a|b", "/a\nb", &"/long".repeat(20)] {
            check_error(
                &[(COOKIE_VARIABLE, "trafficrouter"), ("TMPDIR", dir)],
                "cannot be used",
            );
        }
    }

    #[test]
    fn each_kind_has_its_own_cookie_name_and_list() {
        let facts = [
            PluginKind::TrafficRouter,
            PluginKind::MetricProvider,
            PluginKind::Step,
        ]
        .map(|kind| (kind.cookie(), kind.dispense_name(), kind.config_key()));
        assert_eq!(
            facts,
            [
                (
                    "trafficrouter",
                    "RpcTrafficRouterPlugin",
                    "trafficRouterPlugins"
                ),
                (
                    "metricprovider",
                    "RpcMetricProviderPlugin",
                    "metricProviderPlugins"
                ),
                ("step", "RpcStepPlugin", "stepPlugins"),
            ]
        );
    }
}
