//! The body of a request that the controller sends.

use serde_json::{Map, Value};
use strict_json::Problem;

use crate::Failure;
use crate::branch::{has_template, lacks_value};
use crate::failure::shown;

/// The largest number of values in a request, keys not counted. In memory a value may be 80 times as large as its text.
const MAX_VALUES: usize = 100_000;

/// One call of `getparams.execute`.
///
/// Unknown fields of the envelope are ignored, since a later Argo CD may add some. The source that the request names reads
/// the parameters, and refuses unknown ones.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// The name of the ApplicationSet without its namespace. It identifies no set, since two sets may have the same name.
    pub application_set: String,
    /// The parameters in `plugin.input.parameters` of the ApplicationSet.
    pub parameters: Map<String, Value>,
}

impl Request {
    /// Reads a body, whatever its content type is.
    ///
    /// # Errors
    /// Returns `Err` if the body is not a JSON object with an object under `input`.
    pub fn from_body(body: &[u8]) -> Result<Self, Failure> {
        let mut envelope = strict_json::from_slice(body, MAX_VALUES)
            .map_err(|error| Failure::Body(error.to_string()))?;
        let wrong = |what: &str| Failure::Body(what.to_owned());
        let input = envelope.get_mut("input").and_then(Value::as_object_mut);
        let input = input.ok_or_else(|| wrong("it has no object under input"))?;
        // Taken, not cloned: in memory a value is much larger than its text.
        let parameters = match input.get_mut("parameters").map(Value::take) {
            None | Some(Value::Null) => Map::new(),
            Some(Value::Object(parameters)) => parameters,
            Some(_) => return Err(wrong("input.parameters is not an object")),
        };
        let name = envelope.get("applicationSetName").and_then(Value::as_str);
        Ok(Self {
            application_set: name.unwrap_or_default().to_owned(),
            parameters,
        })
    }

    /// Returns the name of the ApplicationSet if it is a valid name of an object.
    #[must_use]
    pub fn object_name(&self) -> Option<&str> {
        let name = strict_json::object_name(&self.application_set, String::new());
        name.is_ok().then_some(self.application_set.as_str())
    }
}

/// Replaces texts that hold a JSON object or list by their value, if `is_structured` their key. Some callers, such as Terraform,
/// can send only strings.
///
/// # Errors
/// Returns `Err` for a text that begins as such an object or list and is none, unless it is a template.
pub(crate) fn unfold(
    parameters: &mut Map<String, Value>,
    is_structured: impl Fn(&str) -> bool,
) -> Result<(), Failure> {
    for (key, value) in parameters.iter_mut() {
        let Value::String(text) = value else {
            continue;
        };
        if !text.trim_start().starts_with(['{', '[']) || !is_structured(key) {
            continue;
        }
        match strict_json::from_slice(text.as_bytes(), MAX_VALUES) {
            Ok(inner) => *value = inner,
            // The error for templates is clearer.
            Err(error)
                if !is_template(text)
                    && ["{\"", "[\"", "[{"].iter().any(|it| text.starts_with(it)) =>
            {
                let expected = format!("JSON, which it begins as: {error}");
                return Err(Problem::value(key, text.as_str(), expected).into());
            }
            Err(_) => {}
        }
    }
    Ok(())
}

/// Refuses parameters that contain an unresolved template.
///
/// The parameter called `branch` holds the name of a branch, in which braces are legal.
///
/// # Errors
/// Returns `Err` for the first such parameter.
pub(crate) fn refuse_templates(
    parameters: &Map<String, Value>,
    branch: Option<&str>,
) -> Result<(), Failure> {
    let mut found = parameters.iter().filter_map(|(key, value)| {
        let (path, text) = match value {
            Value::String(text) if branch == Some(key) => {
                has_template(text).then(|| (String::new(), text.as_str()))
            }
            _ if is_template(key) => Some((String::new(), key.as_str())),
            _ => first_text(value, is_template),
        }?;
        Some((format!("{key}{path}"), shown(text)))
    });
    match found.next() {
        Some((path, text)) => Err(Failure::UnresolvedTemplate(path, text)),
        None => Ok(()),
    }
}

/// Whether `text` has a template that Argo CD did not resolve: it still has braces, or [has no value](lacks_value).
fn is_template(text: &str) -> bool {
    text.contains("{{") || text.contains("}}") || lacks_value(text)
}

/// Returns the first text in `value`, keys included, that `is_wrong`, and the path to it.
///
/// The path is made on the way back. Made on the way down, the paths would cost more than the values.
pub(crate) fn first_text(value: &Value, is_wrong: fn(&str) -> bool) -> Option<(String, &str)> {
    match value {
        Value::String(text) => is_wrong(text).then(|| (String::new(), text.as_str())),
        Value::Array(items) => items.iter().enumerate().find_map(|(index, item)| {
            let (path, text) = first_text(item, is_wrong)?;
            Some((format!("[{index}]{path}"), text))
        }),
        Value::Object(fields) => fields.iter().find_map(|(key, value)| {
            let found = is_wrong(key).then(|| (String::new(), key.as_str()));
            let (path, text) = found.or_else(|| first_text(value, is_wrong))?;
            Some((format!(".{key}{path}"), text))
        }),
        Value::Null | Value::Bool(_) | Value::Number(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(body: &str, expect: Result<&str, &str>) {
        let read = Request::from_body(body.as_bytes()).and_then(|request| {
            refuse_templates(&request.parameters, Some("branch"))?;
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
    fn a_body_of_the_controller_is_read() {
        check(
            "{\"applicationSetName\":\"fb\",\"input\":{\"parameters\":{\"branch\":\"x<>&\",\"map\":{\"k\":[1,true,null]}}}}\n",
            Ok(r#"fb {"branch":"x<>&","map":{"k":[1,true,null]}}"#),
        );
    }

    /// The controller omits the key if there are no parameters.
    #[test]
    fn parameters_may_be_absent_and_unknown_fields_are_ignored() {
        check(r#"{"applicationSetName":"fb","input":{}}"#, Ok("fb {}"));
        check(
            r#"{"applicationSetName":"fb","applicationSetNamespace":"team","input":{"parameters":null,"more":1}}"#,
            Ok("fb {}"),
        );
    }

    #[test]
    fn invalid_bodies_are_refused() {
        check("", Err("EOF while parsing"));
        check(r#"["fb",{"parameters":{}}]"#, Err("no object under input"));
        check(r#"{"parameters":{}}"#, Err("no object under input"));
        check(r#"{"input":null}"#, Err("no object under input"));
        check(
            r#"{"input":{"parameters":[]}}"#,
            Err("input.parameters is not an object"),
        );
        check(
            r#"{"input":{"parameters":{"branch":"a"}, "parameters":{}}}"#,
            Err("the key \"parameters\" is there twice"),
        );
        let many = format!(
            r#"{{"input":{{"parameters":{{"a":[{}1]}}}}}}"#,
            "1,".repeat(100_000)
        );
        check(&many, Err("more than 100000 values"));
        check(&"[".repeat(4000), Err("recursion limit"));
        let deep = format!("{}1{}", r#"{"a":"#.repeat(200), "}".repeat(200));
        check(
            &format!(r#"{{"input":{{"parameters":{deep}}}}}"#),
            Err("recursion limit"),
        );
    }

    #[test]
    fn unresolved_templates_are_refused() {
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
    fn braces_are_legal_in_a_branch_name() {
        let body =
            |branch: &str| format!(r#"{{"input":{{"parameters":{{"branch":"{branch}"}}}}}}"#);
        for branch in ["fix-{x}", "a{{}}b", "}}", "{{"] {
            check(&body(branch), Ok(&format!(r#" {{"branch":"{branch}"}}"#)));
        }
        for branch in ["{{branch}}", "fix-{{x}}", "{{x}}-{{y}}", "fix-<no value>"] {
            check(&body(branch), Err("an unresolved template"));
        }
        let nested = r#"{"input":{"parameters":{"branch":["}}"]}}}"#;
        check(nested, Err("parameter branch[0] is"));
    }
}
