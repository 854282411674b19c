//! Checks of the process: idle session, Quit, closed connection, signals, and a second process.

use std::time::Duration;

use jiff::Timestamp;
use rollouts_rpc::host::HostSession;
use rustix::process::Signal;
use tokio::net::UnixStream;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{sleep, timeout};

use crate::Args;
use crate::process::{Ended, Plugin, Seen, Serving, patient, quoted, text};
use crate::report::Level::{Must, Should};
use crate::report::Report;
use crate::start::yes;

/// A controller kills a plugin that does not exit within this time after Quit.
const QUIT: Duration = Duration::from_secs(2);

/// How often Quit is repeated until it is answered.
const QUITS: u32 = 5;

/// How long a plugin may take to exit after its host closed the connection.
const GONE: Duration = Duration::from_secs(10);

pub(crate) async fn checks(args: &Args, report: &mut Report) {
    let rule = format!("after {} s without a call a ping is answered", args.idle);
    report.run(Must, "life.idle", rule, idle(args)).await;
    quit(args, report).await;
    let rule = "it exits after its host is gone";
    report
        .run(Should, "life.hang-up", rule, hang_up(args))
        .await;
    let rule = "a connection that is closed at once does not stop the host from connecting";
    report.run(Should, "life.knock", rule, knock(args)).await;
    let rule = "it ignores SIGINT, which is for the host";
    report
        .run(Should, "life.interrupt", rule, interrupt(args))
        .await;
    let rule = "it exits after SIGTERM";
    report
        .run(Should, "life.terminate", rule, terminate(args))
        .await;
    let rule = "after a kill it can be started again";
    report.run(Must, "life.restart", rule, restart(args)).await;
    let rule = "two processes serve side by side";
    report.run(Must, "life.two", rule, two(args)).await;
}

async fn hang_up(args: &Args) -> Seen {
    let (plugin, session) = serving(args).await?;
    drop(session);
    ends(plugin).await
}

async fn knock(args: &Args) -> Seen {
    let plugin = Plugin::start(args).await?;
    let knock = UnixStream::connect(plugin.socket()?).await;
    drop(knock.map_err(text)?);
    sleep(Duration::from_millis(100)).await;
    let (session, _frames) = plugin.session(args).await?;
    patient(args, session.ping()).await
}

async fn interrupt(args: &Args) -> Seen {
    // A child inherits an ignored SIGINT, but not a handler. The parent of this process may ignore SIGINT.
    let _handler = signal(SignalKind::interrupt()).map_err(text)?;
    let (mut plugin, session) = serving(args).await?;
    plugin.signal(Signal::INT)?;
    sleep(Duration::from_millis(300)).await;
    yes("it exited")(plugin.is_running()?)?;
    patient(args, session.ping()).await
}

async fn terminate(args: &Args) -> Seen {
    let (plugin, _session) = serving(args).await?;
    plugin.signal(Signal::TERM)?;
    ends(plugin).await
}

async fn restart(args: &Args) -> Seen {
    let (plugin, session) = serving(args).await?;
    plugin.signal(Signal::KILL)?;
    let died = timeout(GONE, session.ping()).await;
    let died = died.map_err(|_| "the connection stays open".to_owned())?;
    yes("it still answers")(died.is_err())?;
    plugin.ended(GONE).await?;
    serving(args).await.map(drop)
}

async fn two(args: &Args) -> Seen {
    let (_first, one) = serving(args).await?;
    let (_second, other) = serving(args).await?;
    patient(args, one.ping()).await?;
    patient(args, other.ping()).await
}

/// Checks that the plugin exits in time, with any code.
async fn ends(plugin: Plugin) -> Seen {
    let status = plugin.ended(GONE).await?.status;
    status.map(drop).ok_or("it does not exit".to_owned())
}

/// Starts a plugin, opens a session and calls Ping.
async fn serving(args: &Args) -> Seen<(Plugin, HostSession)> {
    let Serving {
        plugin, session, ..
    } = Serving::start(args).await?;
    patient(args, session.ping()).await?;
    Ok((plugin, session))
}

async fn idle(args: &Args) -> Seen {
    let (_plugin, session) = serving(args).await?;
    let kind = args.kind.plugin();
    let client = patient(args, session.dispense_any(kind)).await?;
    sleep(Duration::from_secs(args.idle)).await;
    patient(args, session.ping()).await?;
    let call = client.type_name();
    patient(args, call).await.map(drop)
}

async fn quit(args: &Args, report: &mut Report) {
    let quitting = async {
        let mut tries = 0;
        loop {
            tries += 1;
            let (plugin, session) = serving(args).await?;
            let acknowledged = patient(args, session.quit()).await;
            drop(session);
            let log = plugin.log();
            let ended = plugin.ended(QUIT).await?;
            // Go's server races with its own exit.
            if acknowledged.is_ok() || tries == QUITS {
                return Ok((acknowledged, ended, log.lines()));
            }
        }
    };
    let (acknowledged, ended, log) = match quitting.await {
        Ok(seen) => seen,
        Err(error) => return report.must("life.quit", "it exits within 2 s of Quit", Err(error)),
    };
    let Ended {
        status,
        stray_stdout,
        files,
    } = ended;
    report.must(
        "life.quit",
        "it exits within 2 s of Quit",
        status.map(drop).ok_or("it does not exit".to_owned()),
    );
    report.should(
        "life.quit-reply",
        "Quit is answered before that, at least once of five times",
        acknowledged,
    );
    let code = status.map(|status| status.success()).unwrap_or_default();
    report.must(
        "life.exit-code",
        "its exit code after Quit is 0",
        yes("the exit code is not 0, or there is none")(code),
    );
    report.should(
        "life.socket",
        "its socket is removed",
        yes("the socket is still there")(files == 0),
    );
    let stdout = match stray_stdout {
        0 => Ok(()),
        bytes => Err(format!("there are {bytes} more bytes")),
    };
    report.must(
        "life.stdout",
        "stdout has nothing but the handshake line",
        stdout,
    );
    report.must(
        "life.log",
        "no log line crashes the controller",
        crate::calls::log(&log),
    );
    let long = log.iter().all(|line| line.len() < 64 << 10);
    report.should(
        "life.log-lines",
        "each log line is shorter than 64 KiB, where the host would split it",
        yes("a line is longer")(long),
    );
    report.should(
        "life.log-times",
        "the controller can parse the times in the log",
        log.iter().try_for_each(|line| time(line)),
    );
}

/// Checks the time of a record. Go parses only a time with exactly six fractional digits, and logs any other record as raw text.
fn time(line: &str) -> Seen {
    let Ok(record) = serde_json::from_str::<serde_json::Value>(line) else {
        return Ok(());
    };
    let Some(time) = record.get("@timestamp").and_then(|time| time.as_str()) else {
        return Ok(());
    };
    let digits = time
        .split('.')
        .nth(1)
        .map(|rest| rest.chars().take_while(char::is_ascii_digit).count());
    let is_read = digits == Some(6) && time.parse::<Timestamp>().is_ok();
    if is_read { Ok(()) } else { Err(quoted(time)) }
}

#[cfg(test)]
mod tests {

    #[test]
    fn times_are_read_as_go_reads_them() {
        let at = |time: &str| super::time(&format!("{{\"@timestamp\": \"{time}\"}}"));
        assert!(at("2026-01-06T10:00:00.123456Z").is_ok());
        assert!(at("2026-01-06T10:00:00.123456+02:00").is_ok());
        assert!(at("2026-01-06T10:00:00Z").is_err());
        assert!(at("2026-01-06T10:00:00.123Z").is_err());
        assert!(super::time("plain").is_ok());
    }
}
