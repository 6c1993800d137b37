# The front door. `make demo` and `make test` do their own set-up and say which commands they run.

SHELL := /bin/bash
.SHELLFLAGS := -eo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup demo readout test check rounds test-gpu info models conformance packages verbs fuzz soak soak-readout bench bench-file bench-stream bench-readout bench-transfers peers capi install deb fuzz-capi count fmt clippy doc clean

FILE ?=
READOUT ?=
RUN ?=
export RUN
FUZZ_SECONDS ?= 30
N ?= 10
BUSY ?= 4
BENCH_RUNS ?= 15
TRANSFER_RUNS ?= 5
PEER_ROUNDS ?= 9
PEERS ?=
BENCH_DIR ?=
RATE ?= 1000
SOAK_SECONDS ?= 60
SECONDS ?= 3600
PIN ?= split two
READOUT_SIZES ?= 64,512,4096
BENCH_SIZES ?= 64 4096 65536 1048576 16777216
PREFIX ?= /usr/local
DESTDIR ?=
export LIBDIR

help: ## this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 12

setup: ## install what the demo and the tests need, where it is missing
	@scripts/setup.sh test

demo: ## stream a file between two processes and compare checksums (FILE=path; else a 1 GiB file that it makes)
	@scripts/setup.sh run
	cargo run --profile demo -p fabricast-cli --no-default-features -- demo $(if $(FILE),"$(FILE)")

readout: ## 2 detectors, 2 builders, 5 seconds: event building, and counts compared on both sides (READOUT="--rate 10 ...")
	@scripts/setup.sh run
	cargo run --profile demo -p fabricast-cli --no-default-features -- readout demo $(READOUT)

test: ## the tests, over libfabric of the system (what else there is: make check, and the long ones by names of their own)
	@scripts/setup.sh test
	@scripts/test.sh

check: ## what `make test` leaves out: over libfabric 2.x, both mixed, C and C++ with sanitizers, as a user without rights, without features, all programs
	@scripts/setup.sh test
	@scripts/test.sh check

rounds: ## the suite of `make test` and of `make check`, N times beside BUSY busy processes: how many rounds are green (N=10 BUSY=4)
	@scripts/setup.sh test
	@N=$(N) BUSY=$(BUSY) scripts/rounds.sh

test-gpu: ## all GPU tests over this machine's driver, as a table (SKIPPED with the reason where there is none; SANITIZER=1: memcheck, too)
	@scripts/setup.sh run
	@scripts/test-gpu.sh

info: ## GPUs, providers, and which way GPU memory takes over each of them
	@scripts/setup.sh run
	@cargo run -q -p fabricast-cli -- info

models: ## every interleaving (loom), and the shutdown and one-sided suites and the C interface under AddressSanitizer (minutes)
	@scripts/setup.sh test
	@scripts/test.sh loom asan capi_asan

conformance: ## every behaviour on every provider of both libraries, as a table (minutes)
	@scripts/setup.sh test
	@scripts/test.sh conformance single

packages: ## what a registry asks for: each package built from its archive, a user's lock file, docs.rs, the oldest Rust, deny.toml (minutes)
	@scripts/setup.sh test
	@scripts/test.sh packages outside docs_rs msrv deny

verbs: ## the demo, the suites and the conformance rows over verbs, in a QEMU guest with a soft RDMA card (RUN="fabricast demo --provider verbs")
	@scripts/verbs.sh $(if $(RUN),run "$$RUN")

fuzz: ## random bytes for everything that reads bytes of peers (FUZZ_SECONDS=30 for each target)
	@scripts/setup.sh test
	@FUZZ_SECONDS=$(FUZZ_SECONDS) scripts/fuzz.sh

fuzz-capi: ## calls of the C interface in random order under AddressSanitizer, for SECONDS=3600 over tcp and shm together
	@scripts/setup.sh test
	@scripts/fuzz-capi.sh $(SECONDS)

soak: ## the chaos tests with their full counts (long); log in target/soak.log
	@scripts/setup.sh test
	@mkdir -p target
	@FABRICAST_SOAK=1 scripts/test.sh soak 2>&1 | tee target/soak.log

soak-readout: ## 1 MHz of events for SOAK_SECONDS=60 (RATE=1000 kHz), a builder killed and another started every 5 s: nothing unaccounted
	@scripts/setup.sh run
	cargo run --release -p fabricast-cli -- readout demo --rate $(RATE) --seconds $(SOAK_SECONDS) --size 64-256 --kill-every 5 --ring 64M --ring-fragments 262144 $(READOUT)

bench: ## fabricast beside a bare loop over libfabric (BENCH_RUNS=15, BENCH_SIZES="64 4096 ...")
	@scripts/setup.sh run
	@cargo build --release -p fabricast-benches --bin bench
	@for size in $(BENCH_SIZES); do \
	    cargo run -q --release -p fabricast-benches --bin bench -- pair --op send --size $$size --netns reno --runs $(BENCH_RUNS); \
	done
	@cargo run -q --release -p fabricast-benches --bin bench -- pair --op send,rdm,publish --size 64,4K --pack 0 --netns reno --runs $(BENCH_RUNS)
	@cargo run -q --release -p fabricast-benches --bin bench -- pair --op pingpong --size 64 --netns reno --runs $(BENCH_RUNS)
	@cargo run -q --release -p fabricast-benches --bin bench -- pair --op coalesced --size 64,1K --netns reno --runs $(BENCH_RUNS)
	@cargo run -q --release -p fabricast-benches --bin bench -- pair --op rma-write,rma-read --size 4K,64K,1M --netns reno --runs $(BENCH_RUNS)
	@cargo run -q --release -p fabricast-benches --bin bench -- pair --op rdm,publish --size 4K,64K,1M --netns reno --runs $(BENCH_RUNS)
	@cargo run -q --release -p fabricast-benches --bin bench -- pair --op rdm --provider shm --size 64K,1M --runs $(BENCH_RUNS)
	@cargo run -q --release -p fabricast-benches --bin bench -- pair --op object-get,object-put --size 4K,1M --netns reno --runs $(BENCH_RUNS)
	@cargo run -q --release -p fabricast-benches --bin bench -- pair --op object-get,object-put --size 16M --depth 4 --netns reno --runs $(BENCH_RUNS)
	@cargo run -q --release -p fabricast-benches --bin bench -- pair --op object-get,object-put --provider shm --size 1M --runs $(BENCH_RUNS)
	@cargo run -q --release -p fabricast-benches --bin bench -- pair --op object-request,object-http --size 4K,1M --netns reno --runs $(BENCH_RUNS)
	@cargo run -q --release -p fabricast-benches --bin bench -- stalled

bench-file: ## files beside plain pread, pwrite and io_uring: on disk and in memory (BENCH_DIR=where, BENCH_RUNS=15)
	@cargo build --release -p fabricast-benches --bin file_bench
	@cargo run -q --release -p fabricast-benches --bin file_bench -- --runs $(BENCH_RUNS) $(if $(BENCH_DIR),--dir "$(BENCH_DIR)")
	@cargo run -q --release -p fabricast-benches --bin file_bench -- --runs $(BENCH_RUNS) --dir /dev/shm

bench-stream: ## streams beside bare libfabric, sendfile and the disk alone (BENCH_DIR=where the disk's files are, BENCH_RUNS=15)
	@scripts/setup.sh run
	@cargo build --release -p fabricast-benches --bin stream_bench
	@cargo run -q --release -p fabricast-benches --bin stream_bench -- --netns reno --runs $(BENCH_RUNS) $(if $(BENCH_DIR),--dir "$(BENCH_DIR)")

bench-readout: ## event building beside a builder over ZeroMQ, in pairs (BENCH_RUNS=15, PIN="split two", READOUT_SIZES=64,512,4096; SKIPPED without libzmq)
	@scripts/setup.sh run
	@cargo build --release -p fabricast-cli
	@for pin in $(PIN); do \
	    python3 benches/peers/readout_pairs.py --pairs $(BENCH_RUNS) --pin $$pin --size $(READOUT_SIZES); \
	done

bench-transfers: ## files to another process beside rsync, xrdcp and tar | nc | tar (TRANSFER_RUNS=5; each SKIPPED where it is not installed)
	@scripts/setup.sh run
	@cargo build --release -p fabricast-cli
	@python3 benches/peers/transfers.py --runs $(TRANSFER_RUNS)

peers: ## beside ZeroMQ, zenoh, UCX, iperf3, NIXL, Mooncake, rsync, xrdcp: installs them, then one table (PEER_ROUNDS=9, PEERS="--only messages")
	@scripts/setup.sh peers
	@scripts/peers.sh
	@cargo build --release --locked -p fabricast-benches -p fabricast-cli --bin bench --bin slow_subscriber --bin fabricast
	@python3 benches/peers/peers.py --rounds $(PEER_ROUNDS) $(PEERS)

capi: ## the library for C and C++ programs, with its headers, in target/capi/release
	@scripts/setup.sh run
	@scripts/capi.sh build --release

install: ## install the command with its manual pages, and the library for C and C++ (PREFIX=/usr/local, DESTDIR=, LIBDIR=lib)
	@scripts/setup.sh run
	@scripts/tool.sh install "$(PREFIX)" "$(DESTDIR)"
	@scripts/capi.sh install "$(PREFIX)" "$(DESTDIR)"

deb: ## Debian packages of the same: fabricast, libfabricast0.1 and libfabricast-dev, in target/capi/deb
	@scripts/setup.sh run
	@scripts/tool.sh deb
	@scripts/capi.sh deb

count: ## what the shape of the sources is judged by: lines, long functions, names used twice, circles of imports
	@scripts/count.py

fmt: ## format the code, and name the lines that rustfmt leaves wider than 100 columns
	cargo fmt --all
	@scripts/count.py --check

clippy: ## lint; a warning is an error
	@scripts/setup.sh run
	cargo clippy --workspace --all-targets --features fabricast/tokio,fabricast/cudarc --locked -- -D warnings

doc: ## build the documentation; a warning is an error
	@scripts/setup.sh run
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --document-private-items --features fabricast/tokio,fabricast/cudarc --locked

clean: ## remove what was built and fetched
	cargo clean
	rm -rf .fabricast
