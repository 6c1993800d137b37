//! `NetworkDevice`: which networks this machine is in, by which devices and how fast; and by which
//! of them it meets another machine that says the same of itself.

use std::cmp::Reverse;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use super::args::CommonArgs;
use super::local_address;

/// Devices that are told, at most.
const DEVICES_MAX: usize = 64;

/// Rails that are chosen, at most.
const RAILS_MAX: usize = 8;

/// How long an address of a network that both machines are in may take to answer.
const ANSWER: Duration = Duration::from_millis(250);

/// Nobody listens there (discard, RFC 863): a machine that is there says so at once.
const PORT: u16 = 9;

/// A device that is up, with an IPv4 network; loopback is none. Virtual ones (bridges, pairs of
/// containers, tunnels) have no speeds here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NetworkDevice {
    speeds: Speeds,
    network: Network4,
    /// This machine's, or its owner's.
    ip: Ipv4Addr,
}

/// In Mb/s; `None`: it is not known, or there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Speeds {
    /// Of what the kernel sends.
    kernel: Option<u64>,
    /// Of the RDMA port beside it.
    rdma: Option<u64>,
}

/// Which speed a provider's packets have.
type SpeedOf = fn(&Speeds) -> Option<u64>;

/// An address, of which a number of bits is the network's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Network4 {
    base: Ipv4Addr,
    mask: Ipv4Addr,
}

impl NetworkDevice {
    /// Those of this machine; of several in one network, the one that packets to it go by.
    pub(crate) fn all() -> Vec<Self> {
        let own = |network: &Network4| {
            let other = Ipv4Addr::from(u32::from(network.base) | 1);
            match local_address(SocketAddr::new(other.into(), PORT)) {
                Ok(IpAddr::V4(ip)) if network.contains(ip) => Some(ip),
                _ => None,
            }
        };
        Self::below(Path::new("/"), own)
    }

    /// The same of a machine whose `proc` and `sys` are below a directory.
    fn below(root: &Path, own: impl Fn(&Network4) -> Option<Ipv4Addr>) -> Vec<Self> {
        let routes = std::fs::read_to_string(root.join("proc/net/route")).unwrap_or_default();
        let mut found: Vec<Self> = Vec::new();
        for (name, network) in routes.lines().filter_map(directly_joined) {
            let device = DeviceFiles(root.join("sys/class/net").join(name));
            if found.len() < DEVICES_MAX
                && found.iter().all(|it| it.network != network)
                && device.is_up()
                && let Some(ip) = own(&network)
            {
                let speeds = device.speeds();
                found.push(Self {
                    speeds,
                    network,
                    ip,
                });
            }
        }
        found
    }

    pub(crate) fn all_to_json(all: &[Self]) -> Value {
        let one = |it: &Self| {
            json!({
                "mbps": it.speeds.kernel,
                "rdma_mbps": it.speeds.rdma,
                "ip": it.ip.to_string(),
                "mask": it.network.mask.to_string(),
            })
        };
        all.iter().map(one).collect()
    }

    /// Another machine's; what makes no sense is left out.
    pub(crate) fn all_from_json(value: &Value) -> Vec<Self> {
        let all = value.as_array().into_iter().flatten().take(DEVICES_MAX);
        let one = |value: &Value| {
            let ip = |key: &str| value[key].as_str()?.parse::<Ipv4Addr>().ok();
            let (ip, mask) = (ip("ip")?, ip("mask")?);
            let speeds = Speeds {
                kernel: value["mbps"].as_u64(),
                rdma: value["rdma_mbps"].as_u64(),
            };
            Some(Self {
                speeds,
                network: Network4::of(ip, mask),
                ip,
            })
        };
        all.filter_map(one).collect()
    }
}

impl Network4 {
    fn of(ip: Ipv4Addr, mask: Ipv4Addr) -> Self {
        let base = Ipv4Addr::from(u32::from(ip) & u32::from(mask));
        Self { base, mask }
    }

    fn contains(&self, ip: Ipv4Addr) -> bool {
        Self::of(ip, self.mask) == *self
    }
}

/// The device and the network of a line of the kernel's table, if no other machine is between.
fn directly_joined(line: &str) -> Option<(&str, Network4)> {
    const UP: u32 = 1;
    /// By another machine, to one machine only, or to nobody.
    const OTHERS: u32 = 0x2 | 0x4 | 0x200;
    let words: Vec<_> = line.split_whitespace().collect();
    let hex = |at: usize| u32::from_str_radix(words.get(at)?, 16).ok();
    // Bytes of an address are in the order that they have in memory.
    let ip = |at: usize| Some(Ipv4Addr::from(hex(at)?.to_ne_bytes()));
    let (base, flags, mask) = (ip(1)?, hex(3)?, ip(7)?);
    let is_one = flags & UP != 0 && flags & OTHERS == 0;
    let is_usual = !mask.is_unspecified() && !base.is_link_local() && !base.is_loopback();
    let name = words.first().filter(|_| is_one && is_usual)?;
    Some((name, Network4::of(base, mask)))
}

/// What the kernel says of a device.
struct DeviceFiles(PathBuf);

impl DeviceFiles {
    fn read(&self, file: impl AsRef<Path>) -> Option<String> {
        let text = std::fs::read_to_string(self.0.join(file)).ok()?;
        Some(text.trim().to_owned())
    }

    fn is_up(&self) -> bool {
        self.read("operstate").is_some_and(|state| state != "down")
    }

    fn speeds(&self) -> Speeds {
        // A bond has the speed of what it bonds.
        let is_real = self.0.join("device").exists() || self.0.join("bonding").exists();
        // What is not known is -1.
        let kernel = self.read("speed").and_then(|it| it.parse::<u64>().ok());
        Speeds {
            kernel: kernel.filter(|speed| *speed > 0 && is_real),
            rdma: self.rdma_speed(),
        }
    }

    /// Of the RDMA port that is beside it.
    fn rdma_speed(&self) -> Option<u64> {
        // Several ports of a card have a network device each.
        let port = self.read("dev_port").and_then(|it| it.parse::<u64>().ok());
        let port = port.unwrap_or(0) + 1;
        let cards = std::fs::read_dir(self.0.join("device/infiniband")).ok()?;
        let rate = cards.flatten().find_map(|card| {
            let ports = card.path().join("ports");
            let of = |port: u64| self.read(ports.join(port.to_string()).join("rate"));
            of(port).or_else(|| of(1))
        });
        // "100 Gb/sec (4X EDR)", "2.5 Gb/sec (1X SDR)".
        let gigabits: f64 = rate?.split(' ').next()?.parse().ok()?;
        Some((gigabits * 1000.0) as u64).filter(|speed| *speed > 0)
    }
}

/// The addresses of this machine that one with these devices is met at, if it has several devices
/// of one speed, the highest, in networks that this machine is in, too; none, if there is one way
/// alone. `usual` comes first, if it is one of them.
pub(crate) fn rails_to(
    common: &CommonArgs,
    peer: &[NetworkDevice],
    usual: Option<IpAddr>,
) -> Vec<IpAddr> {
    let row = fabricast::fabric::provider(&common.provider);
    let speed_of: SpeedOf = match row {
        _ if peer.len() < 2 => return Vec::new(),
        Some(row) if row.over_tcp => |speeds| speeds.kernel,
        Some(row) if row.name == "verbs" => |speeds| speeds.rdma,
        _ => return Vec::new(),
    };
    let pairs = choose(&NetworkDevice::all(), peer, speed_of);
    // Two networks of the same name may be two nevertheless.
    let answers: Vec<_> = std::thread::scope(|scope| {
        let asked = pairs.iter().map(|(_, far)| scope.spawn(|| answers(*far)));
        let asked: Vec<_> = asked.collect();
        let answer = asked.into_iter().map(|it| it.join().unwrap_or(false));
        answer.collect()
    });
    let there = pairs.iter().zip(answers).filter(|(_, answers)| *answers);
    let mut own: Vec<_> = there.map(|((own, _), _)| IpAddr::from(*own)).collect();
    own.sort_by_key(|ip| Some(*ip) != usual);
    if own.len() < 2 {
        own.clear();
    }
    own
}

/// The addresses of both machines in the networks that they share, by devices of one speed, the
/// highest; none, if there are not two of them.
fn choose(
    own: &[NetworkDevice],
    peer: &[NetworkDevice],
    speed_of: SpeedOf,
) -> Vec<(Ipv4Addr, Ipv4Addr)> {
    let shared = shared(own, peer).filter_map(|(own, far)| {
        let speed = speed_of(&own.speeds)?.min(speed_of(&far.speeds)?);
        Some((speed, own.ip, far.ip))
    });
    let shared: Vec<_> = shared.collect();
    let best = shared.iter().map(|(speed, ..)| *speed).max();
    let rails = shared.iter().filter(|(speed, ..)| Some(*speed) == best);
    let rails = rails.map(|(_, own, far)| (*own, *far)).take(RAILS_MAX);
    let rails: Vec<_> = rails.collect();
    match rails.len() {
        0 | 1 => Vec::new(),
        _ => rails,
    }
}

/// This machine's address in a network that one with these devices is in, too: of several, by the
/// fastest device.
pub(crate) fn shared_network(peer: &[NetworkDevice]) -> Option<IpAddr> {
    let own = NetworkDevice::all();
    let shared = shared(&own, peer).map(|(own, _)| own);
    // The first of those that are equal.
    let best = shared.min_by_key(|own| Reverse(own.speeds.kernel))?;
    Some(best.ip.into())
}

/// The devices of both machines that are in one network.
fn shared<'a>(
    own: &'a [NetworkDevice],
    peer: &'a [NetworkDevice],
) -> impl Iterator<Item = (&'a NetworkDevice, &'a NetworkDevice)> {
    own.iter().filter_map(|own| {
        let far = peer.iter().find(|far| far.network == own.network)?;
        (far.ip != own.ip).then_some((own, far))
    })
}

/// Whether a machine is there.
fn answers(ip: Ipv4Addr) -> bool {
    match TcpStream::connect_timeout(&SocketAddr::new(ip.into(), PORT), ANSWER) {
        Ok(_) => true,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionRefused,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(speed: u64, ip: &str) -> NetworkDevice {
        let ip: Ipv4Addr = ip.parse().expect("an address");
        let network = Network4::of(ip, Ipv4Addr::new(255, 255, 255, 0));
        let speeds = Speeds {
            kernel: Some(speed),
            rdma: None,
        };
        NetworkDevice {
            speeds,
            network,
            ip,
        }
    }

    fn without_speed(ip: &str) -> NetworkDevice {
        let mut device = device(0, ip);
        device.speeds.kernel = None;
        device
    }

    #[test]
    fn several_devices_of_the_highest_speed_in_shared_networks_are_rails() {
        let machine = |all: &[(u64, &str)]| -> Vec<_> {
            all.iter().map(|(speed, ip)| device(*speed, ip)).collect()
        };
        let fast = 100_000;
        let own = machine(&[(1000, "10.0.0.1"), (fast, "10.1.0.1"), (fast, "10.2.0.1")]);
        for (peer, rails) in [
            (
                &[(fast, "10.1.0.2"), (1000, "10.0.0.2"), (fast, "10.2.0.2")][..],
                &["10.1.0.1", "10.2.0.1"][..],
            ),
            // The slower end counts.
            (
                &[(25_000, "10.1.0.2"), (25_000, "10.2.0.2")],
                &["10.1.0.1", "10.2.0.1"],
            ),
            // One is the fastest: there is nothing to choose.
            (&[(fast, "10.1.0.2"), (1000, "10.0.0.2")], &[]),
            (&[(fast, "10.1.0.2"), (25_000, "10.2.0.2")], &[]),
            (&[(fast, "10.1.0.2"), (fast, "10.9.0.2")], &[]),
            // This machine itself.
            (&[(fast, "10.1.0.1"), (fast, "10.2.0.1")], &[]),
            (&[], &[]),
        ] {
            let pairs = choose(&own, &machine(peer), |speeds| speeds.kernel);
            let found: Vec<_> = pairs.iter().map(|(own, _)| own.to_string()).collect();
            assert_eq!(found, rails, "{peer:?}");
            assert!(choose(&own, &machine(peer), |speeds| speeds.rdma).is_empty());
        }
    }

    #[test]
    fn what_is_told_is_understood_and_nonsense_left_out() {
        let all = [device(1000, "10.0.0.1"), device(100_000, "10.1.0.1")];
        let mut told = NetworkDevice::all_to_json(&all);
        assert_eq!(NetworkDevice::all_from_json(&told), all);
        told[0]["ip"] = "here".into();
        assert_eq!(NetworkDevice::all_from_json(&told), all[1..]);
        assert!(NetworkDevice::all_from_json(&Value::Null).is_empty());
        let many: Value = std::iter::repeat_n(told[1].clone(), 1000).collect();
        assert_eq!(NetworkDevice::all_from_json(&many).len(), DEVICES_MAX);
    }

    /// Files as the kernel has them.
    fn machine(devices: &[(&str, &[(&str, &str)])], routes: &[&str]) -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("room");
        let write = |path: PathBuf, text: &str| {
            std::fs::create_dir_all(path.parent().expect("below the root")).expect("room");
            std::fs::write(path, text).expect("room");
        };
        for (name, files) in devices {
            for (file, text) in *files {
                let path = root.path().join("sys/class/net").join(name).join(file);
                write(path, &format!("{text}\n"));
            }
        }
        let head = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\n";
        let text = [head.to_owned(), routes.join("\n")].concat();
        write(root.path().join("proc/net/route"), &text);
        root
    }

    /// A line of the kernel's table of routes.
    fn route(name: &str, base: [u8; 4], flags: u32, mask: [u8; 4]) -> String {
        let [base, mask] = [base, mask].map(u32::from_ne_bytes);
        format!("{name}\t{base:08X}\t00000000\t{flags:04X}\t0\t0\t100\t{mask:08X}\t0\t0\t0")
    }

    #[test]
    fn devices_are_those_with_a_wire_and_a_speed() {
        let real = |speed| [("operstate", "up"), ("speed", speed), ("device/x", "")];
        let (fast, slow, unknown) = (real("100000"), real("1000"), real("-1"));
        let down = [("operstate", "down"), ("speed", "100000"), ("device/x", "")];
        // A pair of containers has a speed, too; and a bridge has the one of its ports.
        let virtual_one = [("operstate", "up"), ("speed", "10000")];
        let bond = [
            ("operstate", "up"),
            ("speed", "50000"),
            ("bonding/mode", "802.3ad"),
        ];
        let devices: [(&str, &[_]); 8] = [
            ("eth0", &slow),
            ("eth1", &fast),
            ("eth2", &fast),
            ("eth3", &down),
            ("virtio0", &unknown),
            ("docker0", &virtual_one),
            ("veth1", &virtual_one),
            ("bond0", &bond),
        ];
        let mask = [255, 255, 255, 0];
        let routes = [
            route("eth0", [0; 4], 3, [0; 4]),
            route("eth0", [10, 0, 0, 0], 1, mask),
            route("eth1", [10, 1, 0, 0], 1, mask),
            // The second way into a network is none.
            route("eth2", [10, 1, 0, 0], 1, mask),
            route("eth2", [10, 2, 0, 0], 1, mask),
            route("eth2", [10, 77, 0, 0], 3, mask),
            route("eth3", [10, 3, 0, 0], 1, mask),
            route("virtio0", [10, 4, 0, 0], 1, mask),
            route("docker0", [172, 17, 0, 0], 1, mask),
            route("veth1", [10, 5, 0, 0], 1, mask),
            route("bond0", [10, 6, 0, 0], 1, mask),
            route("eth1", [169, 254, 0, 0], 1, mask),
            "eth1 nonsense".to_owned(),
        ];
        let routes: Vec<_> = routes.iter().map(String::as_str).collect();
        let root = machine(&devices, &routes);
        let own = |network: &Network4| Some(Ipv4Addr::from(u32::from(network.base) | 7));
        let found = NetworkDevice::below(root.path(), own);
        let wanted = [
            device(1000, "10.0.0.7"),
            device(100_000, "10.1.0.7"),
            device(100_000, "10.2.0.7"),
            without_speed("10.4.0.7"),
            without_speed("172.17.0.7"),
            without_speed("10.5.0.7"),
            device(50_000, "10.6.0.7"),
        ];
        assert_eq!(found, wanted);
        assert!(NetworkDevice::below(Path::new("/nowhere"), own).is_empty());
    }

    #[test]
    fn for_rdma_it_is_the_rate_of_the_port_that_counts() {
        let card = "device/infiniband/mlx5_0/ports";
        let files = |port: &'static str, rate: &'static str| {
            [
                ("operstate".to_owned(), "up"),
                ("speed".to_owned(), "1000"),
                ("dev_port".to_owned(), port),
                (format!("{card}/1/rate"), "100 Gb/sec (4X EDR)"),
                (format!("{card}/2/rate"), rate),
            ]
        };
        let [first, second] = [files("0", ""), files("1", "2.5 Gb/sec (1X SDR)")];
        let plain = [("operstate", "up"), ("speed", "100000"), ("device/x", "")];
        fn of<'a>(files: &'a [(String, &'a str)]) -> Vec<(&'a str, &'a str)> {
            files
                .iter()
                .map(|(file, text)| (file.as_str(), *text))
                .collect()
        }
        let devices = [
            ("ib0", &of(&first)[..]),
            ("ib1", &of(&second)[..]),
            ("eth0", &plain[..]),
        ];
        let mask = [255, 255, 0, 0];
        let routes = [(1, "ib0"), (2, "ib1"), (3, "eth0")];
        let routes = routes.map(|(number, name)| route(name, [10, number, 0, 0], 1, mask));
        let routes: Vec<_> = routes.iter().map(String::as_str).collect();
        let root = machine(&devices, &routes);
        let own = |network: &Network4| Some(network.base);
        let found = NetworkDevice::below(root.path(), own);
        let speeds = found.iter().map(|it| (it.ip.octets()[1], it.speeds.rdma));
        let speeds: Vec<_> = speeds.collect();
        assert_eq!(speeds, [(1, Some(100_000)), (2, Some(2500)), (3, None)]);
    }
}
