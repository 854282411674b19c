//! Complete sessions, in the bytes of both sides.

use proptest::prelude::*;
use rollouts_rpc::{DesiredWeight, RouterCall, SessionError, Shutdown};

use crate::raw::{NIL, REQUEST_DEF, RESPONSE_DEF, TRUE, gob, hex};
use crate::raw_host::RawHost;

#[tokio::test(start_paused = true)]
async fn every_stream_is_acknowledged_when_it_opens() {
    let mut host = RawHost::with_session().await;
    host.open(7).await;
    host.open(9).await;
}

#[tokio::test(start_paused = true)]
async fn a_ping_is_answered_with_its_value() {
    let mut host = RawHost::with_session().await;
    host.ping(42).await;
    assert_eq!(
        hex(&host.frame().await.0),
        "00 02 00 02 00 00 00 00 00 00 00 2a"
    );
}

#[tokio::test(start_paused = true)]
async fn the_control_stream_answers_in_gos_bytes() {
    let mut host = RawHost::with_session().await;
    host.exchange(
        1,
        &format!("{REQUEST_DEF} [ff82 01 |Control.Ping| 00] {TRUE}"),
        &format!(
            "{RESPONSE_DEF} [ff82 01 |Control.Ping| 00] [ff83 03 01 02 ff84 00 00 00] [ff84 00]"
        ),
    )
    .await;
    host.exchange(
        1,
        &format!("[ff82 01 |Control.Quit| 01 01 00] {TRUE}"),
        "[ff82 01 |Control.Quit| 01 01 00] [ff84 00]",
    )
    .await;
    assert_eq!(host.ended().await.unwrap(), Shutdown::HostQuit);
}

#[tokio::test(start_paused = true)]
async fn the_router_answers_in_gos_bytes() {
    let mut host = RawHost::with_router().await;
    host.exchange(
        7,
        &format!("{REQUEST_DEF} [ff82 01 |Plugin.InitPlugin| 00] {NIL}"),
        &format!(
            "{RESPONSE_DEF} [ff82 01 |Plugin.InitPlugin| 00]
             [ff83 03 01 01 |RpcError| 01 ff84 00 01 01 01 |ErrorString| 01 0c 00 00 00] [ff84 00]"
        ),
    )
    .await;
    host.exchange(
        7,
        &format!("[ff82 01 |Plugin.Type| 01 01 00] {NIL}"),
        "[ff82 01 |Plugin.Type| 01 01 00] [0c 00 |FnRouter|]",
    )
    .await;
    // A refused call has a reply body too. It is not a nil interface, which Go could not skip.
    host.exchange(
        7,
        &format!("[ff82 01 |Plugin.Dance| 01 02 00] {NIL}"),
        "[ff82 01 |Plugin.Dance| 01 02 01 |rpc: can't find method Plugin.Dance| 00]
         [ff85 03 01 02 ff86 00 00 00] [ff86 00]",
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_argument_of_many_messages_is_decoded() {
    let mut host = RawHost::with_router().await;
    // Written by Go 1.19, with fewer fields in each type.
    let first = "
        [10 00 |SetWeightAndVerifyWeightArgs|
            ff83 03 01 01 |SetWeightAndVerifyWeightArgs| 01 ff84 00 01 03
            01 |Rollout| 01 ff86 00 01 |DesiredWeight| 01 04 00 01 |AdditionalDestinations| 01 ff9a 00 00 00]
        [ff85 03 01 01 |Rollout| 01 ff86 00 01 02 01 |ObjectMeta| 01 ff88 00 01 |Spec| 01 ff8c 00 00 00]
        [ff87 03 01 01 |ObjectMeta| 01 ff88 00 01 02 01 |Name| 01 0c 00 01 |CreationTimestamp| 01 ff8a 00 00 00]
        [ff89 05 01 01 |Time| 01 ff8a 00 00 00]
        [ff9b 05 01 01 |Time| 01 ff9c 00 00 00]
        [ff8b 03 01 01 |RolloutSpec| 01 ff8c 00 01 05 01 |Replicas| 01 04 00 01 |Paused| 01 02 00
            01 |RestartAt| 01 ff8a 00 01 |Steps| 01 ff92 00 01 |TrafficRouting| 01 ff94 00 00 00]
        [ff91 02 01 01 |[]main.CanaryStep| 01 ff92 00 01 ff8e 00 00]
        [ff8d 03 01 01 |CanaryStep| 01 ff8e 00 01 02 01 |SetWeight| 01 04 00 01 |Pause| 01 ff90 00 00 00]
        [ff8f 03 01 01 |RolloutPause| 01 ff90 00 01 01 01 |Duration| 01 04 00 00 00]
        [ff93 03 01 01 |RolloutTrafficRouting| 01 ff94 00 01 02 01 |Plugins| 01 ff96 00
            01 |MaxTrafficWeight| 01 04 00 00 00]
        [ff95 04 01 01 |map[string]main.RawMessage| 01 ff96 00 01 0c 01 0a 00 00]
        [ff99 02 01 01 |[]main.WeightDestination| 01 ff9a 00 01 ff98 00 00]
        [ff97 03 01 01 |WeightDestination| 01 ff98 00 01 03 01 |Weight| 01 04 00 01 |ServiceName| 01 0c 00
            01 |PodTemplateHash| 01 0c 00 00 00]
        3f ff84 3c 01 01 01 04 64 65 6d 6f 01 0f 01 00 00 00 0e dd ca 78 d9 00 00 00 00 ff ff 00 01 01 0a 03 03 01 28 00
        02 00 00 00 01 01 01 04 6e 73 2f 70 07 7b 22 61 22 3a 31 7d 00 00 00 01 28 00";
    host.exchange(
        7,
        &format!("{REQUEST_DEF} [ff82 01 |Plugin.SetWeight| 00] {first}"),
        &format!(
            "{RESPONSE_DEF} [ff82 01 |Plugin.SetWeight| 00]
             [ff83 03 01 01 |RpcError| 01 ff84 00 01 01 01 |ErrorString| 01 0c 00 00 00] [ff84 00]"
        ),
    )
    .await;
    let second = "[10 00 |SetWeightAndVerifyWeightArgs| ff84 45
        01 01 01 04 64 65 6d 6f 01 0f 01 00 00 00 0e dd ca 78 d9 00 00 00 00 ff ff 00 01 01 0a 03 03 01 28 00
        02 00 00 00 01 01 01 04 6e 73 2f 70 07 7b 22 61 22 3a 31 7d 00 00 00 01 50 01 02 00 01 0a 01 |s| 00 00]";
    host.exchange(
        7,
        &format!("[ff82 01 |Plugin.SetWeight| 01 01 00] {second}"),
        "[ff82 01 |Plugin.SetWeight| 01 01 00] [ff84 00]",
    )
    .await;

    for (weight, shares) in [(20, vec![]), (40, vec![(0, ""), (5, "s")])] {
        let Ok(RouterCall::SetWeight(rollout, desired, additional)) = host.calls.try_recv() else {
            panic!("no SetWeight");
        };
        assert_eq!(
            (rollout.metadata.name.as_str(), rollout.replicas()),
            ("demo", 5)
        );
        assert_eq!(
            desired,
            DesiredWeight {
                value: weight,
                max: 100
            }
        );
        let additional: Vec<_> = additional
            .iter()
            .map(|to| (to.weight, to.service_name.as_str()))
            .collect();
        assert_eq!(additional, shares);
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_with_an_unknown_id_is_closed() {
    let mut host = RawHost::with_session().await;
    host.open(7).await;
    host.send(7, &[9, 0, 0, 0]).await;
    let (header, _) = host.frame().await;
    // RST on stream 7.
    assert_eq!(hex(&header[..8]), "00 00 00 08 00 00 00 07");
    host.open(9).await;
}

#[tokio::test(start_paused = true)]
async fn an_id_is_valid_for_one_stream() {
    let mut host = RawHost::with_router().await;
    host.open(9).await;
    host.send(9, &[1, 0, 0, 0]).await;
    assert_eq!(hex(&host.frame().await.0[..8]), "00 00 00 08 00 00 00 09");
}

#[track_caller]
fn check_corrupt(ended: Result<Shutdown, SessionError>, stream: &str, reason: &str) {
    let error = ended.unwrap_err();
    assert_eq!(error.to_string(), format!("the {stream} stream is corrupt"));
    let mut causes = std::iter::successors(Some(&error as &dyn std::error::Error), |error| {
        error.source()
    });
    assert!(
        causes.any(|cause| cause.to_string().contains(reason)),
        "{error:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_corrupt_stream_ends_the_session() {
    let mut host = RawHost::with_session().await;
    host.send(1, &[0x80]).await;
    check_corrupt(
        host.ended().await,
        "control",
        "0x80 is not the first byte of an integer",
    );

    let mut host = RawHost::with_router().await;
    host.send(7, &gob(&format!("{REQUEST_DEF} {REQUEST_DEF}")))
        .await;
    check_corrupt(host.ended().await, "plugin", "defined twice");
}

/// The host handles a VerifyWeight without a reply as an error, and promotes.
#[tokio::test(start_paused = true)]
async fn a_corrupt_argument_is_answered_before_the_session_ends() {
    let mut host = RawHost::with_router().await;
    host.exchange(
        7,
        &format!("{REQUEST_DEF} [ff82 01 |Plugin.VerifyWeight| 00] {REQUEST_DEF}"),
        &format!(
            "{RESPONSE_DEF} [ff82 01 |Plugin.VerifyWeight| 00]
             [ff83 03 01 01 |VerifyWeightResponse| 01 ff84 00 01 02 01 |Verified| 01 04 00 01 |Err| 01 ff86 00 00 00]
             [ff85 03 01 01 |RpcError| 01 ff86 00 01 01 01 |ErrorString| 01 0c 00 00 00] [ff84 02 00 00]"
        ),
    )
    .await;
    check_corrupt(host.ended().await, "plugin", "defined twice");
}

#[tokio::test(start_paused = true)]
async fn a_body_where_a_header_should_be_ends_the_session() {
    let mut host = RawHost::with_router().await;
    host.send(7, &gob(NIL)).await;
    check_corrupt(host.ended().await, "plugin", "does not fit");
}

#[tokio::test(start_paused = true)]
async fn a_message_that_is_too_long_is_refused_before_it_arrives() {
    let mut host = RawHost::with_session().await;
    // A message of 4 GiB is announced.
    host.send(1, &gob("fb 01 00 00 00 00")).await;
    check_corrupt(host.ended().await, "control", "more than 65536 bytes");
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_closes_before_three_streams_is_not_a_session() {
    for streams in 0..3 {
        let mut host = RawHost::start();
        for stream in [1, 3, 5].into_iter().take(streams) {
            host.open(stream).await;
        }
        assert!(matches!(
            host.hang_up().await,
            Err(SessionError::NotEstablished)
        ));
    }
}

#[tokio::test(start_paused = true)]
async fn bytes_that_are_not_yamux_end_the_connection() {
    let mut host = RawHost::with_session().await;
    host.write(&[1; 12]).await;
    assert!(matches!(
        host.ended().await,
        Err(SessionError::Connection(_))
    ));
}

/// Bytes to send after a valid start, and the stream; 0 is the connection itself.
fn hostile() -> impl Strategy<Value = (u8, Vec<u8>)> {
    let noise = prop::collection::vec(any::<u8>(), 0..64);
    let calls = prop::sample::select(vec![
        gob(&format!("{REQUEST_DEF} [ff82 01 |Control.Ping| 00] {TRUE}")),
        gob(&format!("{REQUEST_DEF} [ff82 01 |Plugin.Type| 00] {NIL}")),
        gob(&format!(
            "{REQUEST_DEF} [ff82 01 |Plugin.SetWeight| 00] [10 00 |SetWeightAndVerifyWeightArgs| ff84 00]"
        )),
    ]);
    // A valid call with one changed byte gets further than random bytes.
    let damaged =
        (calls, any::<prop::sample::Index>(), any::<u8>()).prop_map(|(mut call, at, value)| {
            let at = at.index(call.len());
            call[at] = value;
            call
        });
    (
        prop::sample::select(vec![0, 1, 7]),
        prop_oneof![noise, damaged],
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn hostile_bytes_end_a_session_but_never_panic((stream, bytes) in hostile()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let mut host = RawHost::with_router().await;
            match stream {
                // Directly to the connection.
                0 => host.write(&bytes).await,
                stream => host.send(stream, &bytes).await,
            }
            let _ended = host.hang_up().await;
        });
    }
}
