//! `ListObjectsV2`: lists of objects, and of what names have in common up to a delimiter.

use std::fmt::Write;
use std::time::SystemTime;

use fabricast::object::{ListQuery, ListedObject, ObjectStore, StoreError};

use crate::dates::iso;
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
    /// The next list begins behind it. A common part stands for all names that begin with it; no
    /// object of a list with a delimiter has one in its name, so the two can't be taken for each
    /// other.
    fn continuation(&self) -> &str {
        match self {
            Self::Object(object) => object.name.as_str(),
            Self::Common(part) => part,
        }
    }
}

impl Listing {
    /// What a name has in common with others: all up to the delimiter behind the prefix.
    fn common<'n>(&self, name: &'n str) -> Option<&'n str> {
        let behind = name.strip_prefix(self.prefix.as_str())?;
        let delimiter = Some(self.delimiter.as_str()).filter(|it| !it.is_empty())?;
        let end = behind.find(delimiter)? + delimiter.len();
        Some(&name[..self.prefix.len() + end])
    }
}

/// Behind most names that begin with a common part. Those behind it are skipped one by one.
fn behind(part: &str) -> String {
    format!("{part}{}", char::MAX)
}

/// Goes through names until there is an answer, which may wait for a device.
fn collect(store: &dyn ObjectStore, asked: &Listing) -> Result<(Vec<Entry>, bool), StoreError> {
    let mut entries = Vec::new();
    if asked.max_keys == 0 {
        return Ok((entries, false));
    }
    let mut skipped = asked.common(&asked.token).map(str::to_owned);
    let token = match &skipped {
        Some(part) => behind(part),
        None => asked.token.clone(),
    };
    let mut start = asked.start_after.clone().max(token);
    loop {
        let page = store.list(&ListQuery {
            prefix: asked.prefix.clone(),
            start_after: start.clone(),
            limit: match skipped {
                // Many may have to be skipped.
                Some(_) => MAX_KEYS,
                None => asked.max_keys - entries.len() + 1,
            },
        })?;
        for object in page.objects {
            let name = object.name.as_str();
            if skipped.as_ref().is_some_and(|part| name.starts_with(part)) {
                start = start.max(name.to_owned());
                continue;
            }
            if entries.len() == asked.max_keys {
                return Ok((entries, true));
            }
            skipped = asked.common(name).map(str::to_owned);
            let entry = match &skipped {
                Some(part) => {
                    start = behind(part).max(name.to_owned());
                    Entry::Common(part.clone())
                }
                None => {
                    name.clone_into(&mut start);
                    Entry::Object(object)
                }
            };
            entries.push(entry);
        }
        if !page.more {
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
        field("NextContinuationToken", &escape(last.continuation()));
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
                token = entries.last().unwrap().continuation().to_owned();
            }
            assert_eq!(parts, whole);
        }
    }

    #[test]
    fn what_xml_means_is_escaped() {
        let text = list(&store(), "b&c", &asked(&[])).unwrap();
        assert!(text.contains("<Name>b&amp;c</Name>"));
        assert!(text.contains("<Key>z&amp;&quot;&lt;</Key>"), "{text}");
        let text = list(&store(), "b", &asked(&[("encoding-type", "url")])).unwrap();
        assert!(text.contains("<Key>z%26%22%3C</Key>"), "{text}");
    }
}
