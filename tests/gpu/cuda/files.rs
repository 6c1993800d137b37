//! Files into device memory and out of it: slices of regions, and device buffers.

use fabricast::Region;
use fabricast::buffer::DeviceBufferManager;
use fabricast::cuda::{Device, Stream};
use fabricast::storage::{DeviceMemory, FileHandle, IoOptions};

use crate::fake_cuda::on_a_gpu;
use crate::pattern::pattern;

#[test]
fn a_file_goes_into_device_memory_and_back() {
    on_a_gpu(
        "files::a_file_goes_into_device_memory_and_back",
        &[],
        || {
            let dir = tempfile::tempdir().expect("a folder");
            let (path, copy) = (dir.path().join("file"), dir.path().join("copy"));
            let bytes = pattern(3_000_001, 5);
            std::fs::write(&path, &bytes).expect("written");
            let file = FileHandle::open(&path, "r").expect("opens");
            let out = FileHandle::open(&copy, "w+").expect("opens");
            let stream = Stream::new(Device::new(0).expect("a device")).expect("a stream");
            let options = IoOptions::default();

            let pool =
                DeviceBufferManager::new(Region::device(8 << 20).build().expect("memory"), 4 << 20)
                    .expect("a pool");
            let mut buffer = pool.try_acquire().expect("free");
            buffer.set_len(bytes.len());
            let (buffer, moved) = file
                .pread(buffer, .., 0, &options)
                .wait()
                .into_result()
                .expect("read");
            assert_eq!(moved.bytes, bytes.len());
            let mut back = vec![0; bytes.len()];
            buffer.copy_to_host(&mut back, &stream).expect("copied");
            assert!(back == bytes);
            let (_, moved) = out
                .pwrite(buffer, .., 0, &options)
                .wait()
                .into_result()
                .expect("written");
            assert_eq!(moved.bytes, bytes.len());
            assert!(std::fs::read(&copy).expect("there") == bytes);

            // An odd part of a region, from an odd offset on.
            let region = Region::device(1 << 20).build().expect("memory");
            let slice = region.slice(777..777 + 500_003).expect("a slice");
            let memory = DeviceMemory::of_slice(slice.clone()).expect("a device's");
            let (_, moved) = file
                .pread(memory, .., 1001, &options)
                .wait()
                .into_result()
                .expect("read");
            assert_eq!(moved.bytes, 500_003);
            let mut back = vec![0; 500_003];
            slice.copy_to_host(&mut back, &stream).expect("copied");
            assert!(back == bytes[1001..1001 + 500_003]);
            let host = Region::host(4096).build().expect("host memory");
            let host = host.slice(0..10).expect("a slice");
            assert!(DeviceMemory::of_slice(host).is_err(), "memory of the host");
            fabricast::storage::pinned_buffers_clear();
        },
    );
}
