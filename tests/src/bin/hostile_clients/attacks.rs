//! What the attackers do: the bodies of their calls, as data.

use serde_json::{Map, Value, json};

/// The maximum size of a body, in bytes.
const MAX_BODY: usize = 1 << 20;
/// The number of sets of the source `many`.
const SETS: usize = 200;
/// The number of sets of the source `large`, while the configuration is rewritten.
const LARGE: usize = 20_000;
/// A tag that is different in each call. See [`Call::numbered`].
const NUMBER: &str = "n0000000";
/// The length of the Workspaces' names without their numbers.
const NAME: usize = 240;
/// The tokens of the attackers.
pub(crate) const HOSTILE: [&str; 10] = [
    "hostile", "hostile1", "hostile2", "hostile3", "hostile4", "hostile5", "hostile6", "hostile7",
    "hostile8", "hostile9",
];
/// The shipped configuration.
const SHIPPED: &str = include_str!("../../../../examples/appset/document.yaml");

/// One attack. The worst of what a caller with a valid token may send, unless it says otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Attack {
    /// Nothing, for comparison.
    None,
    /// Small valid calls, one after the other.
    Flood,
    /// Small calls with an unknown token.
    WrongToken,
    /// 110,000 unknown parameters.
    ManyKeys,
    /// One unknown parameter with a long name.
    LongKey,
    /// 100,000 keys in one parameter, which 200 sets echo.
    NestedKeys,
    /// The same below 100 levels with long names, so that the path of each key is long.
    LongPaths,
    /// 500,000 numbers in one parameter.
    ManyItems,
    /// A long text that 200 sets echo.
    LongText,
    /// The same, and the caller reads the answer slowly.
    SlowReader,
    /// 17,000 aliases of a long text.
    Aliases,
    /// 40,000 images.
    Images,
    /// 20,000 images and one long tag.
    LongTag,
    /// 20 images, and a long platform; another tag in each call.
    LongPlatform,
    /// A long branch, from which a rule makes the tag.
    LongBranch,
    /// One parameter 150,000 times.
    DuplicateKeys,
    /// 1,000 patterns, each of which fails late at each character of 300 Workspaces' names. Ten tokens.
    Patterns,
    /// A body in chunks of one byte.
    TinyChunks,
    /// Connections that send nothing, or a part of a call. Without a token.
    HalfOpen,
    /// 64 calls whose bodies arrive byte by byte.
    SlowBodies,
    /// A configuration with 20,000 sets, rewritten each second by an administrator.
    Reloads,
    /// Small valid calls, while 50 lines of the log are read in a second.
    SlowLog,
    /// All of them.
    All,
}

/// A call of an attacker.
pub(crate) struct Call {
    pub(crate) profile: &'static str,
    /// The names of the tokens, of which each attacker has one.
    pub(crate) tokens: &'static [&'static str],
    pub(crate) body: String,
    /// Whether the body is sent in chunks, which [`body`](Self::body) then has.
    pub(crate) is_chunked: bool,
    /// Whether the answer is read slowly.
    pub(crate) is_slow: bool,
}

impl Attack {
    /// Returns the attacks that are made at once.
    pub(crate) fn parts(self) -> Vec<Self> {
        match self {
            Self::All => {
                let all = <Self as clap::ValueEnum>::value_variants();
                all.iter().copied().filter(|it| *it != Self::All).collect()
            }
            one => vec![one],
        }
    }

    /// Returns the call that the attackers repeat, if there is one.
    pub(crate) fn call(self) -> Option<Call> {
        let long = || "x".repeat(MAX_BODY - 200);
        let half = || "x".repeat(MAX_BODY / 2);
        let (profile, parameters) = match self {
            Self::None | Self::HalfOpen | Self::SlowBodies | Self::Reloads | Self::All => {
                return None;
            }
            Self::Flood | Self::SlowLog | Self::WrongToken => ("default", String::new()),
            Self::ManyKeys => ("default", fill("", |n| format!(r#""{n:05x}":"""#), "")),
            Self::LongKey => ("default", format!(r#""{}":"""#, long())),
            Self::NestedKeys => {
                let key = |n| format!(r#""{n:05x}":"""#);
                ("many", fill(r#""a":{"#, key, "}"))
            }
            Self::LongPaths => {
                let levels = format!(r#""{}":{{"#, "k".repeat(MAX_BODY / 200)).repeat(100);
                let key = |n| format!(r#""{n:x}":"""#);
                ("many", fill(&levels, key, &"}".repeat(100)))
            }
            Self::ManyItems => ("default", fill(r#""a":["#, |_| "1".to_owned(), "]")),
            Self::LongText | Self::SlowReader => ("many", format!(r#""a":"{}""#, long())),
            Self::Aliases => {
                let open = format!(r#""a":"{}","alias":{{"#, half());
                (
                    "many",
                    fill(&open, |n| format!(r#""{n:05x}":"input.a""#), "}"),
                )
            }
            Self::Images => {
                let image = |n| format!(r#""{n:05x}":"myorg/front""#);
                ("images", fill(r#""tag":"v1","images":{"#, image, "}"))
            }
            Self::LongTag => {
                let tag = half();
                let open = format!(r#""onInvalidTag":"skip","tag":"{tag}","images":{{"#);
                let image = |n| format!(r#""{n:05x}":"myorg/front""#);
                ("images", fill(&open, image, "}"))
            }
            Self::LongPlatform => {
                let image = |n| format!(r#""a{n}":"myorg/a{n}""#);
                let images: Vec<String> = (0..20).map(image).collect();
                let (images, os) = (images.join(","), "x".repeat(MAX_BODY - 1000));
                let more = format!(r#""tag":"{NUMBER}","platform":"{os}/amd64""#);
                ("images", format!(r#""images":{{{images}}},{more}"#))
            }
            Self::LongBranch => ("default", format!(r#""branch":"{}""#, long())),
            Self::DuplicateKeys => ("default", fill("", |_| r#""a":"""#.to_owned(), "")),
            Self::Patterns => {
                let pattern = |n| format!(r#""*{}b{n}""#, "a".repeat(NAME / 2));
                let patterns: Vec<String> = (0..1000).map(pattern).collect();
                let patterns = patterns.join(",");
                let more = r#""source":"gloo-workspaces","onEmpty":"allow""#;
                ("patterns", format!(r#"{more},"workspaces":[{patterns}]"#))
            }
            Self::TinyChunks => ("default", format!(r#""a":"{}""#, long())),
        };
        let mut body = wrap(&parameters);
        if self == Self::TinyChunks {
            body = body.chars().fold(String::new(), |chunks, byte| {
                chunks + "1\r\n" + byte.encode_utf8(&mut [0; 4]) + "\r\n"
            });
            body += "0\r\n\r\n";
        }
        Some(Call {
            profile,
            tokens: match self {
                Self::WrongToken => &["wrong"],
                Self::Patterns => &HOSTILE,
                _ => &["hostile"],
            },
            body,
            is_chunked: self == Self::TinyChunks,
            is_slow: self == Self::SlowReader,
        })
    }
}

impl Call {
    /// Returns the body of the call with this number.
    pub(crate) fn numbered(&self, number: usize) -> String {
        let tag = format!("n{number:07}");
        match self.body.find(NUMBER) {
            None => self.body.clone(),
            Some(_) => self.body.replacen(NUMBER, &tag, 1),
        }
    }
}

fn wrap(parameters: &str) -> String {
    format!(r#"{{"applicationSetName":"a","input":{{"parameters":{{{parameters}}}}}}}"#)
}

/// Repeats `item` with commas between `open` and `close`, as often as it fits into a body.
fn fill(open: &str, item: impl Fn(usize) -> String, close: &str) -> String {
    let most = MAX_BODY - wrap(close).len();
    let mut text = format!("{open}{}", item(0));
    for number in 1.. {
        let item = item(number);
        if text.len() + 1 + item.len() > most {
            break;
        }
        text.push(',');
        text.push_str(&item);
    }
    text + close
}

/// Returns the Workspaces for [`Attack::Patterns`] in YAML.
pub(crate) fn workspaces() -> String {
    let workspace = |number: usize| {
        let name = format!("{}{number:03}", "a".repeat(NAME));
        let metadata = json!({"name": name, "namespace": "gloo-mesh"});
        let object = json!({"apiVersion": "admin.gloo.solo.io/v2", "kind": "Workspace", "metadata": metadata, "spec": {}});
        format!("---\n{object}\n")
    };
    (0..300).map(workspace).collect()
}

/// Returns the shipped configuration with the sources and profiles that the attacks need, and a profile for the honest caller.
/// The `version` makes a large one, which differs from that with another version.
pub(crate) fn config(version: Option<usize>) -> anyhow::Result<String> {
    let mut config: Value = serde_saphyr::from_str(SHIPPED)?;
    let sets = |count: usize| (0..count).map(|n| json!({"key1": n})).collect::<Vec<_>>();
    let mut sources = Map::new();
    sources.insert("many".to_owned(), json!({ "sets": sets(SETS) }));
    sources.insert("honest".to_owned(), json!({ "sets": [{"key1": "val1"}] }));
    if let Some(version) = version {
        let mut sets = sets(LARGE);
        sets.push(json!({ "version": version }));
        sources.insert("large".to_owned(), json!({ "sets": sets }));
    }
    let profiles = json!({
        "many": {"sources": ["many"], "tokens": ["hostile"]},
        "images": {"sources": ["image-digests"], "tokens": ["hostile"]},
        "patterns": {"sources": ["gloo-workspaces"], "tokens": HOSTILE},
        "honest": {"sources": ["honest"], "tokens": ["honest"]},
    });
    for (key, more) in [("static", Value::Object(sources)), ("profiles", profiles)] {
        if let (Some(Value::Object(old)), Value::Object(more)) = (config.get_mut(key), more) {
            old.extend(more);
        }
    }
    if let Value::Object(config) = &mut config {
        config.insert("glooWorkspaces".to_owned(), json!({}));
    }
    Ok(config.to_string())
}
