//! Parses the configuration of a plugin to the author's type.

use serde::de::DeserializeOwned;

use crate::Rollout;

/// Why the configuration of a plugin cannot be parsed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// There is no configuration at this place.
    #[error("{place} is missing: configure the plugin there")]
    Absent {
        /// The object and the path in it.
        place: String,
    },
    /// The configuration does not fit the author's type.
    #[error("{place} is invalid: {reason}")]
    Invalid {
        /// The object and the path in it, including the field.
        place: String,
        /// The error of the JSON parser, without names of Rust.
        reason: String,
    },
}

impl ConfigError {
    /// Returns the error of a missing configuration.
    #[must_use]
    pub fn absent(place: String) -> Self {
        Self::Absent { place }
    }

    /// Parses JSON. `place` is the object and the path of the JSON, for the error. JSON that is absent is empty, and is read as null.
    ///
    /// # Errors
    ///
    /// Returns [`ConfigError::Absent`] if the JSON is null and `T` is not optional, and otherwise [`ConfigError::Invalid`] with the
    /// path of the field that does not fit.
    pub fn parse<T: DeserializeOwned>(
        json: &[u8],
        place: impl FnOnce() -> String,
    ) -> Result<T, Self> {
        let is_null = matches!(json.trim_ascii(), b"" | b"null");
        let json: &[u8] = if is_null { b"null" } else { json };
        let mut json = serde_json::Deserializer::from_slice(json);
        serde_path_to_error::deserialize(&mut json).map_err(|error| {
            if is_null {
                return Self::absent(place());
            }
            let path = error.path().to_string();
            // A dot is the whole, and a question mark what the parser does not know.
            let place = match path.trim_end_matches(['.', '?']) {
                "" => place(),
                path => format!("{}.{path}", place()),
            };
            let reason = in_words_of_json(&error.into_inner().to_string());
            Self::Invalid { place, reason }
        })
    }
}

/// Returns an error of the JSON parser without the names of Rust types, and without the position, which a person cannot look up.
fn in_words_of_json(error: &str) -> String {
    let text = error.split(" at line ").next().unwrap_or(error);
    let Some((found, expected)) = text.rsplit_once(", expected ") else {
        return text.to_owned();
    };
    let expected = match expected {
        it if it.starts_with(['i', 'u']) && is_type_of_number(it) => "a whole number",
        it if it.starts_with('f') && is_type_of_number(it) => "a number",
        it if it.starts_with("struct ") => "an object",
        it if it.starts_with("tuple struct ") || it == "a sequence" => "a list",
        "a map" => "an object",
        "a borrowed string" => "a string",
        it => it,
    };
    format!("{found}, expected {expected}")
}

/// Returns whether this is a letter and digits, or `usize` or `isize`.
fn is_type_of_number(name: &str) -> bool {
    let rest = name.get(1..).unwrap_or_default();
    rest == "size" || !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit())
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
    ///     "rollout shop/demo: trafficRouting.plugins[example/nginx].stableIngress is invalid: invalid type: integer `7`, expected a string"
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Default, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    #[allow(dead_code, reason = "only its types matter")]
    struct Config {
        times: u32,
        share: f64,
        mode: Mode,
        labels: BTreeMap<String, Vec<String>>,
        pair: Pair,
    }

    #[derive(Debug, Default, Deserialize)]
    enum Mode {
        #[default]
        Fast,
    }

    #[derive(Debug, Default, Deserialize)]
    #[allow(dead_code, reason = "only its types matter")]
    struct Pair(u8, u8);

    #[track_caller]
    fn check(json: &str, expect: &str) {
        let parsed = ConfigError::parse::<Config>(json.as_bytes(), || "step a: config".to_owned());
        assert_eq!(
            parsed.unwrap_err().to_string(),
            format!("step a: config{expect}")
        );
    }

    #[test]
    fn an_absent_configuration_has_one_text() {
        for absent in ["", "null", " null\n"] {
            check(absent, " is missing: configure the plugin there");
            let optional = ConfigError::parse::<Option<Config>>(absent.as_bytes(), String::new);
            assert!(optional.unwrap().is_none());
        }
    }

    #[test]
    fn an_error_has_no_name_of_rust() {
        check(
            "7",
            " is invalid: invalid type: integer `7`, expected an object",
        );
        check(
            r#"{"times": "x"}"#,
            ".times is invalid: invalid type: string \"x\", expected a whole number",
        );
        check(
            r#"{"times": -1}"#,
            ".times is invalid: invalid value: integer `-1`, expected a whole number",
        );
        check(
            r#"{"share": "x"}"#,
            ".share is invalid: invalid type: string \"x\", expected a number",
        );
        check(r#"{"mode": 7}"#, ".mode is invalid: expected value");
        check(
            r#"{"mode": "slow"}"#,
            ".mode is invalid: unknown variant `slow`, expected `Fast`",
        );
        check(
            r#"{"labels": 7}"#,
            ".labels is invalid: invalid type: integer `7`, expected an object",
        );
        check(
            r#"{"labels": {"a": 7}}"#,
            ".labels.a is invalid: invalid type: integer `7`, expected a list",
        );
        check(
            r#"{"pair": 7}"#,
            ".pair is invalid: invalid type: integer `7`, expected a list",
        );
        check(
            r#"{"time": 7}"#,
            ".time is invalid: unknown field `time`, expected one of `times`, `share`, `mode`, `labels`, `pair`",
        );
        check("{", " is invalid: EOF while parsing an object");
    }
}
