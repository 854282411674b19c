//! Hosts that violate the protocol, stop reading, or exceed limits.

use std::io;
use std::time::Duration;

use rollouts_rpc::testing::FnRouter;
use rollouts_rpc::{SessionError, Shutdown, error_chain};
use tokio::io::AsyncWriteExt as _;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};

use crate::calls::{Calls, ObjectMeta, Rollout, heavy, stepped};
use crate::raw::{ACK, FIN, NIL, REQUEST_DEF, RST, SYN, gob, header, hex};
use crate::raw_host::RawHost;

/// A timeout that passes, with paused time, if no more bytes arrive. It is shorter than the deadline of a call.
const MOMENT: Duration = Duration::from_secs(1);

/// yamux's initial window.
const WINDOW: usize = 256 * 1024;

#[track_caller]
fn check_ended(ended: &Result<Shutdown, SessionError>, expect: &str) {
    match ended {
        Ok(shutdown) => panic!("{shutdown:?}"),
        Err(error) => assert_eq!(error_chain(error), expect),
    }
}

/// Checks that these frames end the session after a valid start.
async fn check_violation(frames: &[&[u8]], reason: &str) {
    let mut host = RawHost::with_router().await;
    host.write(&frames.concat()).await;
    let expect = format!("the yamux connection failed: {reason}");
    check_ended(&host.ended().await, &expect);
}

const BROKEN: &str = "the host violated the yamux protocol (GoAway 1 was sent)";

#[tokio::test(start_paused = true)]
async fn a_header_of_another_version_or_type_ends_the_session() {
    check_violation(&[&[1; 12]], "decode error: unknown version: 1").await;
    check_violation(
        &[&header(4, 0, 0, 0)],
        "decode error: unknown frame type: 4",
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_cannot_be_opened_ends_the_session() {
    for kind in [0, 1] {
        // Even ids are the plugin's own.
        check_violation(&[&header(kind, SYN, 8, 0)], BROKEN).await;
        check_violation(&[&header(kind, SYN, 7, 0)], BROKEN).await;
    }
    // Two more streams than the router's are allowed.
    let open = [9, 11, 13].map(|stream| header(1, SYN, stream, 0));
    check_violation(&open.each_ref().map(|frame| &frame[..]), BROKEN).await;
}

#[tokio::test(start_paused = true)]
async fn data_beyond_the_window_ends_the_session() {
    let too_much = vec![0; WINDOW + 1];
    let length = u32::try_from(too_much.len()).unwrap();
    check_violation(&[&header(0, 0, 7, length), &too_much], BROKEN).await;
    check_violation(&[&header(0, SYN, 9, length), &too_much], BROKEN).await;
    // A frame above 1 MiB is refused before its payload arrives.
    check_violation(
        &[&header(0, 0, 7, u32::MAX)],
        "frame body is too large (4294967295)",
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_window_that_overflows_ends_the_session() {
    check_violation(&[&header(1, 0, 7, u32::MAX)], BROKEN).await;
    check_violation(&[&header(1, SYN, 9, u32::MAX)], BROKEN).await;
}

#[tokio::test(start_paused = true)]
async fn an_unexpected_pong_ends_the_session() {
    check_violation(&[&header(2, ACK, 0, 77)], BROKEN).await;
}

#[tokio::test(start_paused = true)]
async fn a_goaway_with_an_error_ends_the_session() {
    check_violation(
        &[&header(3, 0, 0, 2)],
        "the host reports a violation of the yamux protocol (GoAway 2)",
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn frames_with_next_to_nothing_in_them_end_the_session() {
    // A message of 60,000 bytes that arrives byte by byte stays below half of the window, so there is no window update.
    let announced = gob("fd 00 ea 60");
    let mut bytes = [&header(0, 0, 1, 4)[..], &announced].concat();
    for _ in 0..17_000 {
        bytes.extend(header(0, 0, 1, 1));
        bytes.push(0);
    }
    check_violation(
        &[&bytes],
        "the host sent more than 16384 nearly empty frames on one stream",
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn frames_with_unexpected_flags_are_ignored() {
    let mut host = RawHost::with_router().await;
    for stream in [3, 9] {
        for flags in [ACK, FIN, FIN, FIN | ACK, RST, ACK, FIN, RST] {
            host.window_update(flags, stream, 0).await;
            host.send_with(flags, stream, b"late").await;
        }
    }
    host.window_update(SYN | RST, 11, 0).await;
    host.send_with(SYN | RST, 11, b"never").await;
    // A ping on a stream.
    host.write(&header(2, SYN, 77, 1)).await;
    host.exchange(
        7,
        &format!("{REQUEST_DEF} [ff82 01 |Plugin.Type| 00] {NIL}"),
        "3a ff81 03 01 01 |Response| 01 ff82 00 01 03 01 |ServiceMethod| 01 0c 00 01 |Seq| 01 06 00 01 |Error| 01 0c 00 00 00
         [ff82 01 |Plugin.Type| 00] [0c 00 |FnRouter|]",
    )
    .await;
    assert_eq!(host.hang_up().await.unwrap(), Shutdown::HostGone);
}

#[tokio::test(start_paused = true)]
async fn data_on_stdout_is_discarded() {
    let mut host = RawHost::with_session().await;
    for _ in 0..4 {
        host.send(3, &vec![b'x'; WINDOW / 2]).await;
        // The plugin restores the window.
        assert_eq!(hex(&host.frame().await.0[..8]), "00 01 00 00 00 00 00 03");
    }
}

const UNREAD: &str = "the host has not read for 10 s";

/// Sends these bytes repeatedly without reading.
async fn check_unread(bytes: &[u8]) {
    let mut host = RawHost::with_router().await;
    let refused = loop {
        if let Err(refused) = host.io.write_all(bytes).await {
            break refused;
        }
    };
    assert_eq!(refused.kind(), io::ErrorKind::BrokenPipe);
    check_ended(
        &host.ended().await,
        &format!("the yamux connection failed: {UNREAD}"),
    );
}

#[tokio::test(start_paused = true)]
async fn a_host_that_pings_and_never_reads_ends_the_session() {
    check_unread(&header(2, SYN, 0, 7)).await;
}

#[tokio::test(start_paused = true)]
async fn a_host_that_calls_and_never_reads_ends_the_session() {
    let mut host = RawHost::with_router().await;
    let mut calls = Calls::new();
    // The plugin accepts all calls; the replies are three times as long.
    for _ in 0..WINDOW / 250 {
        let call = calls.call(&"x".repeat(200), &true);
        let header = header(0, 0, 7, u32::try_from(call.len()).unwrap());
        host.write(&[&header, &call[..]].concat()).await;
    }
    let ended = host.ended().await;
    check_ended(&ended, &format!("the yamux connection failed: {UNREAD}"));
}

#[tokio::test(start_paused = true)]
async fn a_host_that_sends_no_window_update_ends_the_session() {
    let mut host = RawHost::with_router().await;
    let mut calls = Calls::new();
    // Every reply takes more than 400 bytes of the window.
    for _ in 0..WINDOW / 400 {
        let call = calls.call(&"x".repeat(200), &true);
        host.send(7, &call).await;
    }
    while host.next_frame().await.is_some() {}
    check_ended(
        &host.ended().await,
        &format!("the plugin stream broke off: {UNREAD}"),
    );
}

fn hanging() -> RawHost {
    RawHost::serve(FnRouter(|_| std::future::pending()))
}

#[tokio::test(start_paused = true)]
async fn a_reply_that_cannot_be_written_ends_the_session() {
    let mut host = hanging();
    host.open_session().await;
    host.open_router(1, 7).await;
    host.send(7, &Calls::new().remove(Rollout::default())).await;
    host.send_with(RST, 7, &[]).await;
    check_ended(
        &host.ended().await,
        "the plugin stream broke off: the host has reset it",
    );
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_ends_inside_a_call_ends_the_session() {
    let mut host = RawHost::with_router().await;
    let call = Calls::new().remove(Rollout::default());
    host.send_with(FIN, 7, &call[..call.len() - 1]).await;
    check_ended(
        &host.ended().await,
        "the plugin stream broke off: unexpected end of file",
    );
}

/// The host handles a VerifyWeight without a reply as an error, and promotes.
#[tokio::test(start_paused = true)]
async fn calls_before_an_unfinished_one_are_answered() {
    let mut host = RawHost::with_router().await;
    let mut calls = Calls::new();
    let mut bytes = calls.remove(Rollout::default());
    bytes.extend(&calls.remove(Rollout::default())[..3]);
    host.send_with(FIN, 7, &bytes).await;
    let (header, data) = host.frame().await;
    assert_eq!((header[1], header[7]), (0, 7), "{}", hex(&header));
    assert!(!data.is_empty());
    check_ended(
        &host.ended().await,
        "the plugin stream broke off: unexpected end of file",
    );
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_ends_between_calls_does_not_end_the_session() {
    let mut host = RawHost::with_router().await;
    host.send_with(FIN, 7, &[]).await;
    // The plugin ends its direction too.
    assert_eq!(hex(&host.frame().await.0[..8]), "00 00 00 04 00 00 00 07");
    host.open_router(2, 9).await;
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_closes_during_a_call_is_not_an_error() {
    let mut host = hanging();
    host.open_session().await;
    host.open_router(1, 7).await;
    let call = Calls::new().remove(Rollout::default());
    host.send(7, &call).await;
    host.send(7, &call[..3]).await;
    assert_eq!(host.hang_up().await.unwrap(), Shutdown::HostGone);
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_sends_no_id_is_closed() {
    let mut host = RawHost::with_session().await;
    host.open(7).await;
    host.send(7, &[1, 0]).await;
    assert_eq!(hex(&host.frame().await.0[..8]), "00 00 00 08 00 00 00 07");
}

/// Checks how many calls are in flight if the host sends more calls with this argument.
async fn check_in_flight(rollout: impl Fn() -> Rollout, expect: usize) {
    let (begun, mut calls_begun) = mpsc::unbounded_channel();
    let mut host = RawHost::serve(FnRouter(move |_| {
        begun.send(()).unwrap();
        std::future::pending()
    }));
    host.open_session().await;
    host.open_router(1, 7).await;
    host.open_router(2, 9).await;
    // The streams share one limit.
    for stream in [7, 9] {
        let mut calls = Calls::new();
        let bytes: Vec<_> = (0..=expect.div_ceil(2) + 5)
            .flat_map(|_| calls.remove(rollout()))
            .collect();
        send_all(&mut host, stream, &bytes).await;
    }
    let mut in_flight = 0;
    while timeout(MOMENT, calls_begun.recv()).await.is_ok() {
        in_flight += 1;
    }
    assert_eq!(in_flight, expect);
    // A ping is still answered.
    host.ping(5).await;
    while host.frame().await.0[1] != 2 {}
}

/// Sends as much as the plugin reads.
async fn send_all(host: &mut RawHost, stream: u8, bytes: &[u8]) {
    let mut window = WINDOW - 1024;
    let mut rest = bytes;
    while !rest.is_empty() {
        let (piece, later) = rest.split_at(rest.len().min(window).min(16 * 1024));
        host.send(stream, piece).await;
        (window, rest) = (window - piece.len(), later);
        if window == 0 {
            match timeout(MOMENT, host.frame()).await {
                Ok((header, _)) if header[1] == 1 && header[7] == stream => {
                    window += u32::from_be_bytes(header[8..].try_into().unwrap()) as usize;
                }
                Ok(_) => {}
                Err(_elapsed) => return,
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn calls_in_flight_are_bounded_in_number_and_in_size() {
    check_in_flight(|| heavy(1), 256).await;
    check_in_flight(|| heavy(1_200_000), 5).await;
    // Each element is one byte on the wire.
    check_in_flight(|| stepped(300), 256).await;
    check_in_flight(|| stepped(4096), 23).await;
}

/// Otherwise a host would wait for twice as long.
#[tokio::test(start_paused = true)]
async fn the_wait_for_other_calls_counts_for_the_deadline() {
    let mut host = RawHost::serve(FnRouter(|_| std::future::pending()));
    host.open_session().await;
    host.open_router(1, 7).await;
    let mut calls = Calls::new();
    let bytes: Vec<_> = (0..6)
        .flat_map(|_| calls.remove(heavy(1_200_000)))
        .collect();
    let begin = Instant::now();
    send_all(&mut host, 7, &bytes).await;
    let mut answered = 0;
    while answered < 6 {
        let (_, reply) = host.frame().await;
        answered += String::from_utf8_lossy(&reply)
            .matches("took longer than")
            .count();
    }
    let took = begin.elapsed();
    assert!(took < Duration::from_secs(7), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_rollout_with_too_many_elements_fails_only_its_call() {
    let mut host = RawHost::with_router().await;
    let mut calls = Calls::new();
    host.send(7, &calls.remove(stepped(4097))).await;
    let (_, reply) = host.frame().await;
    let text = String::from_utf8_lossy(&reply);
    assert!(
        text.contains("Steps: more than 4096 elements in one value"),
        "{text}"
    );

    let managed_fields = vec![String::new(); 100_000];
    let mut skipped = stepped(4096);
    skipped.object_meta = ObjectMeta {
        managed_fields,
        ..ObjectMeta::default()
    };
    host.send(7, &calls.remove(skipped)).await;
    host.frame().await;
    assert!(host.calls.recv().await.is_some());
}

#[tokio::test(start_paused = true)]
async fn a_long_method_name_is_truncated() {
    let mut host = RawHost::with_router().await;
    let name = format!("Plugin.{}", "ü".repeat(50_000));
    host.send(7, &Calls::new().call(&name, &true)).await;
    let (_, reply) = host.frame().await;
    assert!(reply.len() < 1000, "{}", reply.len());
}
