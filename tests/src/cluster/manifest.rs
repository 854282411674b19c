//! Parses, applies and deletes manifests.

use anyhow::{Context as _, Result};
use kube::api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams};
use kube::core::GroupVersionKind;
use kube::core::gvk::ParseGroupVersionError;
use kube::{Api, Client};

/// Parses every document of a YAML text.
///
/// # Errors
/// Returns `Err` if the text is not YAML, or a document is not a Kubernetes object.
pub fn parse(text: &str) -> Result<Vec<DynamicObject>> {
    serde_saphyr::from_multiple(text).context("not a list of Kubernetes objects")
}

/// Applies objects in order, with the field manager `owner`.
///
/// # Errors
/// Returns `Err` if the API server rejects an object.
pub async fn apply(client: &Client, objects: &[DynamicObject]) -> Result<()> {
    for object in objects {
        let name = name(object)?;
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

/// Deletes objects in order.
///
/// # Errors
/// Returns `Err` if one of them does not exist.
pub async fn delete(client: &Client, objects: &[DynamicObject]) -> Result<()> {
    for object in objects {
        let name = name(object)?;
        endpoint(client, object)?
            .delete(name, &DeleteParams::default())
            .await
            .with_context(|| format!("cannot delete {name}"))?;
    }
    Ok(())
}

fn name(object: &DynamicObject) -> Result<&str> {
    let name = object.metadata.name.as_deref();
    name.context("an object without a name")
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
