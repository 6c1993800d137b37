#!/usr/bin/env python3
"""fabricast beside what a user would pick instead, as one table: rounds in which every way runs once, in an order by chance.

What is compared, and how each program is started, is in benches/README.md. A program that is not installed is SKIPPED with the reason.
`make peers` installs them, builds what is ours, and runs this.

    python3 benches/peers/peers.py --rounds 9
    python3 benches/peers/peers.py --only messages,slow --seconds 0.3 --json
"""

import argparse
import datetime
import json
import os
import platform
import random
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time

from machine import HERE, Failed, Process, build_over_zmq, congestion, core_sets, enter_namespace, interval
from transfers import await_port, free_port

ROOT = os.path.dirname(os.path.dirname(HERE))
MADE = os.path.join(ROOT, "target", "peers")
SIZES = {64: "64 B", 1024: "1 KiB", 4096: "4 KiB", 65536: "64 KiB", 1 << 20: "1 MiB"}
SUBSCRIBERS = 4
# What a slow subscriber sleeps after each publication.
SLEEP_US = 1000
DEPTH = 16
# A slow subscriber may cost the others so much of their rate.
SLOW_BAR = 0.95


# ---- the programs --------------------------------------------------------------------------------


class Program:
    """A program beside ours: its name, its version, or why it can't run here."""

    name = None
    version = "?"

    def __init__(self, options):
        self.options = options

    def missing(self):
        return None

    def both(self, receiver, sender, cores=None):
        """Starts a receiver, then a sender that knows its address; gives what both report."""
        receives, sends = cores or self.cores()
        with Process(receiver, receives) as at:
            address = at.address()
            with Process([word.replace("ADDRESS", address) for word in sender], sends) as source:
                sent = source.report(self.options.seconds)
            return sent, at.report(self.options.seconds)

    def cores(self):
        """Those of the receiver, those of the sender: as `bench` pins its server and its client."""
        sends, receives = core_sets(self.options.pin)
        return receives, sends

    def served(self, server, client, port, environment=None):
        """Starts a server, then a client when somebody listens; gives what the client said."""
        receives, sends = self.cores()
        with Process(server, receives, environment) as at:
            await_port(port, at.child)
            with Process(client, sends, environment) as asking:
                return asking.output(self.options.seconds)


class Ours(Program):
    name = "ours"

    def missing(self):
        wanted = [self.options.bench.split()[0], self.options.fabricast, self.options.slow_subscriber]
        absent = [path for path in wanted if not os.access(path, os.X_OK)]
        return f"{', '.join(absent)}: not built (make peers)" if absent else None

    def bench(self, operation, size, *more):
        """One run of ours by the bench, with its figures."""
        command = [*self.options.bench.split(), "pair", "--only", "ours", "--op", operation, "--size", str(size), "--runs", "1"]
        command += ["--seconds", str(self.options.seconds), "--json", *more]
        command += ["--no-pin"] * (self.options.pin == "none")
        if operation in ("send", "publish", "pingpong", "coalesced"):
            command += ["--provider", self.options.provider]
        # It pins its two processes by itself.
        with Process(command, set(core for cores in core_sets("none") for core in cores)) as run:
            found = run.report(self.options.seconds)
        self.version = f"{found['provider']} of libfabric {found['libfabric']}"
        return found

    def rate(self, operation, *more):
        return lambda size: self.bench(operation, size, *more)["msgs_per_s"]

    def ping(self, size):
        return self.bench("pingpong", size)["p50_us"]

    def mean_ping(self, size):
        # Both ways are counted.
        return 1e6 / self.bench("pingpong", size)["msgs_per_s"]

    def watched(self, size, sleep_us):
        program = [self.options.slow_subscriber]
        publisher = [*program, "pub", "--subscribers", str(SUBSCRIBERS), "--size", str(size)]
        watcher = [*program, "watch", "--to", "ADDRESS", "--size", str(size), "--seconds", str(self.options.seconds)]
        return watched(self, publisher, watcher, sleep_us)

    def share(self, size):
        return share_with_slow(self, size)


class ZeroMQ(Program):
    name = "ZeroMQ"

    def missing(self):
        self.program, self.version = build_over_zmq("zmq_messages", self.options.work)
        return None if self.program else self.version

    def run(self, receiver, sender, size, subscribers=1):
        more = ["--size", str(size), "--seconds", str(self.options.seconds), "--subscribers", str(subscribers)]
        return self.both([self.program, receiver, *more], [self.program, sender, "--to", "ADDRESS", *more])

    def push(self, size):
        _, pulled = self.run("pull", "push", size)
        return pulled["messages"] / pulled["seconds"]

    def publish(self, size):
        # The publisher is who listens.
        more = ["--size", str(size), "--seconds", str(self.options.seconds), "--subscribers", str(SUBSCRIBERS)]
        subscribers = [self.program, "sub", "--to", "ADDRESS", *more]
        received, _ = self.both([self.program, "xpub", *more], subscribers, tuple(reversed(self.cores())))
        return received["messages"] / received["seconds"]

    def ping(self, size):
        asked, _ = self.run("rep", "req", size)
        return asked["p50_us"]

    def watched(self, size, sleep_us):
        publisher = [self.program, "pub", "--subscribers", str(SUBSCRIBERS), "--size", str(size)]
        watcher = [self.program, "watch", "--to", "ADDRESS", "--seconds", str(self.options.seconds)]
        return watched(self, publisher, watcher, sleep_us)

    def share(self, size):
        return share_with_slow(self, size)


def watched(program, publisher, watcher, sleep_us):
    """What three of four subscribers get in a second, of whom the fourth sleeps so long after each publication."""
    receives, sends = program.cores()
    started = []
    try:
        started.append(Process(publisher, sends))
        address = started[0].address()
        commands = [[word.replace("ADDRESS", address) for word in watcher] for _ in range(SUBSCRIBERS)]
        commands[-1] += ["--sleep-us", str(sleep_us)]
        started += [Process(command, receives) for command in commands]
        reports = [process.report(program.options.seconds) for process in started[1:-1]]
        return sum(report["messages"] / report["seconds"] for report in reports) / len(reports)
    finally:
        for process in started:
            process.__exit__()


def share_with_slow(program, size):
    """Of their rate without a slow one, what is left to the others beside one."""
    without, beside = program.watched(size, 0), program.watched(size, SLEEP_US)
    program.options.seen.setdefault((program.name, "slow"), []).append((without, beside))
    return beside / without


class Iperf3(Program):
    name = "iperf3"

    def missing(self):
        if not shutil.which("iperf3"):
            return "iperf3 is not installed (Debian: iperf3)"
        self.version = said(["iperf3", "--version"]).split()[1]
        return None

    def stream(self, size):
        port = free_port()
        # It takes whole seconds.
        seconds = max(1, round(self.options.seconds))
        server = ["iperf3", "-s", "-1", "-B", "127.0.0.1", "-p", str(port)]
        client = ["iperf3", "-c", "127.0.0.1", "-p", str(port), "-l", str(size), "-t", str(seconds), "-J"]
        found = json.loads(self.served(server, client, port))
        return found["end"]["sum_received"]["bits_per_second"] / 8 / size


class Ucx(Program):
    name = "UCX"
    environment = {"UCX_TLS": "tcp", "UCX_NET_DEVICES": "lo"}

    def missing(self):
        if not shutil.which("ucx_perftest"):
            return "ucx_perftest is not installed (Debian: ucx-utils)"
        self.version = re.search(r"[\d.]+", said(["ucx_info", "-v"])).group()
        return None

    def perftest(self, test, size, messages):
        port = str(free_port())
        command = ["ucx_perftest", "-p", port]
        more = ["-t", test, "-s", str(size), "-n", str(messages), "-w", str(messages // 10), "-f"]
        out = self.served(command, [*command, "127.0.0.1", *more], int(port), self.environment)
        rows = [line.split() for line in out.splitlines() if re.match(r"^(\[.*\])? *\d+ ", line)]
        if not rows:
            raise Failed(f"ucx_perftest {test}: no figures in {out[-300:]}")
        return [float(cell) for cell in rows[-1]]

    def count(self, bytes_per_s, size):
        return max(200, int(self.options.seconds * min(bytes_per_s / size, 500_000)))

    def tag(self, size):
        # iterations, percentile, average, overall; MB/s twice; messages a second twice
        return self.perftest("tag_bw", size, self.count(1.5e9, size))[-1]

    def put(self, size):
        return self.perftest("ucp_put_bw", size, self.count(1.5e9, size))[-1]

    def ping(self, size):
        # The median, of half a round trip.
        return self.perftest("tag_lat", size, max(200, int(self.options.seconds * 20_000)))[1]


class Fabtests(Program):
    """libfabric's own: fi_pingpong comes with its package, the others with fabtests."""

    def __init__(self, options, program, debian):
        super().__init__(options)
        self.name, self.debian = program, debian

    def missing(self):
        if not shutil.which(self.name):
            return f"{self.name} is not installed ({self.debian})"
        self.version = re.search(r"[\d.]+", said(["fi_info", "--version"])).group()
        return None

    def column(self, head, size, iterations, port_option, *more):
        port = free_port()
        common = [self.name, "-p", self.options.provider, "-S", str(size), "-I", str(iterations), *more]
        out = self.served([*common, port_option, str(port)], [*common, port_option.replace("B", "P"), str(port), "127.0.0.1"], port)
        lines = [line.split() for line in out.splitlines() if line.strip()]
        heads = [line for line in lines if head in line]
        if not heads:
            raise Failed(f"{self.name}: no {head} in {out[-300:]}")
        # Heads may lack those of the columns in front, never those behind.
        return float(lines[-1][heads[-1].index(head) - len(heads[-1])])

    def ping(self, size):
        return self.column("usec/xfer", size, max(100, int(self.options.seconds * 50_000)), "-B", "-e", "msg")

    def bandwidth(self, size):
        iterations = max(100, int(self.options.seconds * min(4e9 / size, 200_000)))
        return self.column("MB/sec", size, iterations, "-B", "-s", "127.0.0.1") * 1e6 / size


class Zenoh(Program):
    name = "zenoh"

    def missing(self):
        self.program = os.path.join(MADE, "zenoh", "target", "release", "zenoh_messages")
        if not os.access(self.program, os.X_OK):
            return "zenoh_messages is not built (make peers)"
        with open(os.path.join(MADE, "zenoh", "Cargo.lock")) as file:
            self.version = re.search(r'name = "zenoh"\nversion = "(.*)"', file.read()).group(1)
        return None

    def put(self, size):
        address = f"127.0.0.1:{free_port()}"
        push = [self.program, "push", address, str(size), str(self.options.seconds)]
        _, pulled = self.both([self.program, "pull", address], push)
        return pulled["messages"] / pulled["seconds"]


class FromVenv(Program):
    """What `make peers` installs from Python's packages."""

    package = None
    python = os.path.join(MADE, "venv", "bin", "python")

    def missing(self):
        script = f"import importlib.metadata as m; print(m.version('{self.package}'))"
        asked = os.access(self.python, os.X_OK) and subprocess.run([self.python, "-c", script], capture_output=True, text=True)
        if not asked or asked.returncode != 0:
            return f"{self.package} is not installed (make peers)"
        self.version = asked.stdout.strip()
        return None


class Nixl(FromVenv):
    name, package = "NIXL", "nixl-cu12"

    def write(self, size):
        script = [self.python, os.path.join(HERE, "nixl_writes.py")]
        receives, sends = self.cores()
        with Process([*script, "target", str(size), str(DEPTH)], receives) as at:
            writer = [*script, "writer", str(size), str(DEPTH), str(self.options.seconds), at.address()]
            with Process(writer, sends) as asking:
                found = asking.report(self.options.seconds)
        return found["messages"] / found["seconds"]


class Mooncake(FromVenv):
    name, package = "Mooncake", "mooncake-transfer-engine-non-cuda"

    def write(self, size):
        receives, sends = self.cores()
        bench = [os.path.join(MADE, "venv", "bin", "transfer_engine_bench"), "--metadata_server=P2PHANDSHAKE", "--protocol=tcp"]
        bench += [f"--buffer_size={max(64 << 20, size * DEPTH)}"]
        with tempfile.TemporaryFile("w+") as log:
            target = [*bench, "--mode=target", f"--local_server_name=127.0.0.1:{free_port()}"]
            with Process(target, receives, output=log) as at:
                address = wait_for(log, r"listening on (127\.0\.0\.1:\d+)", at)
                initiator = [*bench, "--mode=initiator", f"--local_server_name=127.0.0.1:{free_port()}", f"--segment_id={address}"]
                initiator += ["--operation=write", f"--block_size={size}", f"--batch_size={DEPTH}", "--threads=1"]
                initiator += [f"--duration={max(1, round(self.options.seconds))}"]
                with Process(initiator, sends) as asking:
                    asking.output(self.options.seconds)
                    found = re.search(r"Test completed: duration ([\d.]+), batch count (\d+)", asking.said(100_000))
        if not found:
            raise Failed("transfer_engine_bench: it did not say what it measured")
        return int(found.group(2)) * DEPTH / float(found.group(1))


def wait_for(log, pattern, process):
    for _ in range(2000):
        log.seek(0)
        if found := re.search(pattern, log.read()):
            return found.group(1)
        if process.child.poll() is not None:
            break
        time.sleep(0.01)
    raise Failed(f"{process.command[0]} did not say where it listens")


def said(command):
    return subprocess.run(command, capture_output=True, text=True).stdout


# ---- what is compared ----------------------------------------------------------------------------


class Case:
    """What every way does, and the ways: ours, and those beside it. `ways`: name -> (program, function of nothing)."""

    def __init__(self, group, what, unit, ours, beside, less=False):
        self.group, self.what, self.unit, self.less = group, what, unit, less
        self.ours, self.beside = ours, beside


def cases(ours, programs):
    """All cases, each with those of its programs that are here."""
    zmq, iperf3, ucx, zenoh, nixl, mooncake, pingpong, bandwidth = programs
    found = []

    def add(group, what, unit, way, beside, **more):
        found.append(Case(group, what, unit, way, [(program, run) for program, run in beside if program.is_here], **more))

    def at(run, size):
        return lambda: run(size)

    for size, name in SIZES.items():
        beside = [(zmq, at(zmq.push, size)), (zenoh, at(zenoh.put, size)), (ucx, at(ucx.tag, size))]
        if size >= 65536:
            beside += [(iperf3, at(iperf3.stream, size)), (bandwidth, at(bandwidth.bandwidth, size))]
        add("messages", f"messages of {name}", "messages/s", at(ours.rate("send"), size), beside)
        if size <= 1024:
            beside = [(zmq, at(zmq.push, size)), (zenoh, at(zenoh.put, size))]
            add("messages", f"messages of {name}, packed by hand (buffered)", "messages/s", at(ours.rate("coalesced"), size), beside)
    for size in (64, 1024, 4096, 65536):
        way = at(ours.rate("publish", "--subscribers", str(SUBSCRIBERS)), size)
        add("publish", f"{SIZES[size]} to four subscribers", "messages/s", way, [(zmq, at(zmq.publish, size))])
    beside = [(zmq, at(zmq.ping, 64)), (ucx, at(ucx.ping, 64))]
    add("pingpong", "half a round trip, 64 B, the median", "us", at(ours.ping, 64), beside, less=True)
    add("pingpong", "half a round trip, 64 B, the mean", "us", at(ours.mean_ping, 64), [(pingpong, at(pingpong.ping, 64))], less=True)
    for size in (65536, 1 << 20):
        beside = [(ucx, at(ucx.put, size)), (nixl, at(nixl.write, size)), (mooncake, at(mooncake.write, size))]
        add("writes", f"one-sided writes of {SIZES[size]}", "writes/s", at(ours.rate("rma-write"), size), beside)
    add("slow", "the others' rate beside one slow of four, 4 KiB", "of their rate without", at(ours.share, 4096), [(zmq, at(zmq.share, 4096))])
    return found


# ---- rounds --------------------------------------------------------------------------------------


def measure(case, options, ours):
    """Each round runs every way once, in an order by chance. Gives a row for each program beside ours."""
    ways = [(ours, case.ours), *case.beside]
    runs = {program.name: [] for program, _ in ways}
    for _ in range(options.rounds):
        took = {}
        for program, run in random.sample(ways, len(ways)):
            try:
                took[program.name] = run()
                if not took[program.name]:
                    raise Failed("counted nothing")
            except (Failed, OSError, ValueError, KeyError, IndexError) as failure:
                print(f"FAILED: {case.what}, {program.name}: {failure}", file=sys.stderr, flush=True)
                options.failures += 1
        for name in runs:
            runs[name].append(took.get(name))
    return [row(case, program.name, runs) for program, _ in case.beside]


def row(case, name, runs):
    pairs = [(a, b) for a, b in zip(runs["ours"], runs[name]) if a and b]
    made = {"group": case.group, "what": case.what, "unit": case.unit, "beside": name, "less_is_better": case.less, "rounds": len(pairs)}
    if not pairs:
        return made | {"verdict": "failed"}
    ratio = interval([a / b for a, b in pairs])
    made |= {"ours": interval([a for a, _ in pairs]), "theirs": interval([b for _, b in pairs]), "ratio": ratio}
    return made | {"ours_runs": [a for a, _ in pairs], "theirs_runs": [b for _, b in pairs], "verdict": verdict(ratio, case.less, len(pairs))}


def verdict(ratio, less, rounds):
    """Of fewer than six rounds there is no interval, and so no verdict."""
    _, low, high = ratio
    if rounds < 6 or low <= 1 <= high:
        return "not decided"
    return "won" if (low > 1) != less else "lost"


def event_building(options):
    """The rows of readout_pairs.py."""
    command = [sys.executable, os.path.join(HERE, "readout_pairs.py"), "--pairs", str(options.rounds), "--seconds", str(options.seconds)]
    command += ["--check", "off", "--pin", options.pin, "--netns", "none", "--fabricast", options.fabricast, "--json"]
    command += ["--provider", options.provider]
    for found in lines_of_json(command, options):
        pairs = {"ours_runs": found["ours_runs"], "theirs_runs": found["zmq_runs"], "rounds": found["pairs"]}
        figures = {"ours": found["ours_events_per_s"], "theirs": found["zmq_events_per_s"], "ratio": found["ratio"]}
        what = f"events of two fragments of {found['size_bytes']} B"
        head = {"group": "events", "what": what, "unit": "events/s", "beside": "ZeroMQ", "less_is_better": False}
        yield head | figures | pairs | {"verdict": verdict(found["ratio"], False, found["pairs"])}


def files(options):
    """The rows of transfers.py: seconds, so less is better."""
    command = [sys.executable, os.path.join(HERE, "transfers.py"), "--runs", str(options.rounds), "--fabricast", options.fabricast]
    command += ["--case", "file,small", "--bytes", options.file_bytes, "--files", str(options.files), "--json"]
    for found in lines_of_json(command, options):
        for case, figures in found.items():
            what = f"{figures['files']:,} file{'s' * (figures['files'] > 1)}, {figures['bytes'] / 1e6:,.0f} MB"
            seconds = {("ours" if name == "fabricast" else name): took for name, took in figures["seconds"].items()}
            for name in seconds:
                if name != "ours":
                    yield row(Case("files", what, "s", None, [], less=True), name, seconds)


def lines_of_json(command, options):
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    for line in done.stdout.splitlines():
        if line.startswith("SKIPPED"):
            print(line, file=sys.stderr, flush=True)
        elif line.startswith("{"):
            yield json.loads(line)
        elif line.startswith("FAILED"):
            options.failures += 1
            print(line, file=sys.stderr, flush=True)
    if done.returncode != 0:
        raise Failed(f"{' '.join(command)}: status {done.returncode}")


# ---- what is printed -----------------------------------------------------------------------------


SAID = []
MARKS = ("<!-- The table of make peers -->\n", "<!-- End of that table -->")


def say(line=""):
    SAID.append(line)
    print(line, flush=True)


def write(path):
    """Puts what was said between the marks of a page."""
    with open(path) as file:
        before, _, rest = file.read().partition(MARKS[0])
    _, end, after = rest.partition(MARKS[1])
    if not end:
        raise Failed(f"{path} has no place for the table, which is between {MARKS[0].strip()} and {MARKS[1]}")
    with open(path, "w") as file:
        lines = [line if line.startswith("|") else textwrap.fill(line, 100) for said in SAID for line in said.split("\n")]
        file.write(before + MARKS[0] + "\n".join(lines).strip() + "\n" + end + after)


def number(value):
    """Three figures that count, and no more digits than they need."""
    if value >= 1000:
        return f"{float(f'{value:.3g}'):,.0f}"
    return f"{value:.3g}"


def print_head(options, programs):
    with open("/proc/cpuinfo") as file:
        model = re.search(r"model name\s*: (.*)", file.read())
    sends, receives = core_sets(options.pin)
    say(f"{datetime.date.today()}; {model.group(1) if model else platform.machine()}, {os.cpu_count()} processors, "
          f"Linux {platform.release()}; load before {os.getloadavg()[0]:.1f}")
    say(f"loopback, congestion control {congestion()}; senders on cores {shown_cores(sends)}, receivers on {shown_cores(receives)}; "
          f"runs of {options.seconds} s, {options.rounds} rounds; medians [95 % interval; of fewer than 6 rounds the range]")
    here = ", ".join(f"{program.name} {program.version}" for program in programs if program.is_here)
    say(f"beside {here or 'nobody'}")


def shown_cores(cores):
    return ",".join(map(str, sorted(cores)))


def print_row(found):
    if "ratio" not in found:
        say(f"| {found['what']} | {found['beside']} | | | | failed |")
        return
    (ours, _, _), (theirs, _, _), (ratio, low, high) = found["ours"], found["theirs"], found["ratio"]
    unit = found["unit"] + (", less is better" if found["less_is_better"] else "")
    beside = found["beside"].replace("|", "\\|")
    say(f"| {found['what']} ({unit}) | {beside} | {number(ours)} | {number(theirs)} "
          f"| {ratio:.2f} [{low:.2f}, {high:.2f}] of {found['rounds']} | {found['verdict']} |")


# ---- the command line ----------------------------------------------------------------------------

GROUPS = {
    "messages": "one way, between two processes",
    "publish": "one payload to four subscribers",
    "pingpong": "to and fro",
    "writes": "one-sided",
    "slow": "what a slow subscriber costs the others",
    "events": "event building (readout_pairs.py)",
    "files": "files to another process (transfers.py)",
}


def parse():
    release = os.path.join(ROOT, "target", "release")
    listed = "; ".join(f"{name}: {what}" for name, what in GROUPS.items())
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(GROUPS), help=f"some of these groups: {listed}")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=1.0, help="length of each run; iperf3 and Mooncake take whole ones")
    parser.add_argument("--pin", choices=["split", "none"], default="split", help="senders on one core, receivers on another; or not at all")
    parser.add_argument("--netns", default="reno", help="congestion control of a network namespace of its own; none: this one")
    parser.add_argument("--provider", default="tcp", help="ours (and that of libfabric's own programs)")
    parser.add_argument("--file-bytes", default="1G", help="of the large file")
    parser.add_argument("--files", type=int, default=20_000, help="of 4 KiB")
    parser.add_argument("--bench", default=os.path.join(release, "bench"), help="the command in front of `pair`")
    parser.add_argument("--fabricast", default=os.path.join(release, "fabricast"))
    parser.add_argument("--slow-subscriber", default=os.path.join(release, "slow_subscriber"))
    parser.add_argument("--json", action="store_true", help="one object a line instead of the table")
    parser.add_argument("--write", metavar="PAGE", help="put the table into a page, between the marks that README.md has")
    options = parser.parse_args()
    options.only = options.only.split(",")
    if unknown := [name for name in options.only if name not in GROUPS]:
        parser.error(f"--only {unknown[0]}: want some of {', '.join(GROUPS)}")
    return options


def rows(options, ours, programs):
    for case in cases(ours, programs):
        if case.group in options.only and case.beside:
            yield from measure(case, options, ours)
    if "events" in options.only:
        yield from event_building(options)
    if "files" in options.only:
        yield from files(options)


def main():
    options = parse()
    options.failures, options.seen = 0, {}
    with tempfile.TemporaryDirectory() as options.work:
        ours = Ours(options)
        if why := ours.missing():
            print(f"SKIPPED: all: {why}")
            return 0
        programs = [kind(options) for kind in (ZeroMQ, Iperf3, Ucx, Zenoh, Nixl, Mooncake)]
        programs += [Fabtests(options, "fi_pingpong", "Debian: libfabric-bin"), Fabtests(options, "fi_msg_bw", "fabtests; no package of Debian's")]
        for program in programs:
            why = program.missing()
            program.is_here = why is None
            if why:
                print(f"SKIPPED: {program.name}: {why}", file=sys.stderr if options.json else sys.stdout, flush=True)
        if options.netns != "none" and (why := enter_namespace(options.netns)):
            print(f"SKIPPED: a network namespace with {options.netns}: {why}; going on without", file=sys.stderr)
        if not options.json:
            print_head(options, programs)
            say("\n| what | beside | ours | theirs | ours / theirs | |\n|---|---|---|---|---|---|")
        for found in rows(options, ours, programs):
            if options.json:
                print(json.dumps(found), flush=True)
            else:
                print_row(found)
        tail(options, ours)
    if options.write:
        write(options.write)
    return 1 if options.failures else 0


def tail(options, ours):
    """What needs no row of its own."""
    if options.json:
        return
    say()
    if ours.version != "?":
        say(f"ours: {ours.version}; load after {os.getloadavg()[0]:.1f}")
    for (name, _), seen in options.seen.items():
        without, beside = (interval([pair[which] for pair in seen])[0] for which in (0, 1))
        share = interval([b / a for a, b in seen])
        met = "met" if share[1] >= SLOW_BAR else "missed" if share[2] < SLOW_BAR else "not decided"
        say(f"one slow subscriber of four, {name}: the others get {number(beside)} a second each, {number(without)} without: "
              f"{share[0]:.2f} [{share[1]:.2f}, {share[2]:.2f}] (bar {SLOW_BAR}: {met})")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failed as failed:
        print(f"peers: {failed}", file=sys.stderr)
        sys.exit(1)
