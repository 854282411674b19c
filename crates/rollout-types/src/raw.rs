//! What a Rollout has beyond the fields of this crate.

use gob::{DecodeError, Raw};
use serde::de::DeserializeOwned;

/// A Rollout as the controller sent it; nothing if it came in another way, or is larger than any that an API server stores.
///
/// All values are equal, so that only the typed fields decide whether two Rollouts are.
#[derive(Clone, Debug, Default)]
pub struct RawRollout(pub Option<Raw>);

impl PartialEq for RawRollout {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for RawRollout {}

impl RawRollout {
    /// Reads any of its fields, by their names in Go (`pkg/apis/rollouts/v1alpha1/types.go`). `None` if the Rollout did not
    /// come from a controller.
    ///
    /// ```
    /// use rollout_types::Rollout;
    ///
    /// #[derive(serde::Deserialize, Default)]
    /// #[serde(default, rename_all = "PascalCase")]
    /// struct Fields {
    ///     spec: Spec,
    /// }
    ///
    /// #[derive(serde::Deserialize, Default)]
    /// #[serde(default, rename_all = "PascalCase")]
    /// struct Spec {
    ///     template: Template,
    /// }
    ///
    /// #[derive(serde::Deserialize, Default)]
    /// #[serde(default, rename_all = "PascalCase")]
    /// struct Template {
    ///     object_meta: rollout_types::ObjectMeta,
    /// }
    ///
    /// fn pod_labels(rollout: &Rollout) -> Option<std::collections::BTreeMap<String, String>> {
    ///     let fields: Fields = rollout.raw.read()?.ok()?;
    ///     Some(fields.spec.template.object_meta.labels)
    /// }
    /// # assert_eq!(pod_labels(&Rollout::default()), None);
    /// ```
    pub fn read<T: DeserializeOwned>(&self) -> Option<Result<T, DecodeError>> {
        self.0.as_ref().map(Raw::decode)
    }
}
