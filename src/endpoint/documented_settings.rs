//! Compares the tables of settings in the documentation of a config with what the code does: defaults and ranges. For tests.

use std::time::Duration;

use crate::Error;

/// What a setting is set to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Value {
    Count(u64),
    /// `None`: for ever.
    Time(Option<Duration>),
}

impl Value {
    pub(crate) fn count(self) -> u32 {
        let Self::Count(n) = self else {
            panic!("{self:?} is no count");
        };
        u32::try_from(n).expect("a count that a setting takes")
    }

    pub(crate) fn bytes(self) -> usize {
        self.count() as usize
    }

    pub(crate) fn limit(self) -> Option<Duration> {
        let Self::Time(time) = self else {
            panic!("{self:?} is no time");
        };
        time
    }

    pub(crate) fn time(self) -> Duration {
        self.limit().expect("a time")
    }

    /// The value next to it: one more, or one less.
    fn next(self, up: bool) -> Option<Self> {
        let tick = Duration::from_nanos(1);
        match (self, up) {
            (Self::Count(n), true) => Some(Self::Count(n + 1)),
            (Self::Count(n), false) => n.checked_sub(1).map(Self::Count),
            (Self::Time(Some(time)), true) => Some(Self::Time(Some(time + tick))),
            (Self::Time(Some(time)), false) => Some(Self::Time(Some(time - tick))),
            (Self::Time(None), _) => None,
        }
    }
}

impl From<u32> for Value {
    fn from(n: u32) -> Self {
        Self::Count(n.into())
    }
}

impl From<usize> for Value {
    fn from(n: usize) -> Self {
        Self::Count(n as u64)
    }
}

impl From<Duration> for Value {
    fn from(time: Duration) -> Self {
        Self::Time(Some(time))
    }
}

impl From<Option<Duration>> for Value {
    fn from(time: Option<Duration>) -> Self {
        Self::Time(time)
    }
}

/// One row of a table: how to read the setting, and how to set it, with whatever else has to give way to it.
pub(crate) struct Setting<C> {
    pub(crate) name: &'static str,
    pub(crate) get: fn(&C) -> Value,
    pub(crate) set: fn(C, Value) -> C,
}

/// `5 s`, `65,536`, `1 GiB of…`, `none`: what a cell begins with.
fn parse(cell: &str) -> Option<Value> {
    if cell.starts_with("none") {
        return Some(Value::Time(None));
    }
    let end = cell.find(|c: char| !c.is_ascii_digit() && c != ',');
    let (digits, rest) = cell.split_at(end.unwrap_or(cell.len()));
    let n: u64 = digits.replace(',', "").parse().ok()?;
    let unit = rest.trim_start().split([' ', ',', ';']).next();
    let time = |time| Some(Value::Time(Some(time)));
    match unit.unwrap_or_default() {
        "µs" => time(Duration::from_micros(n)),
        "ms" => time(Duration::from_millis(n)),
        "s" => time(Duration::from_secs(n)),
        "h" => time(Duration::from_secs(3600 * n)),
        "GiB" => Some(Value::Count(n << 30)),
        _ => Some(Value::Count(n)),
    }
}

/// Setting, default and range of each row of the table in front of a struct.
fn table<'a>(source: &'a str, config: &str) -> Vec<[&'a str; 3]> {
    let (front, _) = source
        .split_once(&format!("pub struct {config} {{"))
        .expect("the struct is there");
    let (_, rows) = front
        .rsplit_once("/// | setting |")
        .expect("it has a table");
    let rows: Vec<_> = rows
        .lines()
        .skip(2)
        .take_while(|line| line.starts_with("/// |"))
        .map(|line| {
            let cells: Vec<_> = line.split('|').map(str::trim).collect();
            let [_, name, _unit, default, range, _] = cells[..] else {
                panic!("{line}");
            };
            [name.trim_matches('`'), default, range]
        })
        .collect();
    assert!(rows.len() > 5, "{config}: {rows:?}");
    rows
}

/// Every row whose range is one of numbers has a setting here, whose default is the one that stands there, and whose range ends where it
/// says: the ends are taken, and what is next to them is refused with the setting's name.
pub(crate) fn compare<C: Default>(
    source: &str,
    config: &str,
    settings: &[Setting<C>],
    check: fn(&C) -> Result<(), Error>,
) {
    check(&C::default()).expect("the defaults are in range");
    let rows = table(source, config);
    for [name, default, range] in &rows {
        let Some((low, high)) = range.split_once(" to ") else {
            continue;
        };
        let setting = settings.iter().find(|setting| setting.name == *name);
        let Some(setting) = setting else {
            panic!("{config}: nothing here knows the setting {name}");
        };
        let said = parse(default).filter(|_| !default.contains('×'));
        if let Some(said) = said {
            assert_eq!((setting.get)(&C::default()), said, "{config}: {name}");
        }
        let with = |value| check(&(setting.set)(C::default(), value));
        let ends = [(low, false), (high, true)];
        for (end, up) in ends {
            let end = match parse(end) {
                Some(end) if !low.contains('×') || up => end,
                _ => continue,
            };
            with(end).unwrap_or_else(|error| panic!("{config}: {end:?} is in {range}: {error}"));
            if let Some(beyond) = end.next(up) {
                let refused = with(beyond).expect_err(name).to_string();
                assert!(refused.contains(name), "{config}: {name}: {refused}");
            }
        }
        if range.contains("or none") {
            with(Value::Time(None)).unwrap_or_else(|error| panic!("{config}: {name}: {error}"));
        }
    }
    for setting in settings {
        let row = rows.iter().any(|[name, ..]| *name == setting.name);
        assert!(row, "{config}: {} is in no table", setting.name);
    }
}
