//! A host's end of a connection that reads and writes single frames, and a notation for gob.

use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::time::timeout;

/// A timeout that passes, with paused time, only if no more bytes will arrive.
pub(crate) const SILENCE: Duration = Duration::from_secs(60);

/// Flags of a frame.
pub(crate) const SYN: u8 = 1;
pub(crate) const ACK: u8 = 2;
pub(crate) const FIN: u8 = 4;
pub(crate) const RST: u8 = 8;

/// A header with its payload.
pub(crate) type Frame = ([u8; 12], Vec<u8>);

/// A host that reads and writes bytes.
pub(crate) struct Raw<IO> {
    pub(crate) io: IO,
}

impl<IO: AsyncRead + AsyncWrite + Unpin> Raw<IO> {
    /// Opens the three initial streams.
    pub(crate) async fn open_session(&mut self) {
        for stream in [1, 3, 5] {
            self.open(stream).await;
        }
    }

    /// Dispenses the router with this id, and opens its stream.
    pub(crate) async fn open_router(&mut self, id: u8, stream: u8) {
        let (request, response) = match id {
            1 => (
                format!("{REQUEST_DEF} [ff82 01"),
                format!("{RESPONSE_DEF} [ff82 01"),
            ),
            _ => ("[ff82 01".to_owned(), "[ff82 01".to_owned()),
        };
        // Seq is 0 in the first call, so gob omits it.
        let seq = match id {
            1 => String::new(),
            _ => format!("01 {:02x}", id - 1),
        };
        self.exchange(
            1,
            &format!("{request} |Dispenser.Dispense| {seq} 00] [0c 00 |RpcTrafficRouterPlugin|]"),
            &format!("{response} |Dispenser.Dispense| {seq} 00] [06 00 {id:02x}]"),
        )
        .await;
        self.open(stream).await;
        let id = format!("{id:02x} 00 00 00");
        self.exchange(stream, &id, &id).await;
    }

    /// Opens a stream as hashicorp's yamux does, and reads the acknowledgement.
    pub(crate) async fn open(&mut self, stream: u8) {
        self.window_update(SYN, stream, 0).await;
        let (header, _) = self.frame().await;
        assert_eq!(
            hex(&header),
            format!("00 00 00 02 00 00 00 {stream:02x} 00 00 00 00")
        );
    }

    pub(crate) async fn window_update(&mut self, flags: u8, stream: u8, credit: u32) {
        self.write(&header(1, flags, stream, credit)).await;
    }

    pub(crate) async fn ping(&mut self, value: u32) {
        self.write(&header(2, SYN, 0, value)).await;
    }

    pub(crate) async fn send(&mut self, stream: u8, data: &[u8]) {
        self.send_with(0, stream, data).await;
    }

    pub(crate) async fn send_with(&mut self, flags: u8, stream: u8, data: &[u8]) {
        let length = u32::try_from(data.len()).unwrap();
        self.write(&[&header(0, flags, stream, length), data].concat())
            .await;
    }

    pub(crate) async fn write(&mut self, bytes: &[u8]) {
        self.io.write_all(bytes).await.unwrap();
    }

    /// Returns the next frame, except pings of the yamux crate.
    pub(crate) async fn frame(&mut self) -> Frame {
        let frame = timeout(SILENCE, self.next_frame()).await;
        frame
            .expect("the plugin sends nothing")
            .expect("the plugin closed the connection")
    }

    /// Returns the next frame, or `None` if the plugin closed the connection.
    pub(crate) async fn next_frame(&mut self) -> Option<Frame> {
        loop {
            let mut header = [0; 12];
            self.io.read_exact(&mut header).await.ok()?;
            let length = u32::from_be_bytes(header[8..].try_into().unwrap());
            let mut data = vec![0; if header[1] == 0 { length as usize } else { 0 }];
            self.io.read_exact(&mut data).await.ok()?;
            if header[..4] != [0, 2, 0, 1] {
                return Some((header, data));
            }
        }
    }

    /// Sends bytes on a stream and checks the bytes of the reply.
    pub(crate) async fn exchange(&mut self, stream: u8, request: &str, expect: &str) {
        self.send(stream, &gob(request)).await;
        let expect = gob(expect);
        let mut reply = Vec::new();
        while reply.len() < expect.len() {
            let (header, data) = self.frame().await;
            assert_eq!((header[1], header[7]), (0, stream), "{}", hex(&header));
            reply.extend(data);
        }
        assert_eq!(hex(&reply), hex(&expect));
    }
}

pub(crate) fn header(kind: u8, flags: u8, stream: u8, length: u32) -> [u8; 12] {
    let [a, b, c, d] = length.to_be_bytes();
    [0, kind, 0, flags, 0, 0, 0, stream, a, b, c, d]
}

pub(crate) const REQUEST_DEF: &str = "[ff81 03 01 01 |Request| 01 ff82 00 01 02 01 |ServiceMethod| 01 0c 00 01 |Seq| 01 06 00 00 00]";
pub(crate) const RESPONSE_DEF: &str = "[ff81 03 01 01 |Response| 01 ff82 00 01 03 01 |ServiceMethod| 01 0c 00 01 |Seq| 01 06 00 01 |Error| 01 0c 00 00 00]";

pub(crate) const TRUE: &str = "[02 00 01]";
pub(crate) const NIL: &str = "[10 00 00]";

/// Returns the bytes of a notation: hexadecimal digits, `|text|` for a text after its length, and `[message]` for a message after its
/// length.
pub(crate) fn gob(notation: &str) -> Vec<u8> {
    let mut levels = vec![Vec::new()];
    let mut digits = String::new();
    let mut chars = notation.chars();
    while let Some(char) = chars.next() {
        match char {
            '[' => levels.push(Vec::new()),
            ']' => {
                let message = levels.pop().unwrap();
                levels.last_mut().unwrap().extend(counted(&message));
            }
            '|' => {
                let text: String = chars.by_ref().take_while(|&char| char != '|').collect();
                levels.last_mut().unwrap().extend(counted(text.as_bytes()));
            }
            digit => {
                digits.extend(digit.to_digit(16).map(|_| digit));
                if digits.len() == 2 {
                    levels
                        .last_mut()
                        .unwrap()
                        .push(u8::from_str_radix(&digits, 16).unwrap());
                    digits.clear();
                }
            }
        }
    }
    assert!(digits.is_empty() && levels.len() == 1, "{notation}");
    levels.remove(0)
}

fn counted(bytes: &[u8]) -> Vec<u8> {
    match u8::try_from(bytes.len()).unwrap() {
        length @ 0..=127 => [&[length], bytes].concat(),
        length => [&[0xff, length], bytes].concat(),
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect::<Vec<_>>()
        .join(" ")
}

#[test]
fn the_notation_gives_the_bytes_that_go_wrote() {
    assert_eq!(
        hex(&gob(REQUEST_DEF)),
        "2f ff 81 03 01 01 07 52 65 71 75 65 73 74 01 ff 82 00 01 02 01 0d 53 65 72 76 69 63 65 4d 65 74 68 6f 64 01 \
         0c 00 01 03 53 65 71 01 06 00 00 00"
    );
    assert_eq!(
        hex(&gob(RESPONSE_DEF)),
        "3a ff 81 03 01 01 08 52 65 73 70 6f 6e 73 65 01 ff 82 00 01 03 01 0d 53 65 72 76 69 63 65 4d 65 74 68 6f 64 \
         01 0c 00 01 03 53 65 71 01 06 00 01 05 45 72 72 6f 72 01 0c 00 00 00"
    );
}
