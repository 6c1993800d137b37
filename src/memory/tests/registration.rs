use super::*;

#[cfg(not(loom))]
mod plain {
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::memory::fake::FakeRegistrar;
    use crate::memory::{HugePages, Region};

    fn region() -> std::sync::Arc<Region> {
        Region::host(4096)
            .huge_pages(HugePages::Never)
            .build()
            .unwrap()
    }

    #[test]
    fn registering_again_changes_nothing() {
        let (region, domain) = (region(), FakeRegistrar::new());
        assert!(!region.is_registered_anywhere());
        region.register_with(&domain).unwrap();
        region.register_with(&domain).unwrap();
        assert_eq!((domain.opened(), region.registration_count()), (1, 1));
        assert!(region.is_registered(domain.scope()));
        region.deregister_from(domain.scope());
        region.deregister_from(domain.scope());
        assert_eq!((domain.closed(), region.registration_count()), (1, 0));
    }

    #[test]
    fn a_lease_keeps_the_registration_open_and_a_closing_one_gives_no_lease() {
        let (region, domain) = (region(), FakeRegistrar::new());
        let scope = domain.scope();
        assert!(region.lease(scope).is_none());
        region.register_with(&domain).unwrap();
        let (desc, key) = region.lease_with_key(scope).unwrap();
        assert_eq!((desc.addr(), key), (1, 1));
        assert_eq!(region.lease(scope).unwrap(), desc);
        region.deregister_from(scope);
        assert!(region.lease(scope).is_none());
        assert!(!region.is_registered(scope));
        // SAFETY: one of the two leases taken above.
        unsafe { region.release(scope) };
        assert_eq!(domain.closed(), 0);
        // SAFETY: the other one.
        unsafe { region.release(scope) };
        assert_eq!(domain.closed(), 1);
    }

    #[test]
    fn a_staged_region_is_registered_and_never_leased() {
        let (table, guard) = (RegistrationTable::new(), Scope::allocate().unwrap());
        let scope = guard.scope();
        assert_eq!(table.path(scope), None);
        let staged = || Ok(RawRegistration::staged("no way there".into(), Box::new(())));
        table.register(scope, staged).unwrap();
        assert!(table.is_registered(scope) && table.is_staged(scope));
        assert_eq!(table.lease(scope), None, "no provider gets its address");
        let path = table.path(scope).unwrap();
        assert_eq!(path.to_string(), "staged through the host: no way there");
        table
            .register(scope, || panic!("it is registered"))
            .unwrap();
        table.deregister(scope);
        assert!(!table.is_registered(scope) && !table.is_staged(scope));
        assert_eq!((table.path(scope), table.count()), (None, 0));
        // The same scope, and now the provider takes it.
        let direct = || {
            let desc = std::ptr::without_provenance_mut(7);
            let registration = RawRegistration::new(desc, 9, Box::new(()));
            Ok(registration.direct(DirectBy::DmaBuf))
        };
        table.register(scope, direct).unwrap();
        assert_eq!(table.lease(scope).map(|(_, key)| key), Some(9));
        assert_eq!(table.path(scope), Some(Path::Direct(DirectBy::DmaBuf)));
        table.release(scope);
        table.deregister(scope);
        assert_eq!(table.path(scope), None);
    }

    #[test]
    fn registering_while_it_closes_keeps_it_open() {
        let (region, domain) = (region(), FakeRegistrar::new());
        region.register_with(&domain).unwrap();
        region.lease(domain.scope()).unwrap();
        region.deregister_from(domain.scope());
        region.register_with(&domain).unwrap();
        // SAFETY: the lease taken above.
        unsafe { region.release(domain.scope()) };
        assert_eq!((domain.opened(), domain.closed()), (1, 0));
        assert!(region.is_registered(domain.scope()));
    }

    #[test]
    fn scopes_are_apart() {
        let (region, a, b) = (region(), FakeRegistrar::new(), FakeRegistrar::new());
        assert_ne!(a.scope(), b.scope());
        region.register_with(&a).unwrap();
        assert!(region.lease(b.scope()).is_none());
        assert!(region.is_registered_anywhere());
        region.register_with(&b).unwrap();
        region.deregister_from(a.scope());
        assert_eq!((a.closed(), b.closed()), (1, 0));
        drop(region);
        assert_eq!(b.closed(), 1);
    }

    #[test]
    fn a_refused_registration_leaves_nothing() {
        let (region, domain) = (region(), FakeRegistrar::new());
        domain.refuse.store(true, Ordering::SeqCst);
        assert_eq!(
            region.register_with(&domain),
            Err(RegisterError::MemLock {
                limit_bytes: 1,
                asked_bytes: 4096
            })
        );
        assert!(region.lease(domain.scope()).is_none());
        domain.refuse.store(false, Ordering::SeqCst);
        region.register_with(&domain).unwrap();
        assert_eq!((domain.opened(), domain.closed()), (1, 0));
    }

    #[test]
    fn a_scope_is_not_given_twice_while_a_registration_holds_it() {
        let (region, domain) = (region(), FakeRegistrar::new());
        let scope = domain.scope();
        region.register_with(&domain).unwrap();
        drop(domain);
        let next = Scope::allocate().unwrap();
        assert_ne!(
            next.scope(),
            scope,
            "the registration still holds its domain"
        );
        assert!(region.is_registered(scope));
    }
}

#[cfg(loom)]
mod model {
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicUsize;
    use loom::thread;

    use super::*;

    struct Handle(Arc<AtomicUsize>);

    impl Drop for Handle {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn registration(closed: &Arc<AtomicUsize>) -> RawRegistration {
        let handle = Box::new(Handle(Arc::clone(closed)));
        RawRegistration::new(std::ptr::without_provenance_mut(7), 7, handle)
    }

    fn use_once(entry: &Entry, closed: &AtomicUsize, opened_so_far: usize) {
        if let Some((desc, key)) = entry.lease() {
            assert_eq!((desc.addr(), key), (7, 7));
            assert!(
                closed.load(Ordering::SeqCst) < opened_so_far,
                "leased and closed"
            );
            drop(entry.release());
        }
    }

    /// Two threads lease and release while a third deregisters: closed once, and not while leased.
    #[test]
    fn loom_registration_closes_once_and_not_under_a_lease() {
        // Three threads: bounded, or it takes minutes.
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(|| {
            let closed = Arc::new(AtomicUsize::new(0));
            let entry = Arc::new(Entry::new());
            entry.register(|| Ok(registration(&closed))).unwrap();
            let users: Vec<_> = (0..2)
                .map(|_| {
                    let (entry, closed) = (Arc::clone(&entry), Arc::clone(&closed));
                    thread::spawn(move || use_once(&entry, &closed, 1))
                })
                .collect();
            drop(entry.deregister());
            for user in users {
                user.join().unwrap();
            }
            assert_eq!(closed.load(Ordering::SeqCst), 1);
            assert!(entry.lease().is_none());
        });
    }

    /// Registering again races with the last release: the entry ends live, and what was opened and
    /// is not live is closed.
    #[test]
    fn loom_registration_registers_again_while_it_closes() {
        loom::model(|| {
            let closed = Arc::new(AtomicUsize::new(0));
            let opened = Arc::new(AtomicUsize::new(1));
            let entry = Arc::new(Entry::new());
            entry.register(|| Ok(registration(&closed))).unwrap();
            entry.lease().unwrap();
            let user = {
                let entry = Arc::clone(&entry);
                thread::spawn(move || drop(entry.release()))
            };
            drop(entry.deregister());
            entry
                .register(|| {
                    opened.fetch_add(1, Ordering::SeqCst);
                    Ok(registration(&closed))
                })
                .unwrap();
            use_once(&entry, &closed, opened.load(Ordering::SeqCst));
            user.join().unwrap();
            assert!(entry.is_live());
            assert_eq!(
                closed.load(Ordering::SeqCst),
                opened.load(Ordering::SeqCst) - 1
            );
        });
    }
}
