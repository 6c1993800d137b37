//! Random operations against a file in memory: offsets, lengths, addresses, direct or not, threads,
//! task sizes, handles.

use std::path::Path;
use std::time::{Duration, Instant};

use fabricast::storage::{DirectIo, FileHandle, IoOptions, OpenOptions, ThreadPool, wait_any};

use super::random::{Random, at_address};

/// The longest file, in bytes.
const SIZE_MAX: usize = 1 << 20;

struct Model<'a> {
    random: Random,
    /// Two, of which operations take either.
    handles: [FileHandle; 2],
    pools: &'a [ThreadPool],
    bytes: Vec<u8>,
    direct_bytes: u64,
    bounced_bytes: u64,
}

impl Model<'_> {
    /// An offset and a length, of which many are multiples of something.
    fn range(&mut self, most: usize) -> (usize, usize) {
        let grain = self.random.of(&[1, 1, 512, 4096]);
        let scale = self.random.of(&[100, 5000, 70_000, most]);
        let offset = self.random.below(most) / grain * grain;
        let len = self.random.below(scale.min(most - offset) + 1);
        let grain = self.random.of(&[1, 512, 4096]);
        (
            offset,
            if len < grain {
                len
            } else {
                len / grain * grain
            },
        )
    }

    fn options(&mut self) -> IoOptions {
        IoOptions {
            task_size: Some(self.random.of(&[1, 199, 4096, 10_000, 65_536, 1 << 20])),
            direct: Some(self.random.of(&[
                DirectIo::On,
                DirectIo::On,
                DirectIo::Off,
                DirectIo::Auto,
            ])),
            pool: Some(self.pools[self.random.below(self.pools.len())].clone()),
            ..IoOptions::default()
        }
    }

    fn over(&mut self) -> usize {
        self.random.of(&[0, 0, 1, 16, 512])
    }

    /// A buffer with what will be written.
    fn filled(&mut self, len: usize) -> (Vec<u8>, std::ops::Range<usize>) {
        let over = self.over();
        let (mut buffer, range) = at_address(len, over);
        self.random.fill(&mut buffer[range.clone()]);
        (buffer, range)
    }

    fn written(&mut self, offset: usize, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let end = offset + bytes.len();
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        self.bytes[offset..end].copy_from_slice(bytes);
    }

    /// What a read at an offset has to give.
    fn expected(&self, offset: usize, len: usize) -> &[u8] {
        let start = offset.min(self.bytes.len());
        &self.bytes[start..(offset + len).min(self.bytes.len()).max(start)]
    }

    fn blocking_write(&mut self) {
        let (offset, len) = self.range(SIZE_MAX);
        let (buffer, range) = self.filled(len);
        let options = self.options();
        let handle = &self.handles[self.random.below(2)];
        let bytes = &buffer[range.clone()];
        let moved = match self.random.below(3) {
            0 => handle.write(bytes, offset as u64),
            1 => handle.write_parallel(bytes, offset as u64, &options),
            _ => handle.write_from(&buffer, range.clone(), offset as u64, &options),
        };
        assert_eq!(moved.unwrap().bytes, len);
        self.written(offset, &buffer[range]);
    }

    fn blocking_read(&mut self) {
        let (offset, len) = self.range(SIZE_MAX + 10_000);
        let over = self.over();
        let (mut buffer, range) = at_address(len, over);
        let options = self.options();
        let handle = &self.handles[self.random.below(2)];
        let moved = match self.random.below(3) {
            0 => handle.read(&mut buffer[range.clone()], offset as u64),
            1 => handle.read_parallel(&mut buffer[range.clone()], offset as u64, &options),
            _ => handle.read_into(&mut buffer, range.clone(), offset as u64, &options),
        };
        self.check_read(&buffer, range, offset, moved.unwrap().bytes);
    }

    fn check_read(
        &self,
        buffer: &[u8],
        range: std::ops::Range<usize>,
        offset: usize,
        moved: usize,
    ) {
        let expected = self.expected(offset, range.len());
        assert_eq!(
            moved,
            expected.len(),
            "read of {} at {offset} of {}",
            range.len(),
            self.bytes.len()
        );
        assert!(
            buffer[range.start..][..moved] == *expected,
            "read of {} at {offset}",
            range.len()
        );
        // Not a byte outside of the range.
        let outside = buffer[..range.start].iter().chain(&buffer[range.end..]);
        assert!(outside.copied().all(|byte| byte == 0xEE));
    }

    /// Several at once, on ranges that do not overlap.
    fn concurrent(&mut self) {
        let count = 1 + self.random.below(6);
        let room = SIZE_MAX / count;
        let mut writes = Vec::new();
        let mut reads = Vec::new();
        for part in 0..count {
            let (offset, len) = self.range(room);
            let offset = part * room + offset;
            let options = self.options();
            let handle = self.random.below(2);
            if self.random.one_in(2) {
                let (buffer, range) = self.filled(len);
                let bytes = buffer[range.clone()].to_vec();
                let future = self.handles[handle].pwrite(buffer, range, offset as u64, &options);
                writes.push((future, offset, bytes));
            } else {
                // Only what is there: the end of the file moves meanwhile.
                let len = len.min(self.bytes.len().saturating_sub(offset));
                let over = self.over();
                let (buffer, range) = at_address(len, over);
                let future =
                    self.handles[handle].pread(buffer, range.clone(), offset as u64, &options);
                reads.push((future, range, offset));
            }
        }
        for (future, range, offset) in reads {
            let (buffer, moved) = future.wait().into_result().unwrap();
            self.count(moved.direct_bytes, moved.bounced_bytes);
            self.check_read(&buffer, range, offset, moved.bytes);
        }
        for (future, offset, bytes) in writes {
            let (_, moved) = future.wait().into_result().unwrap();
            self.count(moved.direct_bytes, moved.bounced_bytes);
            assert_eq!(moved.bytes, bytes.len());
            self.written(offset, &bytes);
        }
    }

    fn count(&mut self, direct: usize, bounced: usize) {
        self.direct_bytes += direct as u64;
        self.bounced_bytes += bounced as u64;
    }

    /// Appends by several operations at once land behind each other, in the order in which they
    /// were reserved.
    fn appends(&mut self) {
        if self.bytes.len() > SIZE_MAX {
            return;
        }
        let mut futures = Vec::new();
        for _ in 0..1 + self.random.below(4) {
            let len = self.random.below(9000);
            let (buffer, range) = self.filled(len);
            let options = self.options();
            let bytes = buffer[range.clone()].to_vec();
            let (offset, future) = self.handles[0].append(buffer, range, &options).unwrap();
            assert_eq!(offset as usize, self.bytes.len());
            self.written(offset as usize, &bytes);
            futures.push(future);
        }
        let deadline = Instant::now() + Duration::from_secs(120);
        while !futures.is_empty() {
            let done = wait_any(&mut futures, deadline).expect("one ends within a minute");
            let outcome = futures.swap_remove(done).wait();
            outcome.result.unwrap();
        }
    }

    fn step(&mut self) {
        match self.random.below(12) {
            0..=3 => self.blocking_write(),
            4..=6 => self.blocking_read(),
            7..=9 => self.concurrent(),
            10 => self.appends(),
            _ => {
                let size = self.handles[self.random.below(2)].refresh().unwrap();
                assert_eq!(size as usize, self.bytes.len());
            }
        }
    }
}

fn run(directory: &Path, seed: u64, steps: usize, pools: &[ThreadPool]) -> (u64, u64) {
    let path = directory.join(format!("model {seed}"));
    let open = |flags: &str| OpenOptions::new().flags(flags).open(&path).unwrap();
    let mut model = Model {
        random: Random::new(seed),
        handles: [open("w+"), open("r+")],
        pools,
        bytes: Vec::new(),
        direct_bytes: 0,
        bounced_bytes: 0,
    };
    let refusals = |model: &Model<'_>| {
        let refused = model
            .handles
            .iter()
            .map(|handle| handle.direct_refused().is_some());
        refused.collect::<Vec<_>>()
    };
    let before = refusals(&model);
    for _ in 0..steps {
        model.step();
    }
    // What the plan cuts, the kernel takes.
    assert_eq!(refusals(&model), before);
    let on_disk = std::fs::read(&path).unwrap();
    assert!(on_disk == model.bytes, "the file is not what was written");
    std::fs::remove_file(&path).unwrap();
    (model.direct_bytes, model.bounced_bytes)
}

fn runs(directory: &Path, seeds: u64) -> (u64, u64) {
    let threads = [1, 3, 8];
    let pools = threads.map(|threads| ThreadPool::new(threads, 256).unwrap());
    let mut sum = (0, 0);
    for seed in 0..seeds {
        println!("seed {seed}");
        let (direct, bounced) = run(directory, seed, 60, &pools);
        sum = (sum.0 + direct, sum.1 + bounced);
    }
    sum
}

fn seeds() -> u64 {
    if std::env::var_os("FABRICAST_SOAK").is_some() {
        5000
    } else {
        60
    }
}

#[test]
fn random_operations_on_a_disk() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (direct, bounced) = runs(directory.path(), seeds());
    let probe = FileHandle::open(directory.path().join("probe"), "w").unwrap();
    match probe.direct_refused() {
        Some(reason) => println!("SKIPPED: direct I/O, {reason}"),
        None => assert!(
            direct > 0 && bounced > 0,
            "{direct} bytes direct, {bounced} of them bounced"
        ),
    }
}

#[test]
fn random_operations_in_memory() {
    let Ok(directory) = tempfile::tempdir_in("/dev/shm") else {
        println!("SKIPPED: no /dev/shm to write to");
        return;
    };
    let (direct, _) = runs(directory.path(), seeds());
    assert_eq!(direct, 0, "there is nothing around the page cache");
}
