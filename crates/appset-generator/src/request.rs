//! The body that the controller sends.

use serde_json::{Map, Value};

use crate::Failure;
use crate::failure::shown;

/// One call of `getparams.execute`.
///
/// The envelope is read leniently, since further fields may come with a later Argo CD; the parameters are read strictly by
/// the source they ask for.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// Name of the ApplicationSet, without its namespace: two sets may share it, so it is good for logs only.
    pub application_set: String,
    /// What the set says under `plugin.input.parameters`.
    pub parameters: Map<String, Value>,
}

impl Request {
    /// Reads a body. Its content type does not matter.
    ///
    /// # Errors
    /// When it is no JSON object with an `input`.
    pub fn from_body(body: &[u8]) -> Result<Self, Failure> {
        let envelope: Value =
            serde_json::from_slice(body).map_err(|error| Failure::Body(error.to_string()))?;
        let input = envelope.get("input").and_then(Value::as_object);
        let input =
            input.ok_or_else(|| Failure::Body("it has no object under input".to_owned()))?;
        let parameters = match input.get("parameters") {
            None | Some(Value::Null) => Map::new(),
            Some(Value::Object(parameters)) => parameters.clone(),
            Some(_) => {
                let what = "input.parameters is no object";
                return Err(Failure::Body(what.to_owned()));
            }
        };
        Ok(Self {
            application_set: envelope
                .get("applicationSetName")
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned(),
            parameters,
        })
    }

    /// The name of the ApplicationSet, if an ApplicationSet can have it.
    #[must_use]
    pub fn object_name(&self) -> Option<&str> {
        let name = strict_json::object_name(&self.application_set, String::new());
        name.is_ok().then_some(self.application_set.as_str())
    }

    /// Refuses parameters that still are templates. In the one called `data`, which has the name of a branch, braces are
    /// legal; only a text that is nothing but a template is one there.
    ///
    /// # Errors
    /// When there is one.
    pub(crate) fn refuse_templates(&self, data: Option<&str>) -> Result<(), Failure> {
        self.parameters
            .iter()
            .try_for_each(|(key, value)| match value {
                Value::String(text) if data == Some(key) => {
                    refuse_if(is_one_template(text) || text.contains(NO_VALUE), text, key)
                }
                _ => refuse_templates(key, value, key),
            })
    }
}

/// What Go prints for a missing value.
const NO_VALUE: &str = "<no value>";

fn is_one_template(text: &str) -> bool {
    let inner = text.trim().strip_prefix("{{");
    let inner = inner.and_then(|rest| rest.strip_suffix("}}"));
    inner.is_some_and(|inner| !inner.contains("}}"))
}

fn refuse_if(unresolved: bool, text: &str, path: &str) -> Result<(), Failure> {
    if unresolved {
        return Err(Failure::UnresolvedTemplate {
            path: path.to_owned(),
            text: shown(text),
        });
    }
    Ok(())
}

/// A template that could not be filled in arrives as it was written, or as [`NO_VALUE`].
fn refuse_templates(key: &str, value: &Value, path: &str) -> Result<(), Failure> {
    let refuse = |text: &str| {
        let mut marks = ["{{", "}}", NO_VALUE].iter();
        refuse_if(marks.any(|mark| text.contains(mark)), text, path)
    };
    refuse(key)?;
    match value {
        Value::String(text) => refuse(text),
        Value::Array(items) => items
            .iter()
            .enumerate()
            .try_for_each(|(index, item)| refuse_templates("", item, &format!("{path}[{index}]"))),
        Value::Object(fields) => fields
            .iter()
            .try_for_each(|(key, value)| refuse_templates(key, value, &format!("{path}.{key}"))),
        Value::Null | Value::Bool(_) | Value::Number(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(body: &str, expect: Result<&str, &str>) {
        let read = Request::from_body(body.as_bytes()).and_then(|request| {
            request.refuse_templates(Some("branch"))?;
            Ok(request)
        });
        let shown = read.map(|request| {
            let parameters = Value::Object(request.parameters);
            format!("{} {parameters}", request.application_set)
        });
        match (shown, expect) {
            (Ok(shown), Ok(expect)) => assert_eq!(shown, expect),
            (Err(error), Err(expect)) => assert!(error.to_string().contains(expect), "{error}"),
            (shown, _) => panic!("{shown:?}"),
        }
    }

    #[test]
    fn the_controllers_body() {
        check(
            "{\"applicationSetName\":\"fb\",\"input\":{\"parameters\":{\"branch\":\"x<>&\",\"map\":{\"k\":[1,true,null]}}}}\n",
            Ok(r#"fb {"branch":"x<>&","map":{"k":[1,true,null]}}"#),
        );
    }

    /// Without parameters the controller leaves the key out.
    #[test]
    fn parameters_may_be_absent_and_the_envelope_may_grow() {
        check(r#"{"applicationSetName":"fb","input":{}}"#, Ok("fb {}"));
        check(
            r#"{"applicationSetName":"fb","applicationSetNamespace":"team","input":{"parameters":null,"more":1}}"#,
            Ok("fb {}"),
        );
    }

    #[test]
    fn other_bodies_are_refused() {
        check("", Err("EOF while parsing"));
        check(r#"["fb",{"parameters":{}}]"#, Err("no object under input"));
        check(r#"{"parameters":{}}"#, Err("no object under input"));
        check(r#"{"input":null}"#, Err("no object under input"));
        check(
            r#"{"input":{"parameters":[]}}"#,
            Err("input.parameters is no object"),
        );
        check(&"[".repeat(4000), Err("recursion limit"));
        let deep = format!("{}1{}", r#"{"a":"#.repeat(200), "}".repeat(200));
        check(
            &format!(r#"{{"input":{{"parameters":{deep}}}}}"#),
            Err("recursion limit"),
        );
    }

    #[test]
    fn templates_that_were_not_filled_in() {
        let body = |value: &str| format!(r#"{{"input":{{"parameters":{value}}}}}"#);
        check(
            &body(r#"{"tag":"<no value>"}"#),
            Err(r#"parameter tag is "<no value>", an unresolved template"#),
        );
        check(
            &body(r#"{"images":{"front":["{{branch}}"]}}"#),
            Err("parameter images.front[0] is"),
        );
        check(&body(r#"{"m":{"{{x}}":"v"}}"#), Err("parameter m.{{x}} is"));
    }

    #[test]
    fn braces_are_legal_in_the_name_of_a_branch() {
        let body =
            |branch: &str| format!(r#"{{"input":{{"parameters":{{"branch":"{branch}"}}}}}}"#);
        for branch in ["fix-{{x}}", "{{x}}-{{y}}", "}}", "{{"] {
            check(&body(branch), Ok(&format!(r#" {{"branch":"{branch}"}}"#)));
        }
        for branch in ["{{branch}}", " {{ .branch }} ", "fix-<no value>"] {
            check(&body(branch), Err("an unresolved template"));
        }
        let nested = r#"{"input":{"parameters":{"branch":["fix-{{x}}"]}}}"#;
        check(nested, Err("parameter branch[0] is"));
    }
}
