//! What the plugin does between the calls of the controller: it repairs drift and removes what Rollouts that are gone have
//! left.

pub(crate) mod collect;
pub(crate) mod fights;
pub(crate) mod report;
pub(crate) mod reporter;
pub(crate) mod standing;
