//! The environment variables that a go-plugin host sets, as a value.
//!
//! Names and meanings are from go-plugin's `client.go` and `constants.go`. Argo Rollouts sets the cookie, the protocol versions and a
//! range of ports, which a plugin on Unix does not need. Hosts with a custom runner or with AutoMTLS set the other variables.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The variable with the magic cookie, the same for all kinds of plugin (`plugin/client/client.go` in Argo Rollouts).
pub const COOKIE_VARIABLE: &str = "ARGO_ROLLOUTS_RPC_PLUGIN";

/// The variables that a go-plugin host sets for its plugin.
///
/// As in go-plugin, an empty variable counts as unset. Text that is not Unicode is read with replacement characters, except in
/// paths.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PluginEnv {
    /// `ARGO_ROLLOUTS_RPC_PLUGIN`: says which kind of plugin the host wants.
    pub cookie: Option<String>,
    /// `PLUGIN_PROTOCOL_VERSIONS`: the application protocol versions that the host accepts, separated by commas, not parsed.
    pub protocol_versions: Option<String>,
    /// `PLUGIN_UNIX_SOCKET_DIR`: the directory of the socket.
    pub unix_socket_dir: Option<PathBuf>,
    /// `PLUGIN_UNIX_SOCKET_GROUP`: name or number of a group that may connect too.
    pub unix_socket_group: Option<String>,
    /// `PLUGIN_CLIENT_CERT`: the host sent its certificate, and uses TLS on the socket (AutoMTLS).
    pub asks_for_tls: bool,
    /// `PLUGIN_MULTIPLEX_GRPC`: the host reads a seventh handshake field.
    pub multiplex_grpc: bool,
    /// `TMPDIR`: the directory of the socket if `PLUGIN_UNIX_SOCKET_DIR` is not set.
    pub temp_dir: Option<PathBuf>,
}

impl PluginEnv {
    /// Reads the plugin variables of an environment and ignores all others.
    ///
    /// A program passes [`std::env::vars_os`]. Tests pass their own variables, so they do not depend on their process.
    pub fn from_vars<N, V>(vars: impl IntoIterator<Item = (N, V)>) -> Self
    where
        N: Into<OsString>,
        V: Into<OsString>,
    {
        let mut env = Self::default();
        for (name, value) in vars {
            let (name, value) = (name.into(), value.into());
            if value.is_empty() {
                continue;
            }
            let text = || value.to_string_lossy().into_owned();
            match name.to_str() {
                Some(COOKIE_VARIABLE) => env.cookie = Some(text()),
                Some("PLUGIN_PROTOCOL_VERSIONS") => env.protocol_versions = Some(text()),
                Some("PLUGIN_UNIX_SOCKET_DIR") => env.unix_socket_dir = Some(value.into()),
                Some("PLUGIN_UNIX_SOCKET_GROUP") => env.unix_socket_group = Some(text()),
                Some("PLUGIN_CLIENT_CERT") => env.asks_for_tls = true,
                Some("PLUGIN_MULTIPLEX_GRPC") => env.multiplex_grpc = true,
                Some("TMPDIR") => env.temp_dir = Some(value.into()),
                _ => {}
            }
        }
        env
    }

    /// Returns the directory of the socket: the host's directory, or the temporary directory, or `/tmp`.
    #[must_use]
    pub fn socket_dir(&self) -> &Path {
        self.unix_socket_dir
            .as_deref()
            .or(self.temp_dir.as_deref())
            .unwrap_or(Path::new("/tmp"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(vars: &[(&str, &str)], expect: PluginEnv) {
        assert_eq!(PluginEnv::from_vars(vars.iter().copied()), expect);
    }

    #[test]
    fn an_empty_environment_sets_nothing() {
        check(&[], PluginEnv::default());
        check(&[("PATH", "/bin"), ("HOME", "/root")], PluginEnv::default());
    }

    #[test]
    fn the_variables_of_argo_rollouts_are_read() {
        check(
            &[
                ("ARGO_ROLLOUTS_RPC_PLUGIN", "trafficrouter"),
                ("PLUGIN_MIN_PORT", "10000"),
                ("PLUGIN_MAX_PORT", "25000"),
                ("PLUGIN_PROTOCOL_VERSIONS", "1"),
            ],
            PluginEnv {
                cookie: Some("trafficrouter".into()),
                protocol_versions: Some("1".into()),
                ..PluginEnv::default()
            },
        );
    }

    #[test]
    fn the_variables_of_other_hosts_are_read() {
        check(
            &[
                ("PLUGIN_UNIX_SOCKET_DIR", "/run/p"),
                ("PLUGIN_UNIX_SOCKET_GROUP", "argo"),
                ("PLUGIN_CLIENT_CERT", "-----BEGIN"),
                ("PLUGIN_MULTIPLEX_GRPC", "false"),
                ("TMPDIR", "/var/tmp"),
            ],
            PluginEnv {
                unix_socket_dir: Some("/run/p".into()),
                unix_socket_group: Some("argo".into()),
                asks_for_tls: true,
                multiplex_grpc: true,
                temp_dir: Some("/var/tmp".into()),
                ..PluginEnv::default()
            },
        );
    }

    #[test]
    fn an_empty_value_counts_as_unset() {
        check(
            &[
                ("PLUGIN_CLIENT_CERT", ""),
                ("PLUGIN_MULTIPLEX_GRPC", ""),
                ("TMPDIR", ""),
            ],
            PluginEnv::default(),
        );
    }

    #[test]
    fn a_value_that_is_not_unicode_does_not_stop_the_plugin() {
        use std::os::unix::ffi::OsStringExt;
        let env = PluginEnv::from_vars([
            (OsString::from("OTHER"), OsString::from_vec(vec![0xff])),
            (OsString::from_vec(vec![0xff]), OsString::from("1")),
            (
                OsString::from("TMPDIR"),
                OsString::from_vec(vec![b'/', 0xff]),
            ),
        ]);
        assert_eq!(
            env.socket_dir(),
            Path::new(&OsString::from_vec(vec![b'/', 0xff]))
        );
    }

    #[test]
    fn the_hosts_directory_takes_precedence_over_the_temporary_one() {
        let dir = |vars: &[(&str, &str)]| {
            PluginEnv::from_vars(vars.iter().copied())
                .socket_dir()
                .to_owned()
        };
        assert_eq!(dir(&[]), Path::new("/tmp"));
        assert_eq!(dir(&[("TMPDIR", "/t")]), Path::new("/t"));
        assert_eq!(
            dir(&[("TMPDIR", "/t"), ("PLUGIN_UNIX_SOCKET_DIR", "/s")]),
            Path::new("/s")
        );
    }
}
