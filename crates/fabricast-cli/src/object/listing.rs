//! `fabricast ls` and `fabricast rm`.

use std::time::{SystemTime, UNIX_EPOCH};

use fabricast::object::ListedObject;
use serde_json::json;

use super::args::{LsArgs, RmArgs};
use super::client::{Connected, etag, failed};
use super::report;
use super::url::ObjectUrl;
use crate::failure::{End, Failure};

pub(crate) fn ls(args: &LsArgs) -> Result<(), Failure> {
    let json = args.client.common.json;
    let mut connected = Connected::new(&args.client, &args.url.server)?;
    let mut common: Option<String> = None;
    let mut any = false;
    let deadline = connected.deadline();
    let prefix = &args.url.key;
    for object in connected.remote.list(prefix, deadline) {
        let object = object.map_err(|error| failed(prefix, &error))?;
        any = true;
        let name = object.name.to_string();
        // What lies below a further slash is one line for all of it.
        let below = name[prefix.len()..].find('/').filter(|_| !args.recursive);
        if let Some(slash) = below {
            let directory = &name[..prefix.len() + slash + 1];
            if common.as_deref() != Some(directory) {
                let said = format!("{:20} {:>14}  {directory}", "", "PRE");
                report::line(json, said, json!({"prefix": directory}));
                common = Some(directory.to_owned());
            }
            continue;
        }
        let seconds = object.modified.and_then(seconds);
        let etag = object.etag.to_string();
        report::line(
            json,
            format_args!("{:20} {:>14}  {name}", date(object.modified), object.size),
            json!({"key": name, "size_bytes": object.size, "etag": etag, "modified": seconds}),
        );
    }
    match any || prefix.is_empty() {
        true => Ok(()),
        false => Err(nothing(&args.url)),
    }
}

pub(crate) fn rm(args: &RmArgs) -> Result<(), Failure> {
    let mut connected = Connected::new(&args.client, &args.url.server)?;
    if !args.recursive {
        must_be_one(&args.url)?;
        let etag = args.if_match.as_deref().map(etag).transpose()?;
        if args.dryrun {
            let deadline = connected.deadline();
            let head = connected.remote.head(&args.url.key, deadline);
            head.map_err(|error| failed(&args.url.key, &error))?;
        } else {
            let deadline = connected.deadline();
            let deleted = connected
                .remote
                .delete(&args.url.key, etag.as_ref(), deadline);
            deleted.map_err(|error| failed(&args.url.key, &error))?;
        }
        removed(args, &args.url.key);
        return Ok(());
    }
    let objects = all(&mut connected, &args.url.key)?;
    if objects.is_empty() {
        return Err(nothing(&args.url));
    }
    for object in objects {
        let key = object.name.to_string();
        if !args.dryrun {
            let deadline = connected.deadline();
            let deleted = connected.remote.delete(&key, None, deadline);
            deleted.map_err(|error| failed(&key, &error))?;
        }
        removed(args, &key);
    }
    Ok(())
}

fn removed(args: &RmArgs, key: &str) {
    let what = match args.dryrun {
        true => "would delete",
        false => "deleted",
    };
    report::line(
        args.client.common.json,
        format_args!("{what} {key}"),
        json!({"ok": true, "operation": what, "key": key}),
    );
}

/// All objects whose keys begin so.
pub(super) fn all(connected: &mut Connected, prefix: &str) -> Result<Vec<ListedObject>, Failure> {
    let deadline = connected.deadline();
    let objects = connected.remote.list(prefix, deadline);
    let objects: Result<Vec<_>, _> = objects.collect();
    objects.map_err(|error| failed(prefix, &error))
}

/// No object's key is empty or ends with a slash.
pub(super) fn must_be_one(url: &ObjectUrl) -> Result<(), Failure> {
    match url.key.is_empty() || url.key.ends_with('/') {
        true => {
            let text = "all whose keys begin so are meant by --recursive; one object has a key";
            Err(Failure::new(format!("{}: {text}", url.key)).ends(End::Usage))
        }
        false => Ok(()),
    }
}

pub(super) fn nothing(url: &ObjectUrl) -> Failure {
    let text = format!("{}: there is no object whose key begins so", url.key);
    Failure::new(text).ends(End::Absent)
}

fn seconds(time: SystemTime) -> Option<u64> {
    Some(time.duration_since(UNIX_EPOCH).ok()?.as_secs())
}

/// A time as people read it, in UTC.
fn date(time: Option<SystemTime>) -> String {
    let Some(seconds) = time.and_then(seconds) else {
        return String::new();
    };
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Days in the Gregorian calendar, from the first of March of a year 0 on.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year + era * 400 + u64::from(month <= 2);
    let (hour, minute) = (second / 3600, second / 60 % 60);
    format!(
        "{year}-{month:02}-{day:02} {hour:02}:{minute:02}:{:02}",
        second % 60
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn dates_are_those_of_the_calendar() {
        let of = |seconds| date(Some(UNIX_EPOCH + Duration::from_secs(seconds)));
        assert_eq!(of(0), "1970-01-01 00:00:00");
        assert_eq!(of(951_782_400), "2000-02-29 00:00:00");
        assert_eq!(of(1_795_478_399), "2026-11-23 23:59:59");
        assert_eq!(of(4_107_542_400), "2100-03-01 00:00:00");
        assert_eq!(date(None), "");
    }
}
