//! Argo Rollouts' Rollout (`argoproj.io/v1alpha1`): the part that plugins and their tools need.
//!
//! Each field is declared once, with its name in Go and its name in JSON, so the same types are read from the gob that
//! the controller sends and from the object that the API server shows. Other fields, the Pod template among them, are
//! skipped while decoding; [`Rollout::raw`] has them, if the controller sent them. Field names and their meaning are those of `pkg/apis/rollouts/v1alpha1/types.go`.
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
//! # What absence means
//!
//! In JSON, absent and null are the field's default. In gob they are more than that: Go's encoder drops pointers to zero
//! values, so nil and zero arrive alike. [`Rollout::restore_zeros`] tells them apart where the API's validation allows
//! it; the fields for which nothing does say so.

mod config;
mod declare;
mod json;
mod progress;
mod raw;
#[cfg(feature = "resource")]
mod resource;
mod services;
mod timestamp;
mod types;

pub use config::ConfigError;
pub use json::RawJson;
pub use progress::REVISION_ANNOTATION;
pub use raw::RawRollout;
pub use services::Services;
pub use timestamp::Timestamp;
pub use types::*;
