//! The addresses that the server listens on.

use std::fmt;
use std::io::{Error, ErrorKind};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs as _};
use std::str::FromStr;

use anyhow::Context as _;
use socket2::SockRef;
use tokio::net::{TcpListener, TcpSocket};

/// The maximum number of connections that wait to be accepted.
///
/// The kernel drops the packet of the next one, and the client tries again after one second, then after three. Linux limits the
/// value to 4,096 unless `net.core.somaxconn` is larger.
const BACKLOG: u32 = 4096;

/// What `--listen` and `--ops-listen` name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Address {
    /// A port of every address of the machine, with IPv4 and IPv6.
    Every(u16),
    One(SocketAddr),
}

impl fmt::Display for Address {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Every(port) => write!(formatter, ":{port}"),
            Self::One(address) => address.fmt(formatter),
        }
    }
}

impl FromStr for Address {
    type Err = String;

    /// Without a host it is every address of the machine, and a name is looked up.
    fn from_str(text: &str) -> Result<Self, String> {
        if let Some((host, port)) = text.rsplit_once(':')
            && host.contains(':')
            && !host.starts_with('[')
        {
            return Err(format!("an IPv6 address needs brackets: [{host}]:{port}"));
        }
        let port = text.strip_prefix(':').map(str::parse);
        if let Some(Ok(port)) = port {
            return Ok(Self::Every(port));
        }
        let found = text.to_socket_addrs().map_err(|error| {
            format!("expected host:port, such as 127.0.0.1:8080 or :8080: {error}")
        })?;
        // A client that tries one address only, such as curl with 127.0.0.1, uses IPv4. Of equals the first is taken.
        let found = found.min_by_key(|address| !address.is_ipv4());
        let found = found.ok_or_else(|| format!("{text} has no address"))?;
        Ok(Self::One(found))
    }
}

impl Address {
    /// Listens on the address, and logs which one that is.
    ///
    /// # Errors
    /// Returns `Err` if the address is in use, for example.
    pub(crate) fn listen(self, role: &str) -> anyhow::Result<TcpListener> {
        let listener = self.bind(listen_on);
        let listener = listener.with_context(|| format!("cannot listen on {self}"))?;
        let address = listener.local_addr()?;
        tracing::info!(role, address = %address, "listening");
        Ok(listener)
    }

    /// Binds the socket with `bind`, which also gets whether an IPv6 socket takes IPv4 connections.
    fn bind<T>(self, bind: impl Fn(SocketAddr, bool) -> Result<T, Error>) -> Result<T, Error> {
        match self {
            Self::One(address) => bind(address, false),
            Self::Every(port) => match bind((Ipv6Addr::UNSPECIFIED, port).into(), true) {
                // Another process may have only the IPv6 port. Then half of the calls would reach that process.
                Err(error) if error.kind() == ErrorKind::AddrInUse => Err(error),
                // The machine has no IPv6.
                Err(_) => bind((Ipv4Addr::UNSPECIFIED, port).into(), false),
                bound => bound,
            },
        }
    }
}

fn listen_on(address: SocketAddr, with_ipv4: bool) -> Result<TcpListener, Error> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    }?;
    if with_ipv4 {
        // The default is a setting of the machine, `net.ipv6.bindv6only`.
        SockRef::from(&socket).set_only_v6(false)?;
    }
    // A restart must not wait for connections of the previous process.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener as BlockingListener, TcpStream};

    use super::*;

    #[test]
    fn an_address_may_lack_its_host_or_have_a_name() {
        let one = |text: &str| Some(Address::One(text.parse().unwrap()));
        for (text, expect) in [
            (":4355", Some(Address::Every(4355))),
            (":0", Some(Address::Every(0))),
            ("0.0.0.0:4355", one("0.0.0.0:4355")),
            ("localhost:4355", one("127.0.0.1:4355")),
            ("127.0.0.1:0", one("127.0.0.1:0")),
            ("[::1]:80", one("[::1]:80")),
            ("4355", None),
            ("localhost", None),
            (":", None),
            (":99999", None),
            ("", None),
        ] {
            let found = text.parse::<Address>();
            assert_eq!(found.as_ref().ok(), expect.as_ref(), "{text}: {found:?}");
            let why = found.err();
            assert!(why.is_none_or(|why| why.contains("such as 127.0.0.1:8080 or :8080")));
        }
        let bare = Err("an IPv6 address needs brackets: [::1]:8090".to_owned());
        assert_eq!("::1:8090".parse::<Address>(), bare);
        assert_eq!(Address::Every(4355).to_string(), ":4355");
    }

    /// Returns which of the two loopback addresses reach a listener.
    fn reached(address: &str) -> [bool; 2] {
        let listener = address.parse::<Address>().unwrap().listen("api").unwrap();
        let port = listener.local_addr().unwrap().port();
        let reach = |host| TcpStream::connect(format!("{host}:{port}")).is_ok();
        ["127.0.0.1", "[::1]"].map(reach)
    }

    #[tokio::test]
    async fn without_a_host_both_families_are_served() {
        let has_ipv6 = BlockingListener::bind("[::1]:0").is_ok();
        assert_eq!(reached(":0"), [true, has_ipv6]);
        assert_eq!(reached("0.0.0.0:0"), [true, false]);
    }

    #[test]
    fn a_machine_without_ipv6_is_served_with_ipv4() {
        let bind = |kind: ErrorKind| {
            Address::Every(80).bind(|address, with_ipv4| match address {
                SocketAddr::V6(_) => Err(Error::from(kind)),
                SocketAddr::V4(_) => Ok((address.to_string(), with_ipv4)),
            })
        };
        // The kernel says so at the bind, or refuses the socket with a code that Rust has no kind for.
        for kind in [ErrorKind::AddrNotAvailable, ErrorKind::Other] {
            assert_eq!(bind(kind).unwrap(), ("0.0.0.0:80".to_owned(), false));
        }
        let refused = bind(ErrorKind::AddrInUse).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::AddrInUse);
        let bound = Address::Every(80).bind(|address, with_ipv4| Ok((address, with_ipv4)));
        assert_eq!(bound.unwrap(), ("[::]:80".parse().unwrap(), true));
    }
}
