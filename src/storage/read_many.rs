//! `read_many`: ranges of many files into many buffers.

use std::ops::Range;

use super::{FileErrorKind, FileHandle, IoBufMut, IoFuture, IoOptions, IoOutcome};

/// One range of one file, and where it goes.
#[derive(Debug)]
pub struct ReadRequest<'a, B> {
    /// The file.
    pub file: &'a FileHandle,
    /// Where in the file, in bytes.
    pub offset: u64,
    /// Where it is read into.
    pub buffer: B,
    /// Which bytes of the buffer: as many are read.
    pub range: Range<usize>,
}

/// Begins to read them all, and returns a future for each, in their order. An error of one says
/// nothing of the others.
///
/// What the pool's queue does not take is read by this thread before this returns, so that no
/// number of requests is too many.
///
/// ```
/// use std::time::{Duration, Instant};
/// use fabricast::storage::{FileHandle, IoOptions, ReadRequest, read_many, wait_all};
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("chunks");
/// # std::fs::write(&path, b"chunk 0 chunk 1 chunk 2 ")?;
/// let file = FileHandle::open(&path, "r")?;
/// let chunk =
///     |n: u64| ReadRequest { file: &file, offset: 8 * n, buffer: vec![0; 7], range: 0..7 };
/// let chunks = read_many([chunk(2), chunk(0)], &IoOptions::default());
/// for outcome in wait_all(chunks, Instant::now() + Duration::from_secs(10)) {
///     let outcome = outcome.expect("within 10 seconds");
///     assert_eq!(outcome.result?.bytes, 7);
///     assert!(outcome.buffer.starts_with(b"chunk "));
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn read_many<'a, B: IoBufMut>(
    requests: impl IntoIterator<Item = ReadRequest<'a, B>>,
    options: &IoOptions,
) -> Vec<IoFuture<B>> {
    let requests = requests.into_iter();
    requests.map(|request| begin(request, options)).collect()
}

fn begin<B: IoBufMut>(request: ReadRequest<'_, B>, options: &IoOptions) -> IoFuture<B> {
    let ReadRequest {
        file,
        offset,
        buffer,
        range,
    } = request;
    let future = file.pread(buffer, range.clone(), offset, options);
    match future.refused(&FileErrorKind::QueueFull) {
        Ok(IoOutcome { mut buffer, .. }) => {
            let result = file.read_into(&mut buffer, range, offset, options);
            IoFuture::ready(buffer, result)
        }
        Err(future) => future,
    }
}
