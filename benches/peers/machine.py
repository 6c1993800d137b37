"""What the benches beside other programs share: a network namespace, cores, processes that end with their starter, medians."""

import ctypes
import fcntl
import json
import math
import os
import shutil
import socket
import statistics
import struct
import subprocess
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
LIBC = ctypes.CDLL(None, use_errno=True)
CLONE_NEWUSER, CLONE_NEWNET, PR_SET_PDEATHSIG, SIGKILL = 0x10000000, 0x40000000, 1, 9
CONGESTION = "/proc/sys/net/ipv4/tcp_congestion_control"
# A process of a run that takes so much longer than the run hangs.
PATIENCE = 60


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

    def __init__(self, command, cores, environment=None, output=None):
        def prepare():
            LIBC.prctl(PR_SET_PDEATHSIG, SIGKILL)
            os.sched_setaffinity(0, cores)

        self.command = command
        self.errors = tempfile.TemporaryFile()
        # With `output`, a file takes all that it says.
        self.child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output or subprocess.PIPE, stderr=output or self.errors, text=True,
            # A session, and so a group, of its own: some programs are scripts, whose children have to end with them.
            start_new_session=True, preexec_fn=prepare, env=os.environ | (environment or {}),
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        try:
            os.killpg(self.child.pid, SIGKILL)
        except ProcessLookupError:
            pass
        self.child.wait()
        if self.child.stdout:
            self.child.stdout.close()
        self.errors.close()

    def address(self):
        line = self.child.stdout.readline().strip()
        if not line.startswith("listening on "):
            raise Failed(f"{self.command[0]} did not start: {self.said()}")
        return line.removeprefix("listening on ")

    def said(self, most=500):
        self.errors.seek(0)
        return self.errors.read().decode(errors="replace").strip()[-most:]

    def report(self, seconds):
        """The JSON of its last line, when it has ended well."""
        return json.loads(self.output(seconds).splitlines()[-1])

    def output(self, seconds):
        """What it has written, when it has ended well."""
        try:
            out, _ = self.child.communicate(timeout=seconds + PATIENCE)
        except subprocess.TimeoutExpired:
            raise Failed(f"{' '.join(self.command)}: not ended") from None
        if self.child.returncode != 0:
            raise Failed(f"{' '.join(self.command)}: status {self.child.returncode}: {out[-500:]} {self.said()}")
        return out


# ---- figures -------------------------------------------------------------------------------------


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


def shown(values, digits=0):
    median, low, high = (f"{value:,.{digits}f}" for value in values)
    return f"{median} [{low}, {high}]"


# ---- programs over ZeroMQ ------------------------------------------------------------------------


def build_over_zmq(name, directory):
    """A program of ours over ZeroMQ, and the library's version; or none, and why not."""
    compiler = os.environ.get("CC") or shutil.which("cc")
    if not compiler:
        return None, "no C compiler (cc) here"
    if not shutil.which("pkg-config"):
        return None, "no pkg-config here"
    flags = subprocess.run(["pkg-config", "--cflags", "--libs", "libzmq"], capture_output=True, text=True)
    if flags.returncode != 0:
        return None, "pkg-config finds no libzmq (Debian: libzmq3-dev)"
    program = os.path.join(directory, name)
    command = [compiler, "-std=c11", "-O3", "-march=native", "-Wall", "-Wextra", "-o", program]
    command += [os.path.join(HERE, name + ".c"), *flags.stdout.split(), "-lpthread"]
    built = subprocess.run(command, capture_output=True, text=True)
    if built.returncode != 0:
        raise Failed(f"{' '.join(command)}: {built.stderr}")
    version = subprocess.run([program, "version"], check=True, capture_output=True, text=True)
    return program, version.stdout.strip()
