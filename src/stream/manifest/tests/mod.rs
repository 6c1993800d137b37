//! Golden bytes, round trips, hostile bytes, limits.

use proptest::prelude::*;

use super::*;

fn file(name: &str, size: u64) -> Entry<'_> {
    Entry {
        name: RelativeName::new(name.as_bytes()).unwrap(),
        kind: EntryKind::File,
        mode: 0o640,
        size,
        modified: Modified {
            seconds: -2,
            nanoseconds: 999_999_999,
        },
        sparse: false,
    }
}

fn directory(name: &str) -> Entry<'_> {
    Entry {
        kind: EntryKind::Directory,
        mode: 0o755,
        ..file(name, 0)
    }
}

fn announced(manifest: &Manifest) -> Announced {
    Announced {
        entries: manifest.len() as u64,
        manifest_bytes: manifest.encoded_len(),
        bytes: manifest.bytes(),
    }
}

const NO_LIMITS: ManifestLimits = ManifestLimits {
    entries: u64::MAX,
    name_bytes: u64::MAX,
    bytes: u64::MAX,
    links: true,
    sparse: true,
};

fn parse(announced: Announced, bytes: &[u8]) -> Result<Manifest, ManifestError> {
    let mut parser = ManifestParser::new(announced, &NO_LIMITS)?;
    parser.feed(0, bytes)?;
    parser.finish()
}

#[test]
fn an_entry_has_these_bytes() {
    let manifest = Manifest::new([file("a b", 0x0102_0304)]).unwrap();
    let expected = [
        &[1, 0, 0xa0, 0x01, 3, 0, 0, 0, 0xff, 0xc9, 0x9a, 0x3b][..],
        &[0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
        &[4, 3, 2, 1, 0, 0, 0, 0],
        b"a b",
    ]
    .concat();
    assert_eq!(manifest.encode_part(0, 31, true), (expected.clone(), 1));
    assert_eq!(parse(announced(&manifest), &expected), Ok(manifest));
}

#[test]
fn entries_are_sorted_so_that_what_is_below_follows() {
    let manifest = Manifest::new([
        file("a!", 1),
        file("a/b", 2),
        directory("a"),
        file("a/b!", 4),
    ])
    .unwrap();
    let names: Vec<String> = manifest
        .iter()
        .map(|entry| entry.name.to_string())
        .collect();
    assert_eq!(names, ["a", "a/b", "a/b!", "a!"]);
    assert_eq!(manifest.bytes(), 7);
}

#[test]
fn no_name_is_there_twice_or_below_a_file() {
    let problem = |entries: &[Entry<'_>]| match Manifest::new(entries.iter().copied()) {
        Err(ManifestError::Entry { problem, .. }) => problem,
        other => panic!("{other:?}"),
    };
    assert_eq!(
        problem(&[file("a", 1), directory("a")]),
        EntryProblem::Twice
    );
    assert_eq!(
        problem(&[file("a/b", 1), file("a", 1)]),
        EntryProblem::BelowFile
    );
    assert_eq!(
        problem(&[file("a/b/c/d", 1), file("a/b", 1)]),
        EntryProblem::BelowFile
    );
    assert_eq!(
        problem(&[file("a", u64::MAX), file("b", 1)]),
        EntryProblem::Sizes
    );
    let odd = Entry {
        mode: 0o4755,
        ..file("a", 1)
    };
    assert_eq!(problem(&[odd]), EntryProblem::Field("mode"));
    assert!(Manifest::new([file("a", 1), file("a!/b", 1), file("b/a", 1)]).is_ok());
}

#[test]
fn a_link_points_to_something_and_has_nothing_below_it() {
    let link = |name, size| Entry {
        kind: EntryKind::Link,
        ..file(name, size)
    };
    let problem = |entries: &[Entry<'_>]| match Manifest::new(entries.iter().copied()) {
        Err(ManifestError::Entry { problem, .. }) => problem,
        other => panic!("{other:?}"),
    };
    for size in [0, EntryKind::LINK_MAX + 1, u64::MAX] {
        assert_eq!(problem(&[link("a", size)]), EntryProblem::Field("size"));
    }
    let below = problem(&[link("a", 1), file("a/b", 1)]);
    assert_eq!(below, EntryProblem::BelowFile);
    let below = problem(&[link("a", 1), directory("a/b")]);
    assert_eq!(below, EntryProblem::BelowFile);
    let manifest = Manifest::new([link("a", 1), link("b", EntryKind::LINK_MAX), file("c", 7)]);
    let manifest = manifest.unwrap();
    assert_eq!((manifest.links(), manifest.bytes()), (2, 4103));
    let is_link = (0..4).map(|index| manifest.is_link(index));
    assert_eq!(is_link.collect::<Vec<_>>(), [true, true, false, false]);
    // Where none was agreed on, none is taken.
    let (bytes, _) = manifest.encode_part(0, 1000, true);
    assert_eq!(bytes[0], 3);
    assert_eq!(parse(announced(&manifest), &bytes).as_ref(), Ok(&manifest));
    let limits = ManifestLimits {
        links: false,
        sparse: false,
        ..NO_LIMITS
    };
    let mut parser = ManifestParser::new(announced(&manifest), &limits).unwrap();
    assert_eq!(parser.feed(0, &bytes), Err(wrong(0, EntryProblem::Link)));
}

#[test]
fn only_files_have_holes_and_only_who_knows_of_them_is_told() {
    let sparse = Entry {
        sparse: true,
        ..file("a", 7)
    };
    for kind in [EntryKind::Directory, EntryKind::Link] {
        let size = u64::from(kind == EntryKind::Link);
        let made = Manifest::new([Entry {
            kind,
            size,
            ..sparse
        }]);
        assert_eq!(made, Err(wrong(0, EntryProblem::Field("flags"))));
    }
    let manifest = Manifest::new([sparse, file("b", 7)]).unwrap();
    assert!(manifest.has_sparse() && manifest.is_sparse(0) && !manifest.is_sparse(1));
    let (mut told, _) = manifest.encode_part(0, 1000, true);
    let (untold, _) = manifest.encode_part(0, 1000, false);
    assert_eq!((told[1], untold[1]), (1, 0));
    assert_eq!(parse(announced(&manifest), &told).as_ref(), Ok(&manifest));
    let plain = parse(announced(&manifest), &untold).unwrap();
    assert!(!plain.has_sparse());
    // Where it was not agreed on, and what else there may be one day.
    let limits = ManifestLimits {
        sparse: false,
        ..NO_LIMITS
    };
    let refused = Err(wrong(0, EntryProblem::Field("flags")));
    let mut parser = ManifestParser::new(announced(&manifest), &limits).unwrap();
    assert_eq!(parser.feed(0, &told), refused);
    told[1] = 3;
    assert_eq!(parse(announced(&manifest), &told).map(drop), refused);
}

#[test]
fn a_peer_does_not_get_around_the_order() {
    let encode = |entries: &[Entry<'_>]| {
        let mut bytes = Vec::new();
        entries
            .iter()
            .for_each(|entry| entry.encode(&mut bytes, true));
        bytes
    };
    let announced = |entries: &[Entry<'_>]| Announced {
        entries: entries.len() as u64,
        manifest_bytes: encode(entries).len() as u64,
        bytes: entries.iter().map(|entry| entry.size).sum(),
    };
    for (entries, problem) in [
        (&[file("b", 1), file("a", 1)][..], EntryProblem::Order),
        (&[file("a", 1), file("a", 1)], EntryProblem::Twice),
        (&[file("a", 1), file("a/b", 1)], EntryProblem::BelowFile),
    ] {
        assert_eq!(
            parse(announced(entries), &encode(entries)),
            Err(wrong(1, problem))
        );
    }
}

#[test]
fn limits_count_before_any_entry_came() {
    let limits = ManifestLimits {
        entries: 2,
        name_bytes: 10,
        bytes: 100,
        links: false,
        sparse: false,
    };
    let fits = Announced {
        entries: 2,
        manifest_bytes: 2 * ENTRY_LEN as u64 + 10,
        bytes: 100,
    };
    assert!(ManifestParser::new(fits, &limits).is_ok());
    let limit = |announced| match ManifestParser::new(announced, &limits) {
        Err(ManifestError::Limit { what, .. }) => what,
        other => panic!("{other:?}"),
    };
    assert_eq!(limit(Announced { entries: 3, ..fits }), "entries");
    assert_eq!(
        limit(Announced { bytes: 101, ..fits }),
        "bytes of the stream"
    );
    let manifest_bytes = fits.manifest_bytes + 1;
    assert_eq!(
        limit(Announced {
            manifest_bytes,
            ..fits
        }),
        "bytes of names"
    );
    let absurd = Announced {
        entries: u64::MAX,
        ..fits
    };
    let result = ManifestParser::new(absurd, &NO_LIMITS);
    assert!(matches!(result, Err(ManifestError::NotAsAnnounced { .. })));
}

#[test]
fn what_was_not_announced_is_refused() {
    let manifest = Manifest::new([file("a", 5), file("b", 6)]).unwrap();
    let (bytes, _) = manifest.encode_part(0, usize::MAX, true);
    let right = announced(&manifest);
    assert_eq!(parse(right, &bytes), Ok(manifest.clone()));
    for wrong in [
        Announced {
            entries: 1,
            ..right
        },
        Announced { bytes: 10, ..right },
        Announced { bytes: 12, ..right },
        Announced {
            manifest_bytes: right.manifest_bytes + 1,
            ..right
        },
    ] {
        let result = parse(wrong, &bytes);
        assert!(
            matches!(result, Err(ManifestError::NotAsAnnounced { .. })),
            "{result:?}"
        );
    }
    let mut parser = ManifestParser::new(right, &NO_LIMITS).unwrap();
    assert!(parser.feed(1, &bytes).is_err());
}

prop_compose! {
    fn any_entries()(
        list in proptest::collection::btree_map(
            "[a-c/ ü]{1,6}",
            (any::<bool>(), 0..1000_u64, 0..0o1000_u16),
            0..20,
        ),
    ) -> Vec<(String, bool, u64, u16)> {
        list.into_iter().map(|(name, (is_file, size, mode))| (name, is_file, size, mode)).collect()
    }
}

proptest! {
    /// Whatever can be a manifest comes out of the parser as it went in, in parts of any size; and
    /// only what a naive look at all pairs allows.
    #[test]
    fn manifests_survive_the_wire(list in any_entries(), room in 34..200_usize) {
        let entries: Vec<Entry<'_>> = list
            .iter()
            .filter_map(|(name, is_file, size, mode)| {
                let name = RelativeName::new(name.as_bytes()).ok()?;
                let kind = if *is_file {
                    EntryKind::File
                } else {
                    EntryKind::Directory
                };
                let size = if *is_file { *size } else { 0 };
                Some(Entry {
                    name,
                    kind,
                    size,
                    mode: *mode,
                    modified: Modified::default(),
                    sparse: false,
                })
            })
            .collect();
        let is_below_file = entries.iter().any(|file| {
            file.kind == EntryKind::File
                && entries.iter().any(|other| other.name.is_below(file.name))
        });
        let made = Manifest::new(entries.iter().rev().copied());
        prop_assert_eq!(made.is_err(), is_below_file);
        if let Ok(manifest) = made {
            prop_assert_eq!(manifest.len(), entries.len());
            let mut parser = ManifestParser::new(announced(&manifest), &NO_LIMITS).unwrap();
            let mut first = 0;
            while first < manifest.len() {
                let (bytes, next) = manifest.encode_part(first, room.max(ENTRY_LEN + 12), true);
                parser.feed(first as u64, &bytes).unwrap();
                first = next;
            }
            prop_assert!(parser.is_whole());
            prop_assert_eq!(parser.finish(), Ok(manifest));
        }
    }

    /// Bytes that were changed anywhere are read without a panic, and what is understood is in
    /// order.
    #[test]
    fn hostile_bytes_are_refused_or_in_order(
        list in any_entries(),
        at in any::<prop::sample::Index>(),
        value in any::<u8>(),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = Vec::new();
        for (name, _, size, mode) in &list {
            if let Ok(name) = RelativeName::new(name.as_bytes()) {
                let entry = Entry {
                    name,
                    kind: EntryKind::File,
                    size: *size,
                    mode: *mode,
                    modified: Modified::default(),
                    sparse: false,
                };
                entry.encode(&mut bytes, true);
            }
        }
        if !bytes.is_empty() {
            let at = at.index(bytes.len());
            bytes[at] = value;
            bytes.truncate(cut.index(bytes.len() + 1));
        }
        let mut parser = ManifestParser::new(
            Announced {
                entries: 100,
                manifest_bytes: 1 << 20,
                bytes: 1 << 40,
            },
            &NO_LIMITS,
        )
        .unwrap();
        if parser.feed(0, &bytes).is_ok() {
            let names: Vec<_> = parser.manifest.iter().map(|entry| entry.name).collect();
            prop_assert!(names.is_sorted_by(|a, b| a < b));
        }
    }
}
