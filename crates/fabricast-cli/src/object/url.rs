//! `ObjectUrl`: where an object is: `fc://HOST:PORT/KEY`.

use std::str::FromStr;

use fabricast::PeerAddr;

/// The scheme, which may be left out.
const SCHEME: &str = "fc://";

/// The port where none is given: `serve`'s.
const PORT: u16 = 7472;

/// A server, and a key or the beginning of keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ObjectUrl {
    pub(crate) server: PeerAddr,
    pub(crate) key: String,
}

impl FromStr for ObjectUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let rest = text.strip_prefix(SCHEME).unwrap_or(text);
        if rest.contains("://") {
            return Err(format!("want {SCHEME}HOST:PORT/KEY"));
        }
        let (server, key) = rest.split_once('/').unwrap_or((rest, ""));
        let has_port = match server.rsplit_once(']') {
            Some((_, behind)) => behind.starts_with(':'),
            None => server.contains(':'),
        };
        let with_port = match has_port {
            true => server.to_owned(),
            false => format!("{server}:{PORT}"),
        };
        let server = with_port
            .parse::<PeerAddr>()
            .map_err(|error| format!("want {SCHEME}HOST:PORT/KEY: {with_port}: {error}"))?;
        let key = key.to_owned();
        Ok(Self { server, key })
    }
}

impl ObjectUrl {
    /// The last part of the key, which a file gets as its name.
    pub(crate) fn file_name(&self) -> Option<&str> {
        let last = self.key.rsplit('/').next().unwrap_or_default();
        (!matches!(last, "" | "." | "..")).then_some(last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_a_server_and_a_key() {
        let parsed = |text: &str| {
            text.parse::<ObjectUrl>()
                .map(|it| (it.server.to_string(), it.key))
        };
        for (text, server, key) in [
            ("fc://127.0.0.1:7000/run/1", "127.0.0.1:7000", "run/1"),
            ("127.0.0.1:7000/run/", "127.0.0.1:7000", "run/"),
            ("127.0.0.1/a:b", "127.0.0.1:7472", "a:b"),
            ("fc://[::1]/x", "[::1]:7472", "x"),
            ("[::1]:9", "[::1]:9", ""),
        ] {
            assert_eq!(parsed(text), Ok((server.into(), key.into())), "{text}");
        }
        for text in ["http://127.0.0.1:1/x", "", "fc:///x", "127.0.0.1:99999/x"] {
            assert!(parsed(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_file_is_named_as_the_last_part_of_a_key() {
        let name = |text: &str| {
            let url: ObjectUrl = text.parse().expect("a url");
            url.file_name().map(str::to_owned)
        };
        assert_eq!(name("127.0.0.1/a/b.h5"), Some("b.h5".into()));
        for nameless in ["127.0.0.1", "127.0.0.1/a/", "127.0.0.1/a/.."] {
            assert_eq!(name(nameless), None, "{nameless}");
        }
    }
}
