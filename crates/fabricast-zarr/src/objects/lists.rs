//! Lists of objects as keys and prefixes.

use fabricast::object::{ListQuery, ListedObject};
use zarrs_storage::{
    ListableStorageTraits, StorageError, StoreKey, StoreKeys, StoreKeysPrefixes, StorePrefix,
};

use super::ObjectZarrStore;

/// Names that are asked for at once.
const PAGE: usize = 1000;

impl ListableStorageTraits for ObjectZarrStore {
    fn list(&self) -> Result<StoreKeys, StorageError> {
        self.list_prefix(&StorePrefix::root())
    }

    fn list_prefix(&self, prefix: &StorePrefix) -> Result<StoreKeys, StorageError> {
        let mut keys = Vec::new();
        self.visit(prefix, |object| {
            keys.push(self.key(object)?);
            Ok(None)
        })?;
        Ok(keys)
    }

    fn list_dir(&self, prefix: &StorePrefix) -> Result<StoreKeysPrefixes, StorageError> {
        let (mut keys, mut prefixes) = (Vec::new(), Vec::new());
        self.visit(prefix, |object| {
            let key = self.key(object)?;
            let below = key.as_str().get(prefix.as_str().len()..).unwrap_or("");
            let Some((child, _)) = below.split_once('/') else {
                keys.push(key);
                return Ok(None);
            };
            let child = StorePrefix::new(format!("{prefix}{child}/"))?;
            // On behind all that is below it: nearly nothing sorts behind this and is below it.
            let behind = format!("{}{child}{}", self.options.prefix, char::MAX);
            if prefixes.last() != Some(&child) {
                prefixes.push(child);
            }
            Ok(Some(behind))
        })?;
        prefixes.sort();
        prefixes.dedup();
        Ok(StoreKeysPrefixes::new(keys, prefixes))
    }

    fn size_prefix(&self, prefix: &StorePrefix) -> Result<u64, StorageError> {
        let mut size = 0u64;
        self.visit(prefix, |object| {
            size = size.saturating_add(object.size);
            Ok(None)
        })?;
        Ok(size)
    }
}

impl ObjectZarrStore {
    /// Visits each object of a prefix, in order; the visitor may say behind which name to go on.
    fn visit(
        &self,
        prefix: &StorePrefix,
        mut visit: impl FnMut(&ListedObject) -> Result<Option<String>, StorageError>,
    ) -> Result<(), StorageError> {
        let mut query = ListQuery {
            prefix: format!("{}{prefix}", self.options.prefix),
            start_after: String::new(),
            limit: PAGE,
        };
        loop {
            // A connection for each part: its deadline is that of one request.
            let mut line = self.line()?;
            let deadline = line.deadline;
            let page = line.remote().list_page(&query, deadline);
            let page = line.understand(&query.prefix, page)?.unwrap_or_default();
            drop(line);
            let Some(last) = page.objects.last() else {
                return Ok(());
            };
            let last = last.name.as_str().to_owned();
            let mut behind = String::new();
            for object in &page.objects {
                if *object.name.as_str() <= *behind {
                    continue;
                }
                if let Some(further) = visit(object)? {
                    behind = further;
                }
            }
            if !page.more {
                return Ok(());
            }
            // A name has a limit, and what is longer is gone through one by one.
            let is_name = behind.len() <= fabricast::object::ObjectName::LEN_MAX;
            query.start_after = if is_name { last.max(behind) } else { last };
        }
    }

    fn key(&self, object: &ListedObject) -> Result<StoreKey, StorageError> {
        let name = object.name.as_str();
        let key = name.strip_prefix(&*self.options.prefix).unwrap_or(name);
        Ok(StoreKey::new(key)?)
    }
}
