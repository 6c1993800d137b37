//! `Node`: what an end says of its machine, and what differs between two of them.

use std::fs;
use std::net::IpAddr;

use serde_json::{Value, json};

use crate::host;

/// What one end says of itself.
#[derive(Clone, Debug)]
pub struct Node {
    /// As it is written into a record: see `benches/README.md`.
    pub value: Value,
}

/// Names of what differs between machines, and how a note calls it.
const COMPARED: [(&str, &str); 6] = [
    ("fabricast", "fabricast"),
    ("libfabric", "libfabric"),
    ("kernel", "kernel"),
    ("cpu", "processor"),
    ("congestion", "TCP's congestion control"),
    ("mtu", "MTU"),
];

fn first_line(path: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.lines().next()?.trim().to_owned())
}

/// The name of the processor, as the kernel has it; else the architecture.
fn cpu() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    name.map_or_else(
        || std::env::consts::ARCH.to_owned(),
        |(_, name)| name.trim().to_owned(),
    )
}

/// Of the libfabric that is loaded here, or why there is none.
fn libfabric() -> String {
    match libfabric_sys::Library::load() {
        Ok(library) => {
            let version = library.version();
            format!("{}.{}", version >> 16, version & 0xffff)
        }
        Err(error) => error.to_string(),
    }
}

impl Node {
    /// Of this process, whose connection has this address.
    pub fn of_this(role: &str, ip: IpAddr) -> Self {
        let system = rustix::system::uname();
        let device = host::device_of(ip);
        let mtu = device.as_ref().and_then(|name| {
            let text = first_line(&format!("/sys/class/net/{name}/mtu"))?;
            text.parse::<u32>().ok()
        });
        let text = |text: &std::ffi::CStr| text.to_string_lossy().into_owned();
        Self {
            value: json!({
                "role": role,
                "host": text(system.nodename()),
                "fabricast": env!("CARGO_PKG_VERSION"),
                "libfabric": libfabric(),
                "kernel": text(system.release()),
                "cpu": cpu(),
                "cores": host::cores_of_machine().len(),
                "usable_cores": host::cores(),
                "pinned": host::pinned(),
                "congestion": host::congestion(),
                "device": device,
                "mtu": mtu,
                "address": ip.to_string(),
                "clock": clock(),
            }),
        }
    }

    /// Of what another end said; `None`: that is no object.
    pub fn of_text(text: &str) -> Option<Self> {
        let value: Value = serde_json::from_str(text).ok()?;
        value.is_object().then_some(Self { value })
    }

    /// Whether both read one monotonic clock.
    pub fn shares_clock_with(&self, other: &Self) -> bool {
        let clock = |node: &Self| node.value["clock"].as_str().map(str::to_owned);
        clock(self).is_some_and(|own| !own.is_empty() && clock(other) == Some(own))
    }

    /// Whether they are processes of one machine.
    pub fn shares_machine_with(&self, other: &Self) -> bool {
        self.shares_clock_with(other) && self.value["host"] == other.value["host"]
    }

    /// A sentence for each thing that differs.
    pub fn differences(&self, other: &Self) -> Vec<String> {
        let shown = |value: &Value| match value {
            Value::String(text) => text.clone(),
            value => value.to_string(),
        };
        let differing = COMPARED
            .iter()
            .filter(|(key, _)| self.value[key] != other.value[key]);
        let note = |(key, name): &(&str, &str)| {
            format!(
                "the ends differ: {name} {} here, {} there",
                shown(&self.value[key]),
                shown(&other.value[key])
            )
        };
        differing.map(note).collect()
    }
}

/// What names the monotonic clock that this process reads: that of a start of the kernel, shifted
/// as its time namespace says.
fn clock() -> String {
    let boot = first_line("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let shifts = fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default();
    let words: Vec<_> = shifts.split_whitespace().collect();
    match boot.is_empty() {
        true => boot,
        false => format!("{boot} {}", words.join(" ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_says_what_it_is_and_what_differs() {
        let ip = "127.0.0.1".parse().expect("an address");
        let node = Node::of_this("client", ip);
        assert_eq!(node.value["device"], "lo");
        assert!(node.value["mtu"].as_u64().is_some_and(|mtu| mtu >= 576));
        assert!(node.value["cores"].as_u64().is_some_and(|cores| cores > 0));
        let mut other = Node::of_text(&node.value.to_string()).expect("an object");
        assert!(node.differences(&other).is_empty());
        assert!(node.shares_machine_with(&other));
        other.value["fabricast"] = "9.9.9".into();
        other.value["clock"] = "another".into();
        let notes = node.differences(&other);
        assert_eq!(notes.len(), 1);
        assert!(notes[0].contains("fabricast") && notes[0].contains("9.9.9"));
        assert!(!node.shares_clock_with(&other));
        for text in ["", "7", "[1]", "{"] {
            assert!(Node::of_text(text).is_none(), "{text}");
        }
        assert!(
            !Node::of_text("{}")
                .expect("an object")
                .shares_clock_with(&node)
        );
    }
}
