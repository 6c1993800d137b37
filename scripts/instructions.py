#!/usr/bin/env python3
"""Instructions of user code a message, through the Rust API and through the C interface: `bench`, one side of it in callgrind.

   instructions.py [OPTIONS] [CASE...]   all cases, or those of which the name contains one of these words
     --seconds S        how long a run is counted (1)
     --runs N           runs of each side (3); the median is taken, or the one with the fewest polls that found nothing
     --where CASE       and what C has more of than Rust, and less, by the function of ours that an instruction was inlined from
     --build            builds the bench first
     --json             one object a line and row

What is counted lies between the two marks of a run, so set-up and warm-up are not in it; the other process runs as fast as it can, so
that the one that is counted seldom finds nothing to do. What polls that found nothing cost is taken off: `empty` says how many there
were for a message, and their cost comes from a run of which the other process is in callgrind, too, and slow; ~ where that is more than
a twentieth: run it again. `polls` are those that found something, for a message: they depend on the time, and each has a cost. `own` is
the program's part (loop of the bench, library, C interface), `all` with libfabric and libc. SKIPPED without valgrind.
"""
import argparse
import collections
import json
import os
import pathlib
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
BENCH = TARGET / "release/bench"
PATIENCE = 300
CASES = {
    "packed 64": "--op send --size 64",
    "packed 512": "--op send --size 512",
    "4096": "--op send --size 4096",
    "not packed 64": "--op send --size 64 --pack 0",
    "coalesced 64": "--op coalesced --size 64",
    "pingpong 64": "--op pingpong --size 64",
    "rma-write 64": "--op rma-write --size 64",
}
SIDES = {"rust": ["--only", "ours"], "c": ["--through-c", "--only", "c"]}
# The functions of the bench that a mark calls, in the process that sends it and in the one that gets it.
MARKS = ("*Pacer*marked*", "*Sampler*on_mark*")
SOMETHING, NOTHING = re.compile(r"Patience.*on_something"), re.compile(r"Patience.*on_nothing")


class Counts:
    """What callgrind wrote of the time between two marks."""

    def __init__(self, path):
        self.of = collections.Counter()  # (object, address of an instruction) -> how often it ran
        self.calls = collections.Counter()
        self.names = {}
        self.read(path)

    def name(self, kind, text):
        number, _, name = text.partition(" ")
        if name:
            self.names[kind, number] = name
        return self.names[kind, number]

    def read(self, path):
        where, called, is_call = "", "", False
        for line in open(path):
            key, equals, value = line.rstrip("\n").partition("=")
            if equals and key in ("ob", "cob"):
                name = self.name("ob", value)
                where = name if key == "ob" else where
            elif equals and key in ("fn", "cfn"):
                called = self.name("fn", value)
            elif key == "calls":
                self.calls[called] += int(value.split()[0])
                is_call = True
            elif line.startswith("0x"):
                if not is_call:
                    address, _, count = line.split()
                    self.of[where, address] += int(count)
                is_call = False

    def all(self):
        return sum(self.of.values())

    def own(self):
        return sum(count for (where, _), count in self.of.items() if where == str(BENCH))

    def polls(self, which):
        return sum(count for name, count in self.calls.items() if which.search(name))


def callgrind(folder, is_counted):
    # Whoever is only to be slow simulates caches, too.
    if not is_counted:
        return ["valgrind", "-q", "--tool=callgrind", f"--callgrind-out-file={folder}/out", "--log-file=/dev/null", "--cache-sim=yes", "--branch-sim=yes"]
    output = [f"--callgrind-out-file={folder}/out", "--dump-instr=yes", "--compress-pos=no"]
    return ["valgrind", "-q", "--tool=callgrind", *output, *(f"--dump-before={mark}" for mark in MARKS)]


def run(case, side, counted, slow_peer, seconds):
    """One run: what was counted in the client (sender) or the server (receiver), and messages."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as other:
        front = {who: [] for who in ("sender", "receiver")}
        if slow_peer:
            front = {who: callgrind(other, False) for who in front}
        front[counted] = callgrind(folder, True)
        server = subprocess.Popen([*front["receiver"], BENCH, "server", "--no-pin"], stdout=subprocess.PIPE, text=True)
        try:
            address = server.stdout.readline().split()[-1]
            client = [*front["sender"], BENCH, "client", address, *CASES[case].split(), *SIDES[side]]
            client += ["--no-pin", "--json", "--runs", "1", "--seconds", str(seconds)]
            told = subprocess.run(client, stdout=subprocess.PIPE, text=True, timeout=PATIENCE, check=True).stdout
            server.wait(PATIENCE)
        finally:
            server.kill()
            server.wait()
        figures = json.loads(told)
        messages = figures["messages"] if figures["messages"] is not None else figures["bare_messages"]
        return Counts(f"{folder}/out.2"), messages


class Side:
    """One language's figures a message, polls that found nothing taken off."""

    def __init__(self, case, side, counted, options):
        self.runs = [run(case, side, counted, False, options.seconds) for _ in range(options.runs)]
        self.empty, self.polls = self.median(NOTHING), self.median(SOMETHING)
        slow = run(case, side, counted, True, options.seconds) if self.empty > 0.001 else None
        (self.own, own_is_sure), (self.all, all_is_sure) = (self.without_empty(slow, of) for of in (Counts.own, Counts.all))
        self.mark = " " if own_is_sure and all_is_sure else "~"

    def median(self, which):
        return statistics.median(counts.polls(which) / messages for counts, messages in self.runs)

    def without_empty(self, slow, of):
        """What a message costs without polls that found nothing, and whether they hardly matter."""
        points = [(counts.polls(NOTHING) / messages, of(counts) / messages) for counts, messages in self.runs]
        if slow is None:
            return statistics.median(cost for _, cost in points), True
        # Of instructions nothing depends on the time but these polls: the run with the fewest is the best.
        empty, cost = min(points)
        many, more = max([*points, (slow[0].polls(NOTHING) / slow[1], of(slow[0]) / slow[1])])
        if many == empty:
            return cost, False
        found = cost - empty * (more - cost) / (many - empty)
        return found, 0 < cost - found < cost / 20 and many > 2 * empty

    def by_function(self):
        sums = collections.Counter()
        for counts, messages in self.runs:
            for (where, address), count in counts.of.items():
                if where == str(BENCH):
                    sums[address] += count / messages / len(self.runs)
        functions = collections.Counter()
        for address, name in functions_of(list(sums)).items():
            functions[name] += sums[address]
        return functions


def functions_of(addresses):
    """For each address the innermost function of ours, with its file: the standard library's are inlined into it."""
    asked = subprocess.run(["addr2line", "-e", BENCH, "-aifC"], input="\n".join(addresses), stdout=subprocess.PIPE, text=True, check=True)
    found, names = {}, iter(asked.stdout.splitlines())
    for line in names:
        if line.startswith("0x"):
            address, found[hex(int(line, 16))] = hex(int(line, 16)), None
            continue
        file = next(names).partition(":")[0]
        name = re.sub(r"::h[0-9a-f]{16}$", "", line)
        if file.startswith(f"{ROOT}/") and (found[address] or OTHER).startswith(OTHER):
            found[address] = f"{file.removeprefix(f'{ROOT}/')}  {'::'.join(re.sub('<.*>::', '', name).split('::')[-2:])}"
        elif (found[address] or OTHER).startswith(OTHER):
            found[address] = f"{OTHER}  {name}"
    return found


OTHER = "(not ours)"


def where(rust, c):
    """What C has more of than Rust, and less."""
    rust, c = rust.by_function(), c.by_function()
    print(f"    {'Rust':>8} {'C':>8} {'C - Rust':>9}  file and function")
    for name in sorted(rust.keys() | c.keys(), key=lambda name: rust[name] - c[name]):
        if abs(c[name] - rust[name]) >= 0.5:
            print(f"    {rust[name]:8.1f} {c[name]:8.1f} {c[name] - rust[name]:+9.1f}  {name}")


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seconds", type=float, default=1)
    options.add_argument("--runs", type=int, default=3)
    options.add_argument("--where", default="")
    options.add_argument("--build", action="store_true")
    options.add_argument("--json", action="store_true")
    options.add_argument("cases", nargs="*")
    options = options.parse_args()
    if not shutil.which("valgrind"):
        return print("SKIPPED: instructions: no valgrind")
    if options.build:
        subprocess.run("cargo build -q --release --locked --features fabricast/tokio,fabricast/cudarc -p fabricast-benches --bin bench".split(), cwd=ROOT, check=True)
    cases = [case for case in CASES if not options.cases or any(word in case for word in options.cases)]
    if not options.json:
        print(f"{'':24}{'own':>8} {'':8} {'':6} {'all':>9} {'':8} {'':6} {'polls':>7} {'':6} {'empty':>7}")
        print(f"{'case':14} {'process':9}{'Rust':>8} {'C':>8} {'ratio':>6} {'Rust':>9} {'C':>8} {'ratio':>6} {'Rust':>7} {'C':>6} {'Rust':>7} {'C':>6}")
    for case in cases:
        # Nothing is done for a write where it arrives.
        for counted in ("sender", "receiver")[: 1 if "rma" in case else 2]:
            rust, c = (Side(case, side, counted, options) for side in SIDES)
            if options.json:
                sides = {name: {key: getattr(side, key) for key in ("own", "all", "polls", "empty")} for name, side in (("rust", rust), ("c", c))}
                print(json.dumps({"case": case, "process": counted, **sides}), flush=True)
                continue
            print(
                f"{case:14} {counted:9}{rust.own:8.1f}{rust.mark}{c.own:8.1f}{c.mark}{c.own / rust.own:6.3f} {rust.all:9.1f} {c.all:8.1f} {c.all / rust.all:6.3f}"
                f" {rust.polls:7.3f} {c.polls:6.3f} {rust.empty:7.3f} {c.empty:6.3f}",
                flush=True,
            )
            if options.where == case:
                where(rust, c)


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    main()
