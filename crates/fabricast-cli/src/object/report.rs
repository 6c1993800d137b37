//! What is said of an object, for people or as JSON.

use std::time::Duration;

use fabricast::object::RemoteObject;
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::say::say;

/// Says what became of one.
pub(crate) fn object(json: bool, what: &str, key: &str, object: &RemoteObject, took: Duration) {
    let seconds = took.as_secs_f64();
    if json {
        let checksum = object.checksum.as_ref().map(ToString::to_string);
        say(json!({
            "ok": true,
            "operation": what,
            "key": key,
            "size_bytes": object.size,
            "moved_bytes": object.moved,
            "etag": object.etag.to_string(),
            "checksum": checksum,
            "checked": object.is_checked,
            "seconds": seconds,
        }));
        return;
    }
    let rate = object.moved as f64 / seconds.max(1e-9) / 1e6;
    let checked = match object.is_checked {
        true => "checked",
        false => "not checked",
    };
    say(format_args!(
        "{what} {key}: {} bytes in {seconds:.3} s, {rate:.0} MB/s, {checked}, etag {}",
        object.moved, object.etag
    ));
}

/// Says to programs why a command ends, too.
pub(crate) fn ended(json: bool, result: Result<(), Failure>) -> Result<(), Failure> {
    result.map_err(|failure| {
        if !json {
            return failure;
        }
        let end = failure.end();
        say(json!({
            "ok": false,
            "error": failure.to_string(),
            "code": end.word(),
            "exit": end as u64,
            "todo": end.todo(),
        }));
        failure.told()
    })
}

/// Says something else: words for people, or an object.
pub(crate) fn line(json: bool, words: impl std::fmt::Display, object: Value) {
    match json {
        true => say(object),
        false => say(words),
    }
}
