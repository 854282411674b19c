//! Checks of the start: without a controller, and with the environment that a controller sets.

use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::time::Duration;

use tokio::process::Command;

use crate::Args;
use crate::process::{COOKIE, Plugin, Seen, command, quoted, text};
use crate::report::Level::Should;
use crate::report::Report;

/// How long a plugin may take to exit without a host.
const BY_HAND: Duration = Duration::from_secs(10);

/// Checks a start without the cookie, and with an unknown cookie.
pub(crate) async fn by_hand(args: &Args, report: &mut Report) {
    for (name, cookie) in [("by-hand", None), ("other-kind", Some("no such kind"))] {
        let mut command = command(args);
        match cookie {
            None => command.env_remove(COOKIE),
            Some(cookie) => command.env(COOKIE, cookie),
        };
        let check = |part: &str| format!("{name}.{part}");
        let seen = alone(command).await.and_then(|(code, line, log)| {
            let code = code.ok_or_else(|| "it does not exit".to_owned())?;
            Ok((code, line, log))
        });
        let ends = seen.as_ref().map(drop).map_err(Clone::clone);
        report.should(check("ends"), "it exits by itself", ends);
        let Ok((code, line, log)) = seen else {
            continue;
        };
        report.should(
            check("exit-code"),
            "its exit code is not 0",
            yes("its exit code is 0")(code != 0),
        );
        report.should(check("stdout"), "it writes nothing to stdout", empty(&line));
        report.should(
            check("stderr"),
            "stderr explains what the program is",
            yes("stderr is empty")(!log.is_empty()),
        );
    }
}

async fn alone(command: Command) -> Seen<(Option<i32>, String, Vec<String>)> {
    let plugin = Plugin::start_with(command).await?;
    let line = plugin.line.clone();
    let log = plugin.log();
    let ended = plugin.ended(BY_HAND).await?;
    let code = ended.status.map(|status| status.code().unwrap_or(-1));
    Ok((code, line, log.lines()))
}

fn empty(line: &str) -> Seen {
    if line.is_empty() {
        Ok(())
    } else {
        Err(format!("it writes {}", quoted(line)))
    }
}

/// Checks the handshake line, without which the other checks cannot run.
pub(crate) async fn announcement(args: &Args, report: &mut Report) {
    let rule = "it writes one line of four fields or more to stdout within 60 s";
    let plugin = match Plugin::start(args).await {
        Ok(plugin) => plugin,
        Err(error) => return report.essential("announce.line", rule, Err(error)),
    };
    let line = plugin.line.clone();
    let fields: Vec<&str> = line.trim_end_matches('\n').split('|').collect();
    if fields.len() < 4 || !line.ends_with('\n') {
        let seen = format!("it writes {}", quoted(&line)) + plugin.last_words().await.as_str();
        return report.essential("announce.line", rule, Err(seen));
    }
    report.essential("announce.line", rule, Ok(()));
    for (index, name, expect, rule) in [
        (0, "core-version", "1", "the first field is 1"),
        (1, "version", "1", "the second field, the version, is 1"),
        (
            2,
            "network",
            "unix",
            "the third field, the network, is unix",
        ),
        (
            4,
            "protocol",
            "netrpc",
            "the fifth field, the protocol, is netrpc",
        ),
        (
            5,
            "certificate",
            "",
            "the sixth field, a certificate, is empty: it would crash the controller",
        ),
        (
            6,
            "fields",
            "",
            "there is no seventh field: the host did not ask for it",
        ),
    ] {
        // The protocol is optional.
        let seen = match fields.get(index).copied().unwrap_or_default() {
            field if field == expect || index == 4 && field.is_empty() => Ok(()),
            field => Err(format!("it is {}", quoted(field))),
        };
        report.essential(format!("announce.{name}"), rule, seen);
    }
    let socket = plugin.socket();
    let metadata = match &socket {
        Ok(path) => std::fs::metadata(path).map_err(text),
        Err(error) => Err(error.clone()),
    };
    let is_socket = metadata.as_ref().map_err(Clone::clone).and_then(|found| {
        if found.file_type().is_socket() {
            Ok(())
        } else {
            Err("it is not a socket".to_owned())
        }
    });
    report.essential(
        "announce.socket",
        "the fourth field is the path of a socket",
        is_socket,
    );
    // Linux asks for the write bits of a socket when another user connects.
    let is_private = metadata.and_then(|found| match found.permissions().mode() & 0o022 {
        0 => Ok(()),
        _ => Err(format!(
            "its mode is {:o}",
            found.permissions().mode() & 0o777
        )),
    });
    report.should(
        "announce.private",
        "only its owner may connect to the socket",
        is_private,
    );
    let in_dir = socket.map(|path| path.starts_with(plugin.dir.path()));
    report.should(
        "announce.tmpdir",
        "the socket is in TMPDIR",
        in_dir.and_then(yes("it is in another directory")),
    );
    drop(plugin);

    let announced = async |change: fn(&mut Command)| -> Seen {
        let mut command = command(args);
        change(&mut command);
        let plugin = Plugin::start_with(command).await?;
        match plugin.line.split('|').nth(1) {
            Some("1") => Ok(()),
            Some(version) => Err(format!("it announces version {}", quoted(version))),
            None => Err("it announces no version".to_owned()),
        }
    };
    let many = announced(|command| {
        command.env("PLUGIN_PROTOCOL_VERSIONS", "3,x,1");
    });
    let rule = "it takes version 1 of those that the host accepts";
    report
        .run(Should, "announce.many-versions", rule, many)
        .await;
    let none = announced(|command| {
        command.env_remove("PLUGIN_PROTOCOL_VERSIONS");
    });
    let rule = "it announces version 1 to a host that names none";
    report.run(Should, "announce.no-version", rule, none).await;
    let ports = announced(|command| {
        command
            .env_remove("PLUGIN_MIN_PORT")
            .env_remove("PLUGIN_MAX_PORT");
    });
    report
        .run(
            Should,
            "announce.no-ports",
            "it needs no range of ports",
            ports,
        )
        .await;
}

/// Returns a function that converts `false` to an error.
pub(crate) fn yes(otherwise: &'static str) -> impl Fn(bool) -> Seen {
    move |holds| {
        if holds {
            Ok(())
        } else {
            Err(otherwise.to_owned())
        }
    }
}
