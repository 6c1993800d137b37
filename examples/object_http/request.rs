//! What a request asks for: a place, a query, a range, a token. Trusts nothing.

use std::ops::Range;

use fabricast::object::{ObjectEtag, PutCondition, RdmaToken, TokenError};
use hyper::HeaderMap;
use hyper::Uri;
use hyper::header::{
    HeaderName, IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_UNMODIFIED_SINCE, RANGE,
};

/// The token of a client that wants the bytes by RDMA.
pub(crate) const TOKEN: HeaderName = HeaderName::from_static("x-amz-rdma-token");

/// What became of them: 200, 204 or 206, or 501 where they go in the body instead.
pub(crate) const REPLY: HeaderName = HeaderName::from_static("x-amz-rdma-reply");

/// How many went by RDMA.
pub(crate) const TRANSFERRED: HeaderName = HeaderName::from_static("x-amz-rdma-bytes-transferred");

/// What a request is about.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// All buckets.
    Service,
    /// A bucket.
    Bucket(String),
    /// An object of a bucket.
    Object(String, String),
}

impl Place {
    /// Reads the path. `None`: it is no text.
    pub(crate) fn of(uri: &Uri) -> Option<Self> {
        let path = uri.path().strip_prefix('/')?;
        let (bucket, name) = path.split_once('/').unwrap_or((path, ""));
        let (bucket, name) = (decode(bucket, false)?, decode(name, false)?);
        Some(match (bucket.is_empty(), name.is_empty()) {
            (true, true) => Self::Service,
            (false, true) => Self::Bucket(bucket),
            _ => Self::Object(bucket, name),
        })
    }
}

/// The fields of a query, in their order. `None`: it is no text.
pub(crate) fn query(uri: &Uri) -> Option<Vec<(String, String)>> {
    let fields = uri.query().unwrap_or_default().split('&');
    let fields = fields.filter(|field| !field.is_empty());
    let field = |field: &str| {
        let (name, value) = field.split_once('=').unwrap_or((field, ""));
        Some((decode(name, true)?, decode(value, true)?))
    };
    fields.map(field).collect()
}

/// Undoes percent encoding, and in a query `+` for a space.
fn decode(text: &str, is_query: bool) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let mut digit = || char::from(rest.next()?).to_digit(16);
                (digit()? * 16 + digit()?) as u8
            }
            b'+' if is_query => b' ',
            byte => byte,
        });
    }
    String::from_utf8(bytes).ok()
}

/// Which bytes of an object.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// All of them.
    All,
    /// Some of them.
    Part(Range<u64>),
    /// Some that there are not.
    Nothing,
}

/// Reads `Range: bytes=…`. Several ranges at once, and what is no range, are as none, which is
/// what HTTP wants of who does not serve them.
pub(crate) fn range(headers: &HeaderMap, size: u64) -> Asked {
    let value = headers.get(RANGE).and_then(|value| value.to_str().ok());
    let Some(spec) = value.and_then(|value| value.strip_prefix("bytes=")) else {
        return Asked::All;
    };
    let Some((first, last)) = spec.split_once('-') else {
        return Asked::All;
    };
    let number = |text: &str| {
        let digits = text.bytes().all(|c| c.is_ascii_digit());
        text.parse::<u64>().ok().filter(|_| digits)
    };
    let range = match (number(first), number(last)) {
        (Some(first), Some(last)) if first <= last => first..last.saturating_add(1).min(size),
        (Some(first), None) if last.is_empty() => first..size,
        (None, Some(count)) if first.is_empty() => size.saturating_sub(count)..size,
        _ => return Asked::All,
    };
    match range.start < range.end {
        true => Asked::Part(range),
        false => Asked::Nothing,
    }
}

/// The token, if there is one.
pub(crate) fn token(headers: &HeaderMap) -> Option<Result<RdmaToken, TokenError>> {
    let value = headers.get(TOKEN)?;
    // What is no text is no token either.
    Some(value.to_str().unwrap_or("\u{fffd}").parse())
}

/// When an object may be put. `None`: a condition that is not understood.
pub(crate) fn condition(headers: &HeaderMap) -> Option<PutCondition> {
    let text = |name| headers.get(name).map(|value| value.to_str().ok());
    if headers.contains_key(IF_MODIFIED_SINCE) || headers.contains_key(IF_UNMODIFIED_SINCE) {
        return None;
    }
    match (text(IF_NONE_MATCH), text(IF_MATCH)) {
        (None, None) => Some(PutCondition::Any),
        (Some(Some("*")), None) => Some(PutCondition::Absent),
        (None, Some(Some(etag))) if etag != "*" => {
            let etag = ObjectEtag::new(etag.trim_matches('"')).ok()?;
            Some(PutCondition::Matches(etag))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    #[test]
    fn places_are_read_from_paths() {
        let object = |name: &str| Some(Place::Object("b".into(), name.into()));
        for (path, place) in [
            ("/", Some(Place::Service)),
            ("/b", Some(Place::Bucket("b".into()))),
            ("/b/", Some(Place::Bucket("b".into()))),
            ("/b/a/c", object("a/c")),
            ("/b/a%2Fc%20d", object("a/c d")),
            ("/b/a+c", object("a+c")),
            ("/b/%2e%2e/x", object("../x")),
            ("/b/%ff", None),
            ("/b/%4", None),
        ] {
            assert_eq!(Place::of(&path.parse().unwrap()), place, "{path}");
        }
        let fields = query(&"/b?list-type=2&prefix=a%2F+b&x".parse().unwrap()).unwrap();
        let field = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let expected = [
            field("list-type", "2"),
            field("prefix", "a/ b"),
            field("x", ""),
        ];
        assert_eq!(fields, expected);
    }

    #[test]
    fn ranges_are_read_as_http_says() {
        for (text, asked) in [
            ("bytes=0-0", Asked::Part(0..1)),
            ("bytes=2-", Asked::Part(2..10)),
            ("bytes=-3", Asked::Part(7..10)),
            ("bytes=-30", Asked::Part(0..10)),
            ("bytes=5-99", Asked::Part(5..10)),
            ("bytes=0-18446744073709551615", Asked::Part(0..10)),
            ("bytes=10-", Asked::Nothing),
            ("bytes=-0", Asked::Nothing),
            ("bytes=3-2", Asked::All),
            ("bytes=0-1,3-4", Asked::All),
            ("bytes=+1-2", Asked::All),
            ("lines=1-2", Asked::All),
        ] {
            let headers = HeaderMap::from_iter([(RANGE, HeaderValue::from_static(text))]);
            assert_eq!(range(&headers, 10), asked, "{text}");
        }
        assert_eq!(range(&HeaderMap::new(), 10), Asked::All);
    }
}
