//! Kubernetes objects as YAML text.

use anyhow::{Context as _, Result};
use kube::api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams};
use kube::core::GroupVersionKind;
use kube::core::gvk::ParseGroupVersionError;
use kube::{Api, Client};

/// Parses every document of a YAML text.
///
/// # Errors
/// The text is no YAML, or a document is no Kubernetes object.
pub fn parse(text: &str) -> Result<Vec<DynamicObject>> {
    serde_saphyr::from_multiple(text).context("not a list of Kubernetes objects")
}

/// Applies objects in order, as their owner.
///
/// # Errors
/// The API server refuses one.
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
/// One of them is not there.
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
