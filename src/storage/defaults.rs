//! `Defaults`: the settings of the process, by its environment, by code, and for a while.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::settings::{SETTINGS, SettingError, Settings};
use super::shared_pools;

/// The settings of this process; what they are, [`Settings`] says.
///
/// The environment is read once, at the first use. What code sets from then on counts for all
/// threads, for calls and files from then on; what was begun goes on as it was.
///
/// ```
/// use fabricast::storage::Defaults;
///
/// Defaults::set(|settings| settings.task_size = 1 << 20)?;
/// {
///     let _scope = Defaults::scoped(|settings| settings.num_threads = 4)?;
///     assert_eq!(Defaults::get().num_threads, 4);
/// }
/// assert_ne!(Defaults::get().num_threads, 4);
/// assert_eq!(Defaults::get().task_size, 1 << 20);
/// # Ok::<(), fabricast::storage::SettingError>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct Defaults;

impl Defaults {
    /// The settings as they are now. Cheap: each thread keeps a copy, and looks whether it is the
    /// newest.
    pub fn get() -> Settings {
        // Acquire, with the release in `apply`: what this number stands for was stored before it. 0
        // is nobody's.
        let newest = GENERATION.load(Ordering::Acquire);
        let cached = CACHE.try_with(Cell::get).ok();
        match cached {
            Some((generation, settings)) if generation == newest && newest != 0 => settings,
            _ => Self::get_anew(),
        }
    }

    #[cold]
    fn get_anew() -> Settings {
        let (generation, settings) = {
            let current = current();
            (current.generation, current.settings)
        };
        // A thread that is ending has no place for it any more.
        let _ = CACHE.try_with(|cache| cache.set((generation, settings)));
        settings
    }

    /// Whether the environment of this process made sense when it was read. Opening a file asks
    /// this, too.
    ///
    /// # Errors
    ///
    /// The first variable that makes no sense; the setting has its default in its place, or what
    /// code set.
    pub fn check() -> Result<(), SettingError> {
        current().environment_error.clone().map_or(Ok(()), Err)
    }

    /// Changes settings: those that `change` leaves alone stay as they are, whoever changes them
    /// meanwhile.
    ///
    /// `num_threads` counts at once: shared pools get or lose threads, and what is queued for them
    /// stays queued.
    ///
    /// # Errors
    ///
    /// The first setting that is out of its range; then nothing is changed.
    pub fn set(change: impl FnOnce(&mut Settings)) -> Result<(), SettingError> {
        Self::changed(change).map(drop)
    }

    /// The same until the scope is dropped, which gives the settings that were changed their old
    /// values back. As in KvikIO, all threads see it: it is for the whole process. Scopes are to
    /// end in the reverse order of their beginnings.
    ///
    /// # Errors
    ///
    /// As [`set`](Self::set).
    pub fn scoped(change: impl FnOnce(&mut Settings)) -> Result<DefaultsScope, SettingError> {
        Self::changed(change).map(|before| DefaultsScope { before })
    }

    /// Gives all settings the values that the environment gave them at the first use.
    pub fn reset() {
        let environment = current().environment;
        let all = SETTINGS.iter().enumerate();
        let values = all.map(|(row, setting)| (row, (setting.get)(&environment)));
        apply(values.collect());
    }

    /// What was changed, with the values before.
    fn changed(change: impl FnOnce(&mut Settings)) -> Result<Changes, SettingError> {
        let before = Self::get();
        let mut after = before;
        // Without the lock: it may ask for settings itself.
        change(&mut after);
        after.check()?;
        let rows = SETTINGS.iter().enumerate();
        let values = rows.map(|(row, setting)| (row, (setting.get)(&after)));
        let changes = values.filter(|(row, value)| (SETTINGS[*row].get)(&before) != *value);
        Ok(apply(changes.collect()))
    }
}

/// Settings that are changed for a while, see [`Defaults::scoped`].
#[derive(Debug)]
#[must_use = "the settings are changed back when it is dropped"]
pub struct DefaultsScope {
    before: Changes,
}

impl Drop for DefaultsScope {
    fn drop(&mut self) {
        apply(std::mem::take(&mut self.before));
    }
}

/// Rows of the table, with values.
type Changes = Vec<(usize, u64)>;

/// Sets these, and tells what they were.
fn apply(changes: Changes) -> Changes {
    let (before, threads) = {
        let mut current = current();
        let settings = &mut current.settings;
        let mut before = Changes::with_capacity(changes.len());
        for (row, value) in changes {
            let setting = &SETTINGS[row];
            before.push((row, (setting.get)(settings)));
            (setting.set)(settings, value);
        }
        let threads = settings.num_threads;
        current.generation += 1;
        // Release: see `get`.
        GENERATION.store(current.generation, Ordering::Release);
        (before, threads)
    };
    shared_pools::resize(threads);
    before
}

struct Current {
    settings: Settings,
    generation: u64,
    /// What the environment said at the first use.
    environment: Settings,
    environment_error: Option<SettingError>,
}

/// Which settings are the newest; 0 until there are some.
static GENERATION: AtomicU64 = AtomicU64::new(0);

static CURRENT: Mutex<Current> = Mutex::new(Current {
    settings: Settings::DEFAULT,
    generation: 0,
    environment: Settings::DEFAULT,
    environment_error: None,
});

thread_local! {
    static CACHE: Cell<(u64, Settings)> = const { Cell::new((0, Settings::DEFAULT)) };
}

fn current() -> MutexGuard<'static, Current> {
    let mut current = CURRENT.lock().unwrap_or_else(PoisonError::into_inner);
    if current.generation == 0 {
        let (settings, error) = Settings::from_environment(|name| std::env::var_os(name));
        *current = Current {
            settings,
            generation: 1,
            environment: settings,
            environment_error: error,
        };
        GENERATION.store(1, Ordering::Release);
    }
    current
}

/// The settings are the process's: a test that changes them, or that others' changes disturb, takes
/// this first.
#[cfg(all(test, not(loom)))]
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn by_code_by_scope_and_back() {
        let _alone = alone();
        let before = Defaults::get();
        assert_eq!(Defaults::check(), Ok(()), "the environment of these tests");

        Defaults::set(|settings| settings.io_uring_depth = 7).unwrap();
        assert_eq!(Defaults::get().io_uring_depth, 7);

        let error = Defaults::set(|settings| {
            settings.io_uring_depth = 9;
            settings.gds_threshold = usize::MAX;
        });
        assert_eq!(error.unwrap_err().setting(), "gds_threshold");
        assert_eq!(Defaults::get().io_uring_depth, 7, "all or nothing");

        let outer = Defaults::scoped(|settings| settings.io_uring_depth = 8).unwrap();
        let inner = Defaults::scoped(|settings| {
            // It may look.
            assert_eq!(Defaults::get().io_uring_depth, 8);
            settings.io_uring_depth = 10;
            settings.gds_threshold = 11;
        });
        let now = Defaults::get();
        assert_eq!((now.io_uring_depth, now.gds_threshold), (10, 11));
        // Another thread sees the same.
        assert_eq!(std::thread::spawn(Defaults::get).join().unwrap(), now);
        // What the scope did not change, it does not change back.
        Defaults::set(|settings| settings.auto_direct_io_threshold = 12).unwrap();
        drop(inner);
        let now = Defaults::get();
        assert_eq!(
            (now.io_uring_depth, now.gds_threshold),
            (8, before.gds_threshold)
        );
        drop(outer);
        assert_eq!(Defaults::get().io_uring_depth, 7);
        assert_eq!(Defaults::get().auto_direct_io_threshold, 12);

        Defaults::reset();
        assert_eq!(Defaults::get(), before);
    }

    /// The environment is read once in a process: this test runs itself in another one.
    #[test]
    fn a_variable_that_makes_no_sense_is_an_error_of_open_that_names_it() {
        use super::super::{FileErrorKind, FileHandle};
        const NAME: &str = "storage::defaults::tests::\
            a_variable_that_makes_no_sense_is_an_error_of_open_that_names_it";
        const NONSENSE: &str = "16 KiB, please";
        if std::env::var_os("KVIKIO_GDS_THRESHOLD").is_none_or(|value| value != NONSENSE) {
            let this = std::env::current_exe().unwrap();
            let child = std::process::Command::new(this)
                .args(["--exact", NAME])
                .env("KVIKIO_GDS_THRESHOLD", NONSENSE)
                .env("FABRICAST_NUM_THREADS", "3")
                .output()
                .unwrap();
            let said = String::from_utf8_lossy(&child.stdout).into_owned();
            assert!(
                child.status.success() && said.contains("1 passed"),
                "{said}"
            );
            return;
        }
        let error = FileHandle::open("/dev/null", "r").unwrap_err();
        assert!(matches!(error.kind, FileErrorKind::Setting(_)), "{error}");
        let text = error.to_string();
        assert!(
            text.contains("KVIKIO_GDS_THRESHOLD=16 KiB, please"),
            "{text}"
        );
        assert_eq!(Defaults::check().unwrap_err().setting(), "gds_threshold");
        // The others count, and so does what code sets.
        assert_eq!(Defaults::get().num_threads, 3);
        Defaults::set(|settings| settings.gds_threshold = 5).unwrap();
        assert_eq!(Defaults::get().gds_threshold, 5);
        assert!(
            Defaults::check().is_err(),
            "who set the variable is to know"
        );
    }

    #[test]
    fn threads_that_set_different_things_lose_nothing() {
        let _alone = alone();
        let sets: [fn(&mut Settings, usize); 2] = [
            |settings, n| settings.bounce_pool_size = n,
            |settings, n| settings.thread_pool_queue = n,
        ];
        std::thread::scope(|scope| {
            for set in sets {
                scope.spawn(move || {
                    for n in 1..=500 {
                        Defaults::set(|settings| set(settings, n)).unwrap();
                    }
                });
            }
        });
        let now = Defaults::get();
        assert_eq!((now.bounce_pool_size, now.thread_pool_queue), (500, 500));
        let default = Settings::default();
        Defaults::set(|settings| {
            settings.bounce_pool_size = default.bounce_pool_size;
            settings.thread_pool_queue = default.thread_pool_queue;
        })
        .unwrap();
    }
}
