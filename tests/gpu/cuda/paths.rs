//! Which way device memory goes on a domain, and why not another.

use fabricast::buffer::DeviceBufferManager;
use fabricast::fabric::DevicePaths;
use fabricast::memory::Path;
use fabricast::{Error, Fabric, Region};

use crate::fake_cuda::{on_a_gpu, over_the_fake};

fn device_region() -> std::sync::Arc<Region> {
    Region::device(1 << 20).build().expect("memory")
}

#[test]
fn over_tcp_it_is_staged() {
    on_a_gpu("paths::over_tcp_it_is_staged", &[], || {
        for paths in [DevicePaths::Auto, DevicePaths::Off] {
            let fabric = Fabric::builder()
                .provider("tcp")
                .node("127.0.0.1")
                .device_memory(paths);
            let fabric = match fabric.open() {
                Ok(fabric) => fabric,
                Err(Error::Library(why)) => return println!("SKIPPED: {why}"),
                Err(error) => panic!("{error}"),
            };
            let domain = fabric.open_domain().expect("a domain");
            let region = device_region();
            assert_eq!(region.path(&domain), None);
            region.register(&domain).expect("staged is no failure");
            let Some(Path::Staged(why)) = region.path(&domain) else {
                panic!("{:?}", region.path(&domain));
            };
            println!("| tcp, {paths:?} | {why} |");
            assert_eq!(
                domain.registrations(),
                0,
                "the provider knows nothing of it"
            );
            assert_eq!(region.registration_count(), 1);
            let told = fabric.device_memory().unwrap_err();
            assert!(why.contains(told), "{why}");
            region.deregister(&domain);
            assert_eq!(region.path(&domain), None);
            let host = Region::host(4096).build().expect("host memory");
            host.register(&domain).expect("registered");
            assert_eq!(host.path(&domain), Some(Path::Host));
        }
    });
}

#[test]
fn direct_access_can_be_required() {
    on_a_gpu("paths::direct_access_can_be_required", &[], || {
        let fabric = Fabric::builder().provider("tcp").node("127.0.0.1");
        match fabric.device_memory(DevicePaths::RequireDirect).open() {
            Err(Error::Unsupported { provider, need }) => {
                assert_eq!(provider, "tcp");
                assert!(need.contains("FI_HMEM"), "{need}");
            }
            Err(Error::Library(why)) => println!("SKIPPED: {why}"),
            other => panic!("{other:?}"),
        }
    });
}

/// `shm` says that it takes device memory, also in a library without CUDA: nobody believes it
/// before a transfer.
#[test]
fn shm_is_tried_before_it_is_believed() {
    on_a_gpu("paths::shm_is_tried_before_it_is_believed", &[], || {
        let fabric = match Fabric::builder().provider("shm").open() {
            Ok(fabric) => fabric,
            Err(why) => return println!("SKIPPED: {why}"),
        };
        let domain = fabric.open_domain().expect("a domain");
        let pool = DeviceBufferManager::new(device_region(), 4096).expect("a pool");
        pool.region().register(&domain).expect("direct or staged");
        let path = pool.region().path(&domain).expect("registered");
        println!(
            "| {} | offers it: {:?} | {path} |",
            fabric.report(),
            fabric.device_memory()
        );
        if !crate::fake_cuda::wants_real() {
            assert!(
                path.is_staged(),
                "no provider can reach the fake's memory: {path}"
            );
        }
        let required = Fabric::builder()
            .provider("shm")
            .device_memory(DevicePaths::RequireDirect);
        let Ok(required) = required.open() else {
            return;
        };
        let domain = required.open_domain().expect("a domain");
        let registered = device_region().register(&domain);
        assert_eq!(registered.is_err(), path.is_staged(), "{registered:?}");
        if let Err(why) = registered {
            let text = why.to_string();
            assert!(
                text.contains("can't be registered for direct access"),
                "{text}"
            );
        }
    });
}

/// A library without CUDA says so as well, and copies the host's memory twice from then on: so it
/// is not asked, though there is a GPU.
#[test]
fn shm_is_not_asked_where_the_library_has_no_cuda() {
    let test = "paths::shm_is_not_asked_where_the_library_has_no_cuda";
    over_the_fake(test, &[], || {
        let fabric = match Fabric::builder().provider("shm").open() {
            Ok(fabric) => fabric,
            Err(why) => return println!("SKIPPED: {why}"),
        };
        match fabric.device_memory() {
            Ok(()) => println!("SKIPPED: this libfabric was built with CUDA"),
            Err(why) => assert!(why.contains("built without it"), "{why}"),
        }
    });
}

#[test]
fn cuda_virtual_memory_is_refused_by_name_where_ipc_is_the_only_way() {
    let test = "paths::cuda_virtual_memory_is_refused_by_name_where_ipc_is_the_only_way";
    on_a_gpu(test, &[], || {
        // Also where the library has no CUDA, and `Auto` does not ask for it.
        let fabric = Fabric::builder().provider("shm");
        let fabric = match fabric.device_memory(DevicePaths::RequireDirect).open() {
            Ok(fabric) => fabric,
            Err(why) => return println!("SKIPPED: {why}"),
        };
        let domain = fabric.open_domain().expect("a domain");
        let region = Region::device(1 << 20)
            .virtual_memory(true)
            .build()
            .expect("memory");
        let refused = region.register(&domain).expect_err("not direct");
        println!("| shm, virtual memory | {refused} |");
        assert!(
            refused
                .to_string()
                .contains("CUDA IPC does not take CUDA virtual memory"),
            "{refused}"
        );
    });
}
