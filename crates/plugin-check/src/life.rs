//! Checks of the process: idle session, Quit, closed connection, signals, and a second process.

use std::time::Duration;

use jiff::civil::Date;
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
        has_socket,
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
        yes("the socket is still there")(files == 0 && !has_socket),
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

/// Checks the time of a record. The controller logs a record with a time that Go does not parse as raw text.
fn time(line: &str) -> Seen {
    let Ok(record) = serde_json::from_str::<serde_json::Value>(line) else {
        return Ok(());
    };
    let Some(time) = record.get("@timestamp").and_then(|time| time.as_str()) else {
        return Ok(());
    };
    parse(time).ok_or_else(|| quoted(time))
}

/// Parses a time by the rules of Go's `time.Parse` for the layout `2006-01-02T15:04:05.000000Z07:00` (go-plugin's `log_entry.go`). They are
/// not those of RFC 3339: the hour may have one digit, and a comma may stand for the point.
fn parse(time: &str) -> Option<()> {
    let (date, rest) = time.split_once('T')?;
    let [year, month, day] = date.split('-').collect::<Vec<_>>()[..] else {
        return None;
    };
    let (year, month, day) = (digits(year, 4)?, digits(month, 2)?, digits(day, 2)?);
    let (month, day) = (month.try_into().ok()?, day.try_into().ok()?);
    Date::new(year, month, day).ok()?;
    let (hour, rest) = rest.split_once(':')?;
    let (minute, rest) = rest.split_once(':')?;
    let (second, rest) = rest.split_once(['.', ','])?;
    let (fraction, zone) = rest.split_at_checked(6)?;
    let hour = digits(hour, 2).or_else(|| digits(hour, 1))?;
    let is_in_range = hour < 24 && digits(minute, 2)? < 60 && digits(second, 2)? < 60;
    let is_fraction = fraction.bytes().all(|byte| byte.is_ascii_digit());
    let is_zone = match zone.strip_prefix(['+', '-']) {
        None => zone == "Z",
        Some(offset) => {
            let (hours, minutes) = offset.split_once(':')?;
            digits(hours, 2)? <= 24 && digits(minutes, 2)? <= 60
        }
    };
    (is_in_range && is_fraction && is_zone).then_some(())
}

/// Returns the number in a text of so many digits and nothing else.
fn digits(text: &str, count: usize) -> Option<i16> {
    let is_number = text.len() == count && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().ok())?
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
        assert!(at("2026-01-06T9:00:00,123456-24:60").is_ok());
        for wrong in [
            "2026-01-06T10:00:00.1234567Z",
            "2026-01-06T10:00:00.123456",
            "2026-01-06T10:00:00.123456z",
            "2026-01-06t10:00:00.123456Z",
            "2026-01-06 10:00:00.123456Z",
            "2026-01-06T10:00:00.123456+02",
            "2026-01-06T10:00:00.123456+0200",
            "2026-01-06T10:00:00.123456+02:00:00",
            "2026-01-06T10:00:00.123456+02:00[Europe/Berlin]",
            "2026-01-06T10:00:00.12345\u{e9}Z",
            "2026-02-29T10:00:00.123456Z",
            "2026-1-06T10:00:00.123456Z",
            "20260106T10:00:00.123456Z",
            "2026-01-06T24:00:00.123456Z",
            "2026-01-06T10:00:60.123456Z",
        ] {
            assert!(at(wrong).is_err(), "{wrong}");
        }
        assert!(super::time("plain").is_ok());
    }
}
