//! The challenges of a 401 (RFC 9110, 11.6.1), and the response of a token server.

use serde_json::Value;

/// How a registry requires a client to authenticate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Challenge {
    /// With the credentials themselves.
    Basic,
    /// With a token from a token server.
    Bearer(Bearer),
}

/// The parameters of a Bearer challenge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bearer {
    /// The URL of the token server.
    pub realm: String,
    /// The service for which the token is.
    pub service: Option<String>,
    /// The scope of the token. If the registry names none, it is the permission to pull.
    pub scope: Option<String>,
    /// Why the registry refused the token that was sent.
    pub error: Option<String>,
}

impl Challenge {
    /// Returns the preferred challenge of all `WWW-Authenticate` headers of a response: Bearer, or else Basic.
    pub fn best<'a>(headers: impl Iterator<Item = &'a str>) -> Option<Self> {
        let mut is_basic = false;
        for (scheme, parameters) in headers.flat_map(challenges) {
            is_basic |= scheme.eq_ignore_ascii_case("basic");
            let value = |name: &str| {
                let mut found = parameters.iter();
                let found = found.find(|(key, _)| key.eq_ignore_ascii_case(name));
                found.map(|(_, value)| value.clone())
            };
            let realm = value("realm").filter(|realm| !realm.is_empty());
            if let Some(realm) = realm.filter(|_| scheme.eq_ignore_ascii_case("bearer")) {
                return Some(Self::Bearer(Bearer {
                    realm,
                    service: value("service"),
                    scope: value("scope").filter(|scope| !scope.is_empty()),
                    error: value("error"),
                }));
            }
        }
        is_basic.then_some(Self::Basic)
    }
}

/// A scheme and its parameters.
type Parsed = (String, Vec<(String, String)>);

/// Parses all challenges of one header. A word without `=` after it begins the next challenge.
fn challenges(header: &str) -> Vec<Parsed> {
    let mut all: Vec<Parsed> = Vec::new();
    let mut rest = header;
    loop {
        rest = rest.trim_start_matches([' ', '\t', ',', '=', '"']);
        let end = rest.find([' ', '\t', ',', '=', '"']);
        let (word, after) = rest.split_at(end.unwrap_or(rest.len()));
        if word.is_empty() {
            return all;
        }
        match after.trim_start_matches([' ', '\t']).strip_prefix('=') {
            None => {
                all.push((word.to_owned(), Vec::new()));
                rest = after;
            }
            Some(text) => {
                let (value, after) = value(text.trim_start_matches([' ', '\t']));
                if let Some((_, parameters)) = all.last_mut() {
                    parameters.push((word.to_owned(), value));
                }
                rest = after;
            }
        }
    }
}

/// Parses a value, quoted or not. Returns the value and the rest of the text.
fn value(text: &str) -> (String, &str) {
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find([' ', '\t', ',']).unwrap_or(text.len());
        let (value, rest) = text.split_at(end);
        return (value.to_owned(), rest);
    };
    let mut value = String::new();
    let mut chars = quoted.chars();
    while let Some(c) = chars.next() {
        match c {
            '"' => break,
            '\\' => value.extend(chars.next()),
            c => value.push(c),
        }
    }
    (value, chars.as_str())
}

/// A token and its lifetime.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    /// The token. It must not be in any message.
    pub text: String,
    /// The time for which the token may be used, in seconds: a tenth less than its lifetime, so that it does not expire during
    /// a request, and at most an hour.
    pub seconds: u64,
}

impl Token {
    /// Reads the response of a token server. Without `expires_in` a token expires after a minute.
    #[must_use]
    pub fn from_body(body: &[u8]) -> Option<Self> {
        let body: Value = serde_json::from_slice(body).ok()?;
        let mut texts = ["token", "access_token"].iter();
        let text = texts.find_map(|key| body.get(key)?.as_str().filter(|text| !text.is_empty()))?;
        let seconds = body.get("expires_in").and_then(Value::as_u64).unwrap_or(60);
        let seconds = seconds.clamp(60, 4000);
        Some(Self {
            text: text.to_owned(),
            seconds: seconds - seconds / 10,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[track_caller]
    fn check(headers: &[&str], expect: &str) {
        let shown = match Challenge::best(headers.iter().copied()) {
            None => "none".to_owned(),
            Some(Challenge::Basic) => "basic".to_owned(),
            Some(Challenge::Bearer(bearer)) => {
                let text = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
                let (service, scope) = (text(bearer.service), text(bearer.scope));
                format!("{} {service} {scope} {}", bearer.realm, text(bearer.error))
            }
        };
        assert_eq!(shown, expect);
    }

    #[test]
    fn all_challenges_of_all_headers_are_read() {
        check(
            &[
                r#"Bearer realm="https://auth.io/token",service="reg,istry",scope="repository:a:pull""#,
            ],
            "https://auth.io/token reg,istry repository:a:pull -",
        );
        check(&[r#"bearer SCOPE="x", Realm="r""#], "r - x -");
        check(
            &[r#"BASIC realm="Sonatype Nexus Repository Manager""#],
            "basic",
        );
        check(
            &[r#"Basic realm="x", Bearer realm="r",service=s"#],
            "r s - -",
        );
        check(&[r#"Basic realm="x""#, r#"Bearer realm="r""#], "r - - -");
        check(&["Negotiate", "Negotiate abc==", "Basic"], "basic");
        check(
            &["Bearer realm=https://r/token , service=s,error=invalid_token"],
            "https://r/token s - invalid_token",
        );
        check(&[r#"Bearer realm="a \"b\" \\c""#], r#"a "b" \c - - -"#);
        check(&[r#"Bearer realm="r",scope="""#], "r - - -");
        for none in [
            &[][..],
            &[""],
            &["Bearer"],
            &[r#"Bearer realm="""#],
            &["Digest realm=x"],
            &[",,="],
        ] {
            check(none, "none");
        }
    }

    proptest! {
        #[test]
        fn no_header_causes_a_panic(header in "(\\PC|[\",= \\\\]){0,60}", more in "Bearer [a-z=\", \\\\]{0,40}") {
            Challenge::best([header.as_str(), more.as_str()].into_iter());
        }
    }

    #[test]
    fn a_token_is_used_for_less_than_its_lifetime() {
        let read = |body: &str| {
            let token = Token::from_body(body.as_bytes())?;
            Some((token.text, token.seconds))
        };
        let token = |text: &str, seconds| Some((text.to_owned(), seconds));
        assert_eq!(read(r#"{"token":"t"}"#), token("t", 54));
        assert_eq!(
            read(r#"{"access_token":"t","expires_in":300}"#),
            token("t", 270)
        );
        assert_eq!(
            read(r#"{"token":"a","access_token":"b","expires_in":1}"#),
            token("a", 54)
        );
        assert_eq!(
            read(r#"{"token":"","access_token":"b","expires_in":43200}"#),
            token("b", 3600)
        );
        for none in ["", "{}", r#"{"token":7}"#, "<html>"] {
            assert_eq!(read(none), None);
        }
    }
}
