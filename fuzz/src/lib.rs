//! What the fuzz targets share: a bound on memory, and a host that only knows bytes, in simulated time.

pub mod tree;

use std::future::Future;
use std::time::Duration;

use rollouts_rpc::testing::FnRouter;
use rollouts_rpc::{RouterCall, RouterError, TrafficRouter, Verification};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex, split};
use tokio::time::timeout;

/// What one input may make us hold. The whole process has a limit of its own (`-rss_limit_mb`), in which libFuzzer and
/// its corpus are counted too.
const MEMORY: u64 = 64 << 20;

/// Longer than all deadlines of the protocol together, by a clock that jumps ahead when nothing moves.
const FOREVER: Duration = Duration::from_secs(24 * 3600);

/// Bytes either side can be ahead of the other, as on a socket.
const PIPE: usize = 64 * 1024;

/// Runs `work` and fails if it held more than 64 MiB at any moment.
pub fn within_memory<T>(work: impl FnOnce() -> T) -> T {
    let mut result = None;
    let allocated = allocation_counter::measure(|| result = Some(work()));
    let peak = allocated.bytes_max;
    assert!(peak <= MEMORY, "{peak} bytes were held at once");
    result.expect("the work was done")
}

/// What a host does with the connection while it sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Host {
    /// Reads what comes.
    Reads,
    /// Never reads.
    Stuck,
}

/// Sends `input` to whatever `serve` does with the other end, hangs up, and returns how that ended and what it sent.
/// Fails when it does not end.
pub fn talk<T, F>(input: &[u8], host: Host, serve: impl FnOnce(DuplexStream) -> F) -> (T, Vec<u8>)
where
    F: Future<Output = T>,
{
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let (near, far) = duplex(PIPE);
        let (mut reader, mut writer) = split(near);
        let mut received = Vec::new();
        let send = async {
            // The other side may have hung up.
            let _ = writer.write_all(input).await;
            let _ = writer.shutdown().await;
        };
        let receive = async {
            if host == Host::Reads {
                reader.read_to_end(&mut received).await.expect("a pipe");
            }
        };
        let served = async {
            let ((), ended, ()) = tokio::join!(send, serve(far), receive);
            ended
        };
        let ended = timeout(FOREVER, served).await.expect("it never ends");
        (ended, received)
    })
}

/// A router that refuses some calls.
pub fn router() -> impl TrafficRouter {
    FnRouter(|call| async move {
        match call {
            RouterCall::SetWeight(_, desired, _) if desired.value % 2 == 1 => {
                Err(RouterError::from("odd: 100 %\nand more"))
            }
            _ => Ok(Verification::NotVerified),
        }
    })
}
