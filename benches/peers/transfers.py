#!/usr/bin/env python3
"""fabricast send beside rsync, xrdcp and tar | nc | tar: the same files to another process, in interleaved rounds.

Each receiver is started before the time begins and waits: `fabricast recv`, rsync's daemon, xrootd, `nc -l | tar x`. The time ends when the
sender has ended, and tar's receiver, too. What arrived is compared with what was sent after the first round of each case. A program that is
not installed is SKIPPED, and one that can't do a case is left out of it.

    cargo build --release -p fabricast-cli
    python3 benches/peers/transfers.py --runs 5
    python3 benches/peers/transfers.py --case file,resumed --bytes 1G --dir /var/tmp
"""

import argparse
import json
import os
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
# A transfer that takes longer hangs.
PATIENCE = 600
CHUNK = 1 << 20


class Failed(Exception):
    """A transfer that failed, or left something else than what was sent."""


# ---- what is sent --------------------------------------------------------------------------------


def random_bytes(count, seed):
    return random.Random(seed).randbytes(count)


def write_file(path, count, seed):
    block = random_bytes(min(count, CHUNK), seed)
    with open(path, "wb") as file:
        left = count
        while left > 0:
            # Blocks that differ, so that nothing gains by equal ones.
            stamp = left.to_bytes(8, "little")
            file.write((stamp + block)[: min(left, CHUNK)])
            left -= min(left, CHUNK)


def make_file(place, count):
    os.makedirs(place)
    write_file(os.path.join(place, "file"), count, 1)


def make_small(place, count):
    for number in range(count):
        directory = os.path.join(place, f"d{number // 100:04}")
        os.makedirs(directory, exist_ok=True)
        with open(os.path.join(directory, f"f{number % 100:02}"), "wb") as file:
            file.write(random_bytes(4096, number))


def make_mixed(place, count):
    """Most files are small, most bytes are in large ones: 512 B to 64 MiB, each power of two alike."""
    chance = random.Random(7)
    for number in range(count):
        directory = os.path.join(place, f"a{number % 10}", f"b{number // 10 % 10}")
        os.makedirs(directory, exist_ok=True)
        # The square makes large ones rarer.
        size = int(512 * 2 ** (17 * chance.random() ** 2))
        write_file(os.path.join(directory, f"f{number}"), size, number)


def size_of(tree):
    total = files = 0
    for directory, _, names in os.walk(tree):
        files += len(names)
        total += sum(os.path.getsize(os.path.join(directory, name)) for name in names)
    return files, total


def compare(sent, arrived, program):
    ends = subprocess.run(["diff", "-rq", sent, arrived], stdout=subprocess.PIPE, text=True)
    if ends.returncode != 0:
        raise Failed(f"{program}: what arrived differs: {ends.stdout[:300]}")


# ---- the programs --------------------------------------------------------------------------------


def free_port():
    with socket.socket() as any_socket:
        any_socket.bind(("127.0.0.1", 0))
        return any_socket.getsockname()[1]


def await_port(port, process):
    """Waits until somebody listens, without connecting: `nc -l` serves one connection."""
    wanted = f":{port:04X} "
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        for table in ("/proc/net/tcp", "/proc/net/tcp6"):
            with open(table) as file:
                for line in file.readlines()[1:]:
                    words = line.split()
                    if words[1].endswith(wanted.strip()) and words[3] == "0A":
                        return
        if process.poll() is not None:
            break
        time.sleep(0.01)
    raise Failed(f"nobody listens at port {port}: {process.args}")


def run(command, killed_when=None, **more):
    """The seconds that a command took. With `killed_when`, it is killed as soon as that is true."""
    begin = time.monotonic()
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=said, **more)
        if killed_when:
            while process.poll() is None and not killed_when():
                time.sleep(0.002)
            process.kill()
            process.wait()
            return time.monotonic() - begin
        try:
            status = process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise Failed(f"{command[0]}: not done after {PATIENCE} s") from None
        took = time.monotonic() - begin
        if status != 0:
            said.seek(0)
            raise Failed(f"{' '.join(command)}: status {status}: {said.read()[-400:].decode(errors='replace')}")
    return took


def end(process):
    if process and process.poll() is None:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class Program:
    """A way to send a tree: `serve` before the time begins, `send` within it, `close` behind it."""

    server = None

    def missing(self):
        return None

    def cut(self, tree, place, count):
        """Sends until that many bytes have arrived, and is killed."""
        self.send(tree, killed_when=lambda: bytes_below(place) >= count)

    def arrived(self, place, tree):
        return os.path.join(place, os.path.basename(tree))

    def close(self):
        end(self.server)
        self.server = None


class Fabricast(Program):
    name = "fabricast"
    does = {"file", "small", "mixed", "unchanged", "changed", "resumed"}

    def __init__(self, args):
        self.binary = args.fabricast
        self.environment = dict(os.environ)
        if args.libfabric:
            self.environment["FABRICAST_LIBFABRIC"] = args.libfabric

    def missing(self):
        return None if os.access(self.binary, os.X_OK) else f"{self.binary} is not built: cargo build --release -p fabricast-cli"

    def serve(self, place):
        command = [self.binary, "recv", "--listen", "127.0.0.1:0", "--dir", place]
        self.server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=self.environment)
        self.address = self.server.stdout.readline().split()[-1]

    def send(self, tree, again=False, killed_when=None):
        more = ["--skip-unchanged"] if again else []
        return run([self.binary, "send", tree, "--to", self.address, "--quiet", *more], killed_when, env=self.environment)

    def cut(self, tree, place, count):
        # Its receiver gives a file all its room at once, so the sender's progress is looked at.
        command = [self.binary, "send", tree, "--to", self.address, "--json"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=self.environment)
        for line in process.stdout:
            if json.loads(line).get("bytes", 0) >= count:
                break
        process.kill()
        process.communicate()


class Rsync(Program):
    name = "rsync"
    does = {"file", "small", "mixed", "unchanged", "changed", "resumed"}

    def __init__(self, args):
        self.work = args.work

    def missing(self):
        return None if shutil.which("rsync") else "rsync is not installed"

    def serve(self, place):
        config = os.path.join(self.work, "rsyncd.conf")
        with open(config, "w") as file:
            file.write(f"use chroot = no\nuid = {os.getuid()}\ngid = {os.getgid()}\n[to]\npath = {place}\nread only = no\n")
        self.port = free_port()
        command = ["rsync", "--daemon", "--no-detach", "--address", "127.0.0.1", "--port", str(self.port), "--config", config]
        self.server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
        await_port(self.port, self.server)

    def send(self, tree, again=False, killed_when=None):
        # As it goes on where it was cut. A file that is not there goes as a whole either way.
        return run(["rsync", "-a", "--partial", tree, f"rsync://127.0.0.1:{self.port}/to/"], killed_when)


class Xrdcp(Program):
    name = "xrdcp"
    # --continue is for downloads: version 5.5 refuses to go on with a file that it sent.
    does = {"file", "small", "mixed"}

    def __init__(self, args):
        self.work = args.work

    def missing(self):
        both = shutil.which("xrdcp") and shutil.which("xrootd")
        return None if both else "xrdcp or xrootd is not installed (Debian: xrootd-client, xrootd-server)"

    def serve(self, place):
        self.port = free_port()
        own = os.path.join(self.work, "xrootd")
        os.makedirs(own, exist_ok=True)
        # A tree goes to a directory that is there.
        os.mkdir(os.path.join(place, "to"))
        config = os.path.join(self.work, "xrootd.cf")
        with open(config, "w") as file:
            file.write(f"all.export /\noss.localroot {place}\nxrd.port {self.port}\nall.adminpath {own}\nall.pidpath {own}\n")
        command = ["xrootd", "-c", config, "-l", os.path.join(own, "log"), "-n", "bench"]
        identity = {}
        if os.getuid() == 0:
            # It refuses to run as root.
            for path in (self.work, own, place, os.path.join(place, "to")):
                shutil.chown(path, "nobody")
            identity = {"user": "nobody"}
        self.server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, **identity)
        await_port(self.port, self.server)

    def send(self, tree, again=False, killed_when=None):
        return run(["xrdcp", "--nopbar", "-f", "-r", tree, f"root://127.0.0.1:{self.port}//to/"], killed_when)

    def arrived(self, place, tree):
        return os.path.join(place, "to", os.path.basename(tree))


class Tar(Program):
    name = "tar | nc | tar"
    does = {"file", "small", "mixed"}

    def __init__(self, args):
        self.work = args.work

    def missing(self):
        return None if shutil.which("nc") and shutil.which("tar") else "nc or tar is not installed (Debian: netcat-openbsd)"

    def serve(self, place):
        self.port = free_port()
        command = f"nc -l 127.0.0.1 {self.port} | tar x -C {place}"
        self.server = subprocess.Popen(["bash", "-c", command], stdin=subprocess.DEVNULL)
        await_port(self.port, self.server)

    def send(self, tree, again=False, killed_when=None):
        begin = time.monotonic()
        above, name = os.path.split(tree)
        run(["bash", "-c", f"set -o pipefail; tar c -C {above} {name} | nc -N 127.0.0.1 {self.port}"])
        if self.server.wait(PATIENCE) != 0:
            raise Failed("tar x failed")
        return time.monotonic() - begin


# ---- the cases -----------------------------------------------------------------------------------


def new_place(args):
    place = tempfile.mkdtemp(dir=args.work)
    os.chmod(place, 0o777)
    return place


def bytes_below(place):
    total = 0
    for directory, _, names in os.walk(place):
        for name in names:
            try:
                # Blocks, as a file may have its length before its content.
                total += os.stat(os.path.join(directory, name)).st_blocks * 512
            except OSError:
                pass
    return total


def once(program, case, tree, args, check):
    """The seconds that a program takes for a case."""
    place = new_place(args)
    try:
        program.serve(place)
        if case in ("unchanged", "changed"):
            program.send(tree, again=True)
            if case == "changed":
                victim = os.path.join(tree, "d0000", "f00")
                with open(victim, "r+b") as file:
                    file.write(os.urandom(8))
                # rsync looks at whole seconds.
                later = os.stat(victim).st_mtime + 5
                os.utime(victim, (later, later))
            took = program.send(tree, again=True)
        elif case == "resumed":
            program.cut(tree, place, size_of(tree)[1] // 2)
            took = program.send(tree)
        else:
            took = program.send(tree)
        if check:
            compare(tree, program.arrived(place, tree), program.name)
        return took
    finally:
        program.close()
        shutil.rmtree(place, ignore_errors=True)


def number_with_unit(text):
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    return int(text[:-1]) * units[text[-1]] if text[-1] in units else int(text)


CASES = {
    "file": "one large file",
    "small": "files of 4 KiB",
    "mixed": "a mixed tree",
    "unchanged": "the files of 4 KiB once more, nothing changed",
    "changed": "the files of 4 KiB once more, one changed",
    "resumed": "the large file, gone on with after the sender was killed at half",
}


def main():
    usual = os.path.join(HERE, "..", "..", "target", "release", "fabricast")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", default=",".join(CASES), help="some of " + ", ".join(CASES))
    parser.add_argument("--runs", type=int, default=5, help="rounds (5)")
    parser.add_argument("--bytes", type=number_with_unit, default=4 << 30, help="of the large file (4G)")
    parser.add_argument("--files", type=int, default=20_000, help="of 4 KiB (20000)")
    parser.add_argument("--mixed", type=int, default=1000, help="files of the mixed tree (1000)")
    parser.add_argument("--dir", default="/dev/shm", help="where files are read and written (/dev/shm)")
    parser.add_argument("--fabricast", default=os.path.normpath(usual), help="the command (target/release/fabricast)")
    parser.add_argument("--libfabric", help="the libfabric that it loads (the system's)")
    parser.add_argument("--json", action="store_true", help="all figures as one JSON object")
    args = parser.parse_args()
    cases = args.case.split(",")
    if unknown := [case for case in cases if case not in CASES]:
        parser.error(f"--case {unknown[0]}: want some of {', '.join(CASES)}")
    args.work = tempfile.mkdtemp(prefix="fabricast-transfers-", dir=args.dir)
    os.chmod(args.work, 0o755)
    programs = []
    for kind in (Fabricast, Rsync, Xrdcp, Tar):
        program = kind(args)
        if why := program.missing():
            print(f"SKIPPED: {kind.name}: {why}", flush=True)
        else:
            programs.append(program)
    try:
        results = measure(args, cases, programs)
    finally:
        for program in programs:
            program.close()
        shutil.rmtree(args.work, ignore_errors=True)
    if args.json:
        print(json.dumps(results))


def measure(args, cases, programs):
    results = {}
    print(f"{os.cpu_count()} processors, loopback, {args.dir}, {args.runs} rounds, medians in seconds, of rsync in brackets")
    with open("/proc/sys/net/ipv4/tcp_congestion_control") as file:
        print(f"congestion control {file.read().strip()}; libfabric {args.libfabric or 'of the system'}")
    for case in cases:
        kind = "file" if case in ("file", "resumed") else "mixed" if case == "mixed" else "small"
        tree = os.path.join(args.work, kind)
        if not os.path.exists(tree):
            make, count = {
                "file": (make_file, args.bytes),
                "small": (make_small, args.files),
                "mixed": (make_mixed, args.mixed),
            }[kind]
            make(tree, count)
        takes = {program.name: [] for program in programs if case in program.does}
        for number in range(args.runs):
            order = [program for program in programs if case in program.does]
            random.shuffle(order)
            for program in order:
                try:
                    takes[program.name].append(once(program, case, tree, args, number == 0))
                except Failed as failure:
                    print(f"FAILED: {case}, {program.name}: {failure}", flush=True)
        files, total = size_of(tree)
        print(f"\n{CASES[case]}: {files} files, {total / 1e6:,.0f} MB")
        medians = {name: statistics.median(took) for name, took in takes.items() if took}
        for name, took in takes.items():
            if not took:
                continue
            of = f"{medians[name] / medians['rsync']:6.2f}" if "rsync" in medians else ""
            print(f"  {name:16}{medians[name]:9.3f}  [{of} ]   {min(took):.3f} to {max(took):.3f}", flush=True)
        results[case] = {"files": files, "bytes": total, "seconds": takes}
    return results


if __name__ == "__main__":
    sys.exit(main())
