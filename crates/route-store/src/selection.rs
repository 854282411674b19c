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
}

impl Decision {
    /// Returns where the objects for this decision may come from.
    #[must_use]
    pub const fn freshness(self) -> Freshness {
        match self {
            Self::Plan | Self::Verify => Freshness::Cached,
            Self::PlanAgain | Self::VerifyPromotion => Freshness::Live,
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

    /// All tables, or the error with which they could not be read.
    pub(crate) fn of_all(tables: Result<Vec<RouteTableDoc>, StoreError>) -> Self {
        let (tables, error) = match tables {
            Ok(tables) => (tables, None),
            Err(error) => (Vec::new(), Some(error)),
        };
        let errors = error.into_iter().collect();
        Self { tables, errors }
    }

    /// Leaves the selected tables, and adds an error for each selected name that is missing.
    pub(crate) fn selected_by(mut self, selector: &RouteTableSelector) -> Self {
        self.tables
            .retain(|table| selector.matches(table.key(), table.labels()));
        for name in &selector.names {
            if !self.has(|key| key.name == *name) {
                self.errors.push(selector.absent(name).into());
            }
        }
        self.sorted()
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

/// Collects the tables, and the errors of those that cannot be read.
impl FromIterator<Result<RouteTableDoc, StoreError>> for Selection {
    fn from_iter<I: IntoIterator<Item = Result<RouteTableDoc, StoreError>>>(tables: I) -> Self {
        let mut selection = Self::default();
        for table in tables {
            match table {
                Ok(table) => selection.tables.push(table),
                Err(error) => selection.errors.push(error),
            }
        }
        selection
    }
}
