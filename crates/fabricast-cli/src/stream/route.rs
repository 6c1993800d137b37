//! `Route`: from where to where, as the command line says.

use std::path::{Path, PathBuf};

use super::args::{Addresses, SendArgs, parse_peer};
use super::far::place::FarPlace;
use crate::failure::{End, Failure};

/// From where to where.
#[derive(Debug)]
pub(crate) enum Route {
    /// Paths of this machine go to others.
    Push(Vec<PathBuf>, Vec<Target>),
    /// Paths of one other machine come to a directory of this one.
    Pull(Vec<FarPlace>, PathBuf),
}

/// A receiver.
#[derive(Debug)]
pub(crate) enum Target {
    /// To be started.
    Far(FarPlace),
    /// It listens.
    At(Addresses),
}

impl Route {
    pub(crate) fn of(args: &SendArgs) -> Result<Self, Failure> {
        let mut places = Vec::new();
        for path in &args.paths {
            let place = FarPlace::parse(path.as_os_str()).transpose();
            places.push(place.map_err(usage)?);
        }
        let mut targets: Vec<_> = args.to.iter().cloned().map(Target::At).collect();
        if let Some(file) = &args.hosts {
            targets.extend(read_hosts(file)?);
        }
        let is_pull = targets.is_empty()
            && places.len() > 1
            && places.last().is_some_and(Option::is_none)
            && places[..places.len() - 1].iter().all(Option::is_some);
        if is_pull {
            let into = args.paths.last().cloned().unwrap_or_default();
            let from: Vec<_> = places.into_iter().flatten().collect();
            if from.iter().any(|place| place.host != from[0].host) {
                return Err(usage("what is fetched by one command is on one machine"));
            }
            return Ok(Self::Pull(from, into));
        }
        // The last ones that are far, behind the others.
        let near = places.iter().take_while(|place| place.is_none()).count();
        targets.extend(places.drain(near..).flatten().map(Target::Far));
        let paths = args.paths[..near].to_vec();
        if paths.is_empty() {
            return Err(usage("nothing of this machine is named that could be sent"));
        }
        if let Some(wrong) = args.paths[near..]
            .iter()
            .find(|path| FarPlace::parse(path.as_os_str()).is_none())
        {
            let text = format!(
                "{}: paths of this machine come before those of others",
                wrong.display()
            );
            return Err(usage(text));
        }
        if targets.is_empty() {
            return Err(usage(
                "no receiver: name HOST:DIR, --to ADDR or --hosts FILE",
            ));
        }
        Ok(Self::Push(paths, targets))
    }
}

fn usage(text: impl Into<String>) -> Failure {
    Failure::new(text).ends(End::Usage)
}

fn read_hosts(file: &Path) -> Result<Vec<Target>, Failure> {
    let text = std::fs::read_to_string(file).map_err(|error| Failure::file(file, &error))?;
    let mut targets = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let words = line.split('#').next().unwrap_or_default().trim();
        if words.is_empty() {
            continue;
        }
        let target = read_target(words)
            .map_err(|why| usage(format!("{}, line {}: {why}", file.display(), number + 1)))?;
        targets.push(target);
    }
    match targets.is_empty() {
        true => Err(usage(format!("{}: no receivers", file.display()))),
        false => Ok(targets),
    }
}

fn read_target(text: &str) -> Result<Target, String> {
    let has_port = |addr: &str| {
        let port = addr.rsplit_once(':').map(|(_, port)| port);
        port.is_some_and(|port| !port.is_empty() && port.bytes().all(|it| it.is_ascii_digit()))
    };
    if text.split(',').all(has_port) || text.contains("://") {
        return parse_peer(text).map(Target::At);
    }
    match FarPlace::parse(text.as_ref()) {
        Some(place) => place.map(Target::Far),
        None => Err(format!("{text}: want HOST:DIR or ADDR:PORT")),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: SendArgs,
    }

    fn route(words: &[&str]) -> Result<String, String> {
        let line = [&["send"], words].concat();
        let args = Line::try_parse_from(line).expect("it parses").args;
        let route = Route::of(&args).map_err(|failure| {
            assert_eq!(failure.end(), End::Usage);
            failure.to_string()
        })?;
        Ok(match route {
            Route::Push(paths, targets) => {
                let targets = targets.iter().map(|target| match target {
                    Target::Far(place) => place.to_string(),
                    Target::At(addrs) => format!("at {}", addrs.0[0]),
                });
                let targets: Vec<_> = targets.collect();
                format!("{} > {}", paths.len(), targets.join(" "))
            }
            Route::Pull(from, into) => format!("{} < {}", into.display(), from.len()),
        })
    }

    #[test]
    fn from_where_to_where() {
        for (words, meant) in [
            (&["a", "b", "h1:/d", "u@h2:d"][..], "2 > h1:/d u@h2:d"),
            (&["a", "--to", "127.0.0.1:1"], "1 > at 127.0.0.1:1"),
            (
                &["a", "h:/d", "--to", "127.0.0.1:1"],
                "1 > at 127.0.0.1:1 h:/d",
            ),
            (&["./a:b", "h:"], "1 > h:"),
            (&["h:/a", "h:b", "."], ". < 2"),
        ] {
            assert_eq!(route(words).as_deref(), Ok(meant), "{words:?}");
        }
        for (words, why) in [
            (&["a"][..], "no receiver"),
            (&["h:/a", "h:/b"], "nothing of this machine"),
            (&["h:/a", "g:/b", "."], "one machine"),
            (&["a", "h:/a", "b"], "come before"),
            (&["a", "h:7471"], "--to"),
        ] {
            let error = route(words).expect_err("refused");
            assert!(error.contains(why), "{words:?}: {error}");
        }
    }

    #[test]
    fn a_file_of_hosts_has_both_kinds() {
        let file = tempfile::NamedTempFile::new().expect("room");
        let text = "# all\nh1:/data\n\n10.0.0.2:7471,10.1.0.2:7471  # two rails\nme@h2:x\n";
        std::fs::write(file.path(), text).expect("room");
        let path = file.path().to_str().expect("text");
        let meant = route(&["a", "--hosts", path]);
        assert_eq!(
            meant.as_deref(),
            Ok("1 > h1:/data at 10.0.0.2:7471 me@h2:x")
        );
        std::fs::write(file.path(), "h1:/d\nnothing\n").expect("room");
        let error = route(&["a", "--hosts", path]).expect_err("refused");
        assert!(error.contains("line 2"), "{error}");
    }
}
