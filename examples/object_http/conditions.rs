//! On which conditions an object is read, as HTTP has them (RFC 9110, section 13).

use std::time::SystemTime;

use fabricast::object::ObjectInfo;
use hyper::header::{
    HeaderMap, HeaderName, IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE,
    IF_UNMODIFIED_SINCE,
};

use crate::dates;

/// What becomes of a request to read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Go,
    /// The client has what there is.
    NotModified,
    /// There is something else than the client wants.
    Failed,
}

/// Judges a request by what is there. Dates that can't be read are as none.
pub(crate) fn judge(headers: &HeaderMap, info: &ObjectInfo) -> Verdict {
    let etag = info.etag.to_string();
    let is_newer = |field| match (date(headers, field), modified(info)) {
        (Some(date), Some(modified)) => Some(modified > date),
        _ => None,
    };
    let holds = match is_any(headers, IF_MATCH, &etag, false) {
        Some(matches) => matches,
        None => is_newer(IF_UNMODIFIED_SINCE) != Some(true),
    };
    if !holds {
        return Verdict::Failed;
    }
    let is_known = match is_any(headers, IF_NONE_MATCH, &etag, true) {
        Some(matches) => matches,
        None => is_newer(IF_MODIFIED_SINCE) == Some(false),
    };
    match is_known {
        true => Verdict::NotModified,
        false => Verdict::Go,
    }
}

/// Whether a range is wanted of what there is, or all of it since it is another object by now.
pub(crate) fn takes_range(headers: &HeaderMap, info: &ObjectInfo) -> bool {
    let Some(value) = headers.get(IF_RANGE) else {
        return true;
    };
    let text = value.to_str().unwrap_or("");
    match dates::read_http_date(text) {
        Some(date) => modified(info) == Some(date),
        None => is_any(headers, IF_RANGE, &info.etag.to_string(), false) == Some(true),
    }
}

fn modified(info: &ObjectInfo) -> Option<u64> {
    info.modified.map(|time: SystemTime| dates::seconds(time))
}

fn date(headers: &HeaderMap, field: HeaderName) -> Option<u64> {
    dates::read_http_date(headers.get(field)?.to_str().ok()?)
}

/// Whether a field names this etag. `None`: there is no such field.
fn is_any(headers: &HeaderMap, field: HeaderName, etag: &str, weak: bool) -> Option<bool> {
    headers.contains_key(&field).then(|| {
        let mut values = headers.get_all(&field).iter();
        values.any(|value| names(value.to_str().unwrap_or(""), etag, weak))
    })
}

/// Whether a list of etags has this one. Some clients leave out the quotes.
fn names(list: &str, etag: &str, weak: bool) -> bool {
    let mut rest = list.trim();
    if rest == "*" {
        return true;
    }
    while !rest.is_empty() {
        let (is_weak, value) = match rest.strip_prefix("W/") {
            Some(value) => (true, value),
            None => (false, rest),
        };
        let (found, behind) = match value.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"').unwrap_or((quoted, "")),
            None => {
                let end = value.find(',').unwrap_or(value.len());
                (value[..end].trim_end(), &value[end..])
            }
        };
        if found == etag && (weak || !is_weak) {
            return true;
        }
        rest = behind.trim_start_matches([' ', '\t', ',']);
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_etags_are_read() {
        for (list, weak, strong) in [
            ("\"a,b\"", true, true),
            ("a", false, false),
            ("\"x\", \"a,b\"", true, true),
            ("W/\"a,b\"", true, false),
            ("\"x\",W/\"a,b\" , \"y\"", true, false),
            ("*", true, true),
            ("", false, false),
            ("\"", false, false),
            ("\"a,b", true, true),
            (",,,", false, false),
        ] {
            assert_eq!(names(list, "a,b", true), weak, "{list}");
            assert_eq!(names(list, "a,b", false), strong, "{list}");
        }
        assert!(names("x, e-1", "e-1", false));
    }
}
