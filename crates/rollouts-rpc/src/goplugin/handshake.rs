//! The handshake: checks the environment, negotiates the protocol version and formats the handshake line.
//!
//! All functions here are pure; `serve` does the I/O.

use std::path::{Path, PathBuf};

use super::env::PluginEnv;
pub use crate::kind::PluginKind;

/// Version of the go-plugin protocol itself, the first field of the handshake line (`CoreProtocolVersion` in go-plugin's `client.go`).
const CORE_PROTOCOL: u32 = 1;

/// Longest socket directory in bytes. The path of a Unix socket has at most 108 bytes, with the file name and the terminator.
const MAX_SOCKET_DIR: usize = 80;

/// The kind and the protocol versions of a plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HandshakeConfig {
    /// The kind of plugin that this process serves.
    pub kind: PluginKind,
    /// The application protocol versions that it supports. Argo Rollouts has only version 1.
    pub versions: &'static [u32],
}

/// The protocol of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Protocol {
    /// Go's net/rpc over yamux, the only protocol that the controller accepts.
    NetRpc,
    /// gRPC, for other hosts.
    Grpc,
}

/// The result of [`negotiate`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Negotiated {
    /// The application protocol version to announce.
    pub version: u32,
    /// Whether the host reads a seventh field of the handshake line.
    pub multiplex_grpc: bool,
    /// Entries of the host's version list that are not numbers. As in go-plugin, each should be logged as a warning.
    pub ignored_versions: Vec<String>,
}

/// Why this process must not serve in its environment.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HandshakeError {
    /// The cookie is not set: the program was started by hand.
    #[error(
        "this program is an Argo Rollouts {} plugin and is started by the controller; list it under {} in the ConfigMap \
         argo-rollouts-config instead of running it by hand",
        .0.noun(), .0.config_key()
    )]
    NotStartedByHost(PluginKind),
    /// The controller started the binary as another kind of plugin.
    #[error(
        "the controller started this {} plugin with the cookie \"{}\"; move its entry to {} in the ConfigMap \
         argo-rollouts-config",
        kind.noun(), found.escape_debug(), kind.config_key()
    )]
    OtherKind {
        /// The kind of this plugin.
        kind: PluginKind,
        /// The value of the cookie.
        found: String,
    },
    /// The host requires AutoMTLS, which needs feature `grpc`.
    #[error(
        "the host asks for AutoMTLS (PLUGIN_CLIENT_CERT is set), which this plugin does not support; unset it"
    )]
    ClientCertificate,
    /// The host accepts only other protocol versions.
    #[error(
        "the host accepts version {offered} of the plugin protocol, this plugin speaks {ours}; install a plugin made for \
         this controller"
    )]
    Version {
        /// The versions that the host accepts (`PLUGIN_PROTOCOL_VERSIONS`).
        offered: String,
        /// The versions that this plugin supports.
        ours: String,
    },
    /// The socket directory does not fit in a handshake line or a socket address.
    #[error(
        "the socket directory \"{}\" cannot be used: it must be Unicode without '|' or control characters and at most \
         {MAX_SOCKET_DIR} bytes long; set TMPDIR or PLUGIN_UNIX_SOCKET_DIR",
        dir.to_string_lossy().escape_debug()
    )]
    SocketDir {
        /// The directory that the environment sets.
        dir: PathBuf,
    },
}

/// Decides whether to serve, and with which protocol version.
///
/// As in go-plugin's `server.go`, the version is the highest one that both sides support, or the plugin's lowest one if the host lists
/// none. Without a common version, go-plugin announces its lowest one and the host kills the process. This function returns an error
/// instead, so that the process exits with a reason in the log and without a socket.
///
/// # Errors
///
/// Returns [`HandshakeError`] if the process must exit.
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
    /// Returns the configuration for this kind, with the protocol version of all released controllers.
    #[must_use]
    pub const fn of(kind: PluginKind) -> Self {
        Self {
            kind,
            versions: &[1],
        }
    }
}

impl Negotiated {
    /// Returns the handshake line with its newline: core version, version, network, address, protocol, certificate.
    ///
    /// `certificate` is empty unless the host requires AutoMTLS: other hosts crash if the field is set. A host that set
    /// `PLUGIN_MULTIPLEX_GRPC` also reads a seventh field. It is `false` in gRPC mode, which has no multiplexing here, and `true` in
    /// net/rpc mode, which always has.
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
    fn the_highest_common_version_is_announced() {
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
    fn the_lowest_version_is_announced_to_a_host_that_lists_none() {
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
    fn a_version_that_is_not_a_number_is_ignored_and_reported() {
        let negotiated = negotiate(
            &HandshakeConfig::of(PluginKind::TrafficRouter),
            &env(&[("PLUGIN_PROTOCOL_VERSIONS", "x,1,-2")]),
        )
        .unwrap();
        assert_eq!(negotiated.version, 1);
        assert_eq!(negotiated.ignored_versions, ["x", "-2"]);
    }

    #[test]
    fn the_seventh_field_is_sent_only_to_a_host_that_reads_it() {
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
    fn the_line_of_grpc_mode_announces_no_multiplexing() {
        check_grpc_line("", &[], "1|1|unix|/p|grpc|\n");
        check_grpc_line("TUlJ", &[], "1|1|unix|/p|grpc|TUlJ\n");
        let asked = [("PLUGIN_MULTIPLEX_GRPC", "true")];
        check_grpc_line("TUlJ", &asked, "1|1|unix|/p|grpc|TUlJ|false\n");
    }

    #[test]
    fn without_a_cookie_the_error_says_how_to_install_the_plugin() {
        check_error(&[], "list it under trafficRouterPlugins");
    }

    #[test]
    fn the_cookie_of_another_kind_is_refused_with_the_right_list() {
        check_error(
            &[(COOKIE_VARIABLE, "step")],
            "\"step\"; move its entry to trafficRouterPlugins",
        );
    }

    #[test]
    #[cfg(not(feature = "grpc"))]
    fn a_host_that_requires_tls_is_refused() {
        check_error(
            &[
                (COOKIE_VARIABLE, "trafficrouter"),
                ("PLUGIN_CLIENT_CERT", "x"),
            ],
            "PLUGIN_CLIENT_CERT",
        );
    }

    #[test]
    fn a_directory_that_does_not_fit_in_the_line_is_refused() {
        for dir in ["/a|b", "/a\nb", &"/long".repeat(20)] {
            check_error(
                &[(COOKIE_VARIABLE, "trafficrouter"), ("TMPDIR", dir)],
                "cannot be used",
            );
        }
    }
}
