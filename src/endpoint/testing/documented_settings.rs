//! Compares the tables of settings in the documentation of a config with what the code does:
//! defaults and ranges. For tests.

use std::fmt::Display;
use std::time::Duration;

/// What a setting is set to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Value {
    Count(u64),
    /// `None`: for ever.
    Time(Option<Duration>),
}

impl Value {
    pub(crate) fn number(self) -> u64 {
        let Self::Count(n) = self else {
            panic!("{self:?} is no count");
        };
        n
    }

    pub(crate) fn count(self) -> u32 {
        u32::try_from(self.number()).expect("a count that a setting takes")
    }

    pub(crate) fn bytes(self) -> usize {
        usize::try_from(self.number()).expect("bytes of an address space")
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
            (Self::Count(n), true) => n.checked_add(1).map(Self::Count),
            (Self::Count(n), false) => n.checked_sub(1).map(Self::Count),
            (Self::Time(Some(time)), true) => Some(Self::Time(Some(time + tick))),
            (Self::Time(Some(time)), false) => Some(Self::Time(Some(time - tick))),
            (Self::Time(None), _) => None,
        }
    }
}

impl From<u64> for Value {
    fn from(n: u64) -> Self {
        Self::Count(n)
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

/// One row of a table: how to read the setting, and how to set it, with whatever else has to give
/// way to it.
pub(crate) struct Setting<C> {
    pub(crate) name: &'static str,
    pub(crate) get: fn(&C) -> Value,
    pub(crate) set: fn(C, Value) -> C,
}

/// A setting that is no number: its name, and what sets it to something.
pub(crate) type Other<C> = (&'static str, fn(C) -> C);

/// `5 s`, `65,536`, `1 GiB of…`, `2^36`, `none`: what a cell begins with.
fn parse(cell: &str) -> Option<Value> {
    if cell.starts_with("none") {
        return Some(Value::Time(None));
    }
    if let Some(power) = cell.strip_prefix("2^") {
        return Some(Value::Count(1 << power.parse::<u32>().ok()?));
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
        "days" => time(Duration::from_secs(24 * 3600 * n)),
        "KiB" => Some(Value::Count(n << 10)),
        "MiB" => Some(Value::Count(n << 20)),
        "GiB" => Some(Value::Count(n << 30)),
        _ => Some(Value::Count(n)),
    }
}

/// What stands between the first two backticks of a cell, or all of it.
fn name_in(cell: &str) -> &str {
    cell.split('`').nth(1).unwrap_or(cell)
}

/// The cells of each row of the table in front of a struct.
fn table<'a>(source: &'a str, config: &str) -> Vec<Vec<&'a str>> {
    let (front, _) = source
        .split_once(&format!("pub struct {config} {{"))
        .expect("the struct is there");
    let (_, rows) = front
        .rsplit_once("/// | setting |")
        .expect("it has a table");
    let cells = |line: &'a str| line.split('|').map(str::trim).collect();
    let rows: Vec<_> = rows
        .lines()
        .skip(2)
        .take_while(|line| line.starts_with("/// |"))
        .map(cells)
        .collect();
    assert!(!rows.is_empty(), "{config} has a table without a row");
    rows
}

/// Setting, default and range: the first cell of a row, and its last two.
fn row<'a>(cells: &[&'a str]) -> [&'a str; 3] {
    let [_, name, _, .., default, range, _] = cells[..] else {
        panic!("{cells:?}");
    };
    [name_in(name), default, range]
}

/// Whether the second cell, `send, publish`, `all` or `all but publish`, names an endpoint.
fn names(of: &str, whose: &str) -> bool {
    let listed = |list: &str| list.split(", ").any(|name| name == whose);
    match of.strip_prefix("all but ") {
        Some(others) => !listed(others),
        None => of == "all" || listed(of),
    }
}

/// The two ends of a range; the second is nothing that can be parsed where there is none.
fn ends(range: &str) -> Option<(&str, &str)> {
    let open = range.strip_suffix(" and more").map(|low| (low, ""));
    open.or_else(|| range.split_once(" to "))
}

/// [`compare_with`] for what has a default.
pub(crate) fn compare<C: Default, E: Display>(
    source: &str,
    config: &str,
    settings: &[Setting<C>],
    check: fn(&C) -> Result<(), E>,
) {
    compare_with(source, config, settings, C::default, check);
}

/// Every row whose range is one of numbers has a setting here, whose default is the one that stands
/// there, and whose range ends where it says: the ends are taken, and what is next to them is
/// refused with the setting's name.
pub(crate) fn compare_with<C, E: Display>(
    source: &str,
    config: &str,
    settings: &[Setting<C>],
    default_of: fn() -> C,
    check: fn(&C) -> Result<(), E>,
) {
    let table = table(source, config);
    let rows: Vec<_> = table.iter().map(|cells| row(cells)).collect();
    compare_rows(config, &rows, settings, default_of, check);
    for setting in settings {
        let row = rows.iter().any(|[name, ..]| *name == setting.name);
        assert!(row, "{config}: {} is in no table", setting.name);
    }
}

/// The same with the rows of a group's table whose second cell names this endpoint. Each setting
/// that has no row of its own there is refused, with its name.
pub(crate) fn compare_group<C, E: Display>(
    source: &str,
    (config, whose): (&str, &str),
    settings: &[Setting<C>],
    others: &[Other<C>],
    default_of: impl Fn() -> C,
    check: impl Fn(&C) -> Result<(), E>,
) {
    let table = table(source, config);
    let is_its = |cells: &&Vec<&str>| names(cells[2], whose);
    let its: Vec<_> = table
        .iter()
        .filter(is_its)
        .map(|cells| row(cells))
        .collect();
    compare_rows(
        &format!("{config} of {whose}"),
        &its,
        settings,
        &default_of,
        &check,
    );
    let rows: Vec<_> = table.iter().map(|cells| row(cells)).collect();
    for [name, ..] in &rows {
        // Its own row, if it has one.
        let row = its.iter().chain(&rows).find(|[of, ..]| of == name);
        let [_, _, range] = row.expect("a row");
        let with = match settings.iter().find(|setting| setting.name == *name) {
            Some(setting) => {
                let (low, high) = ends(range).expect("a range of numbers");
                let value = parse(low).or_else(|| parse(high)).expect("a number");
                (setting.set)(default_of(), value)
            }
            None => {
                let other = others.iter().find(|(other, _)| other == name);
                let Some((_, set)) = other else {
                    panic!("{config}: nothing here knows the setting {name}");
                };
                set(default_of())
            }
        };
        let has = its.iter().any(|[of, ..]| of == name);
        match check(&with).map_err(|error| error.to_string()) {
            Ok(()) => assert!(
                has,
                "{config}: {name} has no effect at {whose}, and is taken"
            ),
            Err(error) if has => panic!("{config}: {name} at {whose}: {error}"),
            Err(error) => {
                assert!(error.starts_with(&format!("setting {name} = ")), "{error}");
                assert!(error.contains("is not a setting of a "), "{error}");
            }
        }
    }
    let listed = |name: &str| rows.iter().any(|[of, ..]| *of == name);
    let known = settings.iter().map(|setting| setting.name);
    for name in known.chain(others.iter().map(|(name, _)| *name)) {
        assert!(listed(name), "{config}: {name} is in no table");
    }
}

fn compare_rows<C, E: Display>(
    config: &str,
    rows: &[[&str; 3]],
    settings: &[Setting<C>],
    default_of: impl Fn() -> C,
    check: impl Fn(&C) -> Result<(), E>,
) {
    let check = |config: &C| check(config).map_err(|error| error.to_string());
    assert_eq!(check(&default_of()), Ok(()), "the defaults are in range");
    for [name, default, range] in rows {
        let Some((low, high)) = ends(range) else {
            continue;
        };
        let setting = settings.iter().find(|setting| setting.name == *name);
        let Some(setting) = setting else {
            panic!("{config}: nothing here knows the setting {name}");
        };
        let said = parse(default).filter(|_| !default.contains('×'));
        if let Some(said) = said {
            assert_eq!((setting.get)(&default_of()), said, "{config}: {name}");
        }
        let with = |value| check(&(setting.set)(default_of(), value));
        let ends = [(low, false), (high, true)];
        for (end, up) in ends {
            let end = match parse(end) {
                Some(end) if !low.contains('×') || up => end,
                _ => continue,
            };
            with(end).unwrap_or_else(|error| panic!("{config}: {end:?} is in {range}: {error}"));
            if let Some(beyond) = end.next(up) {
                let refused = with(beyond).expect_err(name);
                assert!(refused.contains(name), "{config}: {name}: {refused}");
            }
        }
        if range.contains("or none") {
            with(Value::Time(None)).unwrap_or_else(|error| panic!("{config}: {name}: {error}"));
        }
    }
}
