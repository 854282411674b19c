//! A host that writes its frames by hand.

use std::time::Duration;

use rollouts_rpc::testing::FnRouter;
use rollouts_rpc::{
    RouterCall, ServeConfig, SessionError, Shutdown, Verification, serve_connection,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::notation::{REQUEST_DEF, RESPONSE_DEF, gob, hex};

/// Time stands still while anything moves, so this passes only when nothing more will come.
const SILENCE: Duration = Duration::from_secs(3600);

/// A host that knows only bytes.
pub(crate) struct RawHost {
    pub(crate) io: DuplexStream,
    pub(crate) plugin: JoinHandle<Result<Shutdown, SessionError>>,
    pub(crate) calls: mpsc::UnboundedReceiver<RouterCall>,
}

impl RawHost {
    pub(crate) fn start() -> Self {
        let (io, plugin) = duplex(1 << 20);
        let (called, calls) = mpsc::unbounded_channel();
        let router = FnRouter(move |call| {
            let _ = called.send(call);
            async { Ok(Verification::Verified) }
        });
        let plugin = tokio::spawn(async move {
            serve_connection(&ServeConfig::TRAFFIC_ROUTER, plugin, router).await
        });
        Self { io, plugin, calls }
    }

    /// With the three initial streams.
    pub(crate) async fn with_session() -> Self {
        let mut host = Self::start();
        for stream in [1, 3, 5] {
            host.open(stream).await;
        }
        host
    }

    /// With a router on stream 7.
    pub(crate) async fn with_router() -> Self {
        let mut host = Self::with_session().await;
        host.exchange(
            1,
            &format!(
                "{REQUEST_DEF} [ff82 01 |Dispenser.Dispense| 00] [0c 00 |RpcTrafficRouterPlugin|]"
            ),
            &format!("{RESPONSE_DEF} [ff82 01 |Dispenser.Dispense| 00] [06 00 01]"),
        )
        .await;
        host.open(7).await;
        host.exchange(7, "01 00 00 00", "01 00 00 00").await;
        host
    }

    /// Opens a stream as hashicorp's yamux does, and reads the acknowledgement.
    pub(crate) async fn open(&mut self, stream: u8) {
        self.io
            .write_all(&[0, 1, 0, 1, 0, 0, 0, stream, 0, 0, 0, 0])
            .await
            .unwrap();
        let (header, _) = self.frame().await;
        assert_eq!(
            hex(&header),
            format!("00 00 00 02 00 00 00 {stream:02x} 00 00 00 00")
        );
    }

    pub(crate) async fn send(&mut self, stream: u8, data: &[u8]) {
        let length = u32::try_from(data.len()).unwrap().to_be_bytes();
        let header = [&[0, 0, 0, 0, 0, 0, 0, stream], &length[..]].concat();
        self.io.write_all(&[&header, data].concat()).await.unwrap();
    }

    /// The next frame, header and data, other than the pings that the yamux crate sends.
    pub(crate) async fn frame(&mut self) -> ([u8; 12], Vec<u8>) {
        timeout(SILENCE, self.next_frame())
            .await
            .expect("the plugin stays silent")
    }

    async fn next_frame(&mut self) -> ([u8; 12], Vec<u8>) {
        loop {
            let mut header = [0; 12];
            self.io.read_exact(&mut header).await.unwrap();
            let length = u32::from_be_bytes(header[8..].try_into().unwrap());
            let mut data = vec![0; if header[1] == 0 { length as usize } else { 0 }];
            self.io.read_exact(&mut data).await.unwrap();
            if header[..4] != [0, 2, 0, 1] {
                return (header, data);
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

    /// Waits for the plugin to end by itself, while the connection stays open.
    pub(crate) async fn ended(self) -> Result<Shutdown, SessionError> {
        timeout(SILENCE, self.plugin)
            .await
            .expect("the plugin stays")
            .unwrap()
    }
}
