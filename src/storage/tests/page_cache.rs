use std::io::Write;

use super::*;

fn page() -> u64 {
    rustix::param::page_size() as u64
}

/// A file of so many whole pages and some bytes; on a disk where there is one.
fn file_of(pages: u64, bytes: u64) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(&vec![7; (pages * page() + bytes) as usize])
        .unwrap();
    file
}

fn lies_in_memory(file: &tempfile::NamedTempFile) -> bool {
    let magic = rustix::fs::fstatfs(file).unwrap().f_type as u64;
    [0x0102_1994, 0x794c_7630].contains(&magic)
}

#[test]
fn what_was_just_written_is_there_and_dropping_it_drops_it() {
    let file = file_of(64, 5);
    let before = residency(file.path()).unwrap();
    assert_eq!((before.page_bytes, before.pages), (page(), 65));
    assert!(before.resident > 0, "{before:?}");
    if lies_in_memory(&file) {
        println!(
            "SKIPPED: the rest, since {} is no disk's",
            file.path().display()
        );
        return;
    }
    drop_file(file.path()).unwrap();
    let after = residency(file.path()).unwrap();
    // The kernel may keep a few that it is just busy with.
    assert!(after.resident < 8, "{after:?}");
    assert!(after.dirty.is_none_or(|dirty| dirty == 0), "{after:?}");
    assert_eq!(after.pages, 65);
}

#[test]
fn a_part_counts_its_own_pages() {
    let file = file_of(8, 1);
    let pages = |range: Range<u64>| residency_of(file.as_fd(), range).unwrap().pages;
    assert_eq!(pages(0..u64::MAX), 9);
    assert_eq!(pages(0..1), 1);
    assert_eq!(pages(page() - 1..page() + 1), 2);
    assert_eq!(pages(8 * page()..u64::MAX), 1);
    assert_eq!(pages(3..3), 0);
    assert_eq!(pages(9 * page()..10 * page()), 0);
    assert_eq!(pages(u64::MAX..u64::MAX), 0);
    drop_range_of(file.as_fd(), 5..5).unwrap();
    drop_range_of(file.as_fd(), page()..u64::MAX).unwrap();
}

#[test]
fn a_handle_asks_for_its_own_file() {
    let file = file_of(4, 0);
    let mut handle = FileHandle::open(file.path(), "r").unwrap();
    assert_eq!(
        handle.residency(..).unwrap(),
        residency(file.path()).unwrap()
    );
    assert_eq!(handle.residency(page()..=page()).unwrap().pages, 1);
    handle.drop_page_cache(page()..).unwrap();
    handle.close();
    let closed = handle.residency(..).unwrap_err();
    assert_eq!(closed.kind, FileErrorKind::Closed);
    assert_eq!(
        handle.drop_page_cache(..).unwrap_err().kind,
        FileErrorKind::Closed
    );
}

#[test]
fn both_ways_to_ask_agree() {
    let file = file_of(40, 0);
    drop_range_of(file.as_fd(), 0..u64::MAX).unwrap();
    // Some pages are read in again; read ahead may add more.
    let mut buffer = [0; 10];
    std::os::unix::fs::FileExt::read_at(file.as_file(), &mut buffer, 3 * page()).unwrap();
    let by_mincore = resident_by_mincore(file.as_fd(), 0, 40 * page()).unwrap();
    assert!(by_mincore > 0);
    match cachestat(file.as_fd(), 0, 40 * page()) {
        Ok(told) => assert_eq!(told.cached, by_mincore),
        Err(errno) => println!("SKIPPED: cachestat: {errno}"),
    }
}

#[test]
fn an_empty_file_has_no_pages_and_a_missing_one_is_an_error() {
    let file = file_of(0, 0);
    let empty = residency(file.path()).unwrap();
    assert_eq!((empty.pages, empty.resident), (0, 0));
    drop_file(file.path()).unwrap();
    for error in [
        residency("/nowhere/at all").unwrap_err(),
        drop_file("/nowhere/at all").unwrap_err(),
    ] {
        assert_eq!(error.errno(), Some(libc::ENOENT));
        assert!(
            error.to_string().contains("page cache, /nowhere/at all"),
            "{error}"
        );
    }
}

#[test]
fn dropping_the_machines_cache_without_the_right_says_who_may() {
    let denied = refused(&io::Error::from_raw_os_error(libc::EACCES));
    let text = denied.to_string();
    assert!(
        text.contains("only root") && text.contains("drop_file"),
        "{text}"
    );
    let gone = drop_by(Path::new("/nowhere/drop_caches"), Dropped::Pages, || {}).unwrap_err();
    assert_eq!(gone.errno(), Some(libc::ENOENT));
}

#[test]
fn what_is_written_to_the_kernel_says_what_to_drop() {
    let stand_in = tempfile::NamedTempFile::new().unwrap();
    for (what, number) in [
        (Dropped::Pages, "1"),
        (Dropped::Names, "2"),
        (Dropped::PagesAndNames, "3"),
    ] {
        drop_by(stand_in.path(), what, || {}).unwrap();
        assert_eq!(fs::read_to_string(stand_in.path()).unwrap(), number);
    }
    assert_eq!(Dropped::default(), Dropped::Pages);
}
