//! What is read: limits, settings of the kernel, devices, variables. Each check is a function of a
//! machine.

use super::machine::Machine;
use super::{Finding, State};

/// The default ports: of `recv`, and of `serve`.
const PORTS: [u16; 2] = [7471, 7472];

/// Variables of libfabric that hurt, and why.
const VARIABLES: &[(&str, &str)] = &[
    (
        "FI_PROVIDER",
        "it hides every other provider from all programs",
    ),
    (
        "FI_HOOK",
        "it puts a layer between each call and its provider",
    ),
    (
        "FI_LOG_LEVEL",
        "from info on, each call writes lines, which costs more than the call",
    ),
    (
        "FI_MR_CACHE_MONITOR",
        "disabled, each registration is made anew; memhooks patches functions of this process",
    ),
    ("FI_TCP_IO_URING", "it is experimental in libfabric"),
    (
        "FI_TCP_IFACE",
        "it chooses the interface, whatever address was asked for",
    ),
    (
        "FI_SHM_DISABLE_CMA",
        "what goes by shm is copied twice instead of once",
    ),
];

pub(super) fn all(machine: &Machine) -> Vec<Finding> {
    let mut findings = vec![
        memlock(machine),
        descriptors(machine),
        huge_pages(machine),
        cma(machine),
        shared_memory(machine),
        congestion(machine),
        socket_buffers(machine),
        clock(machine),
    ];
    findings.extend(gpu(machine));
    findings.extend(variables(machine));
    findings.extend(interfaces(machine));
    findings.extend(rdma(machine));
    findings.extend(PORTS.iter().filter_map(|port| taken(machine, *port)));
    findings
}

fn mib(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}

fn memlock(machine: &Machine) -> Finding {
    const CHECK: &str = "memory that may be locked";
    const ENOUGH: u64 = 1 << 30;
    match machine.limits.memlock {
        None => Finding::new(CHECK, State::Ok, "any amount"),
        Some(bytes) if bytes >= ENOUGH => Finding::new(CHECK, State::Ok, mib(bytes)),
        Some(bytes) => {
            let what = format!(
                "{}: RDMA devices (verbs, efa) register no more than that, tcp and shm need none",
                mib(bytes)
            );
            let todo = "ulimit -l unlimited, or `* - memlock unlimited` in \
                        /etc/security/limits.conf; for services LimitMEMLOCK=infinity";
            Finding::new(CHECK, State::Warn, what).todo(todo)
        }
    }
}

fn descriptors(machine: &Machine) -> Finding {
    const CHECK: &str = "descriptors";
    const ENOUGH: u64 = 4096;
    match machine.limits.nofile {
        Some(count) if count < ENOUGH => {
            let what = format!("{count}: each connection takes several");
            Finding::new(CHECK, State::Warn, what).todo("ulimit -n 65536")
        }
        Some(count) => Finding::new(CHECK, State::Ok, count.to_string()),
        None => Finding::new(CHECK, State::Ok, "any number"),
    }
}

fn huge_pages(machine: &Machine) -> Finding {
    const CHECK: &str = "huge pages";
    let reserved = machine.number("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages");
    let by_itself = machine.read("sys/kernel/mm/transparent_hugepage/enabled");
    let is_off = by_itself.as_ref().is_ok_and(|it| it.contains("[never]"));
    match (reserved, by_itself) {
        (Some(1..), _) => {
            let pages = reserved.unwrap_or_default();
            Finding::new(CHECK, State::Ok, format!("{pages} of 2 MiB are reserved"))
        }
        (_, Ok(_)) if !is_off => Finding::new(
            CHECK,
            State::Ok,
            "none reserved; the kernel gives some by itself",
        ),
        (_, Ok(_)) => {
            let what = "none reserved, and the kernel gives none by itself: registering much \
                        memory takes longer";
            let todo = "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled";
            Finding::new(CHECK, State::Note, what).todo(todo)
        }
        (_, Err(error)) => unseen(CHECK, &error),
    }
}

fn unseen(check: &'static str, error: &dyn std::fmt::Display) -> Finding {
    Finding::new(
        check,
        State::Note,
        format!("could not be looked at: {error}"),
    )
}

fn cma(machine: &Machine) -> Finding {
    const CHECK: &str = "copies between processes (CMA)";
    match machine.number("proc/sys/kernel/yama/ptrace_scope") {
        None | Some(0) => Finding::new(CHECK, State::Ok, "allowed"),
        Some(scope) => {
            let what = format!(
                "kernel.yama.ptrace_scope is {scope}: over shm, large messages between processes \
                 that are not parent and child are copied twice"
            );
            Finding::new(CHECK, State::Note, what).todo("sysctl kernel.yama.ptrace_scope=0")
        }
    }
}

fn shared_memory(machine: &Machine) -> Finding {
    const CHECK: &str = "/dev/shm";
    const ENOUGH: u64 = 64 << 20;
    match machine.limits.shm_free {
        None => unseen(CHECK, &"it is not there, or may not be read"),
        Some(free) if free < ENOUGH => {
            let what = format!(
                "{} free: the provider shm keeps its queues there",
                mib(free)
            );
            let todo = "mount -o remount,size=1G /dev/shm (containers: --shm-size=1g)";
            Finding::new(CHECK, State::Warn, what).todo(todo)
        }
        Some(free) => Finding::new(CHECK, State::Ok, format!("{} free", mib(free))),
    }
}

fn congestion(machine: &Machine) -> Finding {
    const CHECK: &str = "TCP congestion control";
    match machine.read("proc/sys/net/ipv4/tcp_congestion_control") {
        Err(error) => unseen(CHECK, &error),
        Ok(name) if name == "bbr" => {
            let what = "bbr: on short, fast ways it paces what cubic sends at once";
            let todo = "compare with sysctl net.ipv4.tcp_congestion_control=cubic";
            Finding::new(CHECK, State::Note, what).todo(todo)
        }
        Ok(name) => Finding::new(CHECK, State::Ok, name),
    }
}

fn socket_buffers(machine: &Machine) -> Finding {
    const CHECK: &str = "TCP buffers";
    // 10 Gb/s over 50 ms there and back have this much on their way.
    const ENOUGH: u64 = 32 << 20;
    let most = |path: &str| {
        let text = machine.read(path).ok()?;
        text.split_whitespace().last()?.parse::<u64>().ok()
    };
    let read = most("proc/sys/net/ipv4/tcp_rmem");
    let written = most("proc/sys/net/ipv4/tcp_wmem");
    let Some(least) = read.zip(written).map(|(read, written)| read.min(written)) else {
        return unseen(CHECK, &"net.ipv4.tcp_rmem and tcp_wmem can't be read");
    };
    if least >= ENOUGH {
        return Finding::new(CHECK, State::Ok, format!("up to {}", mib(least)));
    }
    let what = format!(
        "up to {}: enough nearby; over 50 ms there and back it holds {:.1} Gb/s",
        mib(least),
        least as f64 * 8.0 / 0.05 / 1e9
    );
    let todo = "sysctl net.ipv4.tcp_rmem='4096 131072 67108864' \
                net.ipv4.tcp_wmem='4096 65536 67108864'";
    Finding::new(CHECK, State::Note, what).todo(todo)
}

fn clock(machine: &Machine) -> Finding {
    const CHECK: &str = "clock";
    if machine.exists("run/systemd/timesync/synchronized") {
        return Finding::new(CHECK, State::Ok, "synchronised (systemd-timesyncd)");
    }
    if machine.exists("run/chrony") || machine.exists("var/run/chrony") {
        return Finding::new(CHECK, State::Ok, "chrony runs");
    }
    let what = "nothing that synchronises it was found: latencies between machines \
                (fabricast readout) mean little";
    Finding::new(CHECK, State::Note, what).todo("apt install chrony")
}

fn gpu(machine: &Machine) -> Vec<Finding> {
    const CHECK: &str = "GPU";
    const CUFILE: [&str; 3] = [
        "usr/lib/x86_64-linux-gnu/libcufile.so.0",
        "usr/lib/aarch64-linux-gnu/libcufile.so.0",
        "usr/local/cuda/lib64/libcufile.so.0",
    ];
    if !machine.exists("proc/driver/nvidia/version") {
        return vec![Finding::new(
            CHECK,
            State::Ok,
            "none that NVIDIA's driver knows",
        )];
    }
    let mut findings = Vec::new();
    let mut note = |what: &str, todo: &str| {
        findings.push(Finding::new(CHECK, State::Note, what).todo(todo));
    };
    if !CUFILE.iter().any(|path| machine.exists(path)) {
        note(
            "libcufile.so.0 is not where it usually is: files reach GPU memory through the host",
            "apt install nvidia-gds, or see what fabricast info finds",
        );
    } else {
        if !machine.exists("proc/driver/nvidia-fs") {
            note(
                "the module nvidia-fs is not loaded: cuFile goes through the host, too",
                "apt install nvidia-gds, and modprobe nvidia-fs",
            );
        }
        if !machine.exists("etc/cufile.json") {
            note("/etc/cufile.json is not there: cuFile has its defaults", "");
        }
        if machine.names("run/udev/data").is_empty() {
            note(
                "/run/udev/data is empty or not there: cuFile can register no file (error 5027)",
                "start udevd; containers: mount the host's /run/udev",
            );
        }
    }
    if findings.is_empty() {
        let what = "driver, cuFile, nvidia-fs and cufile.json are there; fabricast info";
        findings.push(Finding::new(CHECK, State::Ok, what));
    }
    findings
}

fn variables(machine: &Machine) -> Vec<Finding> {
    const CHECK: &str = "variables";
    let set = VARIABLES.iter().filter_map(|(name, why)| {
        let value = machine.environment.get(*name)?;
        let what = format!("{name}={value}: {why}");
        let todo = format!("unset {name}");
        Some(Finding::new(CHECK, State::Warn, what).todo(todo))
    });
    set.collect()
}

/// Interfaces that are up, but for loopback.
fn interfaces(machine: &Machine) -> Vec<Finding> {
    const CHECK: &str = "interface";
    const JUMBO: u64 = 9000;
    const FAST: u64 = 10_000;
    let mut findings = Vec::new();
    for name in machine.names("sys/class/net") {
        let of = |file: &str| format!("sys/class/net/{name}/{file}");
        let is_up = machine.read(&of("operstate")).is_ok_and(|it| it == "up");
        let (Some(mtu), true) = (machine.number(&of("mtu")), is_up) else {
            continue;
        };
        let speed = machine.number(&of("speed"));
        let at = speed.map_or(String::new(), |speed| format!(", {speed} Mb/s"));
        let what = format!("{name}: MTU {mtu}{at}");
        findings.push(match speed {
            Some(FAST..) if mtu < JUMBO => {
                let what = format!("{what}: packets of 9,000 bytes cost less of the processor");
                let todo = format!("ip link set {name} mtu 9000, on all machines and switches");
                Finding::new(CHECK, State::Note, what).todo(todo)
            }
            _ => Finding::new(CHECK, State::Ok, what),
        });
    }
    findings
}

fn rdma(machine: &Machine) -> Vec<Finding> {
    const CHECK: &str = "RDMA device";
    let mut findings = Vec::new();
    for device in machine.names("sys/class/infiniband") {
        for port in machine.names(format!("sys/class/infiniband/{device}/ports")) {
            let state = machine.read(&format!("sys/class/infiniband/{device}/ports/{port}/state"));
            let what = |text: &str| format!("{device}, port {port}: {text}");
            findings.push(match state {
                Ok(state) if state.contains("ACTIVE") => {
                    Finding::new(CHECK, State::Ok, what("active"))
                }
                Ok(state) => {
                    let todo = "plug it in, or bring up its network interface (rdma link)";
                    Finding::new(CHECK, State::Warn, what(&state)).todo(todo)
                }
                Err(error) => unseen(CHECK, &what(&error.to_string())),
            });
        }
    }
    findings
}

/// Who listens at a port, as the kernel's tables of sockets say.
fn taken(machine: &Machine, port: u16) -> Option<Finding> {
    const LISTENS: &str = "0A";
    // The number of the socket of a line.
    let listener = |line: &str| {
        let words: Vec<_> = line.split_whitespace().collect();
        let (local, state) = (words.get(1)?, words.get(3)?);
        let (_, number) = local.rsplit_once(':')?;
        let is_it = u16::from_str_radix(number, 16).ok()? == port && *state == LISTENS;
        is_it.then(|| words.get(9).copied().unwrap_or_default().to_owned())
    };
    let tables = ["proc/net/tcp", "proc/net/tcp6"].map(|path| machine.read(path));
    let mut tables = tables.iter().flatten();
    let socket = tables.find_map(|table| table.lines().find_map(listener))?;
    let whose = owner(machine, &socket);
    let whose = whose.unwrap_or_else(|| "a process of somebody else's".to_owned());
    let what = format!("{port} is taken, by {whose}");
    let todo = format!("ss -ltnp 'sport = :{port}', or another --listen");
    Some(Finding::new("port", State::Note, what).todo(todo))
}

/// The process that has a socket, of those whose descriptors may be looked at.
fn owner(machine: &Machine, socket: &str) -> Option<String> {
    let target = format!("socket:[{socket}]");
    let processes = machine.names("proc");
    let mut processes = processes.iter().filter(|name| name.parse::<u32>().is_ok());
    processes.find_map(|id| {
        let descriptors = format!("proc/{id}/fd");
        let names = machine.names(&descriptors);
        let mut links = names
            .iter()
            .filter_map(|name| machine.link(&format!("{descriptors}/{name}")));
        links.any(|link| link == target).then(|| {
            let name = machine.read(&format!("proc/{id}/comm"));
            format!("{} (process {id})", name.unwrap_or_default())
        })
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::machine::Limits;
    use super::*;

    /// A machine with these files.
    fn machine(files: &[(&str, &str)]) -> (tempfile::TempDir, Machine) {
        let root = tempfile::tempdir().expect("a directory");
        for (path, text) in files {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("made");
            std::fs::write(path, text).expect("written");
        }
        let machine = Machine {
            root: root.path().to_owned(),
            environment: BTreeMap::new(),
            limits: Limits::default(),
        };
        (root, machine)
    }

    fn state(finding: &Finding) -> State {
        // Whatever is not as it should be says what to do, or that it was not seen.
        let is_unseen = finding.what.contains("could not be looked at");
        assert!(finding.state < State::Warn || is_unseen || !finding.todo.is_empty());
        finding.state
    }

    #[test]
    fn limits_are_judged() {
        let (_root, mut machine) = machine(&[]);
        assert_eq!(state(&memlock(&machine)), State::Ok);
        machine.limits.memlock = Some(8 << 20);
        assert_eq!(state(&memlock(&machine)), State::Warn);
        machine.limits.memlock = Some(1 << 30);
        assert_eq!(state(&memlock(&machine)), State::Ok);
        machine.limits.nofile = Some(1024);
        assert_eq!(state(&descriptors(&machine)), State::Warn);
        machine.limits.nofile = Some(4096);
        assert_eq!(state(&descriptors(&machine)), State::Ok);
        assert_eq!(state(&shared_memory(&machine)), State::Note);
        machine.limits.shm_free = Some(1 << 20);
        assert_eq!(state(&shared_memory(&machine)), State::Warn);
        machine.limits.shm_free = Some(1 << 30);
        assert_eq!(state(&shared_memory(&machine)), State::Ok);
    }

    #[test]
    fn settings_of_the_kernel_are_judged() {
        let of = |check: fn(&Machine) -> Finding, path: &str, text: &str| {
            let (_root, machine) = machine(&[(path, text)]);
            state(&check(&machine))
        };
        let scope = "proc/sys/kernel/yama/ptrace_scope";
        assert_eq!(of(cma, scope, "0\n"), State::Ok);
        assert_eq!(of(cma, scope, "1\n"), State::Note);
        let control = "proc/sys/net/ipv4/tcp_congestion_control";
        assert_eq!(of(congestion, control, "cubic\n"), State::Ok);
        assert_eq!(of(congestion, control, "bbr\n"), State::Note);
        assert_eq!(of(congestion, "proc/other", ""), State::Note);
        let pages = "sys/kernel/mm/transparent_hugepage/enabled";
        assert_eq!(of(huge_pages, pages, "always [madvise] never"), State::Ok);
        assert_eq!(of(huge_pages, pages, "always madvise [never]"), State::Note);
        assert_eq!(of(clock, "run/chrony/x", ""), State::Ok);
        assert_eq!(of(clock, "x", ""), State::Note);
        let buffers = |most: &str| {
            let text = format!("4096 131072 {most}\n");
            let (read, written) = ("proc/sys/net/ipv4/tcp_rmem", "proc/sys/net/ipv4/tcp_wmem");
            let (_root, machine) = machine(&[(read, &text), (written, &text)]);
            state(&socket_buffers(&machine))
        };
        assert_eq!(
            [buffers("6291456"), buffers("67108864")],
            [State::Note, State::Ok]
        );
    }

    #[test]
    fn what_cufile_lacks_is_said() {
        let mut files = vec![("proc/driver/nvidia/version", "580")];
        let notes = |files: &[(&str, &str)]| {
            let (_root, machine) = machine(files);
            let findings = gpu(&machine);
            let notes = findings.iter().filter(|it| state(it) == State::Note);
            (findings.len(), notes.count())
        };
        assert_eq!(notes(&[]), (1, 0), "no GPU");
        assert_eq!(notes(&files), (1, 1), "no library: the rest is of no use");
        files.push(("usr/local/cuda/lib64/libcufile.so.0", ""));
        assert_eq!(notes(&files), (3, 3));
        files.push(("run/udev/data/b8:0", "I:1"));
        files.push(("etc/cufile.json", "{}"));
        assert_eq!(notes(&files), (1, 1));
        files.push(("proc/driver/nvidia-fs/version", "2"));
        assert_eq!(notes(&files), (1, 0));
    }

    #[test]
    fn devices_variables_and_ports_are_found() {
        let listening = "  sl  local_address rem_address   st\n   \
             0: 0100007F:1D2F 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 4711\n   \
             1: 0100007F:1D30 0100007F:9999 01 00000000:00000000 00:00000000 00000000 0 0 4712\n";
        let (_root, mut machine) = machine(&[
            ("sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n"),
            ("sys/class/infiniband/mlx5_1/ports/1/state", "1: DOWN\n"),
            ("sys/class/net/eth0/operstate", "up\n"),
            ("sys/class/net/eth0/mtu", "1500\n"),
            ("sys/class/net/eth0/speed", "100000\n"),
            ("sys/class/net/lo/operstate", "unknown\n"),
            ("sys/class/net/lo/mtu", "65536\n"),
            ("proc/net/tcp", listening),
        ]);
        machine
            .environment
            .insert("FI_PROVIDER".into(), "tcp".into());
        let states = |found: Vec<Finding>| found.iter().map(state).collect::<Vec<_>>();
        assert_eq!(states(rdma(&machine)), [State::Ok, State::Warn]);
        assert_eq!(states(interfaces(&machine)), [State::Note]);
        assert_eq!(states(variables(&machine)), [State::Warn]);
        // 7471 is 0x1d2f; the other one is connected, and listens to nobody.
        let nobody = taken(&machine, 7471).expect("it is taken");
        assert!(nobody.what.contains("somebody else"), "{}", nobody.what);
        assert!(taken(&machine, 7472).is_none());
        let fd = machine.root.join("proc/42/fd");
        std::fs::create_dir_all(&fd).expect("made");
        std::fs::write(fd.with_file_name("comm"), "fabricast\n").expect("written");
        std::os::unix::fs::symlink("socket:[4711]", fd.join("7")).expect("linked");
        let known = taken(&machine, 7471).expect("it is taken");
        assert!(
            known.what.contains("fabricast (process 42)"),
            "{}",
            known.what
        );
    }
}
