//! `--slurm DIR`: the tasks of one step find each other in a directory that all of them see.
//!
//! ```text
//!   DIR/fabricast-JOB.STEP.RESTART/    for this user alone
//!     key        of the sender, task 0: a number of this run, the key for one time, and where it
//!                is to be met
//!     task-N     of each receiver: the number of the run, and where it listens
//! ```
//!
//! A receiver believes the newest key, and the sender only those who have its own: what an earlier
//! run with the same numbers left is believed by nobody for long. The sender removes everything at
//! its end.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use fabricast::PeerAddr;
use fabricast::stream::{StreamEvent, StreamReceiver};
use serde_json::{Value, json};

use super::args::{CommonArgs, RecvArgs, SendArgs};
use super::devices::{NetworkDevice, rails_to};
use super::far::{self, LibraryStart, from_hex, make_directory, texts, to_hex};
use super::recv::{self, GOODBYE};
use super::report::Voice;
use super::send::{Named, Sending, Source};
use crate::failure::{End, Failure};
use crate::interrupt;

/// How often the directory is looked at.
const LOOK: Duration = Duration::from_millis(100);

/// How long tasks of a step may take to appear.
const GATHER: Duration = Duration::from_secs(120);

/// What says that a run is over may be of an earlier one: a new one comes within this time.
const OVER: Duration = Duration::from_secs(1);

/// The longest file that is read there, in bytes.
const FILE_MAX: u64 = 1 << 16;

/// This task, as Slurm says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Task {
    number: u32,
    count: u32,
    /// Of the step: no other step of this cluster that runs has it.
    name: String,
}

impl Task {
    pub(crate) fn of_environment() -> Result<Self, Failure> {
        Self::of(|name| std::env::var(name).ok())
    }

    fn of(variable: impl Fn(&str) -> Option<String>) -> Result<Self, Failure> {
        let number = |name: &str| {
            let text = variable(name)?;
            text.parse::<u32>().ok()
        };
        let all = [
            "SLURM_PROCID",
            "SLURM_NTASKS",
            "SLURM_JOB_ID",
            "SLURM_STEP_ID",
        ]
        .map(number);
        let [Some(task), Some(count), Some(job), Some(step)] = all else {
            let text = "--slurm: start it by srun, which sets SLURM_PROCID, SLURM_NTASKS, \
                        SLURM_JOB_ID and SLURM_STEP_ID to numbers";
            return Err(Failure::new(text).ends(End::Usage));
        };
        if task >= count || count < 2 {
            let text = format!("--slurm: task {task} of {count}: there must be two at least");
            return Err(Failure::new(text).ends(End::Usage));
        }
        let restart = number("SLURM_RESTART_COUNT").unwrap_or(0);
        Ok(Self {
            number: task,
            count,
            name: format!("fabricast-{job}.{step}.{restart}"),
        })
    }

    pub(crate) fn is_sender(&self) -> bool {
        self.number == 0
    }

    #[cfg(feature = "bench")]
    fn is_one_of_two(&self) -> Result<(), Failure> {
        match self.count {
            2 => Ok(()),
            count => {
                let text = format!("--slurm: {count} tasks: the bench is between two (srun -n2)");
                Err(Failure::new(text).ends(End::Usage))
            }
        }
    }
}

/// The directory of a step.
struct MeetingPlace(PathBuf);

impl MeetingPlace {
    /// Makes it, or takes the one that is there if it is this user's alone.
    fn open(shared: &Path, task: &Task) -> Result<Self, Failure> {
        let dir = shared.join(&task.name);
        let failed = |error: io::Error| Failure::file(&dir, &error);
        match DirBuilder::new().mode(0o700).create(&dir) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(failed(error)),
        }
        let about = fs::symlink_metadata(&dir).map_err(failed)?;
        let own = rustix::process::geteuid().as_raw();
        if !about.is_dir() || about.uid() != own || about.mode() & 0o077 != 0 {
            let text = format!(
                "{}: not a directory of this user alone: remove it",
                dir.display()
            );
            return Err(Failure::new(text).ends(End::Refused));
        }
        Ok(Self(dir))
    }

    /// Puts a file there, whole or not at all.
    fn put(&self, name: &str, value: &Value) -> Result<(), Failure> {
        let path = self.0.join(name);
        let half = self.0.join(format!(".{name}-{}", std::process::id()));
        let written = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&half)
            .and_then(|mut file| file.write_all(value.to_string().as_bytes()))
            .and_then(|()| fs::rename(&half, &path));
        written.map_err(|error| Failure::file(&path, &error))
    }

    /// What is in a file; `None`: it is not there, or not for us.
    fn get(&self, name: &str) -> Option<Value> {
        let path = self.0.join(name);
        let len = fs::symlink_metadata(&path)
            .ok()
            .filter(|it| it.is_file())?
            .len();
        let bytes = fs::read(&path).ok().filter(|_| len <= FILE_MAX)?;
        serde_json::from_slice(&bytes).ok()
    }

    fn remove(&self) {
        // Somebody may have done it before.
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn task_file(number: u32) -> String {
    format!("task-{number}")
}

/// Task 0: sends to all others.
pub(crate) fn send(args: &SendArgs, shared: &Path, task: &Task) -> Result<(), Failure> {
    let start = LibraryStart::begin();
    let place = MeetingPlace::open(shared, task)?;
    let key = far::key_bytes(&args.common)?;
    let run = to_hex(&far::random_bytes(16)?);
    let meet: Vec<_> = args.far.rails().iter().map(ToString::to_string).collect();
    let said = json!({
        "run": run,
        "key": to_hex(&key),
        "devices": NetworkDevice::all_to_json(&NetworkDevice::all()),
        "rails": args.far.chooses_rails(),
        "meet": meet,
    });
    place.put("key", &said)?;
    let result = Source::of(args, &args.paths).and_then(|source| {
        let peers = gather(&place, task, &run)?;
        start.wait();
        let sending = Sending {
            args,
            source,
            peers,
            key: Some(far::key(&key)?),
            voice: Voice::of(args.common.json, args.quiet),
        };
        sending.run(interrupt::asked)
    });
    if let Err(failure) = &result {
        // Who waits for a stream hears that none comes.
        let why = failure.to_string();
        let said = json!({ "run": run, "key": to_hex(&key), "over": why });
        let _ = place.put("key", &said);
    }
    leave(&place, task, &run, result.is_ok());
    result
}

/// Waits for the others to come, if they have not, and to leave; then nothing is left.
fn leave(place: &MeetingPlace, task: &Task, run: &str, have_come: bool) {
    let until = Instant::now() + GOODBYE;
    let mut have_come = vec![have_come; task.count as usize];
    let mut is_left = |number: u32| {
        let said = place.get(&task_file(number)).unwrap_or_default();
        let is_there = said["run"] == run;
        let has_come = &mut have_come[number as usize];
        *has_come |= is_there;
        // One that has failed is gone, and what it said stays.
        !*has_come || is_there && said["failed"].is_null()
    };
    // All of them, each time.
    while (1..task.count).filter(|&number| is_left(number)).count() > 0 && Instant::now() < until {
        std::thread::sleep(LOOK);
    }
    place.remove();
}

/// Where all the others listen.
fn gather(place: &MeetingPlace, task: &Task, run: &str) -> Result<Vec<Named>, Failure> {
    let until = Instant::now() + GATHER;
    let mut peers = Vec::new();
    for number in 1..task.count {
        let name = format!("task {number}");
        let to = loop {
            let said = place.get(&task_file(number)).filter(|it| it["run"] == run);
            if let Some(said) = said {
                if let Some(text) = said["failed"].as_str() {
                    let end = End::with_code(said["exit"].as_u64().unwrap_or_default());
                    return Err(Failure::new(format!("{name}: {text}")).ends(end));
                }
                let texts = texts(&said["listening"]).unwrap_or_default();
                break far::addresses(&name, &texts)?;
            }
            if let Some(end) = interrupt::asked() {
                return Err(Failure::interrupted(end));
            }
            if Instant::now() > until {
                let text = format!(
                    "{name} of {} has not come to {} within {} s: do all tasks run this command, \
                     and do their machines share that directory?",
                    task.count,
                    place.0.display(),
                    GATHER.as_secs()
                );
                return Err(Failure::new(text).ends(End::Unreachable));
            }
            std::thread::sleep(LOOK);
        };
        peers.push(Named { name, to });
    }
    Ok(peers)
}

/// The others, when they were started by the same command.
pub(crate) fn receive_of_send(args: &SendArgs, shared: &Path, task: &Task) -> Result<(), Failure> {
    let mut recv = far::near_recv(&args.common, &args.slurm.dir)?;
    // All tasks of a step are of one user.
    recv.any_links = true;
    recv.sums = args.sums;
    recv.owners = args.owners;
    recv.xattrs = args.xattrs;
    recv.allow_delete = args.delete;
    recv.common.json = args.common.json;
    receive(&recv, shared, task, LibraryStart::begin())
}

/// The others: each takes one stream.
pub(crate) fn receive(
    args: &RecvArgs,
    shared: &Path,
    task: &Task,
    start: LibraryStart,
) -> Result<(), Failure> {
    let place = MeetingPlace::open(shared, task)?;
    let mut start = Some(start);
    let until = Instant::now() + GATHER;
    let mut last = String::new();
    loop {
        let run = next_run(&place, &last, until)?;
        let start = start.take().unwrap_or_else(LibraryStart::begin);
        let result = receive_run(args, &place, task, &run, start);
        // Another run may have come in its place: then this one was of an earlier job.
        if let Some(result) = result.transpose() {
            return result;
        }
        last = run.name;
    }
}

/// A run that a sender began.
struct Run {
    name: String,
    key: Vec<u8>,
    /// Of the sender's machine.
    devices: Vec<NetworkDevice>,
    /// They may be rails.
    chooses_rails: bool,
    /// Addresses of the sender that rails begin at.
    meet: Vec<IpAddr>,
}

impl Run {
    /// Where a receiver listens for it.
    fn places(&self, common: &CommonArgs) -> Result<Vec<PeerAddr>, Failure> {
        let usual = far::way_out(&self.devices);
        let rails = match self.chooses_rails {
            true => rails_to(common, &self.devices, Some(usual)),
            false => Vec::new(),
        };
        match rails.is_empty() {
            true => far::meeting_places(common, &self.meet, Some(usual)),
            false => Ok(rails
                .into_iter()
                .map(|ip| SocketAddr::new(ip, 0).into())
                .collect()),
        }
    }
}

fn next_run(place: &MeetingPlace, last: &str, until: Instant) -> Result<Run, Failure> {
    loop {
        if let Some(said) = place.get("key")
            && let (Some(name), Some(key)) = (said["run"].as_str(), said["key"].as_str())
            && name != last
            && let Some(key) = from_hex(key)
        {
            let meet = texts(&said["meet"]).unwrap_or_default();
            return Ok(Run {
                name: name.to_owned(),
                key,
                devices: NetworkDevice::all_from_json(&said["devices"]),
                chooses_rails: said["rails"] == true,
                meet: meet.iter().filter_map(|ip| ip.parse().ok()).collect(),
            });
        }
        if let Some(end) = interrupt::asked() {
            return Err(Failure::interrupted(end));
        }
        if Instant::now() > until {
            let text = format!(
                "task 0 has not come to {} within {} s",
                place.0.display(),
                GATHER.as_secs()
            );
            return Err(Failure::new(text).ends(End::Unreachable));
        }
        std::thread::sleep(LOOK);
    }
}

/// Takes the stream of a run; `None`: another run came in its place.
fn receive_run(
    args: &RecvArgs,
    place: &MeetingPlace,
    task: &Task,
    run: &Run,
    start: LibraryStart,
) -> Result<Option<()>, Failure> {
    let file = task_file(task.number);
    let opened = make_directory(&args.dir).and_then(|()| {
        let places = match args.listen.is_empty() {
            true => run.places(&args.common)?,
            false => args.listen.clone(),
        };
        recv::open(args, &args.dir, &places, Some(far::key(&run.key)?), start)
    });
    let receiver = match opened {
        Ok(receiver) => receiver,
        Err(failure) => {
            let (text, exit) = (failure.to_string(), failure.end() as u64);
            place.put(
                &file,
                &json!({ "run": run.name, "failed": text, "exit": exit }),
            )?;
            return Err(failure);
        }
    };
    let addrs: Vec<_> = receiver
        .local_addrs()
        .iter()
        .map(ToString::to_string)
        .collect();
    place.put(&file, &json!({ "run": run.name, "listening": addrs }))?;
    let result = receive_one(args, place, run, receiver);
    if !matches!(result, Ok(None)) {
        // Task 0 waits for it to be gone.
        let _ = fs::remove_file(place.0.join(file));
    }
    result
}

fn receive_one(
    args: &RecvArgs,
    place: &MeetingPlace,
    run: &Run,
    receiver: StreamReceiver,
) -> Result<Option<()>, Failure> {
    let (began, mut until) = (Instant::now(), Instant::now() + GATHER);
    loop {
        if let Some(end) = interrupt::asked() {
            receiver.close(Instant::now());
            return Err(Failure::interrupted(end));
        }
        match receiver.next(LOOK) {
            Some(news @ StreamEvent::Complete(..)) => {
                recv::tell(args, &news);
                receiver.close(Instant::now() + GOODBYE);
                return Ok(Some(()));
            }
            // What is under way has limits of its own.
            Some(StreamEvent::Began(_)) => until += Duration::from_secs(1 << 30),
            Some(StreamEvent::Cut(..)) => until = Instant::now() + GATHER,
            _ => {}
        }
        let said = place.get("key").unwrap_or_default();
        let is_this = said["run"] == run.name.as_str();
        let why = match said["over"].as_str() {
            Some(why) if is_this && began.elapsed() > OVER => {
                Failure::new(format!("task 0: {why}"))
            }
            _ if Instant::now() > until => {
                let text = "task 0 is gone, or sends nothing";
                Failure::new(text).ends(End::Unreachable)
            }
            _ if said["run"].is_string() && !is_this => {
                receiver.close(Instant::now());
                return Ok(None);
            }
            _ => continue,
        };
        receiver.close(Instant::now());
        return Err(why);
    }
}

/// What task 0 has of task 1 when it is to measure.
#[cfg(feature = "bench")]
pub(crate) struct Meeting {
    place: MeetingPlace,
    task: Task,
    run: String,
    listening: Vec<PeerAddr>,
}

#[cfg(feature = "bench")]
impl Meeting {
    /// Waits for the other one, which gets this key for one time.
    pub(crate) fn call(shared: &Path, task: &Task, key: &[u8]) -> Result<Self, Failure> {
        task.is_one_of_two()?;
        let place = MeetingPlace::open(shared, task)?;
        let run = to_hex(&far::random_bytes(16)?);
        let said = json!({
            "run": run,
            "key": to_hex(key),
            "devices": NetworkDevice::all_to_json(&NetworkDevice::all()),
        });
        place.put("key", &said)?;
        match gather(&place, task, &run) {
            Ok(peers) => Ok(Self {
                place,
                task: task.clone(),
                run,
                listening: peers.into_iter().flat_map(|peer| peer.to.0).collect(),
            }),
            Err(failure) => {
                leave(&place, task, &run, false);
                Err(failure)
            }
        }
    }

    /// Where the other one listens.
    pub(crate) fn listening(&self) -> &[PeerAddr] {
        &self.listening
    }

    /// Nothing is left of it afterwards.
    pub(crate) fn leave(self, has_succeeded: bool) {
        if !has_succeeded {
            let said = json!({ "run": self.run, "key": "", "over": "it failed" });
            let _ = self.place.put("key", &said);
        }
        leave(&self.place, &self.task, &self.run, true);
    }
}

/// Task 1, when it is to be measured against: `open` listens with a key, at this address, and says
/// where; what it returns serves one client, unless it is asked to end.
#[cfg(feature = "bench")]
pub(crate) fn serve<S>(
    shared: &Path,
    task: &Task,
    mut open: impl FnMut(&[u8], IpAddr) -> Result<(Vec<String>, S), Failure>,
) -> Result<(), Failure>
where
    S: FnOnce(&dyn Fn() -> Option<End>) -> Result<(), Failure>,
{
    use std::cell::Cell;

    task.is_one_of_two()?;
    let place = MeetingPlace::open(shared, task)?;
    let file = task_file(task.number);
    let until = Instant::now() + GATHER;
    let mut last = String::new();
    loop {
        let run = next_run(&place, &last, until)?;
        let (listening, serve) = match open(&run.key, far::way_out(&run.devices)) {
            Ok(opened) => opened,
            Err(failure) => {
                let (text, exit) = (failure.to_string(), failure.end() as u64);
                let said = json!({ "run": run.name, "failed": text, "exit": exit });
                place.put(&file, &said)?;
                return Err(failure);
            }
        };
        place.put(&file, &json!({ "run": run.name, "listening": listening }))?;
        let (looked, is_other, is_over) = (
            Cell::new(Instant::now()),
            Cell::new(false),
            Cell::new(false),
        );
        let asked = || {
            if let Some(end) = interrupt::asked() {
                return Some(end);
            }
            if looked.get().elapsed() < LOOK {
                return None;
            }
            looked.set(Instant::now());
            let said = place.get("key").unwrap_or_default();
            let is_this = said["run"] == run.name.as_str();
            is_other.set(said["run"].is_string() && !is_this);
            is_over.set(is_this && said["over"].is_string());
            (is_other.get() || is_over.get()).then_some(End::Interrupted)
        };
        let served = serve(&asked);
        // Another run has come in its place: then this one was of an earlier job.
        if is_other.get() && Instant::now() < until {
            last = run.name;
            continue;
        }
        let _ = fs::remove_file(place.0.join(file));
        return match served {
            Err(_) if is_over.get() => Err(Failure::new("task 0: it failed")),
            served => served,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(all: &[(&str, &str)]) -> Result<Task, Failure> {
        Task::of(|name| {
            let found = all.iter().find(|(it, _)| *it == name);
            found.map(|(_, text)| (*text).to_owned())
        })
    }

    #[test]
    fn a_task_is_what_slurm_says() {
        let all = [
            ("SLURM_PROCID", "1"),
            ("SLURM_NTASKS", "3"),
            ("SLURM_JOB_ID", "77"),
            ("SLURM_STEP_ID", "4"),
        ];
        let found = task(&all).expect("all is there");
        assert_eq!((found.number, found.count), (1, 3));
        assert_eq!(found.name, "fabricast-77.4.0");
        assert!(!found.is_sender());
        for lacking in 0..all.len() {
            let mut some = all.to_vec();
            some.remove(lacking);
            assert_eq!(task(&some).expect_err("refused").end(), End::Usage);
            some = all.to_vec();
            some[lacking].1 = "../x";
            assert_eq!(task(&some).expect_err("refused").end(), End::Usage);
        }
        let mut alone = all;
        (alone[0].1, alone[1].1) = ("0", "1");
        assert!(task(&alone).is_err());
    }

    #[test]
    fn a_directory_that_others_may_look_into_is_refused() {
        use std::os::unix::fs::PermissionsExt;

        let shared = tempfile::tempdir().expect("room");
        let task = Task {
            number: 0,
            count: 2,
            name: "fabricast-1.0.0".to_owned(),
        };
        let place = MeetingPlace::open(shared.path(), &task).expect("it is made");
        place.put("key", &json!({ "run": "a" })).expect("room");
        let about = fs::metadata(place.0.join("key")).expect("it is there");
        assert_eq!(about.mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(&place.0).expect("it is").mode() & 0o777, 0o700);
        let again = MeetingPlace::open(shared.path(), &task).expect("it is this user's");
        assert_eq!(again.get("key").expect("it is there")["run"], "a");
        fs::set_permissions(&place.0, fs::Permissions::from_mode(0o755)).expect("ours");
        assert!(MeetingPlace::open(shared.path(), &task).is_err());
        place.remove();
        std::os::unix::fs::symlink("/", shared.path().join(&task.name)).expect("room");
        assert!(MeetingPlace::open(shared.path(), &task).is_err());
    }
}
