//! Parses the configuration of a plugin to the author's type.

use serde::de::DeserializeOwned;

use crate::Rollout;

/// Why the configuration of a plugin cannot be parsed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The Rollout has no configuration under this name.
    #[error("{place} is missing: configure the plugin there")]
    Absent {
        /// The object and the path in it.
        place: String,
    },
    /// The configuration does not fit the author's type.
    #[error("{place} is invalid")]
    Invalid {
        /// The object and the path in it, including the field.
        place: String,
        /// The error of the JSON parser.
        #[source]
        source: serde_json::Error,
    },
}

impl ConfigError {
    /// Returns the error of a missing configuration.
    #[must_use]
    pub fn absent(place: String) -> Self {
        Self::Absent { place }
    }

    /// Parses JSON. `place` is the object and the path of the JSON, for the error.
    ///
    /// # Errors
    ///
    /// Returns [`ConfigError::Invalid`] with the path of the field that does not fit.
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
    /// Parses the value in `trafficRouting.plugins` under the plugin's name, which is its name in the controller's ConfigMap.
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
