#!/usr/bin/env python3
"""KvikIO beside fabricast: whole passes over one file, in turn, and the ratio of each pair.

Needs `pip install kvikio-cu12 numpy` (or -cu13), and a libcuda.so.1 that works even for the host's memory: without it KvikIO can be imported, and
fails or hangs at its first read. A process of its own tries that first; where it does not work, this says SKIPPED and why.

    cargo build --release -p fabricast-benches --bin file_bench
    python3 benches/kvikio_matrix.py --dir /mnt/nvme --runs 15
"""

import argparse
import json
import mmap
import os
import statistics
import subprocess
import sys
import tempfile
import time

# file_bench's name, whether it writes, around the page cache, bytes that the memory is off by.
MATRIX = [
    ("read-direct", False, True, 0),
    ("write-direct", True, True, 0),
    ("read-off16", False, True, 16),
    ("write-off16", True, True, 16),
    ("read-cached", False, False, 0),
    ("write-cached", True, False, 0),
]


def ours(options, name):
    """Our rate, in GB/s; none where file_bench skips the operation."""
    command = [options.file_bench, "--json", "--only", "ours", "--runs", "1", "--op", name]
    command += ["--dir", options.dir, "--size", f"{options.size_mib}M", "--threads", str(options.threads)]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    rows = [json.loads(line) for line in lines if line.startswith("{")]
    return rows[0]["gb_per_s"] if rows else None


# What a first read takes; a driver that does not start may never come back.
PROBE = """
import sys
import numpy
import kvikio
with kvikio.CuFile(sys.argv[1], "r") as file:
    assert file.pread(numpy.empty(4096, dtype=numpy.uint8)).get() == 4096
"""
PROBE_SECONDS = 30


def unusable(path):
    """Why KvikIO can't read the host's memory here; none where it can."""
    try:
        command = [sys.executable, "-c", PROBE, path]
        probe = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_SECONDS)
    except subprocess.TimeoutExpired:
        return f"its first read did not come back within {PROBE_SECONDS} s"
    words = probe.stderr.strip().splitlines()
    return None if probe.returncode == 0 else words[-1] if words else f"exit status {probe.returncode}"


def drop_cache(path):
    """As file_bench does before it goes around the page cache."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def theirs(kvikio, numpy, path, size, write, direct, off):
    """KvikIO's rate, in GB/s, in whole passes for half a second."""
    pages = mmap.mmap(-1, size + mmap.PAGESIZE)
    # Large pages as far as there are some, as file_bench has them.
    pages.madvise(mmap.MADV_HUGEPAGE)
    memory = numpy.frombuffer(pages, dtype=numpy.uint8)[off : off + size]
    memory[:] = 7
    done = 0
    if direct:
        drop_cache(path)
    with kvikio.CuFile(path, "r+") as file:
        if not direct:
            (file.pwrite(memory) if write else file.pread(memory)).get()
        begun = time.perf_counter()
        while time.perf_counter() - begun < 0.5:
            future = file.pwrite(memory) if write else file.pread(memory)
            done += future.get()
        return done / (time.perf_counter() - begun) / 1e9


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dir", default=tempfile.gettempdir())
    parser.add_argument("--file-bench", default="target/release/file_bench")
    parser.add_argument("--size-mib", type=int, default=512)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--runs", type=int, default=15)
    options = parser.parse_args()
    try:
        import kvikio
        import kvikio.defaults
        import numpy
    except (ImportError, OSError) as error:
        print(f"SKIPPED: KvikIO: {error}")
        return 0
    size = options.size_mib << 20
    with tempfile.TemporaryDirectory(dir=options.dir) as directory:
        path = os.path.join(directory, "kvikio.dat")
        with open(path, "wb") as file:
            for _ in range(options.size_mib):
                file.write(b"\7" * (1 << 20))
            os.fsync(file.fileno())
        if reason := unusable(path):
            print(f"SKIPPED: KvikIO: {reason}")
            return 0
        for name, write, direct, off in MATRIX:
            kvikio.defaults.set(
                {
                    "num_threads": options.threads,
                    "task_size": 4 << 20,
                    "auto_direct_io_read": direct,
                    "auto_direct_io_write": direct,
                }
            )
            ratios = []
            for _ in range(options.runs):
                mine = ours(options, name)
                if mine is None:
                    break
                ratios.append(mine / theirs(kvikio, numpy, path, size, write, direct, off))
            row = {"op": name, "pairs": len(ratios)}
            if ratios:
                row["ratio_to_kvikio"] = statistics.median(ratios)
            print(json.dumps(row))
    return 0


if __name__ == "__main__":
    sys.exit(main())
