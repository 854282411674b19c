//! Selection for the stores that have all tables at hand.

use gloo_types::{RouteTableDoc, RouteTableSelector};

use crate::StoreError;

/// Those of `tables` that `selector` selects; a name that nothing has is an error.
pub(crate) fn pick(
    tables: Vec<RouteTableDoc>,
    selector: &RouteTableSelector,
) -> Result<Vec<RouteTableDoc>, StoreError> {
    let selected: Vec<RouteTableDoc> = tables
        .into_iter()
        .filter(|table| selector.matches(table.key(), table.labels()))
        .collect();
    let absent = selector
        .names
        .iter()
        .find(|name| !selected.iter().any(|table| table.key().name == **name));
    match absent {
        Some(name) => Err(StoreError::not_in_namespaces(name, &selector.namespaces)),
        None => Ok(selected),
    }
}
