//! The ports of a Kubernetes Service, to which destinations refer.

use std::fmt;

use serde_json::Value;

/// A TCP port of a Service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServicePort {
    /// `port`.
    pub number: u32,
    /// `name`; a Service with one port needs none.
    pub name: String,
    /// `targetPort`: the number or the name of a container's port. By default it is `port`.
    pub target: String,
}

impl ServicePort {
    /// Reads the TCP ports of a Service. A port that the API server would not accept is left out.
    #[must_use]
    pub fn all(service: &Value) -> Vec<Self> {
        let ports = service.pointer("/spec/ports").and_then(Value::as_array);
        ports.into_iter().flatten().filter_map(Self::read).collect()
    }

    /// Port `number`, with no name, of a container's port of the same number.
    #[must_use]
    pub fn plain(number: u32) -> Self {
        Self {
            number,
            name: String::new(),
            target: number.to_string(),
        }
    }

    fn read(port: &Value) -> Option<Self> {
        let text = |key| port.get(key).and_then(Value::as_str);
        if text("protocol").is_some_and(|protocol| protocol != "TCP") {
            return None;
        }
        let plain = Self::plain(port.get("port")?.as_u64()?.try_into().ok()?);
        let target = port.get("targetPort").and_then(|target| match target {
            Value::String(name) => Some(name.clone()),
            // proto3's zero is an unset field.
            number => number
                .as_u64()
                .filter(|it| *it > 0)
                .map(|it| it.to_string()),
        });
        Some(Self {
            name: text("name").unwrap_or_default().to_owned(),
            target: target.unwrap_or(plain.target),
            ..plain
        })
    }
}

/// The form in messages: `http 8080`.
impl fmt::Display for ServicePort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.name.is_empty() {
            write!(f, "{} ", self.name)?;
        }
        write!(f, "{}", self.number)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(ports: Value, expect: &[&str]) {
        let ports = ServicePort::all(&json!({"spec": {"ports": ports}}));
        let shown = ports
            .iter()
            .map(|port| format!("{port} to {}", port.target));
        assert_eq!(shown.collect::<Vec<_>>(), expect);
    }

    #[test]
    fn a_port_has_a_number_a_name_and_a_target() {
        check(json!([{"port": 80}]), &["80 to 80"]);
        check(
            json!([
                {"name": "http", "port": 80, "targetPort": "web", "protocol": "TCP"},
                {"name": "dns", "port": 53, "protocol": "UDP"},
                {"name": "db", "port": 5432, "targetPort": 15432},
                {"name": "zero", "port": 1, "targetPort": 0},
            ]),
            &["http 80 to web", "db 5432 to 15432", "zero 1 to 1"],
        );
        check(
            json!([{"name": "x"}, {"port": -1}, {"port": "80"}, 80]),
            &[],
        );
        check(json!({}), &[]);
        assert_eq!(ServicePort::all(&Value::Null), []);
    }
}
