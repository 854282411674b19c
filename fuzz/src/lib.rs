//! Shared by the fuzz targets: a limit of memory, and a host that sends any bytes, in simulated time.

pub mod tree;
pub mod words;

use std::future::Future;
use std::time::Duration;

use rollouts_rpc::testing::FnRouter;
use rollouts_rpc::{RouterCall, RouterError, TrafficRouter, Verification};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex, split};
use tokio::time::timeout;

/// Most bytes that one input may make the code allocate at once. libFuzzer limits the whole process, including its corpus
/// (`-rss_limit_mb`).
const MEMORY: u64 = 64 << 20;

/// Longer than the sum of all deadlines of the protocol. The clock is simulated: it jumps ahead when all tasks wait.
const FOREVER: Duration = Duration::from_secs(24 * 3600);

/// Bytes that either side can send before the other reads, as on a socket.
const PIPE: usize = 64 * 1024;

/// Runs `work`, and panics if it had more than 64 MiB allocated at any moment.
pub fn within_memory<T>(work: impl FnOnce() -> T) -> T {
    let mut result = None;
    let allocated = allocation_counter::measure(|| result = Some(work()));
    let peak = allocated.bytes_max;
    assert!(peak <= MEMORY, "{peak} bytes were held at once");
    result.expect("the work was done")
}

/// How a host reads while it sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Host {
    /// Reads everything.
    Reads,
    /// Never reads.
    Stuck,
}

/// Sends `input` to `serve` and closes the connection. Returns the result of `serve` and the bytes that it sent. Panics if
/// `serve` does not end.
pub fn exchange<T, F>(
    input: &[u8],
    host: Host,
    serve: impl FnOnce(DuplexStream) -> F,
) -> (T, Vec<u8>)
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
            // The other side may have closed the connection.
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

/// A router that returns an error for some calls.
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
