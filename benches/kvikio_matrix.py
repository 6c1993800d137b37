#!/usr/bin/env python3
"""KvikIO beside fabricast: whole passes over one file, in turn, and the ratio of each pair.

Needs `pip install kvikio-cu12 numpy` (or -cu13), and libcuda.so.1 even for the host's memory. Where that is missing it says SKIPPED.

    cargo build --release --example file_bench
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


def theirs(kvikio, numpy, path, size, write, off):
    """KvikIO's rate, in GB/s, in whole passes for half a second."""
    memory = numpy.frombuffer(mmap.mmap(-1, size + mmap.PAGESIZE), dtype=numpy.uint8)[off : off + size]
    memory[:] = 7
    done = 0
    with kvikio.CuFile(path, "r+") as file:
        begun = time.perf_counter()
        while time.perf_counter() - begun < 0.5:
            future = file.pwrite(memory) if write else file.pread(memory)
            done += future.get()
        return done / (time.perf_counter() - begun) / 1e9


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dir", default=tempfile.gettempdir())
    parser.add_argument("--file-bench", default="target/release/examples/file_bench")
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
                ratios.append(mine / theirs(kvikio, numpy, path, size, write, off))
            row = {"op": name, "pairs": len(ratios)}
            if ratios:
                row["ratio_to_kvikio"] = statistics.median(ratios)
            print(json.dumps(row))
    return 0


if __name__ == "__main__":
    sys.exit(main())
