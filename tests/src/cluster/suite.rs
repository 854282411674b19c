//! Runs the tests of one file in one cluster, which the first test that needs it starts.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use libtest_mimic::{Arguments, Trial};
use tokio::runtime::Runtime;
use tokio::sync::{OnceCell, RwLock};

use crate::{Cluster, Release};

/// Lists the tests of a [`Suite`](crate::Suite), each with the name of its function: `trials![suite: first, second]`.
#[macro_export]
macro_rules! trials {
    ($suite:ident: $($test:ident),+ $(,)?) => { vec![$($suite.trial(stringify!($test), $test)),+] };
}

/// The tests of a file and their cluster.
pub struct Suite {
    runtime: Runtime,
    controller: Option<Release>,
    cluster: OnceCell<RwLock<Cluster>>,
}

impl Suite {
    /// Runs the tests of `trials` that the command line selects, with a controller or without one, and stops the cluster.
    ///
    /// # Errors
    /// Returns `Err` if the plugin outlives the controller, or there are no tests.
    #[expect(clippy::print_stderr, reason = "output of a test program")]
    pub fn run(
        controller: Option<Release>,
        trials: impl FnOnce(&Arc<Self>) -> Result<Vec<Trial>>,
    ) -> Result<ExitCode> {
        let suite = Arc::new(Self {
            runtime: Runtime::new()?,
            controller,
            cluster: OnceCell::new(),
        });
        let trials = trials(&suite)?;
        let conclusion = libtest_mimic::run(&Arguments::from_args(), trials);

        let suite = Arc::into_inner(suite).context("a test is still running")?;
        if let Some(cluster) = suite.cluster.into_inner().map(RwLock::into_inner) {
            if conclusion.has_failed() {
                eprintln!("{}", cluster.logs());
            }
            suite.runtime.block_on(cluster.stop())?;
        }
        Ok(conclusion.exit_code())
    }

    /// A test in the cluster.
    pub fn trial<T>(self: &Arc<Self>, name: &str, test: T) -> Trial
    where
        T: AsyncFnOnce(&Cluster) -> Result<()> + Send + 'static,
    {
        let suite = Arc::clone(self);
        Trial::test(name, move || {
            let outcome = suite
                .runtime
                .block_on(async { test(&*suite.cluster().await?.read().await).await });
            outcome.map_err(|error| format!("{error:#}").into())
        })
    }

    /// A test that stops programs of the cluster, so no other test runs at the same time.
    pub fn trial_alone<T>(self: &Arc<Self>, name: &str, test: T) -> Trial
    where
        T: AsyncFnOnce(&mut Cluster) -> Result<()> + Send + 'static,
    {
        let suite = Arc::clone(self);
        Trial::test(name, move || {
            let outcome = suite
                .runtime
                .block_on(async { test(&mut *suite.cluster().await?.write().await).await });
            outcome.map_err(|error| format!("{error:#}").into())
        })
    }

    async fn cluster(&self) -> Result<&RwLock<Cluster>> {
        let start = async || {
            let cluster = match self.controller {
                Some(release) => Cluster::start(release).await,
                None => Cluster::start_without_controller(Release::V1_9).await,
            };
            Ok(RwLock::new(cluster?))
        };
        self.cluster.get_or_try_init(start).await
    }
}
