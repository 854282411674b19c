//! The configuration of a plugin, as the type its author reads it into.

use serde::de::DeserializeOwned;

use crate::Rollout;

/// Why a plugin has no configuration.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The Rollout has no configuration under this name.
    #[error("{place} is missing: configure the plugin there")]
    Absent {
        /// The object and where in it.
        place: String,
    },
    /// It is not what the plugin reads.
    #[error("{place} is invalid")]
    Invalid {
        /// The object and where in it, down to the field.
        place: String,
        /// What was expected there.
        #[source]
        source: serde_json::Error,
    },
}

impl ConfigError {
    /// Nothing is there.
    #[must_use]
    pub fn absent(place: String) -> Self {
        Self::Absent { place }
    }

    /// Reads JSON that stands at `place`.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Invalid`], with the path to the field that is to blame.
    pub fn parse<T: DeserializeOwned>(
        json: &[u8],
        place: impl FnOnce() -> String,
    ) -> Result<T, Self> {
        let mut json = serde_json::Deserializer::from_slice(json);
        serde_path_to_error::deserialize(&mut json).map_err(|error| {
            let path = error.path().to_string();
            let place = match path.as_str() {
                "." => place(),
                path => format!("{}.{path}", place()),
            };
            Self::Invalid {
                place,
                source: error.into_inner(),
            }
        })
    }
}

impl Rollout {
    /// What `trafficRouting.plugins` has under the plugin's name in the controller's ConfigMap.
    ///
    /// ```
    /// #[derive(serde::Deserialize)]
    /// #[serde(rename_all = "camelCase")]
    /// struct Config {
    ///     stable_ingress: String,
    /// }
    ///
    /// let rollout: rollout_types::Rollout = serde_json::from_str(
    ///     r#"{"metadata": {"name": "demo", "namespace": "shop"}, "spec": {"strategy": {"canary": {"trafficRouting":
    ///         {"plugins": {"example/nginx": {"stableIngress": 7}}}}}}}"#,
    /// )?;
    /// let error = rollout.config::<Config>("example/nginx").err().ok_or("it is valid")?;
    /// assert_eq!(
    ///     error.to_string(),
    ///     "rollout shop/demo: trafficRouting.plugins[example/nginx].stableIngress is invalid"
    /// );
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// See [`ConfigError`].
    pub fn config<T: DeserializeOwned>(&self, plugin: &str) -> Result<T, ConfigError> {
        let place = || {
            let (namespace, name) = (&self.metadata.namespace, &self.metadata.name);
            format!("rollout {namespace}/{name}: trafficRouting.plugins[{plugin}]")
        };
        let routing = self.traffic_routing();
        match routing.and_then(|routing| routing.plugins.get(plugin)) {
            Some(json) => ConfigError::parse(json.as_ref(), place),
            None => Err(ConfigError::absent(place())),
        }
    }
}
