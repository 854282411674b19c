//! Where the canary is: what the page needs of it.

use std::error::Error;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::{MissedTickBehavior, interval};

use crate::{Board, Live, Order};

/// Events each second are ten.
const TICK: Duration = Duration::from_millis(100);

/// Why a stage cannot go on, or refuses an order.
pub type StageError = Box<dyn Error + Send + Sync>;

/// An order, and whom to tell what became of it.
pub(crate) type Ordered = (Order, oneshot::Sender<Result<(), String>>);

/// A canary with what is around it. One task calls all of it.
pub trait Stage {
    /// What the page shows.
    fn board(&mut self) -> &mut Board;

    /// The canary as it is now.
    fn live(&self) -> Live;

    /// Does what the page asks for.
    ///
    /// # Errors
    /// Returns `Err` with the reason if it makes no sense now, or fails.
    fn carry_out(&mut self, order: Order) -> impl Future<Output = Result<(), StageError>>;

    /// Counts, and does what is due. It is called ten times each second.
    ///
    /// # Errors
    /// Returns `Err` if the stage cannot go on.
    fn tick(&mut self) -> impl Future<Output = Result<(), StageError>>;

    /// Ends all processes.
    ///
    /// # Errors
    /// Returns `Err` if one does not end.
    fn close(self) -> impl Future<Output = Result<(), StageError>>;
}

/// Runs a stage until it is told to stop, or `stop` is dropped.
///
/// # Errors
/// Returns `Err` if the stage cannot go on.
pub(crate) async fn run(
    mut stage: impl Stage,
    mut orders: mpsc::Receiver<Ordered>,
    mut stop: oneshot::Receiver<()>,
) -> Result<(), StageError> {
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = &mut stop => return stage.close().await,
            Some((order, reply)) = orders.recv() => {
                let outcome = stage.carry_out(order).await;
                show(&mut stage);
                // A page that was closed does not wait for the answer.
                let _ = reply.send(outcome.map_err(|error| error.to_string()));
            }
            _ = ticks.tick() => {
                stage.tick().await?;
                show(&mut stage);
            }
        }
    }
}

/// Shows the state of a stage to all pages.
pub(crate) fn show(stage: &mut impl Stage) {
    let live = stage.live();
    stage.board().show(&live);
}
