//! The environment of a plugin, one `NAME=value` per line: the plugin either announces a line that a host can parse, or
//! returns an error of one line.

#![no_main]

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

use libfuzzer_sys::fuzz_target;
use rollouts_rpc::PluginEnv;
use rollouts_rpc::goplugin::handshake::{PluginKind, Protocol, negotiate};
use rollouts_rpc::host::announced_socket;

fuzz_target!(|input: &[u8]| {
    let variables = input.split(|byte| *byte == b'\n').map(|line| {
        let equals = line.iter().position(|byte| *byte == b'=');
        let (name, value) = line.split_at(equals.unwrap_or(line.len()));
        (
            OsStr::from_bytes(name),
            OsStr::from_bytes(value.get(1..).unwrap_or_default()),
        )
    });
    let env = PluginEnv::from_vars(variables);
    for kind in [
        PluginKind::TrafficRouter,
        PluginKind::MetricProvider,
        PluginKind::Step,
    ] {
        match negotiate(kind, &env) {
            Ok(negotiated) => {
                let socket = env.socket_dir().join("pluginAbC123");
                let line = negotiated.handshake_line(&socket, Protocol::NetRpc);
                assert_eq!(line.find('\n'), Some(line.len() - 1), "{line:?}");
                assert_eq!(announced_socket(&line).expect("a host reads it"), socket);
            }
            Err(error) => assert!(!error.to_string().contains('\n'), "{error}"),
        }
    }
});
