//! What a kubelet would find in the ConfigMaps and Secrets that are volumes of a Pod.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail};
use k8s_openapi::api::core::v1::{ConfigMap, KeyToPath, Secret, Volume};
use kube::{Api, Client};

/// Contents by name.
type Files = BTreeMap<String, Vec<u8>>;

/// The files of a volume. None if it is optional and its source is not there.
pub(crate) async fn files(volume: &Volume, client: &Client, namespace: &str) -> Result<Files> {
    let (data, items, optional) = if let Some(source) = &volume.config_map {
        let data = config_map(client, namespace, &source.name).await?;
        (data, source.items.as_deref(), source.optional)
    } else if let Some(source) = &volume.secret {
        let name = source.secret_name.as_deref().context("no name")?;
        let data = secret(client, namespace, name).await?;
        (data, source.items.as_deref(), source.optional)
    } else {
        bail!("volume {} is of a kind that is not known here", volume.name);
    };
    match data {
        Some(data) => chosen(data, items)
            .with_context(|| format!("volume {} wants a key that is not there", volume.name)),
        None if optional == Some(true) => Ok(Files::new()),
        None => bail!("what volume {} is made of is not there", volume.name),
    }
}

async fn config_map(client: &Client, namespace: &str, name: &str) -> Result<Option<Files>> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let map = maps.get_opt(name).await?;
    Ok(map.map(|map| {
        let data = map.data.unwrap_or_default();
        data.into_iter()
            .map(|(key, text)| (key, text.into_bytes()))
            .collect()
    }))
}

async fn secret(client: &Client, namespace: &str, name: &str) -> Result<Option<Files>> {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let secret = secrets.get_opt(name).await?;
    Ok(secret.map(|secret| {
        let data = secret.data.unwrap_or_default();
        data.into_iter()
            .map(|(key, bytes)| (key, bytes.0))
            .collect()
    }))
}

/// All keys under their names, or some under others.
fn chosen(mut data: Files, items: Option<&[KeyToPath]>) -> Option<Files> {
    let Some(items) = items else {
        return Some(data);
    };
    let items = items.iter();
    items
        .map(|item| Some((item.path.clone(), data.remove(&item.key)?)))
        .collect()
}
