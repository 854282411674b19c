//! The stage: the canary and its environment, as the server uses it.

use std::error::Error;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::{MissedTickBehavior, interval};

use crate::{Board, Command, Live};

/// Interval of ticks and events.
const TICK: Duration = Duration::from_millis(100);

/// Why a stage failed, or refuses a command.
pub type StageError = Box<dyn Error + Send + Sync>;

/// A command, and the sender of its result.
pub(crate) type Queued = (Command, oneshot::Sender<Result<(), String>>);

/// A canary and its environment. All methods are called by one task.
pub trait Stage {
    /// Returns the data of the page.
    fn board(&mut self) -> &mut Board;

    /// Returns the state of the canary.
    fn live(&self) -> Live;

    /// Carries out a command of the page.
    ///
    /// # Errors
    /// Returns `Err` with the reason if the command is not possible now, or fails.
    fn carry_out(&mut self, command: Command) -> impl Future<Output = Result<(), StageError>>;

    /// Updates the counts, and starts the work whose time has come, such as a reconcile. Called ten times per second.
    ///
    /// # Errors
    /// Returns `Err` if the stage cannot continue.
    fn tick(&mut self) -> impl Future<Output = Result<(), StageError>>;

    /// Ends all processes.
    ///
    /// # Errors
    /// Returns `Err` if a process does not end.
    fn close(self) -> impl Future<Output = Result<(), StageError>>;
}

/// Runs a stage until `stop` is sent or dropped.
///
/// # Errors
/// Returns `Err` if the stage cannot continue.
pub(crate) async fn run(
    mut stage: impl Stage,
    mut commands: mpsc::Receiver<Queued>,
    mut stop: oneshot::Receiver<()>,
) -> Result<(), StageError> {
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = &mut stop => return stage.close().await,
            Some((command, reply)) = commands.recv() => {
                let outcome = stage.carry_out(command).await;
                show(&mut stage);
                // The page may have been closed.
                let _ = reply.send(outcome.map_err(|error| error.to_string()));
            }
            _ = ticks.tick() => {
                stage.tick().await?;
                show(&mut stage);
            }
        }
    }
}

/// Publishes the state of a stage to all open pages.
pub(crate) fn show(stage: &mut impl Stage) {
    let live = stage.live();
    stage.board().show(&live);
}
