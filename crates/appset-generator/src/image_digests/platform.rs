//! Platforms: their normal form, and which other ones do in their place (`github.com/containerd/platforms`).

use std::fmt;

use serde_json::Value;
use strict_json::Problem;

/// An operating system, an architecture and maybe its variant, in Go's words and in normal form.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Platform {
    os: String,
    architecture: String,
    /// Empty where the architecture has none, or its usual one.
    variant: String,
}

impl Platform {
    /// `linux/arm64` or `linux/arm/v7`.
    pub(super) fn parse(text: &str, path: &str) -> Result<Self, Problem> {
        let parts: Vec<_> = text.split('/').collect();
        let legal = !parts.iter().any(|part| part.is_empty());
        match parts.as_slice() {
            [os, architecture] if legal => Ok(Self::new(os, architecture, "")),
            [os, architecture, variant] if legal => Ok(Self::new(os, architecture, variant)),
            _ => Err(Problem::Value {
                path: path.to_owned(),
                found: text.to_owned(),
                expected: "a system and an architecture, such as linux/amd64 or linux/arm/v7"
                    .into(),
            }),
        }
    }

    /// That of an entry of an index, or of an image's configuration.
    pub(super) fn read(object: &Value) -> Option<Self> {
        let text = |key| object.get(key).and_then(Value::as_str);
        let variant = text("variant").unwrap_or_default();
        Some(Self::new(text("os")?, text("architecture")?, variant))
    }

    fn new(os: &str, architecture: &str, variant: &str) -> Self {
        let [os, architecture, variant] = [os, architecture, variant].map(str::to_ascii_lowercase);
        let os = if os == "macos" { "darwin" } else { &os };
        let numbered = format!("v{variant}");
        let variant = match variant.as_str() {
            "5" | "6" | "7" | "8" => numbered.as_str(),
            other => other,
        };
        let (architecture, variant) = match (architecture.as_str(), variant) {
            ("aarch64" | "arm64", "" | "v8") => ("arm64", ""),
            ("aarch64" | "arm64", variant) => ("arm64", variant),
            ("x86_64" | "x86-64" | "amd64", "" | "v1") => ("amd64", ""),
            ("x86_64" | "x86-64" | "amd64", variant) => ("amd64", variant),
            ("i386", _) => ("386", ""),
            ("armhf", _) | ("arm", "") => ("arm", "v7"),
            ("armel", _) => ("arm", "v6"),
            other => other,
        };
        Self {
            os: os.to_owned(),
            architecture: architecture.to_owned(),
            variant: variant.to_owned(),
        }
    }

    /// How well an image of platform `other` does here: 0 is exactly this one; nothing if it does not run. An image for a lower
    /// variant runs, one for 32 bits on `amd64` is never meant.
    pub(super) fn distance(&self, other: &Self) -> Option<u32> {
        if self.os != other.os {
            return None;
        }
        if self.architecture == other.architecture && self.variant == other.variant {
            return Some(0);
        }
        let (mine, theirs) = (self.level()?, other.level()?);
        let runs = match (self.architecture.as_str(), other.architecture.as_str()) {
            // Every image for a 32-bit ARM is farther than any for a 64-bit one.
            ("arm64", "arm") => return Some(100 + 8_u32.checked_sub(theirs)?),
            (mine, theirs) => mine == theirs,
        };
        let lower = mine.checked_sub(theirs).filter(|lower| *lower > 0);
        lower.filter(|_| runs)
    }

    /// The number of the variant.
    fn level(&self) -> Option<u32> {
        match (self.architecture.as_str(), self.variant.strip_prefix('v')) {
            ("amd64", None) if self.variant.is_empty() => Some(1),
            ("arm64", None) if self.variant.is_empty() => Some(8),
            ("amd64" | "arm64" | "arm", Some(number)) => number.parse().ok(),
            _ => None,
        }
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.os, self.architecture)?;
        if self.variant.is_empty() {
            return Ok(());
        }
        write!(f, "/{}", self.variant)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn platform(text: &str) -> Platform {
        Platform::parse(text, "platform").unwrap()
    }

    #[test]
    fn a_platform_has_a_normal_form() {
        for (text, normal) in [
            ("linux/arm64", "linux/arm64"),
            ("linux/arm64/v8", "linux/arm64"),
            ("linux/aarch64", "linux/arm64"),
            ("Linux/X86_64", "linux/amd64"),
            ("linux/amd64/v1", "linux/amd64"),
            ("linux/amd64/v3", "linux/amd64/v3"),
            ("linux/arm", "linux/arm/v7"),
            ("linux/arm/6", "linux/arm/v6"),
            ("linux/armhf", "linux/arm/v7"),
            ("linux/armel", "linux/arm/v6"),
            ("linux/i386", "linux/386"),
            ("macos/arm64", "darwin/arm64"),
            ("linux/s390x", "linux/s390x"),
        ] {
            assert_eq!(platform(text).to_string(), normal, "{text}");
        }
        for text in ["linux", "linux/", "/amd64", "linux/arm/v7/x", ""] {
            assert!(Platform::parse(text, "platform").is_err(), "{text}");
        }
    }

    /// The others from the nearest to the farthest, and those that do not run.
    #[track_caller]
    fn check(wanted: &str, nearest_first: &[&str], never: &[&str]) {
        let distance = |other: &&str| platform(wanted).distance(&platform(other));
        let distances: Vec<_> = nearest_first.iter().map(distance).collect();
        assert!(distances.iter().all(Option::is_some), "{distances:?}");
        assert!(distances.is_sorted_by(|a, b| a < b), "{distances:?}");
        for other in never {
            assert_eq!(distance(other), None, "{other}");
        }
    }

    #[test]
    fn lower_variants_do_and_higher_ones_do_not() {
        check(
            "linux/arm",
            &["linux/arm/v7", "linux/arm/v6", "linux/arm/v5"],
            &["linux/arm/v8", "linux/arm64"],
        );
        check(
            "linux/arm64/v8",
            &[
                "linux/arm64",
                "linux/arm/v8",
                "linux/arm/v7",
                "linux/arm/v6",
            ],
            &["linux/arm64/v9", "linux/amd64", "windows/arm64"],
        );
        check(
            "linux/arm64/v9",
            &["linux/arm64/v9", "linux/arm64", "linux/arm/v7"],
            &[],
        );
        check(
            "linux/amd64/v3",
            &["linux/amd64/v3", "linux/amd64/v2", "linux/amd64"],
            &["linux/386", "linux/amd64/v4"],
        );
        check(
            "linux/amd64",
            &["linux/amd64"],
            &["linux/386", "linux/amd64/v2"],
        );
        check("linux/s390x", &["linux/s390x"], &["linux/ppc64le"]);
    }
}
