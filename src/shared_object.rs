//! Libraries that are loaded at run time and never unloaded: which one, what was tried, and their
//! functions.

#![allow(unsafe_code)]

use std::env;
use std::fmt;
use std::path::PathBuf;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

/// A library that was tried, and why it could not be loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// Its path or name.
    pub path: PathBuf,
    /// What the loader said.
    pub reason: String,
}

/// All attempts, in words.
pub(crate) struct Attempts<'a>(pub(crate) &'a [Attempt]);

impl fmt::Display for Attempts<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, attempt) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            // The loader's words begin with the name where it has one to say.
            write!(
                f,
                "{separator}{}: {}",
                attempt.path.display(),
                attempt.reason
            )?;
        }
        Ok(())
    }
}

/// A function that a library lacks.
pub(crate) struct Missing {
    pub(crate) symbol: &'static str,
    pub(crate) reason: String,
}

/// Opens the library that the environment variable names, else the first of these names that opens.
/// What was tried, and why it failed, where none does.
///
/// # Safety
///
/// The constructors of what goes by these names may run in this process. For what the variable
/// names, whoever set the environment vouches, as for `LD_LIBRARY_PATH`: it is the choice of who
/// starts the program.
pub(crate) unsafe fn open_first(
    variable: &str,
    names: &[&str],
) -> Result<(Library, PathBuf), Vec<Attempt>> {
    let named = env::var_os(variable).filter(|path| !path.is_empty());
    let names: Vec<PathBuf> = match named {
        Some(path) => vec![PathBuf::from(path)],
        None => names.iter().map(PathBuf::from).collect(),
    };
    let mut tried = Vec::new();
    for path in names {
        // SAFETY: the caller vouches for the names, and who set the environment for the variable.
        match unsafe { Library::open(Some(&path), RTLD_NOW | RTLD_LOCAL) } {
            Ok(object) => return Ok((object, path)),
            Err(error) => tried.push(Attempt {
                reason: error.to_string(),
                path,
            }),
        }
    }
    Err(tried)
}

/// Looks one function up.
///
/// # Safety
///
/// `F` is the type of the function of that name.
pub(crate) unsafe fn find<F: Copy>(object: &Library, symbol: &'static str) -> Result<F, Missing> {
    // SAFETY: the caller vouches for the type.
    match unsafe { object.get::<F>(symbol.as_bytes()) } {
        Ok(function) => Ok(*function),
        Err(error) => Err(Missing {
            symbol,
            reason: error.to_string(),
        }),
    }
}
