//! `SharedObject`: a library that is loaded at run time and never unloaded: which one, what was
//! tried, and its functions.

#![allow(unsafe_code)]

use std::env;
use std::fmt;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};

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
#[derive(Clone, Copy, Debug)]
pub struct Attempts<'a>(pub &'a [Attempt]);

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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// Its name.
    pub symbol: &'static str,
    /// What the loader said.
    pub reason: String,
}

/// A library that stays in the process for good, also when it is refused after a look at its
/// functions: its constructors may have left anything behind.
#[derive(Debug)]
pub struct SharedObject {
    library: ManuallyDrop<Library>,
    path: PathBuf,
}

impl SharedObject {
    /// Opens the library that the environment variable names, else the first of these names that
    /// opens. An empty `variable` names none.
    ///
    /// # Errors
    ///
    /// What was tried, and why it failed, where none opens.
    ///
    /// # Safety
    ///
    /// The constructors of what goes by these names may run in this process. For what the variable
    /// names, whoever set the environment vouches, as for `LD_LIBRARY_PATH`: it is the choice of
    /// who starts the program.
    pub unsafe fn open_first(variable: &str, names: &[&str]) -> Result<Self, Vec<Attempt>> {
        let named = env::var_os(variable).filter(|path| !path.is_empty());
        let names: Vec<PathBuf> = match named {
            Some(path) => vec![PathBuf::from(path)],
            None => names.iter().map(PathBuf::from).collect(),
        };
        let mut tried = Vec::new();
        for path in names {
            // SAFETY: the caller vouches for the names, and who set the environment for the
            // variable.
            match unsafe { Library::open(Some(&path), RTLD_NOW | RTLD_LOCAL) } {
                Ok(library) => {
                    let library = ManuallyDrop::new(library);
                    return Ok(Self { library, path });
                }
                Err(error) => tried.push(Attempt {
                    reason: error.to_string(),
                    path,
                }),
            }
        }
        Err(tried)
    }

    /// The path or name that it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Looks one function up. It may be called for the rest of the process's life.
    ///
    /// # Errors
    ///
    /// [`Missing`] where the library has none of that name.
    ///
    /// # Safety
    ///
    /// `F` is the type of the function of that name: a pointer to an `extern "C"` function.
    pub unsafe fn find<F: Copy>(&self, symbol: &'static str) -> Result<F, Missing> {
        // SAFETY: the caller vouches for the type.
        match unsafe { self.library.get::<F>(symbol.as_bytes()) } {
            Ok(function) => Ok(*function),
            Err(error) => Err(Missing {
                symbol,
                reason: error.to_string(),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_that_opens_is_taken_and_what_it_lacks_is_named() {
        let names = ["/nonexistent/lib.so", "libc.so.6"];
        // SAFETY: one name that no file has, and the C library, which is loaded already.
        let object = unsafe { SharedObject::open_first("", &names) }.expect("the C library");
        assert_eq!(object.path(), Path::new("libc.so.6"));
        // SAFETY: the type is that of getpid(2).
        let getpid = unsafe { object.find::<extern "C" fn() -> i32>("getpid") }.expect("getpid");
        assert_eq!(getpid() as u32, std::process::id());
        // SAFETY: nothing is called.
        let missing = unsafe { object.find::<extern "C" fn()>("no_such_function") };
        let missing = missing.expect_err("nobody has that");
        assert_eq!(missing.symbol, "no_such_function");
        assert!(missing.reason.contains("no_such_function"), "{missing:?}");
    }

    #[test]
    fn what_was_tried_is_said_in_words() {
        let names = ["/nonexistent/a.so", "/nonexistent/b.so"];
        // SAFETY: names that no file has.
        let tried = unsafe { SharedObject::open_first("", &names) }.expect_err("no such files");
        let said = Attempts(&tried).to_string();
        assert!(said.starts_with("/nonexistent/a.so: "), "{said}");
        assert!(said.contains("; /nonexistent/b.so: "), "{said}");
    }
}
