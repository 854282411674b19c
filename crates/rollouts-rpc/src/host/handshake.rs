//! Reading a handshake line the way go-plugin's `client.go` does.

use std::path::PathBuf;

/// What a plugin announced.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Announced {
    /// The application protocol version.
    pub version: u32,
    /// The socket to connect to.
    pub socket: PathBuf,
}

/// Why a first line on stdout does not lead to a plugin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LineError {
    /// Fewer than four fields.
    #[error("unrecognized plugin message {0:?}")]
    Unrecognized(String),
    /// A field that this host, like the controller, does not accept.
    #[error("the plugin announced {field} {found:?} where the host accepts {expected}")]
    Unacceptable {
        /// Which field.
        field: &'static str,
        /// What it holds.
        found: String,
        /// What it may hold.
        expected: &'static str,
    },
}

impl Announced {
    /// Parses a handshake line.
    ///
    /// # Errors
    ///
    /// [`LineError`], wherever the controller would give up on the plugin.
    pub fn parse(line: &str) -> Result<Self, LineError> {
        let fields: Vec<_> = line.trim().split('|').collect();
        let &[core, version, network, address, ref rest @ ..] = fields.as_slice() else {
            return Err(LineError::Unrecognized(line.to_owned()));
        };
        expect("core protocol", core, "1")?;
        expect("protocol version", version, "1")?;
        expect("network", network, "unix")?;
        expect("protocol", rest.first().unwrap_or(&"netrpc"), "netrpc")?;
        expect("certificate", rest.get(1).unwrap_or(&""), "")?;
        Ok(Self {
            version: 1,
            socket: address.into(),
        })
    }
}

fn expect(field: &'static str, found: &str, expected: &'static str) -> Result<(), LineError> {
    if found == expected {
        return Ok(());
    }
    Err(LineError::Unacceptable {
        field,
        found: found.to_owned(),
        expected,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(line: &str, expect: &str) {
        let said = match Announced::parse(line) {
            Ok(announced) => format!("v{} {}", announced.version, announced.socket.display()),
            Err(error) => error.to_string(),
        };
        assert_eq!(said, expect);
    }

    #[test]
    fn a_line_is_read_as_the_controller_reads_it() {
        check("1|1|unix|/tmp/p|netrpc|\n", "v1 /tmp/p");
        check("1|1|unix|/tmp/p|netrpc||true", "v1 /tmp/p");
        check("1|1|unix|/tmp/p", "v1 /tmp/p");
    }

    #[test]
    fn what_the_controller_refuses_is_refused() {
        check("hello", "unrecognized plugin message \"hello\"");
        check(
            "2|1|unix|/p|netrpc|",
            "the plugin announced core protocol \"2\" where the host accepts 1",
        );
        check(
            "1|2|unix|/p|netrpc|",
            "the plugin announced protocol version \"2\" where the host accepts 1",
        );
        check(
            "1|1|unix|/p|grpc|",
            "the plugin announced protocol \"grpc\" where the host accepts netrpc",
        );
        check(
            "1|1|tcp|[::1]:1|netrpc|",
            "the plugin announced network \"tcp\" where the host accepts unix",
        );
        check(
            "1|1|unix|/p|netrpc|MII",
            "the plugin announced certificate \"MII\" where the host accepts ",
        );
    }
}
