//! Lists of keys and prefixes, in the order of their text.

use std::ops::ControlFlow;

use zarrs_storage::{
    ListableStorageTraits, StorageError, StoreKey, StoreKeys, StoreKeysPrefixes, StorePrefix,
};

use crate::FileZarrStore;
use crate::key_path::prefix_path;
use crate::walk::{Entry, entries, has_value, walk};

impl ListableStorageTraits for FileZarrStore {
    fn list(&self) -> Result<StoreKeys, StorageError> {
        self.list_prefix(&StorePrefix::root())
    }

    fn list_prefix(&self, prefix: &StorePrefix) -> Result<StoreKeys, StorageError> {
        let mut names = Vec::new();
        let directory = prefix_path(self.root(), prefix)?;
        let _ = walk(&directory, prefix.as_str(), |_, key| {
            names.push(key);
            Ok(ControlFlow::Continue(()))
        })?;
        sorted_keys(names)
    }

    fn list_dir(&self, prefix: &StorePrefix) -> Result<StoreKeysPrefixes, StorageError> {
        let directory = prefix_path(self.root(), prefix)?;
        let (mut keys, mut prefixes) = (Vec::new(), Vec::new());
        for (name, entry) in entries(&directory)? {
            match entry {
                Entry::Value => keys.push(format!("{prefix}{name}")),
                // A directory without a value is not there, for a store.
                Entry::Directory if has_value(&directory.join(&name))? => {
                    prefixes.push(StorePrefix::new(format!("{prefix}{name}/"))?);
                }
                Entry::Directory => {}
            }
        }
        prefixes.sort();
        Ok(StoreKeysPrefixes::new(sorted_keys(keys)?, prefixes))
    }

    fn size_prefix(&self, prefix: &StorePrefix) -> Result<u64, StorageError> {
        let mut size = 0;
        let directory = prefix_path(self.root(), prefix)?;
        let _ = walk(&directory, prefix.as_str(), |path, _| {
            // What was erased since it was listed has no size.
            size += std::fs::metadata(path).map_or(0, |metadata| metadata.len());
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(size)
    }
}

fn sorted_keys(mut names: Vec<String>) -> Result<StoreKeys, StorageError> {
    names.sort_unstable();
    let keys: Result<StoreKeys, _> = names.into_iter().map(StoreKey::new).collect();
    Ok(keys?)
}
