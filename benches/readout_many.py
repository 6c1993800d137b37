#!/usr/bin/env python3
"""Event building by many processes: each source and each builder is one, and every source sends to every builder.

All events that the sources had must be built, once, by one of the builders; what both sides counted is compared. Printed are the time
until all builders listened, that of connections and goodbyes (all that is not the run), that of the run, and the memory of the largest process.

    cargo build --release -p fabricast-cli
    python3 benches/readout_many.py --sources 64 --builders 64 --events 20000
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))


class Failed(Exception):
    """A process that failed, or counts that do not agree."""


def start(command, errors):
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True)


def report_of(process, what, deadline, errors):
    try:
        out, _ = process.communicate(timeout=max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        raise Failed(f"{what}: not ended") from None
    if process.returncode != 0:
        errors.seek(0)
        raise Failed(f"{what}: status {process.returncode}: {out[-500:]} {errors.read().decode(errors='replace')[-2000:]}")
    return json.loads(out.splitlines()[-1])


def run(options):
    binary, patience = options.fabricast, str(options.timeout)
    running, errors = [], tempfile.TemporaryFile()
    began = time.monotonic()
    try:
        to, builders, sources = [], [], []
        for _ in range(options.builders):
            command = [binary, "readout", "builder", "--listen", "127.0.0.1:0", "--detectors", str(options.sources), "--sources", str(options.sources)]
            command += ["--credits", str(options.credits), "--max-fragment", str(options.size), "--timeout", patience, "--json"]
            builders.append(start(command, errors))
            running.append(builders[-1])
        for builder in builders:
            line = builder.stdout.readline().strip()
            if not line.startswith("listening on "):
                raise Failed(f"a builder did not start: {line}")
            to += ["--to", line.removeprefix("listening on ")]
        listening = time.monotonic() - began
        for number in range(options.sources):
            command = [binary, "readout", "source", "--detectors", "1", "--first-detector", str(number), "--size", str(options.size)]
            command += ["--events", str(options.events), "--rate", str(options.rate), "--timeout", patience, "--json"]
            sources.append(start(command + to, errors))
            running.append(sources[-1])
        deadline = time.monotonic() + options.patience
        sent = [report_of(process, "a source", deadline, errors) for process in sources]
        built = [report_of(process, "a builder", deadline, errors) for process in builders]
        return listening, time.monotonic() - began, sent, built
    finally:
        for process in running:
            if process.poll() is None:
                process.kill()
            process.wait()
            process.stdout.close()
        errors.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sources", type=int, default=8, help="processes, with a detector each (8)")
    parser.add_argument("--builders", type=int, default=8, help="processes (8)")
    parser.add_argument("--events", type=int, default=20000, help="events of the run (20000)")
    parser.add_argument("--rate", type=float, default=0, help="kHz; 0: as fast as it goes (0)")
    parser.add_argument("--size", type=int, default=1024, help="bytes of a fragment (1024)")
    parser.add_argument("--credits", type=int, default=64, help="fragments that each source may send ahead to a builder (64)")
    parser.add_argument("--timeout", type=int, default=60, help="seconds after which a process gives a silent peer up (60)")
    parser.add_argument("--patience", type=float, default=300, help="seconds after which the run has failed (300)")
    parser.add_argument("--fabricast", default=os.path.join(HERE, "../target/release/fabricast"), help="the command (target/release/fabricast)")
    options = parser.parse_args()
    listening, took, sent, built = run(options)
    events, fragments = options.events, options.events * options.sources
    for report in sent:
        lost = report["events_incomplete"] + report["events_lost_with_builder"] + report["fragments_lost"] + report["events_given_up"]
        if not report["agree"] or report["events_built"] != events or lost:
            raise Failed(f"a source counted something else than {events} events: {report}")
    totals = [sum(report[key] for report in built) for key in ("events_built", "fragments", "errors")]
    if totals != [events, fragments, 0]:
        raise Failed(f"builders have {totals[0]} events, {totals[1]} fragments, {totals[2]} errors; not {events}, {fragments}, 0")
    longest = max(report["seconds"] for report in sent)
    largest = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    print(f"{options.sources} sources, {options.builders} builders, {options.sources * options.builders} connections, fragments of {options.size} B,", end=" ")
    print(f"{os.cpu_count()} processors, {sent[0]['provider']}, libfabric {sent[0]['libfabric']}")
    print(f"builders listening after {listening:.2f} s; connections and goodbyes {took - listening - longest:.2f} s; run {longest:.2f} s")
    print(f"{events} events of {options.sources} fragments, each built once, both sides agree: {events / longest / 1e3:.1f} kHz of events,", end=" ")
    print(f"{fragments / longest / 1e6:.2f} million fragments/s; the largest process had {largest / 1024:.0f} MiB")


if __name__ == "__main__":
    try:
        main()
    except Failed as failure:
        sys.exit(f"readout_many.py: {failure}")
