//! Keys and prefixes to paths: names of files that lie below the store's directory, whatever the
//! key says.

use std::path::{Path, PathBuf};

use fabricast::storage::AtomicFile;
use zarrs_storage::{StorageError, StoreKey, StoreKeyError, StorePrefix, StorePrefixError};

/// Where the value of a key is.
pub(crate) fn key_path(root: &Path, key: &StoreKey) -> Result<PathBuf, StorageError> {
    below(root, key.as_str()).map_err(|why| {
        let said = format!("{:?}: {why}", key.as_str());
        StoreKeyError::from(said).into()
    })
}

/// The directory of a prefix.
pub(crate) fn prefix_path(root: &Path, prefix: &StorePrefix) -> Result<PathBuf, StorageError> {
    let text = prefix.as_str();
    if text.is_empty() {
        return Ok(root.into());
    }
    let named = text.strip_suffix('/').unwrap_or(text);
    below(root, named).map_err(|why| {
        let said = format!("{text:?}: {why}");
        StorePrefixError::from(said).into()
    })
}

fn below(root: &Path, text: &str) -> Result<PathBuf, &'static str> {
    let mut path = root.to_path_buf();
    for part in text.split('/') {
        match part {
            "" => return Err("a part of it is empty: names are separated by one / each"),
            "." | ".." => return Err("a part of it is . or .., which are no names of files"),
            part if part.contains('\0') => return Err("no name of a file has a byte that is 0"),
            part if AtomicFile::is_temporary(part) => {
                return Err(
                    "a part of it has the form .NAME.RANDOM.tmp, which files have while they are \
                     written",
                );
            }
            part => path.push(part),
        }
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<PathBuf, StorageError> {
        // Not by `new`, so that what it refuses is refused here, too.
        key_path(Path::new("/data"), &StoreKey::new(text)?)
    }

    #[test]
    fn keys_are_names_below_the_directory_or_refused() {
        assert_eq!(of("a/c/0/0").unwrap(), Path::new("/data/a/c/0/0"));
        for fine in ["zarr.json", ".zarray", "...", "a/..b", "a b", "ä/ö", "-"] {
            assert_eq!(of(fine).unwrap(), Path::new("/data").join(fine));
        }
        for (wrong, why) in [
            ("..", ".."),
            ("a/../../etc/passwd", ".."),
            ("./a", "."),
            ("a/.", "."),
            ("", "empty"),
            ("a\0b", "0"),
            (".a.0123456789abcdef.tmp", ".NAME.RANDOM.tmp"),
            ("x/..zarray.0123456789abcdef.tmp/y", ".NAME.RANDOM.tmp"),
        ] {
            let error = of(wrong).unwrap_err();
            assert!(
                matches!(error, StorageError::InvalidStoreKey(_)),
                "{error:?}"
            );
            let text = error.to_string();
            assert!(text.contains(why), "{text}");
            assert!(text.contains(&format!("{wrong:?}")), "{text}");
        }
        for before in ["/etc/passwd", "a//b", "a/"] {
            assert!(of(before).is_err(), "refused by StoreKey itself: {before}");
        }
    }

    #[test]
    fn prefixes_are_directories_below_the_directory_or_refused() {
        let of = |text: &str| prefix_path(Path::new("/data"), &StorePrefix::new(text)?);
        assert_eq!(of("").unwrap(), Path::new("/data"));
        assert_eq!(of("a/b/").unwrap(), Path::new("/data/a/b"));
        for wrong in ["../", "a/../", "./", "a//", "//", "a/\0/"] {
            assert!(of(wrong).is_err(), "{wrong:?}");
        }
        let error = of("a/../../").unwrap_err();
        assert!(matches!(error, StorageError::StorePrefixError(_)));
    }
}
