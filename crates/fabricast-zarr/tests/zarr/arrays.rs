//! Arrays that `zarrs` itself creates, opens, writes and reads, over both stores.

use std::sync::Arc;

use fabricast_zarr::{FileZarrStore, ObjectZarrOptions};
use zarrs::array::{Array, ArrayBuilder, DataType};
use zarrs::array_subset::ArraySubset;
use zarrs_storage::{ReadableStorageTraits, ReadableWritableListableStorageTraits};

use super::objects::served;
use super::{empty, key};

const PATH: &str = "/run7/temperature";
/// What is not written: exact in a float.
const FILL: f32 = -1.5;

fn value(row: u64, column: u64) -> f32 {
    (row * 1000 + column) as f32
}

/// 100 × 60 elements in 4 × 3 chunks of 32 × 25; the chunk (1, 1) is left out.
fn write(store: Arc<dyn ReadableWritableListableStorageTraits>) {
    let builder = ArrayBuilder::new(vec![100, 60], vec![32, 25], DataType::Float32, FILL);
    let array = builder.build(store, PATH).unwrap();
    array.store_metadata().unwrap();
    for chunk in (0..12).map(|at| [at / 3, at % 3]) {
        if chunk != [1, 1] {
            let (first, second) = (chunk[0] * 32, chunk[1] * 25);
            let elements = (0..32).flat_map(|r| (0..25).map(move |c| value(first + r, second + c)));
            let elements: Vec<f32> = elements.collect();
            array.store_chunk_elements(&chunk, &elements).unwrap();
        }
    }
}

/// Rows 20 to 69, columns 10 to 59: parts of nine chunks, and the one that is not there.
fn read(store: Arc<dyn ReadableWritableListableStorageTraits>) {
    let array = Array::open(store, PATH).unwrap();
    assert_eq!(array.shape(), [100, 60]);
    let part = ArraySubset::new_with_ranges(&[20..70, 10..60]);
    let elements = array.retrieve_array_subset_elements::<f32>(&part).unwrap();
    assert_eq!(elements.len(), 50 * 50);
    for (at, element) in elements.into_iter().enumerate() {
        let (row, column) = (20 + at as u64 / 50, 10 + at as u64 % 50);
        let left_out = row / 32 == 1 && column / 25 == 1;
        let expected = if left_out { FILL } else { value(row, column) };
        assert_eq!(element, expected, "row {row}, column {column}");
    }
}

#[test]
fn zarrs_writes_an_array_to_files_and_another_store_opens_it() {
    let (directory, store) = empty();
    write(Arc::new(store));
    let chunk = directory.path().join("run7/temperature/c/0/2");
    assert_eq!(std::fs::metadata(chunk).unwrap().len(), 4 * 32 * 25);
    assert!(!directory.path().join("run7/temperature/c/1/1").exists());
    read(Arc::new(FileZarrStore::open(directory.path()).unwrap()));
}

#[test]
fn zarrs_writes_an_array_over_an_object_service_and_another_store_opens_it() {
    let Some(served) = served() else { return };
    write(Arc::new(served.store(ObjectZarrOptions::default())));
    let other = served.store(ObjectZarrOptions::default());
    let chunk = key("run7/temperature/c/0/2");
    assert_eq!(other.size_key(&chunk).unwrap(), Some(4 * 32 * 25));
    read(Arc::new(other));
}
