//! Kubernetes objects as YAML text.

use anyhow::{Context as _, Result};
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams};
use kube::core::GroupVersionKind;
use kube::core::gvk::ParseGroupVersionError;
use kube::{Api, Client};

/// Parses every document of a YAML text.
pub(crate) fn parse(text: &str) -> Result<Vec<DynamicObject>> {
    serde_saphyr::from_multiple(text).context("not a list of Kubernetes objects")
}

/// Applies objects in order, as their owner.
///
/// # Errors
/// The API server refuses one.
pub async fn apply(client: &Client, objects: &[DynamicObject]) -> Result<()> {
    for object in objects {
        let name = object
            .metadata
            .name
            .as_deref()
            .context("an object without a name")?;
        endpoint(client, object)?
            .patch(
                name,
                &PatchParams::apply("owner").force(),
                &Patch::Apply(object),
            )
            .await
            .with_context(|| format!("cannot apply {name}"))?;
    }
    Ok(())
}

fn endpoint(client: &Client, object: &DynamicObject) -> Result<Api<DynamicObject>> {
    let types = object.types.as_ref().context("an object without a kind")?;
    let kind = GroupVersionKind::try_from(types).map_err(|error: ParseGroupVersionError| error)?;
    let resource = ApiResource::from_gvk(&kind);
    Ok(match &object.metadata.namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    })
}
