//! `ListObjectsV2`: lists of objects, and of what names have in common up to a delimiter.

use std::fmt::Write;
use std::time::{Duration, SystemTime};

use fabricast::object::{ListQuery, ListedObject, ObjectStore, StoreError};

use crate::reply::escape;

/// The most entries of one answer.
const MAX_KEYS: usize = 1000;

/// What is asked for.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    prefix: String,
    delimiter: String,
    start_after: String,
    token: String,
    max_keys: usize,
    url_encoded: bool,
}

impl Listing {
    pub(crate) fn of(query: &[(String, String)]) -> Self {
        let mut listing = Self {
            max_keys: MAX_KEYS,
            ..Self::default()
        };
        for (name, value) in query {
            match name.as_str() {
                "prefix" => listing.prefix.clone_from(value),
                "delimiter" => listing.delimiter.clone_from(value),
                "start-after" => listing.start_after.clone_from(value),
                "continuation-token" => listing.token.clone_from(value),
                "encoding-type" => listing.url_encoded = value == "url",
                "max-keys" => {
                    listing.max_keys = value.parse().unwrap_or(MAX_KEYS).min(MAX_KEYS);
                }
                _ => {}
            }
        }
        listing
    }

    fn text(&self, text: &str) -> String {
        match self.url_encoded {
            true => encode(text),
            false => escape(text),
        }
    }
}

/// One entry of an answer.
enum Entry {
    Object(ListedObject),
    Common(String),
}

impl Entry {
    /// The next list begins behind it. A common part stands for all names that begin with it.
    fn continuation(&self) -> String {
        match self {
            Self::Object(object) => object.name.as_str().to_owned(),
            Self::Common(part) => format!("{part}{}", char::MAX),
        }
    }
}

/// Goes through names until there is an answer, which may wait for a device.
fn collect(store: &dyn ObjectStore, asked: &Listing) -> Result<(Vec<Entry>, bool), StoreError> {
    let mut start = asked.start_after.clone().max(asked.token.clone());
    let mut entries = Vec::new();
    loop {
        if entries.len() >= asked.max_keys {
            let query = ListQuery {
                prefix: asked.prefix.clone(),
                start_after: start,
                limit: 1,
            };
            let more = asked.max_keys > 0 && !store.list(&query)?.objects.is_empty();
            return Ok((entries, more));
        }
        let page = store.list(&ListQuery {
            prefix: asked.prefix.clone(),
            start_after: start.clone(),
            limit: asked.max_keys - entries.len(),
        })?;
        let is_last = !page.more;
        for object in page.objects {
            if object.name.as_str() < start.as_str() {
                continue;
            }
            let behind = &object.name.as_str()[asked.prefix.len()..];
            let cut = match asked.delimiter.as_str() {
                "" => None,
                delimiter => behind.find(delimiter).map(|at| at + delimiter.len()),
            };
            let entry = match cut {
                Some(len) => Entry::Common(format!("{}{}", asked.prefix, &behind[..len])),
                None => Entry::Object(object),
            };
            start = entry.continuation();
            entries.push(entry);
        }
        if is_last {
            return Ok((entries, false));
        }
    }
}

/// The answer.
pub(crate) fn list(
    store: &dyn ObjectStore,
    bucket: &str,
    asked: &Listing,
) -> Result<String, StoreError> {
    let (entries, more) = collect(store, asked)?;
    let mut out = String::from(r#"<?xml version="1.0" encoding="UTF-8"?>"#);
    out.push_str(r#"<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">"#);
    let mut field = |name: &str, text: &str| {
        let _ = write!(out, "<{name}>{text}</{name}>");
    };
    field("Name", &escape(bucket));
    field("Prefix", &asked.text(&asked.prefix));
    field("Delimiter", &asked.text(&asked.delimiter));
    field("StartAfter", &asked.text(&asked.start_after));
    field("MaxKeys", &asked.max_keys.to_string());
    field("KeyCount", &entries.len().to_string());
    field("IsTruncated", if more { "true" } else { "false" });
    if asked.url_encoded {
        field("EncodingType", "url");
    }
    if let Some(last) = entries.last().filter(|_| more) {
        field("NextContinuationToken", &escape(&last.continuation()));
    }
    for entry in &entries {
        match entry {
            Entry::Object(object) => write_object(&mut out, asked, object),
            Entry::Common(part) => {
                let part = asked.text(part);
                let _ = write!(
                    out,
                    "<CommonPrefixes><Prefix>{part}</Prefix></CommonPrefixes>"
                );
            }
        }
    }
    out.push_str("</ListBucketResult>");
    Ok(out)
}

fn write_object(out: &mut String, asked: &Listing, object: &ListedObject) {
    let (name, size) = (asked.text(object.name.as_str()), object.size);
    let etag = escape(&format!("\"{}\"", object.etag));
    let modified = iso(object.modified.unwrap_or(SystemTime::UNIX_EPOCH));
    let _ = write!(
        out,
        "<Contents><Key>{name}</Key><LastModified>{modified}</LastModified><ETag>{etag}</ETag>\
         <Size>{size}</Size><StorageClass>STANDARD</StorageClass></Contents>"
    );
}

/// A time as `2026-11-23T04:05:06.000Z`.
pub(crate) fn iso(time: SystemTime) -> String {
    let (year, month, day, rest) = civil(time);
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.000Z")
}

/// A time as HTTP says it: `Mon, 23 Nov 2026 04:05:06 GMT`.
pub(crate) fn http_date(time: SystemTime) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] = [
        "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
    ];
    let (year, month, day, rest) = civil(time);
    let week_day = DAYS[(seconds(time) / 86_400 % 7) as usize];
    let month = MONTHS[month as usize - 1];
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{week_day}, {day:02} {month} {year:04} {hour:02}:{minute:02}:{second:02} GMT")
}

fn seconds(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap_or(Duration::ZERO).as_secs()
}

/// Year, month, day, and the seconds of the day, of the Gregorian calendar.
fn civil(time: SystemTime) -> (u64, u64, u64, u64) {
    let (mut days, rest) = (seconds(time) / 86_400, seconds(time) % 86_400);
    let mut year = 1970;
    let is_leap = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    loop {
        let in_year = 365 + u64::from(is_leap(year));
        if days < in_year {
            break;
        }
        days -= in_year;
        year += 1;
    }
    let february = 28 + u64::from(is_leap(year));
    let mut month = 1;
    for in_month in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if days < in_month {
            break;
        }
        days -= in_month;
        month += 1;
    }
    (year, month, days + 1, rest)
}

/// Percent encoding of all but letters, digits, `-._~` and `/`.
fn encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                encoded.push(char::from(byte));
            }
            byte => {
                let _ = write!(encoded, "%{byte:02X}");
            }
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use fabricast::object::{MemoryStore, ObjectName, PutCondition};

    use super::*;

    fn store() -> MemoryStore {
        let store = MemoryStore::new();
        for name in ["a", "runs/1/x", "runs/1/y", "runs/2", "z&\"<"] {
            let name = ObjectName::new(name).unwrap();
            store.insert(&name, b"12", &PutCondition::Any).unwrap();
        }
        store
    }

    fn told(asked: &Listing) -> (Vec<String>, bool) {
        let (entries, more) = collect(&store(), asked).unwrap();
        let text = |entry: &Entry| match entry {
            Entry::Object(object) => object.name.to_string(),
            Entry::Common(part) => format!("{part}*"),
        };
        (entries.iter().map(text).collect(), more)
    }

    fn asked(fields: &[(&str, &str)]) -> Listing {
        let field = |(name, value): &(&str, &str)| (name.to_string(), value.to_string());
        Listing::of(&fields.iter().map(field).collect::<Vec<_>>())
    }

    #[test]
    fn names_are_cut_at_the_delimiter() {
        let all = ["a", "runs/1/x", "runs/1/y", "runs/2", "z&\"<"];
        assert_eq!(told(&asked(&[])).0, all);
        assert_eq!(
            told(&asked(&[("delimiter", "/")])).0,
            ["a", "runs/*", "z&\"<"]
        );
        let runs = asked(&[("delimiter", "/"), ("prefix", "runs/")]);
        assert_eq!(told(&runs).0, ["runs/1/*", "runs/2"]);
        assert_eq!(
            told(&asked(&[("start-after", "runs/1/y")])).0,
            ["runs/2", "z&\"<"]
        );
        assert_eq!(told(&asked(&[("max-keys", "0")])), (Vec::new(), false));
    }

    #[test]
    fn a_list_goes_on_where_it_was_cut() {
        for delimiter in ["", "/"] {
            let whole = told(&asked(&[("delimiter", delimiter)])).0;
            let (mut parts, mut token) = (Vec::new(), String::new());
            loop {
                let fields = [
                    ("delimiter", delimiter),
                    ("max-keys", "1"),
                    ("continuation-token", token.as_str()),
                ];
                let listing = asked(&fields);
                let (entries, more) = collect(&store(), &listing).unwrap();
                parts.extend(told(&listing).0);
                if !more {
                    break;
                }
                token = entries.last().unwrap().continuation();
            }
            assert_eq!(parts, whole);
        }
    }

    #[test]
    fn what_xml_means_is_escaped_and_times_are_right() {
        let text = list(&store(), "b&c", &asked(&[])).unwrap();
        assert!(text.contains("<Name>b&amp;c</Name>"));
        assert!(text.contains("<Key>z&amp;&quot;&lt;</Key>"), "{text}");
        let text = list(&store(), "b", &asked(&[("encoding-type", "url")])).unwrap();
        assert!(text.contains("<Key>z%26%22%3C</Key>"), "{text}");
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_709_210_096);
        assert_eq!(iso(time), "2024-02-29T12:34:56.000Z");
        assert_eq!(http_date(time), "Thu, 29 Feb 2024 12:34:56 GMT");
    }
}
