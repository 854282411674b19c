//! A host's end of a connection, frame by frame and written by hand.

use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::time::timeout;

use super::notation::{REQUEST_DEF, RESPONSE_DEF, gob, hex};

/// Where time stands still while anything moves, this passes only when nothing more will come.
pub(crate) const SILENCE: Duration = Duration::from_secs(60);

/// Flags of a frame.
pub(crate) const SYN: u8 = 1;
pub(crate) const ACK: u8 = 2;
pub(crate) const FIN: u8 = 4;
pub(crate) const RST: u8 = 8;

/// A header with its payload.
pub(crate) type Frame = ([u8; 12], Vec<u8>);

/// A host that knows only bytes.
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

    /// Dispenses a router, the `id`th, on a stream of its own.
    pub(crate) async fn open_router(&mut self, id: u8, stream: u8) {
        let (request, response) = match id {
            1 => (
                format!("{REQUEST_DEF} [ff82 01"),
                format!("{RESPONSE_DEF} [ff82 01"),
            ),
            _ => ("[ff82 01".to_owned(), "[ff82 01".to_owned()),
        };
        // Seq is absent in the first call.
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

    /// The next frame, other than the pings that the yamux crate sends.
    pub(crate) async fn frame(&mut self) -> Frame {
        let frame = timeout(SILENCE, self.next_frame()).await;
        frame
            .expect("the plugin stays silent")
            .expect("the plugin has hung up")
    }

    /// The next frame, or `None` when the plugin has hung up.
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

    /// Sends bytes on a stream and expects others in return.
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
