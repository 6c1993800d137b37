//! `BlockWriter` against a plain vector: blocks in any order, again and again, failures at a chosen
//! byte, writers that begin anew.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use fabricast::buffer::SharedBufferManager;
use fabricast::storage::{
    BackEndChoice, BatchRefusedKind, BlockErrorKind, BlockWriter, DirectIo, FileErrorKind,
    FileHandle, FinishError, OpenOptions, ThreadPool, WriterOptions, WriterReport, Written,
};

use super::faults::{Fault, inside, set};
use super::random::Random;

const BLOCK: usize = 8192;
const BLOCKS: usize = 24;
const SLOTS: u32 = 6;

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(120)
}

/// A block on its way.
struct Begun {
    index: usize,
    bytes: Vec<u8>,
    /// How much of it can be written.
    fails_at: Option<usize>,
}

/// What the writer is to have done, and the writer.
struct Model {
    random: Random,
    options: WriterOptions,
    path: PathBuf,
    file: FileHandle,
    pool: SharedBufferManager,
    writer: BlockWriter,
    /// What is in the file.
    bytes: Vec<u8>,
    begun: Vec<Begun>,
    report: WriterReport,
    /// The lowest block that failed.
    failed: Option<usize>,
    /// Where the device fails: in a block, and behind so many bytes of it.
    fault: Option<(usize, usize)>,
}

impl Model {
    fn new(path: PathBuf, direct: DirectIo, options: WriterOptions, seed: u64) -> Self {
        let file = OpenOptions::new().flags("w").direct(direct);
        let file = file.open(&path).unwrap();
        let pool = SharedBufferManager::allocate(SLOTS, BLOCK).unwrap();
        let mut writer = BlockWriter::new(&file, options.clone()).unwrap();
        writer.register_pool(&pool).unwrap();
        Self {
            random: Random::new(seed),
            writer,
            options,
            path,
            file,
            pool,
            bytes: Vec::new(),
            begun: Vec::new(),
            report: WriterReport::default(),
            failed: None,
            fault: None,
        }
    }

    fn step(&mut self, with_faults: bool) {
        match self.random.below(24) {
            0..16 => self.write(),
            16..19 => {
                let min = self.random.below(3);
                self.wait(min);
            }
            19..21 if with_faults => self.change_fault(),
            21 => self.finish(),
            22 => self.restart(),
            23 => self.drop_in_flight(),
            _ => {}
        }
    }

    /// A block that is not on its way, wherever it lies and whether or not it was written before.
    fn write(&mut self) {
        let index = self.random.below(BLOCKS);
        let is_begun = self.begun.iter().any(|begun| begun.index == index);
        let Some(mut buffer) = self.pool.try_acquire().filter(|_| !is_begun) else {
            return self.wait(1);
        };
        let len = match self.random.below(4) {
            0 => 1 + self.random.below(BLOCK),
            _ => BLOCK,
        };
        self.random.fill(&mut buffer[..len]);
        let bytes = buffer[..len].to_vec();
        let offset = (index * BLOCK) as u64;
        let fault = self
            .fault
            .filter(|(block, at)| *block == index && *at < len);
        let is_full = self.begun.len() == self.options.depth as usize;
        match self.writer.write(index as u64, offset, buffer.freeze(len)) {
            Ok(()) => {
                assert!(!is_full);
                self.begun.push(Begun {
                    index,
                    bytes,
                    fails_at: fault.map(|(_, at)| at),
                });
            }
            Err(refused) => {
                assert!(is_full, "{refused}");
                assert!(
                    matches!(refused.kind, BatchRefusedKind::Full { .. }),
                    "{refused}"
                );
                drop(refused);
                self.wait(1);
            }
        }
        assert_eq!(self.writer.pending(), self.begun.len());
    }

    fn wait(&mut self, min: usize) {
        let mut written = Vec::new();
        let count = self.writer.wait(min, soon(), &mut written).unwrap();
        assert_eq!(count, written.len());
        assert!(count >= min.min(self.begun.len()), "{count} of {min}");
        self.take_in(written);
    }

    /// Each outcome is that of a block on its way, once, and says what is in the file.
    fn take_in(&mut self, written: Vec<Written>) {
        for one in written {
            let at = self
                .begun
                .iter()
                .position(|it| it.index as u64 == one.index);
            let Begun {
                index,
                bytes,
                fails_at,
            } = self
                .begun
                .swap_remove(at.expect("a block that is on its way"));
            assert_eq!(one.offset, (index * BLOCK) as u64);
            assert!(
                one.buffer[..] == bytes[..],
                "the buffer came back as it was"
            );
            let done = match (one.result, fails_at) {
                (Ok(moved), None) => {
                    assert_eq!(moved.bytes, bytes.len());
                    self.report.blocks += 1;
                    self.report.direct_bytes += moved.direct_bytes as u64;
                    moved.bytes
                }
                (Err(error), Some(at)) => {
                    assert_eq!((error.index, error.offset), (index as u64, one.offset));
                    let BlockErrorKind::File(error) = error.kind else {
                        panic!("{error}");
                    };
                    assert_eq!(error.kind, FileErrorKind::Os { errno: libc::EIO });
                    assert_eq!(error.done, at as u64, "{error}");
                    self.report.failed += 1;
                    self.failed = Some(self.failed.map_or(index, |lowest| lowest.min(index)));
                    at
                }
                (result, fails_at) => panic!("block {index}: {result:?}, {fails_at:?}"),
            };
            self.report.bytes += done as u64;
            self.put(index * BLOCK, &bytes[..done]);
        }
        assert_eq!(self.writer.report(), self.report);
        assert_eq!(self.writer.pending(), self.begun.len());
    }

    fn put(&mut self, offset: usize, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let end = offset + bytes.len();
        self.bytes.resize(self.bytes.len().max(end), 0);
        self.bytes[offset..end].copy_from_slice(bytes);
    }

    /// Only when the block is not on its way, so that it is known what becomes of it.
    fn change_fault(&mut self) {
        let (index, at) = (self.random.below(BLOCKS), self.random.below(BLOCK));
        let old = self.fault.map(|(index, _)| index);
        let is_begun = |index| self.begun.iter().any(|begun| begun.index == index);
        if is_begun(index) || old.is_some_and(is_begun) {
            return;
        }
        if self.random.one_in(3) {
            self.fault = None;
            // Behind everything: the shim takes the point first, and others write meanwhile.
            set(Fault::Nothing, i64::MAX);
        } else {
            self.fault = Some((index, at));
            set(Fault::Bad, (index * BLOCK + at) as i64);
        }
    }

    fn finish(&mut self) {
        let mut written = Vec::new();
        let result = self.writer.finish(soon(), &mut written);
        self.take_in(written);
        assert!(self.begun.is_empty());
        match (result, self.failed) {
            (Ok(report), None) => assert_eq!(report, self.report),
            (
                Err(FinishError::Blocks {
                    failed,
                    index,
                    first,
                }),
                Some(lowest),
            ) => {
                assert_eq!((failed, index), (self.report.failed, lowest as u64));
                assert_eq!(first.offset, Some((lowest * BLOCK) as u64));
            }
            (result, failed) => panic!("{result:?}, {failed:?} failed"),
        }
        self.check();
    }

    fn check(&self) {
        assert_eq!(self.pool.free_count(), SLOTS as usize, "all came back");
        assert!(std::fs::read(&self.path).unwrap() == self.bytes);
        assert_eq!(self.file.refresh().unwrap(), self.bytes.len() as u64);
    }

    /// Another writer goes on with the file.
    fn restart(&mut self) {
        self.finish();
        self.anew();
    }

    fn anew(&mut self) {
        self.writer = BlockWriter::new(&self.file, self.options.clone()).unwrap();
        self.writer.register_pool(&self.pool).unwrap();
        (self.report, self.failed) = (WriterReport::default(), None);
    }

    /// A writer that is dropped tells nobody which blocks are there: each byte of them is the old
    /// one or the new one, no other changed, and all buffers come back.
    fn drop_in_flight(&mut self) {
        self.anew();
        let until = soon();
        while self.pool.free_count() < SLOTS as usize {
            assert!(Instant::now() < until, "buffers did not come back");
            std::thread::sleep(Duration::from_millis(1));
        }
        let there = std::fs::read(&self.path).unwrap();
        for begun in std::mem::take(&mut self.begun) {
            let start = begun.index * BLOCK;
            let end = there.len().min(start + begun.bytes.len());
            for at in start..end.max(start) {
                let (now, new) = (there.get(at), begun.bytes.get(at - start));
                let old = self.bytes.get(at).unwrap_or(&0);
                assert!(now == Some(old) || now == new, "{at}");
            }
            if start < end {
                self.put(start, &there[start..end]);
            }
        }
        self.check();
    }
}

fn play(directory: &Path, choice: BackEndChoice, seeds: std::ops::Range<u64>) {
    for seed in seeds {
        for direct in [DirectIo::On, DirectIo::Off] {
            println!("{choice:?}, {direct:?}, seed {seed}");
            let options = WriterOptions {
                depth: 1 + (seed % 5) as u32,
                sync: seed % 8 == 0,
                back_end: choice,
                pool: Some(ThreadPool::new(3, 64).unwrap()),
                ..WriterOptions::default()
            };
            let path = directory.join(format!("{choice:?}-{direct:?}-{seed}"));
            let mut model = Model::new(path, direct, options, seed);
            for _ in 0..100 {
                // The shim stands in front of pwrite only.
                model.step(choice == BackEndChoice::Posix);
            }
            model.finish();
            set(Fault::Nothing, 0);
        }
    }
}

#[test]
fn a_writer_and_a_plain_vector_agree() {
    inside(
        "writer::a_writer_and_a_plain_vector_agree",
        true,
        |directory| {
            play(directory, BackEndChoice::Posix, 0..25);
            play(directory, BackEndChoice::Auto, 0..10);
        },
    );
}
