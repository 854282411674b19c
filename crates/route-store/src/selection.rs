//! The selection of tables: how fresh they must be for a decision, and the tables and errors that a selection returns.

use std::time::Duration;

use gloo_types::{ObjectKey, RouteTableDoc, RouteTableSelector};

use crate::StoreError;

/// Maximum age of cached objects. A watch receives something at least each 60 s; the rest is time for a slow answer.
pub const FRESH: Duration = Duration::from_secs(75);

/// Where a read may get its objects from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freshness {
    /// From the cache if it is fresh, otherwise from the API server.
    Cached,
    /// From the API server.
    Live,
}

/// The decision that objects are read for. [`Decision::freshness`] is the only place that maps it to cached or live reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The changes for a call about weights or managed routes. Stale content is safe: the patch tests the version that it
    /// was planned on, and if the plan was empty, the later watch event triggers a repair.
    Plan,
    /// The same after another write of this process ended: the cache may not have its result.
    PlanAgain,
    /// VerifyWeight below the full weight. A later call corrects a stale answer.
    Verify,
    /// VerifyWeight at the full weight, after which the controller promotes.
    VerifyPromotion,
    /// Whether a table that is selected by name does not exist, before an error is returned.
    Absence,
}

impl Decision {
    /// Returns where the objects for this decision may come from.
    #[must_use]
    pub const fn freshness(self) -> Freshness {
        match self {
            Self::Plan | Self::Verify => Freshness::Cached,
            Self::PlanAgain | Self::VerifyPromotion | Self::Absence => Freshness::Live,
        }
    }
}

/// The tables that a selector selects, and the errors of those that could not be read.
///
/// A table that is missing, forbidden or malformed does not hide the others: a caller that moves traffic back to stable
/// changes the tables that it has.
#[derive(Debug, Default)]
pub struct Selection {
    /// The tables, sorted by namespace and name.
    pub tables: Vec<RouteTableDoc>,
    /// One error for each name, namespace or file that could not be read. A table that is selected by name and is in none
    /// of the namespaces is a [`StoreError::NotFound`]; labels that match nothing are no error.
    pub errors: Vec<StoreError>,
}

impl Selection {
    /// Returns the tables if all of them could be read.
    ///
    /// # Errors
    /// Returns the first error.
    pub fn complete(self) -> Result<Vec<RouteTableDoc>, StoreError> {
        match self.errors.into_iter().next() {
            Some(error) => Err(error),
            None => Ok(self.tables),
        }
    }

    /// A selection without tables, with one error.
    pub(crate) fn failed(error: StoreError) -> Self {
        Self {
            tables: Vec::new(),
            errors: vec![error],
        }
    }

    /// All tables, or the error with which they could not be read.
    pub(crate) fn of_all(tables: Result<Vec<RouteTableDoc>, StoreError>) -> Self {
        match tables {
            Ok(tables) => Self {
                tables,
                errors: Vec::new(),
            },
            Err(error) => Self::failed(error),
        }
    }

    /// Filters `tables` by the selector, and adds an error for each selected name that is missing to `errors`.
    pub(crate) fn of(
        selector: &RouteTableSelector,
        tables: impl IntoIterator<Item = RouteTableDoc>,
        errors: Vec<StoreError>,
    ) -> Self {
        let is_selected = |table: &RouteTableDoc| selector.matches(table.key(), table.labels());
        let mut selection = Self {
            tables: tables.into_iter().filter(is_selected).collect(),
            errors,
        };
        for name in &selector.names {
            if !selection.has(|key| key.name == *name) {
                selection.errors.push(selector.absent(name).into());
            }
        }
        selection.sorted()
    }

    /// Merges two selections; a table in both is kept once.
    #[cfg(feature = "kube")]
    pub(crate) fn and(mut self, other: Self) -> Self {
        for table in other.tables {
            if !self.has(|key| key == table.key()) {
                self.tables.push(table);
            }
        }
        self.errors.extend(other.errors);
        self.sorted()
    }

    fn has(&self, is_meant: impl Fn(&ObjectKey) -> bool) -> bool {
        self.tables.iter().any(|table| is_meant(table.key()))
    }

    fn sorted(mut self) -> Self {
        self.tables.sort_by(|a, b| a.key().cmp(b.key()));
        self
    }
}
