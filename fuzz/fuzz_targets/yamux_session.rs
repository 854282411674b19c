//! A session with a host that violates the protocol: it ends, and nothing panics.

#![no_main]

use fuzz::{Host, exchange, router, within_memory};
use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use rollouts_rpc::{Router, ServeConfig, SessionError, serve_connection};

#[derive(Arbitrary, Debug)]
struct Input {
    begin: Begin,
    is_stuck: bool,
    steps: Vec<Step>,
}

/// The part of the protocol that the host has followed before.
#[derive(Arbitrary, Debug)]
enum Begin {
    Connected,
    /// The control, stdout and stderr streams are open.
    Established,
    /// A router is dispensed, and its stream is open.
    Dispensed,
}

#[derive(Arbitrary, Debug)]
enum Step {
    /// A frame whose length field may differ from the length of its data.
    Frame {
        version: u8,
        kind: u8,
        flags: u16,
        stream: u32,
        length: u32,
        data: Vec<u8>,
    },
    /// Data on one of the streams, as a host sends it.
    Data { stream: u8, data: Vec<u8> },
    /// Opens a stream, as a host does.
    Open { stream: u8 },
    /// Any bytes.
    Raw(Vec<u8>),
}

fuzz_target!(|input: Input| {
    let mut sent = Vec::new();
    if !matches!(input.begin, Begin::Connected) {
        [1, 3, 5]
            .into_iter()
            .for_each(|stream| open(&mut sent, stream));
    }
    if let Begin::Dispensed = input.begin {
        data(&mut sent, 1, &dispense());
        open(&mut sent, 7);
        data(&mut sent, 7, &1_u32.to_le_bytes());
    }
    for step in input.steps {
        match step {
            Step::Frame {
                version,
                kind,
                flags,
                stream,
                length,
                data,
            } => {
                frame(&mut sent, [version, kind], flags, stream, length);
                sent.extend(data);
            }
            Step::Data { stream, data } => self::data(&mut sent, stream.into(), &data),
            Step::Open { stream } => open(&mut sent, stream.into()),
            Step::Raw(bytes) => sent.extend(bytes),
        }
    }
    let host = if input.is_stuck {
        Host::Stuck
    } else {
        Host::Reads
    };
    let config = ServeConfig::new();
    let serve = |io| serve_connection(&config, io, Router(router()));
    let (ended, _) = within_memory(|| exchange(&sent, host, serve));
    assert!(
        !matches!(ended, Err(SessionError::Panicked(_))),
        "{ended:?}"
    );
});

/// The call that dispenses the router.
fn dispense() -> Vec<u8> {
    gob::gob_struct! {
        struct Request as "Request" {
            service_method: String as "ServiceMethod",
            seq: u64 as "Seq",
        }
    }
    let header = Request {
        service_method: "Dispenser.Dispense".into(),
        seq: 0,
    };
    let (mut encoder, mut bytes) = (gob::Encoder::new(), Vec::new());
    let name = String::from("RpcTrafficRouterPlugin");
    encoder.encode(&header, &mut bytes).expect("a struct");
    encoder.encode(&name, &mut bytes).expect("a string");
    bytes
}

fn open(sent: &mut Vec<u8>, stream: u32) {
    frame(sent, [0, 1], 1, stream, 0);
}

fn data(sent: &mut Vec<u8>, stream: u32, data: &[u8]) {
    frame(sent, [0, 0], 0, stream, data.len() as u32);
    sent.extend(data);
}

/// The header of a frame, twelve bytes (hashicorp/yamux, `spec.md`).
fn frame(sent: &mut Vec<u8>, version_and_kind: [u8; 2], flags: u16, stream: u32, length: u32) {
    sent.extend(version_and_kind);
    sent.extend(flags.to_be_bytes());
    sent.extend(stream.to_be_bytes());
    sent.extend(length.to_be_bytes());
}
