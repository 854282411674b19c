//! The outcome of a selection: each table on its own.

use std::time::Duration;

use gloo_types::{ObjectKey, RouteTableDoc, RouteTableSelector};

use crate::StoreError;

/// How old cached objects may be: a watch gives a sign of life each 60 s, and a request has some time to be answered.
pub const FRESH: Duration = Duration::from_secs(75);

/// Where objects that are read may come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freshness {
    /// From the cache if it is fresh, otherwise from the API server.
    Cached,
    /// From the API server.
    Live,
}

/// What objects are read for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// What a call about weights or managed routes changes. Content that is out of date for a moment is safe: the patch tests
    /// the version it was planned on, and where nothing seemed to change, the event that comes later tells.
    Plan,
    /// The same after a conflict, which says that the cached version is out of date.
    PlanAgain,
    /// VerifyWeight below the full weight, which nothing final depends on.
    Verify,
    /// VerifyWeight at the full weight: the controller promotes on it.
    VerifyPromotion,
    /// Whether a table that is selected by name is missing, before that becomes an error.
    Absence,
}

impl Decision {
    /// What the decision may be made on.
    #[must_use]
    pub const fn freshness(self) -> Freshness {
        match self {
            Self::Plan | Self::Verify => Freshness::Cached,
            Self::PlanAgain | Self::VerifyPromotion | Self::Absence => Freshness::Live,
        }
    }
}

/// The tables that a selector selects, as far as they could be read.
///
/// One table that is missing, forbidden or malformed does not hide the others: a caller that moves traffic back to stable
/// goes on with the tables that are there.
#[derive(Debug, Default)]
pub struct Selection {
    /// The tables, sorted by namespace and name.
    pub tables: Vec<RouteTableDoc>,
    /// One error for each name, namespace or file that could not be read. [`StoreError::NotFound`] names a table that is
    /// selected by name and is in none of the namespaces; labels that match nothing are no error.
    pub errors: Vec<StoreError>,
}

impl Selection {
    /// The tables, if all of them could be read.
    ///
    /// # Errors
    /// The first error.
    pub fn complete(self) -> Result<Vec<RouteTableDoc>, StoreError> {
        match self.errors.into_iter().next() {
            Some(error) => Err(error),
            None => Ok(self.tables),
        }
    }

    /// Nothing could be read.
    pub(crate) fn failed(error: StoreError) -> Self {
        Self {
            tables: Vec::new(),
            errors: vec![error],
        }
    }

    /// Those of `tables` that are selected, beside the `errors` met when reading them.
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

    /// Both selections; a table that is in both counts once.
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
