use std::sync::Mutex;

use super::*;
use crate::memory::HugePages;
use crate::memory::fake::FakeRegistrar;

struct KeepAlive(
    Arc<Mutex<Vec<&'static str>>>,
    #[expect(dead_code)] Box<[u8]>,
);

impl Drop for KeepAlive {
    fn drop(&mut self) {
        self.0.lock().unwrap().push("memory");
    }
}

fn external(len: usize, log: &Arc<Mutex<Vec<&'static str>>>) -> Arc<Region> {
    let bytes = Box::leak(vec![0u8; len].into_boxed_slice());
    let base = NonNull::from(&mut *bytes).cast();
    // SAFETY: from `leak` just above, freed by the keep-alive alone.
    let bytes = unsafe { Box::from_raw(bytes) };
    // SAFETY: the box lives in the keep-alive and nobody looks into it.
    unsafe { Region::external(base, len, Box::new(KeepAlive(Arc::clone(log), bytes))) }.unwrap()
}

/// By a provider that would take any address, as tcp does.
#[test]
fn external_memory_that_its_owner_has_unmapped_is_not_registered() {
    let registrar = FakeRegistrar::new();
    let len = 2 * rustix::param::page_size();
    let base = mapping::anonymous(len, 0).unwrap();
    // SAFETY: nobody looks into it. It is not kept as long as the region lives, which is what this
    // test does wrong.
    let region = unsafe { Region::external(base, len, Box::new(())) }.unwrap();
    region.register_with(&registrar).unwrap();
    region.deregister_from(registrar.scope());
    // SAFETY: mapped above, and nobody has an address in it but the region, which does not use it.
    unsafe { mapping::unmap(base, len) }.unwrap();
    let refused = region.register_with(&registrar).unwrap_err();
    assert_eq!(refused, RegisterError::NotMapped { len_bytes: len });
    assert_eq!(region.registration_count(), 0);
}

#[test]
fn external_memory_outlives_its_registrations() {
    struct Mr(Arc<Mutex<Vec<&'static str>>>);
    impl Drop for Mr {
        fn drop(&mut self) {
            self.0.lock().unwrap().push("mr");
        }
    }
    struct Domain(crate::memory::ScopeGuard, Arc<Mutex<Vec<&'static str>>>);
    impl Registrar for Domain {
        fn scope(&self) -> Scope {
            self.0.scope()
        }
        fn register(
            &self,
            _: NonNull<u8>,
            len: usize,
        ) -> Result<crate::memory::RawRegistration, RegisterError> {
            assert_eq!(len, 100);
            let handle = Box::new(Mr(Arc::clone(&self.1)));
            let desc = std::ptr::null_mut();
            Ok(crate::memory::RawRegistration::new(desc, 0, handle))
        }
    }
    let log = Arc::new(Mutex::new(Vec::new()));
    let region = external(100, &log);
    assert!(!region.is_host() && region.pages().is_none() && region.len() == 100);
    region
        .register_with(&Domain(Scope::allocate().unwrap(), Arc::clone(&log)))
        .unwrap();
    let slice = region.slice(10..20).unwrap();
    assert_eq!(slice.as_ptr().addr(), region.as_ptr().addr() + 10);
    drop(region);
    assert!(log.lock().unwrap().is_empty(), "the slice keeps the region");
    drop(slice);
    assert_eq!(*log.lock().unwrap(), ["mr", "memory"]);
}

#[test]
fn external_refuses_what_is_no_memory() {
    let somewhere = NonNull::<u8>::dangling();
    // SAFETY: refused before anybody could look there.
    let empty = unsafe { Region::external(somewhere, 0, Box::new(())) };
    assert!(matches!(empty, Err(MemoryError::Empty)));
    // SAFETY: as above.
    let large = unsafe { Region::external(somewhere, usize::MAX, Box::new(())) };
    assert!(matches!(
        large,
        Err(MemoryError::TooLarge {
            asked_bytes: usize::MAX
        })
    ));
}

#[test]
fn a_host_region_has_one_use_at_a_time() {
    let region = Region::host(4096)
        .huge_pages(HugePages::Never)
        .build()
        .unwrap();
    assert_eq!(region.purpose(), None);
    let claim = region.claim(Purpose::Ring).unwrap();
    assert_eq!(region.purpose(), Some(Purpose::Ring));
    for purpose in [Purpose::Buffers, Purpose::Ring] {
        let error = region.claim(purpose).unwrap_err();
        assert!(
            matches!(error, MemoryError::Claimed { by: Purpose::Ring, wanted } if wanted == purpose)
        );
    }
    let error = region.slice(0..1).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the region is in use for a ring and cannot also be used for slices"
    );
    drop(claim);
    let slice = region.slice(0..4096).unwrap();
    assert_eq!(region.slice(4096..4096).unwrap().len(), 0);
    drop(slice);
    assert!(matches!(
        region.claim(Purpose::Buffers),
        Err(MemoryError::Claimed {
            by: Purpose::Slices,
            ..
        })
    ));
}

#[test]
fn slices_stay_within_the_region() {
    let log = Arc::default();
    let region = external(100, &log);
    #[expect(clippy::reversed_empty_ranges, reason = "that is what is tested")]
    for bad in [0..101, 101..101, 60..50] {
        assert!(matches!(
            region.slice(bad),
            Err(MemoryError::OutOfRange { len_bytes: 100, .. })
        ));
    }
    let slice = region.slice(50..100).unwrap();
    assert!(slice.slice(0..51).is_err());
    let part = slice.slice(10..50).unwrap();
    assert_eq!(
        (part.offset(), part.len(), part.is_empty()),
        (60, 40, false)
    );
}

#[test]
fn regions_and_registrars_go_to_other_threads() {
    let region = Region::host(1).build().unwrap();
    let domain = FakeRegistrar::new();
    region.register_with(&domain).unwrap();
    std::thread::spawn(move || drop(region)).join().unwrap();
    assert_eq!(domain.closed(), 1);
}
