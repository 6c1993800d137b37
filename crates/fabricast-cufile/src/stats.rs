//! Statistics of cuFile: counters of the process, and by which way bytes reached each GPU.
//!
//! The structs that cuFile fills in grow from version to version: 512 bytes up to 1.18, 624 from
//! 1.19 on, and so the fields behind them move. So they are never declared, but read by offset out
//! of more memory than any version writes.

#![allow(unsafe_code)]

use std::ffi::c_void;

use super::abi::GetStats;
use super::driver::Driver;
use super::error::CuFileError;
use super::table::Statistics;
use super::version::Version;
use super::{CuFile, check};

/// Memory for the answer, in words: 16 KiB, three times what 1.20 writes.
const ANSWER_WORDS: usize = 2048;
/// What memory holds that a library of unknown layout has not written.
const UNWRITTEN: u64 = 0xA5A5_A5A5_A5A5_A5A5;

/// Words of the first level up to 1.18.
const LEVEL1_WORDS: usize = 64;
/// The same with the counters of readv and writev.
const LEVEL1_WORDS_VECTORED: usize = 78;
/// Words of the two histograms.
const HISTOGRAM_WORDS: usize = 32;
/// Words of one GPU: 16 bytes of its UUID and 29 counters.
const GPU_WORDS: usize = 31;
/// Most GPUs that the struct has room for.
const GPUS_MAX: usize = 16;

/// How much cuFile counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StatsLevel(pub i32);

impl StatsLevel {
    /// Nothing.
    pub const OFF: Self = Self(0);
    /// Operations, bytes and latencies.
    pub const BASIC: Self = Self(1);
    /// Histograms of sizes, too.
    pub const DETAILED: Self = Self(2);
    /// Each GPU, too, and by which way its bytes went.
    pub const VERBOSE: Self = Self(3);
}

impl CuFile {
    /// How much is counted, `cuFileGetStatsLevel`.
    ///
    /// # Errors
    ///
    /// [`CuFileError::Lacks`] before 1.15, or what the call answers.
    pub fn stats_level(&self) -> Result<StatsLevel, CuFileError> {
        let get = self.statistics()?.get_level;
        let mut level = 0;
        // SAFETY: writes one number, which is ours.
        check("cuFileGetStatsLevel", unsafe { get(&raw mut level) })?;
        Ok(StatsLevel(level))
    }

    /// Chooses how much is counted from now on, `cuFileSetStatsLevel`; what is counted costs time.
    ///
    /// # Errors
    ///
    /// [`CuFileError::Lacks`] before 1.15, [`CuFileError::Value`] for a level that is none, or what
    /// the call answers.
    pub fn set_stats_level(&self, level: StatsLevel) -> Result<(), CuFileError> {
        let set = self.statistics()?.set_level;
        if !(StatsLevel::OFF..=StatsLevel::VERBOSE).contains(&level) {
            return Err(CuFileError::value("level", level.0, "", "there are 0 to 3"));
        }
        // SAFETY: takes one value.
        check("cuFileSetStatsLevel", unsafe { set(level.0) })
    }

    fn statistics(&self) -> Result<&'static Statistics, CuFileError> {
        self.check_owner()?;
        let statistics = self.library.statistics.as_ref();
        statistics.ok_or_else(|| self.lacks("cuFileGetStatsL1", Some("1.15")))
    }
}

impl Driver {
    /// Begins to count, `cuFileStatsStart`, at the level that was set.
    ///
    /// # Errors
    ///
    /// [`CuFileError::Lacks`] before 1.15, or what the call answers.
    pub fn start_stats(&self) -> Result<(), CuFileError> {
        let start = self.cufile().statistics()?.start;
        // SAFETY: takes nothing; the driver is open.
        check("cuFileStatsStart", unsafe { start() })
    }

    /// Ends counting, `cuFileStatsStop`.
    ///
    /// # Errors
    ///
    /// As for [`start_stats`](Self::start_stats).
    pub fn stop_stats(&self) -> Result<(), CuFileError> {
        let stop = self.cufile().statistics()?.stop;
        // SAFETY: takes nothing; the driver is open.
        check("cuFileStatsStop", unsafe { stop() })
    }

    /// Sets all counters to 0, `cuFileStatsReset`.
    ///
    /// # Errors
    ///
    /// As for [`start_stats`](Self::start_stats).
    pub fn reset_stats(&self) -> Result<(), CuFileError> {
        let reset = self.cufile().statistics()?.reset;
        // SAFETY: takes nothing; the driver is open.
        check("cuFileStatsReset", unsafe { reset() })
    }

    /// Operations, bytes and latencies, `cuFileGetStatsL1`.
    ///
    /// # Errors
    ///
    /// [`CuFileError::Lacks`] before 1.15 and where the library does not say its version, or what
    /// the call answers.
    pub fn stats_l1(&self) -> Result<StatsLevel1, CuFileError> {
        let get = self.cufile().statistics()?.get_l1;
        let words = self.ask("cuFileGetStatsL1", get, 0)?;
        // A newer version may have more behind what is known, never something else before it.
        let known = known_level1_words(self.cufile().version());
        Ok(StatsLevel1::read(&words, known))
    }

    /// The same with histograms of sizes, `cuFileGetStatsL2`.
    ///
    /// # Errors
    ///
    /// As for [`stats_l1`](Self::stats_l1).
    pub fn stats_l2(&self) -> Result<StatsLevel2, CuFileError> {
        let statistics = self.cufile().statistics()?;
        let level1_words = self.level1_words(statistics)?;
        let words = self.ask("cuFileGetStatsL2", statistics.get_l2, 0)?;
        Ok(StatsLevel2::read(&words, level1_words))
    }

    /// The same with each GPU, `cuFileGetStatsL3`.
    ///
    /// # Errors
    ///
    /// As for [`stats_l1`](Self::stats_l1).
    pub fn stats_l3(&self) -> Result<StatsLevel3, CuFileError> {
        let statistics = self.cufile().statistics()?;
        let level1_words = self.level1_words(statistics)?;
        let words = self.ask("cuFileGetStatsL3", statistics.get_l3, 0)?;
        Ok(StatsLevel3::read(&words, level1_words))
    }

    /// Lets the library write its answer over words of that value.
    fn ask(&self, call: &'static str, get: GetStats, fill: u64) -> Result<Vec<u64>, CuFileError> {
        if !self.cufile().version().is_known() {
            let from = Some("1.15, and says its version");
            return Err(self.cufile().lacks(call, from));
        }
        let mut words = vec![fill; ANSWER_WORDS];
        // SAFETY: there is more room than any known version writes, and twice as much again for
        // those to come.
        let answer = unsafe { get(words.as_mut_ptr().cast::<c_void>()) };
        check(call, answer)?;
        Ok(words)
    }

    /// How long the first level is, behind which the others lie. Of a version that is newer than
    /// all that were looked at, what it writes tells.
    fn level1_words(&self, statistics: &Statistics) -> Result<usize, CuFileError> {
        let version = self.cufile().version();
        if version <= Version::NEWEST_KNOWN {
            return Ok(known_level1_words(version));
        }
        let words = self.ask("cuFileGetStatsL1", statistics.get_l1, UNWRITTEN)?;
        let written = words.iter().rposition(|word| *word != UNWRITTEN);
        Ok(written.map_or(LEVEL1_WORDS_VECTORED, |last| last + 1))
    }
}

fn known_level1_words(version: Version) -> usize {
    if version < Version::VECTOR_COUNTERS {
        LEVEL1_WORDS
    } else {
        LEVEL1_WORDS_VECTORED
    }
}

/// Reads words one after the other; behind the end there are zeros.
struct Words<'a> {
    words: &'a [u64],
}

impl Words<'_> {
    fn next(&mut self) -> u64 {
        match self.words.split_first() {
            Some((word, rest)) => {
                self.words = rest;
                *word
            }
            None => 0,
        }
    }

    fn counter(&mut self) -> OpCounter {
        OpCounter {
            ok: self.next(),
            err: self.next(),
        }
    }
}

/// Operations of one kind, `CUfileOpCounter_t`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpCounter {
    /// Those that succeeded.
    pub ok: u64,
    /// Those that failed.
    pub err: u64,
}

/// The counters of the process, `CUfileStatsLevel1_t`. Bandwidths in bytes a second, latencies in
/// microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs)] // The names are cuFile's, and say it.
pub struct StatsLevel1 {
    pub read_ops: OpCounter,
    pub write_ops: OpCounter,
    pub hdl_register_ops: OpCounter,
    pub hdl_deregister_ops: OpCounter,
    pub buf_register_ops: OpCounter,
    pub buf_deregister_ops: OpCounter,
    pub read_bytes: u64,
    pub write_bytes: u64,
    pub read_bw_bytes_per_sec: u64,
    pub write_bw_bytes_per_sec: u64,
    pub read_lat_avg_us: u64,
    pub write_lat_avg_us: u64,
    pub read_ops_per_sec: u64,
    pub write_ops_per_sec: u64,
    pub read_lat_sum_us: u64,
    pub write_lat_sum_us: u64,
    pub batch_submit_ops: OpCounter,
    pub batch_complete_ops: OpCounter,
    pub batch_setup_ops: OpCounter,
    pub batch_cancel_ops: OpCounter,
    pub batch_destroy_ops: OpCounter,
    pub batch_enqueued_ops: OpCounter,
    pub batch_posix_enqueued_ops: OpCounter,
    pub batch_processed_ops: OpCounter,
    pub batch_posix_processed_ops: OpCounter,
    pub batch_nvfs_submit_ops: OpCounter,
    pub batch_p2p_submit_ops: OpCounter,
    pub batch_aio_submit_ops: OpCounter,
    pub batch_iouring_submit_ops: OpCounter,
    pub batch_mixed_io_submit_ops: OpCounter,
    pub batch_total_submit_ops: OpCounter,
    pub batch_read_bytes: u64,
    pub batch_write_bytes: u64,
    pub batch_read_bw_bytes: u64,
    pub batch_write_bw_bytes: u64,
    pub batch_submit_lat_avg_us: u64,
    pub batch_completion_lat_avg_us: u64,
    pub batch_submit_ops_per_sec: u64,
    pub batch_complete_ops_per_sec: u64,
    pub batch_submit_lat_sum_us: u64,
    pub batch_completion_lat_sum_us: u64,
    pub last_batch_read_bytes: u64,
    pub last_batch_write_bytes: u64,
    /// From 1.19 on, as all that follow; 0 before.
    pub readv_ops: OpCounter,
    pub writev_ops: OpCounter,
    pub readv_bytes: u64,
    pub writev_bytes: u64,
    pub readv_bw_bytes_per_sec: u64,
    pub writev_bw_bytes_per_sec: u64,
    pub readv_lat_avg_us: u64,
    pub writev_lat_avg_us: u64,
    pub readv_ops_per_sec: u64,
    pub writev_ops_per_sec: u64,
    pub readv_lat_sum_us: u64,
    pub writev_lat_sum_us: u64,
}

impl StatsLevel1 {
    /// Out of the first words. A field is evaluated where it is written, so the order below is that
    /// of the C struct.
    fn read(words: &[u64], level1_words: usize) -> Self {
        let words = &words[..level1_words.min(words.len())];
        let w = &mut Words { words };
        Self {
            read_ops: w.counter(),
            write_ops: w.counter(),
            hdl_register_ops: w.counter(),
            hdl_deregister_ops: w.counter(),
            buf_register_ops: w.counter(),
            buf_deregister_ops: w.counter(),
            read_bytes: w.next(),
            write_bytes: w.next(),
            read_bw_bytes_per_sec: w.next(),
            write_bw_bytes_per_sec: w.next(),
            read_lat_avg_us: w.next(),
            write_lat_avg_us: w.next(),
            read_ops_per_sec: w.next(),
            write_ops_per_sec: w.next(),
            read_lat_sum_us: w.next(),
            write_lat_sum_us: w.next(),
            ..Self::read_batches(w)
        }
    }

    /// The counters behind those of single operations; the others are 0.
    fn read_batches(w: &mut Words<'_>) -> Self {
        Self {
            batch_submit_ops: w.counter(),
            batch_complete_ops: w.counter(),
            batch_setup_ops: w.counter(),
            batch_cancel_ops: w.counter(),
            batch_destroy_ops: w.counter(),
            batch_enqueued_ops: w.counter(),
            batch_posix_enqueued_ops: w.counter(),
            batch_processed_ops: w.counter(),
            batch_posix_processed_ops: w.counter(),
            batch_nvfs_submit_ops: w.counter(),
            batch_p2p_submit_ops: w.counter(),
            batch_aio_submit_ops: w.counter(),
            batch_iouring_submit_ops: w.counter(),
            batch_mixed_io_submit_ops: w.counter(),
            batch_total_submit_ops: w.counter(),
            batch_read_bytes: w.next(),
            batch_write_bytes: w.next(),
            batch_read_bw_bytes: w.next(),
            batch_write_bw_bytes: w.next(),
            batch_submit_lat_avg_us: w.next(),
            batch_completion_lat_avg_us: w.next(),
            batch_submit_ops_per_sec: w.next(),
            batch_complete_ops_per_sec: w.next(),
            batch_submit_lat_sum_us: w.next(),
            batch_completion_lat_sum_us: w.next(),
            last_batch_read_bytes: w.next(),
            last_batch_write_bytes: w.next(),
            readv_ops: w.counter(),
            writev_ops: w.counter(),
            readv_bytes: w.next(),
            writev_bytes: w.next(),
            readv_bw_bytes_per_sec: w.next(),
            writev_bw_bytes_per_sec: w.next(),
            readv_lat_avg_us: w.next(),
            writev_lat_avg_us: w.next(),
            readv_ops_per_sec: w.next(),
            writev_ops_per_sec: w.next(),
            readv_lat_sum_us: w.next(),
            writev_lat_sum_us: w.next(),
            ..Self::default()
        }
    }
}

/// The first level with histograms, `CUfileStatsLevel2_t`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StatsLevel2 {
    /// The first level.
    pub basic: StatsLevel1,
    /// How many reads there were of each class of sizes, in KiB.
    pub read_size_kb_hist: [u64; HISTOGRAM_WORDS],
    /// The same of writes.
    pub write_size_kb_hist: [u64; HISTOGRAM_WORDS],
}

impl StatsLevel2 {
    fn read(words: &[u64], level1_words: usize) -> Self {
        let mut w = Words {
            words: words.get(level1_words..).unwrap_or_default(),
        };
        Self {
            basic: StatsLevel1::read(words, level1_words),
            read_size_kb_hist: std::array::from_fn(|_| w.next()),
            write_size_kb_hist: std::array::from_fn(|_| w.next()),
        }
    }
}

/// The second level with each GPU, `CUfileStatsLevel3_t`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StatsLevel3 {
    /// The second level.
    pub detailed: StatsLevel2,
    /// The GPUs.
    pub gpus: Vec<GpuStats>,
}

impl StatsLevel3 {
    fn read(words: &[u64], level1_words: usize) -> Self {
        let start = level1_words + 2 * HISTOGRAM_WORDS;
        let words_of_gpus = words.get(start..).unwrap_or_default();
        // A 32-bit number, and four bytes that nobody writes.
        let count = words_of_gpus.first().map_or(0, |word| *word as u32) as usize;
        let gpus = words_of_gpus.get(1..).unwrap_or_default();
        let gpus = gpus.chunks_exact(GPU_WORDS).take(count.min(GPUS_MAX));
        Self {
            detailed: StatsLevel2::read(words, level1_words),
            gpus: gpus.map(GpuStats::read).collect(),
        }
    }

    /// By which ways bytes went, of all GPUs together.
    pub fn paths(&self) -> GpuPaths {
        let mut sum = GpuPaths::default();
        for gpu in &self.gpus {
            sum.reads.add(gpu.reads());
            sum.writes.add(gpu.writes());
        }
        sum
    }
}

/// The counters of one GPU, `CUfilePerGpuStats_t`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs)] // The names are cuFile's, and say it.
pub struct GpuStats {
    pub uuid: [u8; 16],
    pub read_bytes: u64,
    pub read_bw_bytes_per_sec: u64,
    /// In percent.
    pub read_utilization: u64,
    pub read_duration_us: u64,
    pub n_total_reads: u64,
    /// By PCI P2PDMA.
    pub n_p2p_reads: u64,
    /// By nvidia-fs.
    pub n_nvfs_reads: u64,
    /// By POSIX and a copy: not GPU-direct.
    pub n_posix_reads: u64,
    pub n_unaligned_reads: u64,
    /// By dynamic routing.
    pub n_dr_reads: u64,
    pub n_sparse_regions: u64,
    pub n_inline_regions: u64,
    pub n_reads_err: u64,
    pub writes_bytes: u64,
    pub write_bw_bytes_per_sec: u64,
    /// In percent.
    pub write_utilization: u64,
    pub write_duration_us: u64,
    pub n_total_writes: u64,
    /// By PCI P2PDMA.
    pub n_p2p_writes: u64,
    /// By nvidia-fs.
    pub n_nvfs_writes: u64,
    /// By POSIX and a copy: not GPU-direct.
    pub n_posix_writes: u64,
    pub n_unaligned_writes: u64,
    /// By dynamic routing.
    pub n_dr_writes: u64,
    pub n_writes_err: u64,
    /// Registrations of memory.
    pub n_mmap: u64,
    pub n_mmap_ok: u64,
    pub n_mmap_err: u64,
    /// Deregistrations of memory.
    pub n_mmap_free: u64,
    /// Bytes that are registered.
    pub reg_bytes: u64,
}

impl GpuStats {
    /// Out of the words of one GPU, in the order of the C struct.
    fn read(words: &[u64]) -> Self {
        let mut uuid = [0; 16];
        for (bytes, word) in uuid.chunks_exact_mut(8).zip(words) {
            bytes.copy_from_slice(&word.to_ne_bytes());
        }
        let words = words.get(2..).unwrap_or_default();
        let w = &mut Words { words };
        Self {
            uuid,
            read_bytes: w.next(),
            read_bw_bytes_per_sec: w.next(),
            read_utilization: w.next(),
            read_duration_us: w.next(),
            n_total_reads: w.next(),
            n_p2p_reads: w.next(),
            n_nvfs_reads: w.next(),
            n_posix_reads: w.next(),
            n_unaligned_reads: w.next(),
            n_dr_reads: w.next(),
            n_sparse_regions: w.next(),
            n_inline_regions: w.next(),
            n_reads_err: w.next(),
            writes_bytes: w.next(),
            write_bw_bytes_per_sec: w.next(),
            write_utilization: w.next(),
            write_duration_us: w.next(),
            n_total_writes: w.next(),
            n_p2p_writes: w.next(),
            n_nvfs_writes: w.next(),
            n_posix_writes: w.next(),
            n_unaligned_writes: w.next(),
            n_dr_writes: w.next(),
            n_writes_err: w.next(),
            n_mmap: w.next(),
            n_mmap_ok: w.next(),
            n_mmap_err: w.next(),
            n_mmap_free: w.next(),
            reg_bytes: w.next(),
        }
    }

    fn reads(&self) -> PathCounts {
        PathCounts {
            total: self.n_total_reads,
            p2p: self.n_p2p_reads,
            nvfs: self.n_nvfs_reads,
            posix: self.n_posix_reads,
        }
    }

    fn writes(&self) -> PathCounts {
        PathCounts {
            total: self.n_total_writes,
            p2p: self.n_p2p_writes,
            nvfs: self.n_nvfs_writes,
            posix: self.n_posix_writes,
        }
    }
}

/// Operations by the way that their bytes went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathCounts {
    /// All.
    pub total: u64,
    /// GPU-direct by PCI P2PDMA.
    pub p2p: u64,
    /// GPU-direct by nvidia-fs.
    pub nvfs: u64,
    /// By POSIX, and a copy.
    pub posix: u64,
}

impl PathCounts {
    fn add(&mut self, other: Self) {
        self.total += other.total;
        self.p2p += other.p2p;
        self.nvfs += other.nvfs;
        self.posix += other.posix;
    }

    /// What came after `before`. A counter that went back, since somebody set it to 0, gives 0.
    fn since(self, before: Self) -> Self {
        Self {
            total: self.total.saturating_sub(before.total),
            p2p: self.p2p.saturating_sub(before.p2p),
            nvfs: self.nvfs.saturating_sub(before.nvfs),
            posix: self.posix.saturating_sub(before.posix),
        }
    }

    /// Whether bytes went GPU-direct: all of them (`Some(true)`), or some or none did
    /// (`Some(false)`); `None` where nothing was counted.
    pub fn gpu_direct(self) -> Option<bool> {
        match (self.p2p + self.nvfs, self.posix) {
            (0, 0) if self.total == 0 => None,
            (direct, posix) => Some(direct > 0 && posix == 0),
        }
    }
}

/// By which ways bytes of files reached GPUs: did they really go GPU-direct?
///
/// Compares two answers of [`Driver::stats_l3`], one from before and one from after what is asked
/// about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GpuPaths {
    /// From files to GPUs.
    pub reads: PathCounts,
    /// From GPUs to files.
    pub writes: PathCounts,
}

impl GpuPaths {
    /// What came between the two.
    pub fn between(before: &StatsLevel3, after: &StatsLevel3) -> Self {
        let (before, after) = (before.paths(), after.paths());
        Self {
            reads: after.reads.since(before.reads),
            writes: after.writes.since(before.writes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Words that count from 1, as a library of that layout would write them.
    fn answer(level1_words: usize, gpus: u64) -> Vec<u64> {
        let mut words: Vec<u64> = (1..=ANSWER_WORDS as u64).collect();
        // Only half of the word is the number; the other half is garbage.
        words[level1_words + 2 * HISTOGRAM_WORDS] = 0xDEAD_BEEF_0000_0000 | gpus;
        words
    }

    #[test]
    fn the_sizes_are_those_of_the_c_structs() {
        assert_eq!(LEVEL1_WORDS * 8, 512);
        assert_eq!(LEVEL1_WORDS_VECTORED * 8, 624);
        assert_eq!(GPU_WORDS * 8, 248);
        let level3 = |level1| level1 + 2 * HISTOGRAM_WORDS * 8 + 8 + GPUS_MAX * GPU_WORDS * 8;
        // num_gpus is followed by its padding.
        assert_eq!(level3(512), 5000);
        assert_eq!(level3(624), 5112);
        const { assert!(ANSWER_WORDS * 8 >= 2 * 5112) };
    }

    #[test]
    fn fields_lie_where_each_version_has_them() {
        for level1_words in [LEVEL1_WORDS, LEVEL1_WORDS_VECTORED] {
            let stats = StatsLevel3::read(&answer(level1_words, 2), level1_words);
            let basic = stats.detailed.basic;
            assert_eq!(basic.read_ops, OpCounter { ok: 1, err: 2 });
            assert_eq!((basic.read_bytes, basic.write_lat_sum_us), (13, 22));
            assert_eq!(basic.batch_submit_ops.ok, 23);
            assert_eq!(basic.last_batch_write_bytes, 64);
            let vectored = level1_words == LEVEL1_WORDS_VECTORED;
            assert_eq!(basic.readv_ops.ok, if vectored { 65 } else { 0 });
            assert_eq!(basic.writev_lat_sum_us, if vectored { 78 } else { 0 });
            let base = level1_words as u64;
            assert_eq!(stats.detailed.read_size_kb_hist[0], base + 1);
            assert_eq!(stats.detailed.write_size_kb_hist[31], base + 64);
            assert_eq!(stats.gpus.len(), 2);
            // Behind num_gpus and the UUID.
            assert_eq!(stats.gpus[0].read_bytes, base + 68);
            assert_eq!(stats.gpus[0].reg_bytes, base + 96);
            assert_eq!(stats.gpus[1].read_bytes, base + 99);
        }
    }

    #[test]
    fn a_number_of_gpus_that_is_nonsense_is_bounded() {
        let words = answer(LEVEL1_WORDS, 0xFFFF_FFFF);
        let stats = StatsLevel3::read(&words, LEVEL1_WORDS);
        assert_eq!(stats.gpus.len(), GPUS_MAX);
        let short = StatsLevel3::read(&words[..10], LEVEL1_WORDS);
        assert!(short.gpus.is_empty());
    }

    #[test]
    fn which_way_the_bytes_went() {
        let gpu = |p2p, nvfs, posix| StatsLevel3 {
            gpus: vec![GpuStats {
                n_total_reads: p2p + nvfs + posix,
                n_p2p_reads: p2p,
                n_nvfs_reads: nvfs,
                n_posix_reads: posix,
                ..GpuStats::default()
            }],
            ..StatsLevel3::default()
        };
        let before = gpu(5, 5, 5);
        let direct = |after| GpuPaths::between(&before, &after).reads.gpu_direct();
        assert_eq!(direct(gpu(5, 5, 5)), None);
        assert_eq!(direct(gpu(6, 5, 5)), Some(true));
        assert_eq!(direct(gpu(5, 6, 5)), Some(true));
        assert_eq!(direct(gpu(5, 6, 6)), Some(false));
        assert_eq!(direct(gpu(5, 5, 6)), Some(false));
        assert_eq!(direct(gpu(0, 0, 0)), None, "they were set to 0");
    }
}
