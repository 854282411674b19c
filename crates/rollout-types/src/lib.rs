//! The Rollout of Argo Rollouts (`argoproj.io/v1alpha1`), with the fields that plugins and their tools need.
//!
//! Each field is declared once, with its names in Go and in JSON. So the same types decode from the gob that the controller sends and
//! from the JSON of the API server. Other fields, such as the Pod template, are skipped; [`Rollout::raw`] has them if the controller
//! sent the Rollout. Field names and their meaning are those of `pkg/apis/rollouts/v1alpha1/types.go` in Argo Rollouts.
//!
//! ```
//! let rollout: rollout_types::Rollout = serde_json::from_str(
//!     r#"{"metadata": {"name": "shop"}, "spec": {"strategy": {"canary": {"steps": [{"setWeight": 0}]}}}}"#,
//! )?;
//! assert_eq!(rollout.metadata.name, "shop");
//! assert_eq!(rollout.steps()[0].set_weight, Some(0));
//! # Ok::<(), serde_json::Error>(())
//! ```
//!
//! # Absent fields
//!
//! In JSON, an absent or null field has its default. In gob, an absent field is nil or zero: Go's encoder drops pointers to zero values.
//! [`Rollout::restore_zeros`] restores the zeros that the validation of the API allows to infer. The documentation of a field says if
//! nil and zero cannot be distinguished.

mod config;
mod facts;
mod rollout;
mod types;
mod values;

pub use config::ConfigError;
pub use facts::{Outdated, RolloutFacts};
pub use rollout::{REVISION_ANNOTATION, Services};
pub use types::*;
pub use values::{RawJson, RawRollout, Timestamp};
