//! `Facts`: on what, with what and how it was measured.

use serde_json::{Map, Value};

use super::case::{TEXT_MAX, text};

const NODES_MAX: usize = 64;
const NOTES_MAX: usize = 1000;
const KEYS_MAX: usize = 100;

/// What differs from run to run, and says nothing of the figures.
const OF_THE_RUN: [&str; 5] = ["at", "command", "address", "clock", "kind"];

/// What holds for all cases of a file.
#[derive(Debug, Clone, Default)]
pub(super) struct Facts {
    /// When it was measured.
    pub(super) at: Option<String>,
    pub(super) command: Option<String>,
    /// Name and value, in the order of the file.
    pub(super) common: Vec<(String, String)>,
    /// The same of each machine, by its role.
    pub(super) nodes: Vec<(String, Vec<(String, String)>)>,
    pub(super) notes: Vec<String>,
}

impl Facts {
    /// The facts from their line.
    pub(super) fn of(line: &Map<String, Value>) -> Result<Self, String> {
        match line.get("format") {
            None => {}
            Some(format) if format.as_u64() == Some(1) => {}
            Some(format) => {
                return Err(format!(
                    "its format is {format}, and this fabricast reads format 1: take the fabricast \
                     that has written it, or a later one"
                ));
            }
        }
        let mut facts = Self {
            at: text(line, "at")?,
            command: text(line, "command")?,
            common: named(line)?,
            ..Self::default()
        };
        for (number, node) in list(line, "nodes", NODES_MAX)?.iter().enumerate() {
            let node = node.as_object().ok_or("\"nodes\": each is an object")?;
            let role = text(node, "role")?.unwrap_or_else(|| format!("machine {}", number + 1));
            let mut about = named(node)?;
            about.retain(|(name, _)| name != "role");
            facts.nodes.push((role, about));
        }
        for note in list(line, "notes", NOTES_MAX)? {
            let note = note
                .as_str()
                .filter(|note| note.chars().count() <= TEXT_MAX);
            let note = note.ok_or("\"notes\": each is a text of at most 1000 letters")?;
            facts.notes.push(note.to_owned());
        }
        Ok(facts)
    }

    /// Facts of a file whose cases have them, as the bench of the sources prints them.
    pub(super) fn of_case(line: &Map<String, Value>) -> Result<Self, String> {
        let mut facts = Self::default();
        for key in ["provider", "libfabric", "congestion", "shape"] {
            facts
                .common
                .extend(text(line, key)?.map(|value| (key.to_owned(), value)));
        }
        Ok(facts)
    }

    /// What is not the same, in sentences.
    pub(super) fn differences(&self, after: &Self, names: [&str; 2]) -> Vec<String> {
        let mut sentences = differing("", &self.common, &after.common, names);
        let none = Vec::new();
        let mut roles: Vec<_> = self
            .nodes
            .iter()
            .chain(&after.nodes)
            .map(|(role, _)| role)
            .collect();
        roles.dedup();
        let mut seen = Vec::new();
        for role in roles {
            if seen.contains(&role) {
                continue;
            }
            seen.push(role);
            let of = |facts: &'_ Self| {
                let found = facts.nodes.iter().find(|(other, _)| other == role);
                found.map_or_else(|| none.clone(), |(_, about)| about.clone())
            };
            let prefix = format!("{role}: ");
            sentences.extend(differing(&prefix, &of(self), &of(after), names));
        }
        sentences
    }

    /// Whether both are of the same machines, as far as is known.
    pub(super) fn same_machines(&self, after: &Self) -> bool {
        let machine = |facts: &Self| -> Vec<String> {
            let about = facts.nodes.iter().flat_map(|(_, about)| about);
            let about = about.filter(|(name, _)| matches!(name.as_str(), "host" | "cpu" | "cores"));
            about
                .map(|(name, value)| format!("{name}={value}"))
                .collect()
        };
        machine(self) == machine(after)
    }
}

fn differing(
    prefix: &str,
    before: &[(String, String)],
    after: &[(String, String)],
    names: [&str; 2],
) -> Vec<String> {
    let value = |all: &[(String, String)], name: &str| {
        let found = all.iter().find(|(other, _)| other == name);
        found.map_or_else(|| "not said".to_owned(), |(_, value)| value.clone())
    };
    let only_after = after
        .iter()
        .filter(|(name, _)| !before.iter().any(|(it, _)| it == name));
    let all = before.iter().chain(only_after).map(|(name, _)| name);
    let differs = all.filter(|name| value(before, name) != value(after, name));
    let sentence = |name: &String| {
        let [a, b] = names;
        format!(
            "{prefix}{name} is {} in {a}, {} in {b}",
            value(before, name),
            value(after, name)
        )
    };
    differs.map(sentence).collect()
}

/// Names and values that are no lists of objects.
fn named(line: &Map<String, Value>) -> Result<Vec<(String, String)>, String> {
    if line.len() > KEYS_MAX {
        return Err(format!("it has {} keys, more than {KEYS_MAX}", line.len()));
    }
    let mut named = Vec::new();
    for (key, value) in line {
        let value = match value {
            _ if OF_THE_RUN.contains(&key.as_str()) || key == "format" || key == "notes" => {
                continue;
            }
            Value::Null | Value::Object(_) => continue,
            Value::String(text) => text.clone(),
            Value::Array(list) if list.iter().any(|it| it.is_object() || it.is_array()) => continue,
            Value::Bool(is_so) => if *is_so { "yes" } else { "no" }.to_owned(),
            Value::Array(list) => {
                let texts = list
                    .iter()
                    .map(|it| it.as_str().map_or_else(|| it.to_string(), str::to_owned));
                texts.collect::<Vec<_>>().join(", ")
            }
            other => other.to_string(),
        };
        if value.chars().count() > TEXT_MAX {
            return Err(format!("\"{key}\" is longer than {TEXT_MAX} letters"));
        }
        named.push((key.clone(), value));
    }
    Ok(named)
}

fn list<'a>(line: &'a Map<String, Value>, key: &str, most: usize) -> Result<&'a [Value], String> {
    match line.get(key) {
        None | Some(Value::Null) => Ok(&[]),
        Some(Value::Array(list)) if list.len() <= most => Ok(list),
        Some(Value::Array(list)) => Err(format!(
            "\"{key}\" has {} entries, more than {most}",
            list.len()
        )),
        Some(_) => Err(format!("\"{key}\" is no list")),
    }
}
