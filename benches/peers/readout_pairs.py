#!/usr/bin/env python3
"""fabricast readout beside an event builder over ZeroMQ (zmq_builder.c), in interleaved pairs.

Builds zmq_builder.c with pkg-config's libzmq and a C compiler; where one is missing, says SKIPPED and why.

    cargo build --release -p fabricast-cli
    python3 benches/peers/readout_pairs.py --size 64,512,4096 --check off,on --pairs 15
"""

import argparse
import ctypes
import fcntl
import json
import math
import os
import random
import shutil
import socket
import statistics
import struct
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
LIBC = ctypes.CDLL(None, use_errno=True)
CLONE_NEWUSER, CLONE_NEWNET, PR_SET_PDEATHSIG, SIGKILL = 0x10000000, 0x40000000, 1, 9
CONGESTION = "/proc/sys/net/ipv4/tcp_congestion_control"
# A process of a run that takes so much longer than the run hangs.
PATIENCE = 60
ZMQ_DEPTH = "HWM 1000 messages on each side of each connection"


class Failed(Exception):
    """A run whose counts do not agree, or that did not end."""


# ---- the machine ---------------------------------------------------------------------------------


def enter_namespace(congestion):
    """Moves this process and its children to a network namespace of their own, which ends with them. Says why not."""
    if LIBC.unshare(CLONE_NEWNET) != 0:
        # Without the right to, a user namespace of our own may give it.
        if LIBC.unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0:
            return os.strerror(ctypes.get_errno())
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            # SIOCSIFFLAGS: up and running.
            fcntl.ioctl(any_socket, 0x8914, struct.pack("16sH14s", b"lo", 0x41, b""))
        with open(CONGESTION, "w") as file:
            file.write(congestion)
    except OSError as error:
        return str(error)
    return None


def congestion():
    try:
        with open(CONGESTION) as file:
            return file.read().strip()
    except OSError:
        return "unknown"


def core_sets(pin):
    """The cores of the source and those of the builders, the same for both ways."""
    cores = sorted(os.sched_getaffinity(0))
    if pin == "none":
        return set(cores), set(cores)
    if len(cores) < 2 or pin == "two":
        return set(cores[:2]), set(cores[:2])
    return {cores[0]}, {cores[1]}


class Process:
    """A child on these cores, that does not outlive this process. Ended, if it has not ended, when the block is left."""

    def __init__(self, command, cores):
        def prepare():
            LIBC.prctl(PR_SET_PDEATHSIG, SIGKILL)
            os.sched_setaffinity(0, cores)

        self.command = command
        self.errors = tempfile.TemporaryFile()
        self.child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self.errors, text=True, preexec_fn=prepare
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.child.kill()
        self.child.wait()
        self.child.stdout.close()
        self.errors.close()

    def address(self):
        line = self.child.stdout.readline().strip()
        if not line.startswith("listening on "):
            raise Failed(f"{self.command[0]} did not start: {self.said()}")
        return line.removeprefix("listening on ")

    def said(self):
        self.errors.seek(0)
        return self.errors.read().decode(errors="replace").strip()[-500:]

    def report(self, seconds):
        """The JSON of its last line, when it has ended well."""
        try:
            out, _ = self.child.communicate(timeout=seconds + PATIENCE)
        except subprocess.TimeoutExpired:
            raise Failed(f"{' '.join(self.command)}: not ended") from None
        if self.child.returncode != 0:
            raise Failed(f"{' '.join(self.command)}: status {self.child.returncode}: {out[-500:]} {self.said()}")
        return json.loads(out.splitlines()[-1])


# ---- one run of one way --------------------------------------------------------------------------


def all_reports(source, builders, seconds):
    return source.report(seconds), [builder.report(seconds) for builder in builders]


def run_processes(builder_command, source_command, options, seconds):
    """Starts builders and a source that knows their addresses; gives what they report."""
    source_cores, builder_cores = core_sets(options.pin)
    started = []
    try:
        for _ in range(options.builders):
            started.append(Process(builder_command, builder_cores))
        to = [word for builder in started for word in ("--to", builder.address())]
        started.append(Process(source_command + to, source_cores))
        return all_reports(started[-1], started[:-1], seconds)
    finally:
        for process in started:
            process.__exit__()


def ours(options, size, check):
    """Our figures: events, fragments, bytes, seconds, processor seconds."""
    common = ["--json", "--provider", options.provider]
    builder = [options.fabricast, "readout", "builder", "--listen", f"{options.node}:0", "--detectors", str(options.detectors)]
    builder += ["--max-fragment", str(size), *common]
    source = [options.fabricast, "readout", "source", "--detectors", str(options.detectors), "--size", str(size), *common]
    source += ["--seconds", str(options.seconds), "--check", "crc" if check else "none"]
    report, builders = run_processes(builder, source, options, options.seconds)
    if not report["agree"] or sum(b["events_built"] for b in builders) != report["events_triggered"]:
        raise Failed(f"readout's counts do not agree: {report}, {builders}")
    return {
        "events": report["events_built"],
        "fragments": sum(b["fragments"] for b in builders),
        "bytes": sum(b["bytes"] for b in builders),
        "seconds": report["seconds"],
        "cpu_s": report["source_cpu_s"] + report["builders_cpu_s"],
        "latency_us_p50": report["latency_us_p50"],
        "latency_us_p99": report["latency_us_p99"],
        "version": f"{report['provider']} of libfabric {report['libfabric']}",
        "depth": f"{report['depth']} frames or fragments in flight to a builder, {report['fragments_ahead']} fragments granted by it",
    }


def zmq(options, size, check):
    """The same of ZeroMQ's."""
    common = ["--detectors", str(options.detectors), "--builders", str(options.builders)] + ["--check"] * check
    source = [options.zmq_builder, "source", *common[:2], *common[4:], "--size", str(size), "--seconds", str(options.seconds)]
    source += ["--copy"] * (options.zmq_memory == "own")
    report, builders = run_processes([options.zmq_builder, "builder", *common], source, options, options.seconds)
    events, fragments = (sum(b[key] for b in builders) for key in ("events_built", "fragments"))
    if (events, fragments) != (report["events"], report["fragments"]) or fragments != events * options.detectors:
        raise Failed(f"the counts over ZeroMQ do not agree: {report}, {builders}")
    return {
        "events": events,
        "fragments": fragments,
        "bytes": sum(b["bytes"] for b in builders),
        "seconds": (max(b["last_ns"] for b in builders) - report["begun_ns"]) / 1e9,
        "cpu_s": report["cpu_s"] + sum(b["cpu_s"] for b in builders),
        "latency_us_p50": statistics.mean(b["latency_us_p50"] for b in builders),
        "latency_us_p99": max(b["latency_us_p99"] for b in builders),
    }


# ---- pairs ---------------------------------------------------------------------------------------


def interval(values):
    """The median and its 95 % interval, which comes from the order of the values alone; of fewer than six, their range."""
    values = sorted(values)
    count, outside, skip = len(values), 0.0, 0
    while count >= 6:
        outside += 2 * math.comb(count, skip) / 2**count
        if outside > 0.05:
            break
        skip += 1
    skip = max(skip - 1, 0)
    return statistics.median(values), values[skip], values[count - 1 - skip]


WAYS = {"ours": ours, "zmq": zmq}


def pair(options, size, check):
    """Both ways once, in an order by chance."""
    order = random.sample(list(WAYS), 2)
    found = {way: WAYS[way](options, size, check) for way in order}
    for run in found.values():
        if run["bytes"] != run["fragments"] * size:
            raise Failed(f"{run['bytes']} bytes in {run['fragments']} fragments of {size}")
        run["events_per_s"] = run["events"] / run["seconds"]
        run["cpu_ns_per_fragment"] = run["cpu_s"] / run["fragments"] * 1e9
    return found


def case(options, size, check):
    """All pairs of a size, as one object of JSON."""
    pairs = [pair(options, size, check) for _ in range(options.pairs)]
    row = {"size_bytes": size, "check": check, "pairs": len(pairs)}
    for way in WAYS:
        for key in ("events_per_s", "cpu_ns_per_fragment", "latency_us_p50", "latency_us_p99"):
            row[f"{way}_{key}"] = interval([found[way][key] for found in pairs])
    row["ratio"] = interval([found["ours"]["events_per_s"] / found["zmq"]["events_per_s"] for found in pairs])
    row["cpu_ratio"] = interval([found["ours"]["cpu_ns_per_fragment"] / found["zmq"]["cpu_ns_per_fragment"] for found in pairs])
    row["ours_runs"], row["zmq_runs"] = ([found[way]["events_per_s"] for found in pairs] for way in WAYS)
    row |= {"detectors": options.detectors, "builders": options.builders, "seconds": options.seconds}
    row |= {"congestion": congestion(), "pin": options.pin, "zmq_memory": options.zmq_memory}
    row |= {"ours_version": pairs[0]["ours"]["version"], "ours_depth": pairs[0]["ours"]["depth"]}
    return row | {"zmq_version": options.zmq_version, "zmq_depth": ZMQ_DEPTH}


def shown(values, digits=0):
    median, low, high = (f"{value:,.{digits}f}" for value in values)
    return f"{median} [{low}, {high}]"


def print_row(row):
    cells = [str(row["size_bytes"]), "on" if row["check"] else "off"]
    cells += [shown(row[f"{way}_events_per_s"]) for way in WAYS] + [shown(row["ratio"], 2)]
    cells += [shown(row[f"{way}_cpu_ns_per_fragment"]) for way in WAYS] + [f"{row['pairs']}"]
    print("| " + " | ".join(cells) + " |", flush=True)


def print_head(row):
    print(f"ours: {row['ours_version']}, {row['ours_depth']}; libzmq {row['zmq_version']}, tcp, {row['zmq_depth']}")
    source, builders = core_sets(row["pin"])
    print(f"{row['detectors']} detectors of one source on cores {source}, {row['builders']} builders on {builders}; runs of "
          f"{row['seconds']} s; congestion control {row['congestion']}; medians [95 % interval; of fewer than 6 pairs the range]")
    print("| bytes | check | ours events/s | zmq events/s | ours / zmq | ours ns of cpu a fragment | zmq's | pairs |")
    print("|---|---|---|---|---|---|---|---|", flush=True)


# ---- building, and the command line --------------------------------------------------------------


def build(directory):
    """The program over ZeroMQ, and the library's version; or none, and why not."""
    compiler = os.environ.get("CC") or shutil.which("cc")
    if not compiler:
        return None, "no C compiler (cc) here"
    if not shutil.which("pkg-config"):
        return None, "no pkg-config here"
    flags = subprocess.run(["pkg-config", "--cflags", "--libs", "libzmq"], capture_output=True, text=True)
    if flags.returncode != 0:
        return None, "pkg-config finds no libzmq (Debian: libzmq3-dev)"
    program = os.path.join(directory, "zmq_builder")
    command = [compiler, "-std=c11", "-O3", "-march=native", "-Wall", "-Wextra", "-o", program]
    command += [os.path.join(HERE, "zmq_builder.c"), *flags.stdout.split(), "-lpthread"]
    built = subprocess.run(command, capture_output=True, text=True)
    if built.returncode != 0:
        raise Failed(f"{' '.join(command)}: {built.stderr}")
    version = subprocess.run([program, "version"], check=True, capture_output=True, text=True)
    return program, version.stdout.strip()


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", default="64,512,4096", help="bytes of a fragment, some with commas between")
    parser.add_argument("--check", default="off,on", help="off, on or off,on: pattern and CRC32C on both sides")
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=1.0, help="length of each run")
    parser.add_argument("--detectors", type=int, default=2)
    parser.add_argument("--builders", type=int, default=2)
    parser.add_argument("--provider", default="tcp", help="ours; ZeroMQ's is tcp")
    parser.add_argument("--node", default="127.0.0.1", help="our address; ZeroMQ's is 127.0.0.1")
    parser.add_argument("--pin", choices=["split", "two", "none"], default="split",
                        help="source on one core and builders on another; all on the same two cores; not at all")
    parser.add_argument("--netns", default="reno", help="congestion control of a network namespace of its own; none: this one")
    parser.add_argument("--zmq-memory", choices=["ring", "own"], default="ring", help="where the fragments over ZeroMQ are filled")
    parser.add_argument("--fabricast", default="target/release/fabricast", help="the program")
    parser.add_argument("--json", action="store_true", help="one object a line instead of the table")
    return parser.parse_args()


def main():
    options = parse()
    with tempfile.TemporaryDirectory() as directory:
        options.zmq_builder, options.zmq_version = build(directory)
        if options.zmq_builder is None:
            print(f"SKIPPED: event building beside ZeroMQ: {options.zmq_version}")
            return 0
        if options.netns != "none" and (why := enter_namespace(options.netns)):
            print(f"SKIPPED: a network namespace with {options.netns}: {why}; going on without", file=sys.stderr)
        first = True
        for size in map(int, options.size.split(",")):
            for check in options.check.split(","):
                row = case(options, size, check == "on")
                if options.json:
                    print(json.dumps(row), flush=True)
                    continue
                if first:
                    print_head(row)
                first = False
                print_row(row)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failed as failed:
        print(f"readout_pairs: {failed}", file=sys.stderr)
        sys.exit(1)
