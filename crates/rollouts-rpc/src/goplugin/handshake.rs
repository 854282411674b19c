//! The handshake: checks the environment, negotiates the protocol version and formats the handshake line.
//!
//! All functions here are pure; `serve` does the I/O.

use std::path::{Path, PathBuf};

use super::env::PluginEnv;
pub use crate::kind::PluginKind;

/// Version of the go-plugin protocol itself, the first field of the handshake line (`CoreProtocolVersion` in go-plugin's `client.go`).
const CORE_PROTOCOL: u32 = 1;

/// Version of the protocol between controller and plugin, the second field. All releases of Argo Rollouts have this one.
const VERSION: u32 = 1;

/// Longest socket directory in bytes. The path of a Unix socket has at most 108 bytes, with `/plugin`, six more characters and the
/// terminator.
const MAX_SOCKET_DIR: usize = 94;

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
    /// The host requires AutoMTLS. Only this user may connect to the socket, so TLS would add nothing.
    #[error(
        "the host asks for AutoMTLS (PLUGIN_CLIENT_CERT is set), which this plugin does not support; unset it"
    )]
    ClientCertificate,
    /// The host accepts only these protocol versions (`PLUGIN_PROTOCOL_VERSIONS`).
    #[error(
        "the host accepts version {0} of the plugin protocol, this plugin speaks {VERSION}; install a plugin made for this \
         controller"
    )]
    Version(String),
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

/// Decides whether to serve.
///
/// A host that lists no version gets ours. If it lists only others, go-plugin announces its own one and the host kills the
/// process. This function returns an error instead, so that the process exits with a reason in the log and without a socket.
///
/// # Errors
///
/// Returns [`HandshakeError`] if the process must exit.
pub fn negotiate(kind: PluginKind, env: &PluginEnv) -> Result<Negotiated, HandshakeError> {
    match env.cookie.as_deref() {
        Some(cookie) if cookie == kind.cookie() => {}
        None => return Err(HandshakeError::NotStartedByHost(kind)),
        Some(found) => {
            let found = found.to_owned();
            return Err(HandshakeError::OtherKind { kind, found });
        }
    }
    if env.asks_for_tls {
        return Err(HandshakeError::ClientCertificate);
    }
    if !is_announceable(env.socket_dir()) {
        return Err(HandshakeError::SocketDir {
            dir: env.socket_dir().to_owned(),
        });
    }
    let (mut offered, mut ignored_versions) = (Vec::new(), Vec::new());
    let listed = env.protocol_versions.as_deref().unwrap_or_default();
    for text in listed.split(',').filter(|_| !listed.is_empty()) {
        match text.parse::<u32>() {
            Ok(version) => offered.push(version),
            Err(_) => ignored_versions.push(text.to_owned()),
        }
    }
    if !offered.is_empty() && !offered.contains(&VERSION) {
        let offered: Vec<_> = offered.iter().map(u32::to_string).collect();
        return Err(HandshakeError::Version(offered.join(", ")));
    }
    Ok(Negotiated {
        multiplex_grpc: env.multiplex_grpc,
        ignored_versions,
    })
}

impl Negotiated {
    /// Returns the handshake line with its newline: core version, version, network, address, protocol, certificate.
    ///
    /// The certificate is always empty: the controller crashes if the field is set. A host that set `PLUGIN_MULTIPLEX_GRPC` also reads
    /// a seventh field. It is `false` in gRPC mode, which has no multiplexing here, and `true` in net/rpc mode, which always has.
    #[must_use]
    pub fn handshake_line(&self, socket: &Path, protocol: Protocol) -> String {
        let protocol_name = match protocol {
            Protocol::NetRpc => "netrpc",
            Protocol::Grpc => "grpc",
        };
        let multiplexed = match protocol {
            _ if !self.multiplex_grpc => "",
            Protocol::NetRpc => "|true",
            Protocol::Grpc => "|false",
        };
        let socket = socket.display();
        format!("{CORE_PROTOCOL}|{VERSION}|unix|{socket}|{protocol_name}|{multiplexed}\n")
    }
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
    fn check_line(protocol: Protocol, vars: &[(&str, &str)], expect: &str) {
        let negotiated = negotiate(PluginKind::TrafficRouter, &env(vars)).unwrap();
        let line = negotiated.handshake_line(Path::new("/tmp/plugin1"), protocol);
        assert_eq!(line, expect);
    }

    #[track_caller]
    fn check_error(vars: &[(&str, &str)], expect: &str) {
        let error = negotiate(
            PluginKind::TrafficRouter,
            &PluginEnv::from_vars(vars.iter().copied()),
        );
        let text = error.unwrap_err().to_string();
        assert!(text.contains(expect), "{text}");
        assert!(!text.contains(['\n', '%']), "{text}");
    }

    #[test]
    fn version_1_is_announced_to_a_host_that_accepts_it_or_lists_none() {
        for listed in ["1", "9,1,2", "x", ""] {
            let vars = [("PLUGIN_PROTOCOL_VERSIONS", listed)];
            let line = "1|1|unix|/tmp/plugin1|netrpc|\n";
            check_line(Protocol::NetRpc, &vars, line);
        }
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
        let env = env(&[("PLUGIN_PROTOCOL_VERSIONS", "x,1,-2")]);
        let negotiated = negotiate(PluginKind::TrafficRouter, &env).unwrap();
        assert_eq!(negotiated.ignored_versions, ["x", "-2"]);
    }

    #[test]
    fn the_seventh_field_is_sent_only_to_a_host_that_reads_it() {
        let check = |multiplex, protocol, expect| {
            check_line(protocol, &[("PLUGIN_MULTIPLEX_GRPC", multiplex)], expect);
        };
        check(
            "true",
            Protocol::NetRpc,
            "1|1|unix|/tmp/plugin1|netrpc||true\n",
        );
        check("", Protocol::NetRpc, "1|1|unix|/tmp/plugin1|netrpc|\n");
        check(
            "true",
            Protocol::Grpc,
            "1|1|unix|/tmp/plugin1|grpc||false\n",
        );
        check("", Protocol::Grpc, "1|1|unix|/tmp/plugin1|grpc|\n");
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
