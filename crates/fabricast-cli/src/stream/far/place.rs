//! `FarPlace`: `host:/dir` on a command line or in a file of hosts.

use std::ffi::OsStr;
use std::fmt;
use std::net::Ipv6Addr;

/// A directory, or what is to be fetched, on a machine that a shell can be started on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FarPlace {
    /// As the remote shell takes it: a host, or `user@host`.
    pub(crate) host: String,
    /// Relative to the home directory there, or absolute.
    pub(crate) path: String,
    /// As it was typed.
    text: String,
}

impl FarPlace {
    /// What has a colon before any slash is on another machine; `None`: it is not.
    pub(crate) fn parse(text: &OsStr) -> Option<Result<Self, String>> {
        let bytes = text.as_encoded_bytes();
        let colon = colon(bytes)?;
        let Some(text) = text.to_str() else {
            let shown = text.to_string_lossy();
            return Some(Err(format!("{shown}: paths of other machines are UTF-8")));
        };
        Some(Self::split(text, colon))
    }

    /// A machine, `host` or `user@host`, and nothing of it.
    #[cfg(feature = "bench")]
    pub(crate) fn of_host(text: &str) -> Result<Self, String> {
        let written = match text.parse::<Ipv6Addr>() {
            Ok(ip) => format!("[{ip}]:"),
            Err(_) => format!("{text}:"),
        };
        match Self::parse(OsStr::new(&written)) {
            Some(Ok(place)) if colon(written.as_bytes()) == Some(written.len() - 1) => Ok(Self {
                text: text.to_owned(),
                ..place
            }),
            Some(Err(why)) => Err(why),
            _ => Err(format!("{text:?} is no host")),
        }
    }

    fn split(text: &str, colon: usize) -> Result<Self, String> {
        let (host, path) = (&text[..colon], &text[colon + 1..]);
        let (user, name) = match host.rsplit_once('@') {
            Some((user, name)) => (Some(user), name),
            None => (None, host),
        };
        let name = match name.strip_prefix('[').and_then(|it| it.strip_suffix(']')) {
            Some(ip) => ip
                .parse::<Ipv6Addr>()
                .map(|_| ip)
                .map_err(|_| format!("{text}: {ip} is no IPv6 address"))?,
            None => name,
        };
        let is_option = host.starts_with('-') || name.starts_with('-');
        if name.is_empty() || is_option || host.chars().any(|it| it.is_whitespace()) {
            return Err(format!("{text}: {host:?} is no host"));
        }
        if path.starts_with(':') {
            return Err(format!(
                "{text}: fabricast has no modules as rsync's daemon has; write {name}:/directory"
            ));
        }
        if !path.is_empty() && path.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(format!(
                "{text}: an address goes to --to; a directory {path} is written {name}:./{path}"
            ));
        }
        let path = match path.strip_prefix("~/").unwrap_or(path) {
            "" | "~" => ".",
            path => path,
        };
        let host = match user {
            Some(user) => format!("{user}@{name}"),
            None => name.to_owned(),
        };
        Ok(Self {
            host,
            path: path.to_owned(),
            text: text.to_owned(),
        })
    }
}

/// Where the colon behind a host is.
fn colon(text: &[u8]) -> Option<usize> {
    let slash = text.iter().position(|&byte| byte == b'/');
    let before = &text[..slash.unwrap_or(text.len())];
    let from = match before.iter().position(|&byte| byte == b']') {
        Some(bracket) if before.contains(&b'[') => bracket,
        _ => 0,
    };
    let found = before[from..].iter().position(|&byte| byte == b':')? + from;
    (found > 0).then_some(found)
}

impl fmt::Display for FarPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(feature = "bench")]
    #[test]
    fn a_host_is_one_word() {
        for (text, host) in [
            ("host", "host"),
            ("me@host", "me@host"),
            ("fe80::1", "fe80::1"),
        ] {
            let place = FarPlace::of_host(text).expect("a host");
            assert_eq!(
                (place.host.as_str(), place.to_string()),
                (host, text.to_owned())
            );
        }
        for text in [
            "",
            "a b",
            "host:/dir",
            "10.0.0.2:7473",
            "-oProxyCommand=x",
            "a/b",
        ] {
            assert!(FarPlace::of_host(text).is_err(), "{text}");
        }
    }

    fn parse(text: &str) -> Option<Result<(String, String), String>> {
        let found = FarPlace::parse(OsStr::new(text))?;
        Some(found.map(|place| (place.host, place.path)))
    }

    #[test]
    fn a_colon_before_any_slash_is_another_machine() {
        for (text, host, path) in [
            ("host:/dst", "host", "/dst"),
            ("user@host:/dst", "user@host", "/dst"),
            ("host:dst/a:b", "host", "dst/a:b"),
            ("host:", "host", "."),
            ("host:~", "host", "."),
            ("host:~/x", "host", "x"),
            ("[fe80::1]:/dst", "fe80::1", "/dst"),
            ("me@[::1]:dst", "me@::1", "dst"),
        ] {
            let found = parse(text).expect("far").expect("well written");
            assert_eq!(found, (host.to_owned(), path.to_owned()), "{text}");
        }
        for text in ["file", "./a:b", "/a:b", "dir/a:b", ":7471", "-"] {
            assert_eq!(parse(text), None, "{text}");
        }
        for (text, why) in [
            ("-oProxyCommand=x:/dst", "no host"),
            ("u@-oProxyCommand=x:/dst", "no host"),
            ("a b:/dst", "no host"),
            ("[x]:/dst", "no IPv6 address"),
            ("host::module", "no modules"),
            ("10.0.0.2:7471", "--to"),
        ] {
            let error = parse(text).expect("far").expect_err("refused");
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
