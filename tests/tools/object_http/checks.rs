//! What a client asks to be checked is checked, and what is not kept is refused by name.

use std::fs;

use super::{Serving, content};

const BYTES: &[u8] = b"hello, checksums";
const SHA256: &str = "6f675aaeb41b223c74b3b6c361f4fb71ca3e9810e5a61bc196968ccd31d7a91e";
const EMPTY_SHA256: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/// The sums of [`BYTES`] as clients say them, made by other means.
const SUMS: [(&str, &str); 7] = [
    ("Content-MD5", "peQkv8F5MrJbcsQLQfdojg=="),
    ("x-amz-checksum-crc32", "kS/8zQ=="),
    ("x-amz-checksum-crc32c", "CvIVhQ=="),
    ("x-amz-checksum-crc64nvme", "Q7quz+pv0O4="),
    ("x-amz-checksum-sha1", "UvaCbQNXufuU94McTxs0+q72M/A="),
    (
        "x-amz-checksum-sha256",
        "b2darrQbIjx0s7bDYfT7cco+mBDlphvBlpaMzTHXqR4=",
    ),
    ("x-amz-content-sha256", SHA256),
];

/// Puts, and says the status and what the error is called in S3.
fn put(server: &Serving, headers: &[(&str, &str)], body: &[u8]) -> (u16, String) {
    let answer = server.ask("PUT", "/objects/x", headers, body);
    let text = answer.text();
    let code = text
        .split_once("<Code>")
        .and_then(|(_, behind)| behind.split_once("</Code>"));
    let is_there = server.path("data/x").exists();
    let _ = fs::remove_file(server.path("data/x"));
    assert_eq!(is_there, answer.status == 200, "{headers:?}");
    (
        answer.status,
        code.map_or(String::new(), |(code, _)| code.to_owned()),
    )
}

#[test]
fn content_is_what_the_client_says_or_is_refused() {
    let Some(server) = Serving::start() else {
        return;
    };
    let refused = |code: &str| (400, code.to_owned());
    for (field, sum) in SUMS {
        assert_eq!(put(&server, &[(field, sum)], BYTES).0, 200, "{field}");
        let mismatch = match field {
            "x-amz-content-sha256" => "XAmzContentSHA256Mismatch",
            _ => "BadDigest",
        };
        // Another body of the same length, and one in which the last piece differs.
        let other = b"hello, checksumS";
        assert_eq!(
            put(&server, &[(field, sum)], other),
            refused(mismatch),
            "{field}"
        );
        assert_eq!(
            put(&server, &[(field, sum)], b""),
            refused(mismatch),
            "{field}"
        );
        let long = content(700_000);
        assert_eq!(
            put(&server, &[(field, sum)], &long),
            refused(mismatch),
            "{field}"
        );
        let malformed = match field {
            "Content-MD5" => "InvalidDigest",
            _ => "InvalidRequest",
        };
        for wrong in ["", "?", &sum[1..], "aGVsbG8="] {
            assert_eq!(
                put(&server, &[(field, wrong)], BYTES),
                refused(malformed),
                "{field}"
            );
        }
        let twice = [(field, sum), (field, sum)];
        assert_eq!(put(&server, &twice, BYTES), refused(malformed), "{field}");
    }
    assert_eq!(put(&server, &SUMS, BYTES).0, 200);
    let unsigned = [("x-amz-content-sha256", "UNSIGNED-PAYLOAD")];
    assert_eq!(put(&server, &unsigned, BYTES).0, 200);
    let algorithm = ("x-amz-sdk-checksum-algorithm", "CRC32");
    assert_eq!(put(&server, &[algorithm], BYTES), refused("InvalidRequest"));
    assert_eq!(put(&server, &[algorithm, SUMS[1]], BYTES).0, 200);
}

#[test]
fn content_by_token_is_checked_and_its_empty_body_as_well() {
    let Some(server) = Serving::start() else {
        return;
    };
    let token = ("x-amz-rdma-token", "nonsense");
    // What is said of the body is compared before the token is looked at.
    let empty = ("x-amz-content-sha256", EMPTY_SHA256);
    assert_eq!(put(&server, &[token, empty], b"").0, 501);
    let other = ("x-amz-content-sha256", SHA256);
    let refused = (400, "XAmzContentSHA256Mismatch".to_owned());
    assert_eq!(put(&server, &[token, other], b""), refused);
    let both = (400, "InvalidRequest".to_owned());
    assert_eq!(put(&server, &[token], BYTES), both);
}

#[test]
fn what_is_not_kept_is_refused_by_name() {
    let Some(server) = Serving::start() else {
        return;
    };
    for (field, value) in [
        ("x-amz-meta-run", "7"),
        ("x-amz-tagging", "a=b"),
        ("x-amz-acl", "public-read"),
        ("x-amz-grant-read", "id=1"),
        ("x-amz-server-side-encryption", "AES256"),
        ("x-amz-storage-class", "GLACIER"),
        ("x-amz-object-lock-mode", "GOVERNANCE"),
        ("x-amz-copy-source", "/objects/y"),
        ("x-amz-expected-bucket-owner", "111122223333"),
        ("x-amz-checksum-sha512", "aGVsbG8="),
        ("x-amz-trailer", "x-amz-checksum-crc32"),
        ("x-amz-content-sha256", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"),
        ("content-encoding", "aws-chunked"),
        ("content-encoding", "gzip"),
        ("if-unmodified-since", "Mon, 23 Nov 2026 04:05:06 GMT"),
        ("if-match", "*"),
    ] {
        let refused = (501, "NotImplemented".to_owned());
        assert_eq!(put(&server, &[(field, value)], BYTES), refused, "{field}");
    }
    // Clients send these unasked.
    for (field, value) in [
        ("content-type", "text/plain"),
        ("cache-control", "no-cache"),
        ("x-amz-date", "20261123T040506Z"),
        ("x-amz-storage-class", "STANDARD"),
        ("content-encoding", "identity"),
        ("authorization", "AWS4-HMAC-SHA256 …"),
    ] {
        assert_eq!(put(&server, &[(field, value)], BYTES).0, 200, "{field}");
    }
}

#[test]
fn conditions_of_reading_are_judged() {
    let Some(server) = Serving::start() else {
        return;
    };
    let ask =
        |method: &str, headers: &[(&str, &str)]| server.ask(method, "/objects/x", headers, &[]);
    let stored = server.ask("PUT", "/objects/x", &[], BYTES);
    let head = ask("HEAD", &[]);
    let etag = stored.header("etag").expect("an etag");
    let date = head.header("last-modified").expect("a date");
    let (early, late) = (
        "Thu, 01 Jan 1970 00:00:00 GMT",
        "Fri, 31 Dec 2100 23:59:59 GMT",
    );
    let weak = format!("W/{etag}, \"y\"");
    for (field, value, status) in [
        ("If-None-Match", etag, 304),
        ("If-None-Match", "*", 304),
        ("If-None-Match", weak.as_str(), 304),
        ("If-None-Match", "\"other\"", 200),
        ("If-Match", etag, 200),
        ("If-Match", "*", 200),
        ("If-Match", "\"other\"", 412),
        ("If-Match", weak.as_str(), 412),
        ("If-Modified-Since", date, 304),
        ("If-Modified-Since", late, 304),
        ("If-Modified-Since", early, 200),
        ("If-Modified-Since", "yesterday", 200),
        ("If-Unmodified-Since", date, 200),
        ("If-Unmodified-Since", early, 412),
    ] {
        for method in ["GET", "HEAD"] {
            let answer = ask(method, &[(field, value)]);
            assert_eq!(answer.status, status, "{method} {field}: {value}");
            assert_eq!(
                answer.header("etag"),
                Some(etag),
                "{method} {field}: {value}"
            );
            let is_whole = method == "GET" && status == 200;
            assert_eq!(answer.body == BYTES, is_whole, "{method} {field}: {value}");
        }
    }
    for (value, status) in [(etag, 206), (date, 206), ("\"other\"", 200), (early, 200)] {
        let answer = ask("GET", &[("Range", "bytes=0-1"), ("If-Range", value)]);
        assert_eq!(answer.status, status, "If-Range: {value}");
    }
    assert_eq!(ask("DELETE", &[("If-Match", "\"other\"")]).status, 412);
    assert_eq!(ask("DELETE", &[("If-None-Match", "*")]).status, 501);
    assert_eq!(ask("DELETE", &[("If-Match", etag)]).status, 204);
    assert_eq!(ask("DELETE", &[("If-Match", etag)]).status, 404);
    assert_eq!(ask("DELETE", &[]).status, 204);
}

#[test]
fn a_list_ends_whatever_names_there_are() {
    let Some(server) = Serving::start() else {
        return;
    };
    for name in ["a/\u{10ffff}x", "a/\u{10ffff}\u{10ffff}", "a/1", "b"] {
        let path = server.path("data").join(name);
        fs::create_dir_all(path.parent().expect("a directory")).unwrap();
        fs::write(path, b"x").unwrap();
    }
    let (mut token, mut said) = (String::new(), Vec::new());
    for _ in 0..20 {
        let path = format!("/objects?list-type=2&max-keys=1&delimiter=/{token}");
        let page = server.ask("GET", &path, &[], &[]).text();
        let within = |tag: &str| {
            let (_, behind) = page.split_once(&format!("<{tag}>"))?;
            Some(behind.split_once("</")?.0.to_owned())
        };
        let common = page.split_once("<CommonPrefixes><Prefix>");
        said.push(match common {
            Some((_, behind)) => behind.split_once('<').expect("an end").0.to_owned(),
            None => within("Key").expect("an entry"),
        });
        let Some(next) = within("NextContinuationToken") else {
            break;
        };
        let encode = |byte: u8| format!("%{byte:02X}");
        token = format!(
            "&continuation-token={}",
            next.bytes().map(encode).collect::<String>()
        );
    }
    assert_eq!(said, ["a/", "b"]);
}
