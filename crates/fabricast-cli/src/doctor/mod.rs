//! `fabricast doctor`: what this machine lacks, one line each, with what mends it.
//!
//! What can be read is read from a [`Machine`], which a test makes of files of its own. Providers
//! are tried by a transfer over loopback, each in a process of its own, since a provider may crash
//! or hang.

mod checks;
mod child;
mod machine;
mod start;
mod trial;

use std::fmt;
use std::time::Duration;

use clap::Args;
use fabricast::fabric::PROVIDERS;
use serde_json::json;

use crate::failure::Failure;
use crate::say::say;
use machine::Machine;

/// How long a provider may take for its transfer.
const TRIAL: Duration = Duration::from_secs(30);

#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Print one JSON object a line: check, state, what, todo
    #[arg(long)]
    json: bool,
    /// Start no libfabric and try no provider: only look
    #[arg(long)]
    no_trial: bool,
    /// Start libfabric, and say how long that took
    #[arg(long, hide = true)]
    start: bool,
    /// Transfer something over this provider
    #[arg(long, hide = true, value_name = "PROVIDER")]
    trial: Option<String>,
    /// To this address, where a process like this one receives
    #[arg(long, hide = true, value_name = "ADDR", requires = "trial")]
    trial_to: Option<String>,
}

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum State {
    /// As it should be.
    Ok,
    /// Worth knowing.
    Note,
    /// Something is slower than it could be, or fails for some.
    Warn,
    /// Something does not work.
    Fail,
}

impl State {
    fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Warn => "warn",
            Self::Fail => "FAIL",
        }
    }
}

/// What a check found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Finding {
    check: &'static str,
    state: State,
    what: String,
    /// The command that mends it, or what else to do; empty: nothing.
    todo: String,
}

impl Finding {
    fn new(check: &'static str, state: State, what: impl Into<String>) -> Self {
        Self {
            check,
            state,
            what: what.into(),
            todo: String::new(),
        }
    }

    fn todo(mut self, todo: impl Into<String>) -> Self {
        self.todo = todo.into();
        self
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            check,
            state,
            what,
            todo,
        } = self;
        write!(f, "{:4} {check}: {what}", state.word())?;
        match todo.as_str() {
            "" => Ok(()),
            todo => write!(f, " => {todo}"),
        }
    }
}

pub(crate) fn run(args: &DoctorArgs) -> Result<(), Failure> {
    if let Some(provider) = &args.trial {
        return trial::run(provider, args.trial_to.as_deref());
    }
    if args.start {
        return start::run();
    }
    let mut worst = State::Ok;
    let mut tell = |finding: Finding| {
        worst = worst.max(finding.state);
        match args.json {
            true => say(json!({
                "check": finding.check,
                "state": finding.state.word().to_lowercase(),
                "what": finding.what,
                "todo": finding.todo,
            })),
            false => say(finding),
        }
    };
    let machine = Machine::this();
    checks::all(&machine).into_iter().for_each(&mut tell);
    let start = (!args.no_trial).then(|| start::of(TRIAL));
    // Without a library no provider is there.
    let has_started = start.as_ref().is_some_and(|it| it.state != State::Fail);
    start.into_iter().for_each(&mut tell);
    if has_started {
        let mut works = false;
        for row in PROVIDERS {
            if let Some(finding) = trial::of(row.name, TRIAL) {
                works |= finding.state == State::Ok;
                tell(finding);
            }
        }
        if !works {
            let what = "no provider moved anything over loopback";
            let todo = "install libfabric (Debian: apt install libfabric1), or name one with \
                        FABRICAST_LIBFABRIC";
            tell(Finding::new("providers", State::Fail, what).todo(todo));
        }
    }
    match worst {
        State::Fail => Err(Failure::new("something fails, as the lines above say").told()),
        _ => Ok(()),
    }
}
