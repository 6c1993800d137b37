use super::*;

fn bytes(region: &Region) -> &[u8] {
    // SAFETY: host memory, mapped zeroed, and the test alone knows the region.
    unsafe { std::slice::from_raw_parts(region.as_ptr(), region.len()) }
}

#[test]
fn host_memory_is_zeroed_and_as_long_as_asked() {
    for len in [1, 4095, 4096, 4097, 3 << 20] {
        let region = Region::host(len).build().unwrap();
        assert_eq!(region.len(), len);
        assert_eq!(region.as_ptr().addr() % rustix::param::page_size(), 0);
        assert!(bytes(&region).iter().all(|byte| *byte == 0));
        assert!(region.is_host());
    }
}

#[test]
fn sizes_that_are_none_are_refused() {
    assert!(matches!(Region::host(0).build(), Err(MemoryError::Empty)));
    for len in [usize::MAX, isize::MAX as usize, isize::MAX as usize - 4096] {
        assert!(
            matches!(Region::host(len).build(), Err(MemoryError::TooLarge { asked_bytes })
                if asked_bytes == len)
        );
    }
    // 64 TiB: more than the address space has in one piece, less than what overflows.
    let error = Region::host(1 << 47).build().unwrap_err();
    assert!(
        matches!(error, MemoryError::Map { asked_bytes, .. } if asked_bytes == 1 << 47),
        "{error}"
    );
}

#[test]
fn alignment_is_kept_and_checked() {
    for alignment in [4096, 1 << 16, 1 << 21, 1 << 24] {
        let region = Region::host(10_000).alignment(alignment).build().unwrap();
        assert_eq!(region.as_ptr().addr() % alignment, 0);
        assert!(bytes(&region).iter().all(|byte| *byte == 0));
    }
    for alignment in [0, 1, 64, 12_288, 1 << 31, 1 << 63] {
        let error = Region::host(10_000)
            .alignment(alignment)
            .build()
            .unwrap_err();
        assert!(matches!(
            error,
            MemoryError::Setting {
                field: "alignment",
                ..
            }
        ));
    }
}

#[test]
fn mappings_are_given_back() {
    let mapped = |start: usize| {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines()
            .filter_map(mapping_range)
            .any(|(from, to)| from <= start && start < to)
    };
    // Far larger than what other tests map in the meantime, so that nothing else comes to lie
    // there.
    let region = Region::host(1 << 30)
        .populate(false)
        .huge_pages(HugePages::Never)
        .build()
        .unwrap();
    let middle = region.as_ptr().addr() + (1 << 29);
    assert!(mapped(middle));
    drop(region);
    assert!(!mapped(middle));
}

#[test]
fn huge_pages_are_reported_as_they_are() {
    let region = Region::host(4 << 20).build().unwrap();
    let huge = region.huge_bytes().unwrap();
    match region.pages().unwrap() {
        Pages::Huge2M => assert_eq!(huge, 4 << 20),
        // The kernel may have none at hand, but never more than there is.
        Pages::Transparent => assert!(
            huge <= 4 << 20 && huge.is_multiple_of(HUGE_PAGE_BYTES),
            "{huge}"
        ),
        Pages::Base => println!("SKIPPED: this kernel has no transparent huge pages"),
    }
    if region.pages() != Some(Pages::Base) {
        assert_eq!(region.as_ptr().addr() % HUGE_PAGE_BYTES, 0);
    }
    let never = Region::host(4 << 20)
        .huge_pages(HugePages::Never)
        .build()
        .unwrap();
    assert_eq!(never.pages(), Some(Pages::Base));
}

#[test]
fn required_huge_pages_are_there_or_an_error_says_how_many() {
    match Region::host(3 << 20).huge_pages(HugePages::Require).build() {
        Ok(region) => {
            assert_eq!(region.pages(), Some(Pages::Huge2M));
            assert_eq!(region.huge_bytes().unwrap(), 3 << 20);
        }
        Err(MemoryError::HugePages {
            asked_bytes, pages, ..
        }) => assert_eq!((asked_bytes, pages), (4 << 20, 2)),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn numa_nodes_are_bound_or_named() {
    match Region::host(1 << 16).numa_node(Some(0)).build() {
        Ok(region) => assert_eq!(bytes(&region)[65_535], 0),
        Err(MemoryError::NumaNode { node: 0, source })
            if matches!(source.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) =>
        {
            println!("SKIPPED: mbind: {source}");
        }
        Err(error) => panic!("{error}"),
    }
    for (len, node) in [(1 << 16, 1000), (4 << 20, 1000), (1 << 16, 5000)] {
        let error = Region::host(len).numa_node(Some(node)).build().unwrap_err();
        let MemoryError::NumaNode {
            node: named,
            source,
        } = error
        else {
            panic!("{error}")
        };
        assert_eq!(named, node);
        assert!(
            matches!(
                source.raw_os_error(),
                Some(libc::EINVAL | libc::ENOSYS | libc::EPERM)
            ),
            "{source}"
        );
    }
}

#[test]
fn smaps_counts_only_the_mappings_asked_for() {
    let smaps = "1000-3000 rw-p 00000000 00:00 0 \nRss: 8 kB\nAnonHugePages:      2048 kB\n\
                 3000-5000 rw-p 00000000 00:00 0 \nAnonHugePages:      4096 kB\nPrivate_Hugetlb:   \
                 1024 kB\n\
                 5000-6000 r--p 00000000 00:00 0  /lib/a-b c\nAnonHugePages:      64 kB\n";
    assert_eq!(
        huge_bytes_in(smaps.as_bytes(), 0x3000, 0x5000).unwrap(),
        5120 * 1024
    );
    assert_eq!(
        huge_bytes_in(smaps.as_bytes(), 0x2000, 0x3001).unwrap(),
        (2048 + 5120) * 1024
    );
    assert_eq!(huge_bytes_in(smaps.as_bytes(), 0x6000, 0x7000).unwrap(), 0);
}

/// Whether a forked child has nothing where the mapping of that address is (`dc` in the `VmFlags`
/// of /proc/self/smaps).
fn is_kept_from_children(address: usize) -> bool {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut here = false;
    for line in smaps.lines() {
        if let Some((from, to)) = mapping_range(line) {
            here = (from..to).contains(&address);
        } else if let Some(flags) = line.strip_prefix("VmFlags:").filter(|_| here) {
            return flags.split_whitespace().any(|flag| flag == "dc");
        }
    }
    panic!("{address:#x} is not mapped");
}

#[test]
fn children_have_no_copy_unless_asked_for() {
    for (len, pages) in [
        (1, HugePages::Never),
        (10_000, HugePages::Try),
        (5 << 20, HugePages::Transparent),
        (5 << 20, HugePages::Try),
    ] {
        let describe = || Region::host(len).huge_pages(pages);
        for (region, kept) in [
            (describe().build(), true),
            (describe().inherited(true).build(), false),
        ] {
            let region = region.unwrap();
            let start = region.as_ptr().addr();
            for address in [start, start + len - 1] {
                assert_eq!(is_kept_from_children(address), kept, "{pages:?}");
            }
        }
    }
}

#[test]
fn errors_say_what_the_system_said() {
    let error = Region::host(1 << 47).build().unwrap_err().to_string();
    assert!(
        error.starts_with("cannot map 140737488355328 bytes: ") && error.contains("os error 12"),
        "{error}"
    );
    let denied = || io::Error::from_raw_os_error(libc::EACCES);
    let node = MemoryError::NumaNode {
        node: 7,
        source: denied(),
    };
    let populate = MemoryError::Populate {
        asked_bytes: 10,
        source: denied(),
    };
    let huge = MemoryError::HugePages {
        asked_bytes: 1 << 21,
        pages: 1,
        source: denied(),
    };
    for error in [node, populate, huge, MemoryError::Smaps(denied())] {
        assert!(error.to_string().contains("os error 13"), "{error}");
    }
}
