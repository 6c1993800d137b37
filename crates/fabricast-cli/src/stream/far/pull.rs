//! `fabricast send host:/src ./dst`: this end listens, and the far end sends to it.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::{Duration, Instant};

use fabricast::stream::StreamReceiver;
use serde_json::Value;

use super::place::FarPlace;
use super::{
    FarEnd, Hello, LibraryStart, Request, Role, key, key_bytes, make_directory, meeting_places,
    near_recv, rails, way_out,
};
use crate::failure::{End, Failure};
use crate::interrupt;
use crate::say::say;
use crate::stream::args::{RecvArgs, SendArgs};
use crate::stream::dry_run;
use crate::stream::is_own;
use crate::stream::measure::Bytes;
use crate::stream::progress::{PeerLine, Progress};
use crate::stream::recv::{self, GOODBYE};
use crate::stream::report::{Voice, deleted_text, equal_text, there_already};
use crate::stream::ways::rails_text;

/// How often it is looked whether somebody asked for an end.
const LOOK: Duration = Duration::from_millis(100);

/// Fetches what is at these places of one machine.
pub(crate) fn run(args: &SendArgs, from: &[FarPlace], into: &Path) -> Result<(), Failure> {
    let mut far = FarEnd::start(&from[0], &args.far)?;
    let start = LibraryStart::begin();
    let own_args = own_arguments(std::env::args_os())?;
    let mut near = near_recv(&args.common, into)?;
    near.any_links = args.any_links;
    #[cfg(feature = "charts")]
    near.timeline.clone_from(&args.timeline);
    near.sums = args.sums;
    near.owners = args.owners;
    near.xattrs = args.xattrs;
    near.allow_delete = args.delete;
    near.protect.clone_from(&args.exclude);
    near.unprotect.clone_from(&args.include);
    make_directory(into)?;
    let hello = far.hello()?;
    let bytes = key_bytes(&args.common)?;
    let rails = rails(args, &hello.devices, hello.came_from);
    let places = match rails.is_empty() {
        true => meeting_places(&args.common, &[], Some(listening_ip(&hello)))?,
        false => rails
            .into_iter()
            .map(|ip| SocketAddr::new(ip, 0).into())
            .collect(),
    };
    let receiver = recv::open(&near, into, &places, Some(key(&bytes)?), start)?;
    let to = receiver.local_addrs().iter().map(ToString::to_string);
    far.ask(&Request {
        role: Role::Send,
        args: own_args,
        key: bytes,
        meet: Vec::new(),
        paths: paths_of(from),
        to: to.collect(),
    })?;
    let voice = Voice::of(args.common.json, args.quiet);
    let result = follow(&mut far, (&near, &receiver), voice);
    if let Err(failure) = &result
        && matches!(failure.end(), End::Interrupted | End::Terminated)
    {
        drop(far);
        receiver.close(Instant::now());
        return result;
    }
    receiver.close(Instant::now() + GOODBYE);
    far.close();
    result
}

/// Says what would be fetched: the far end looks, and nothing is made here.
pub(crate) fn list(args: &SendArgs, from: &[FarPlace]) -> Result<(), Failure> {
    let mut far = FarEnd::start(&from[0], &args.far)?;
    let own_args = own_arguments(std::env::args_os())?;
    far.hello()?;
    far.ask(&Request {
        role: Role::Send,
        args: own_args,
        key: Vec::new(),
        meet: Vec::new(),
        paths: paths_of(from),
        to: Vec::new(),
    })?;
    let voice = Voice::of(args.common.json, args.quiet);
    loop {
        if let Some(end) = interrupt::asked() {
            return Err(Failure::interrupted(end));
        }
        if let Some(value) = far.next(LOOK)?
            && dry_run::tell(&value, voice)
        {
            far.close();
            return Ok(());
        }
    }
}

fn paths_of(from: &[FarPlace]) -> Vec<String> {
    from.iter().map(|place| place.path.clone()).collect()
}

/// Where this end listens: where the shell's connection came from, if that is an address of this
/// machine, and not one that something on the way has put there.
fn listening_ip(hello: &Hello) -> IpAddr {
    let came_from = hello.came_from.filter(|ip| is_own(*ip));
    came_from.unwrap_or_else(|| way_out(&hello.devices))
}

/// The arguments behind `send`, which the far end's `send` gets, too: what it is to send, and
/// where to, comes beside them.
fn own_arguments(all: impl Iterator<Item = std::ffi::OsString>) -> Result<Vec<String>, Failure> {
    let behind = all.skip_while(|word| word != "send").skip(1);
    let words = behind.map(|word| {
        word.into_string().map_err(|word| {
            let text = format!("{}: want UTF-8 here", word.to_string_lossy());
            Failure::new(text).ends(End::Usage)
        })
    });
    words.collect()
}

/// Shows what the far end says of its progress, until it says how it ended.
fn follow(
    far: &mut FarEnd,
    (near, receiver): (&RecvArgs, &StreamReceiver),
    voice: Voice,
) -> Result<(), Failure> {
    // What becomes of a stream, the far end says better.
    let hear = || {
        let mut written = Ok(());
        while let Some(news) = receiver.next(Duration::ZERO) {
            written = recv::write_sums(near, &news).and(written);
            written = written.and(recv::write_timeline(near, &news));
        }
        written
    };
    let mut progress = Progress::new(voice);
    let result = loop {
        if let Some(end) = interrupt::asked() {
            return Err(Failure::interrupted(end));
        }
        hear()?;
        let Some(mut value) = far.next(LOOK)? else {
            continue;
        };
        // The far end's peer is this one.
        value["peer"] = far.name().into();
        if value["type"] == "result" {
            break value;
        }
        if let Some(line) = PeerLine::from_json(&value) {
            progress.show(&[line]);
        }
    };
    drop(progress);
    hear()?;
    voice.say_json(&result);
    if result["ok"] == true {
        if voice == Voice::People {
            say(summary(far.name(), &result));
        }
        return Ok(());
    }
    let end = End::with_code(result["exit"].as_u64().unwrap_or_default());
    let error = result["error"].as_str().unwrap_or("it failed");
    Err(Failure::new(format!("{}: {error}", far.name())).ends(end))
}

fn summary(name: &str, result: &Value) -> String {
    let number = |key: &str| result[key].as_f64().unwrap_or_default();
    let bytes = number("bytes");
    let mut text = format!(
        "sender       {name}\nbytes        {bytes:.0} ({})\n",
        Bytes(bytes)
    );
    let count = |key: &str| result[key].as_u64().unwrap_or_default();
    text += &there_already(count("resumed_bytes"), count("unchanged"));
    text += &equal_text(count("equal_bytes"));
    text += &deleted_text(count("deleted"));
    text += &rails_text(&result["rails"]);
    let (seconds, rate) = (number("seconds"), number("rate"));
    text + &format!("seconds      {seconds:.3}\nrate         {}/s", Bytes(rate))
}
