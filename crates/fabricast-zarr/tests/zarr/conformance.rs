//! What `zarrs_storage` asks of every store.

use std::sync::Arc;

use fabricast::storage::{DirectIo, IoOptions};
use fabricast_zarr::{AsyncFileZarrStore, StoreThreads, ZarrStoreOptions};
use zarrs_storage::ReadableWritableListableStorageTraits;
use zarrs_storage::store_test::{
    async_store_list, async_store_list_size, async_store_read, async_store_write, store_list,
    store_list_size, store_read, store_write,
};

use super::{block_on, empty};

#[test]
fn the_store_passes_the_tests_of_its_traits() {
    for options in [
        ZarrStoreOptions::new(),
        ZarrStoreOptions::new().durable(true),
        ZarrStoreOptions::new().direct(DirectIo::On),
        ZarrStoreOptions::new().io(IoOptions {
            task_size: Some(1),
            ..IoOptions::default()
        }),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let store = options.open(directory.path()).unwrap();
        // Twice: the second begins by erasing all.
        for _ in 0..2 {
            store_write(&store).unwrap();
            store_read(&store).unwrap();
            store_list(&store).unwrap();
            store_list_size(&store).unwrap();
        }
        store.sync().unwrap();
        // What another store of the same directory sees.
        let other = ZarrStoreOptions::new().read_only(true);
        let other = other.open(directory.path()).unwrap();
        store_read(&other).unwrap();
        store_list(&other).unwrap();
    }
}

#[test]
fn the_store_passes_them_behind_the_traits_that_arrays_hold_it_by() {
    let (_directory, store) = empty();
    let store: Arc<dyn ReadableWritableListableStorageTraits> = Arc::new(store);
    store_write(&Arc::clone(&store).writable()).unwrap();
    store_read(&Arc::clone(&store).readable_listable().readable()).unwrap();
    store_list(&Arc::clone(&store).listable()).unwrap();
    store_list_size(&store.listable()).unwrap();
}

#[test]
fn the_store_of_futures_passes_theirs() {
    for threads in [1, 4] {
        let (_directory, store) = empty();
        let threads = StoreThreads::new(threads).unwrap();
        let store = AsyncFileZarrStore::new(Arc::new(store), threads);
        block_on(async {
            for _ in 0..2 {
                async_store_write(&store).await.unwrap();
                async_store_read(&store).await.unwrap();
                async_store_list(&store).await.unwrap();
                async_store_list_size(&store).await.unwrap();
            }
        });
    }
}
