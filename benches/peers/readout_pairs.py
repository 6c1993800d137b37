#!/usr/bin/env python3
"""fabricast readout beside an event builder over ZeroMQ (zmq_builder.c), in interleaved pairs.

Builds zmq_builder.c with pkg-config's libzmq and a C compiler; where one is missing, says SKIPPED and why.

    cargo build --release -p fabricast-cli
    python3 benches/peers/readout_pairs.py --size 64,512,4096 --check off,on --pairs 15
"""

import argparse
import json
import random
import statistics
import sys
import tempfile

from machine import Failed, Process, build_over_zmq, congestion, core_sets, enter_namespace, interval, shown

ZMQ_DEPTH = "HWM 1000 messages on each side of each connection"


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


# ---- the command line ----------------------------------------------------------------------------


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
        options.zmq_builder, options.zmq_version = build_over_zmq("zmq_builder", directory)
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
