//! Pieces that a store of the program's reads and writes, and what they are pieces of.

#![allow(unsafe_code)] // Functions of the program's are called here.

use std::ffi::{CString, c_void};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fabricast::buffer::{Buffer, BufferMut};
use fabricast::object::{
    ObjectInfo, ObjectUpload, PutCondition, StoreCompletion, StoreError, StoredObject,
};

use crate::call::call;
use crate::inside::inside;
use crate::object_store::{StoreCaller, store_error};
use crate::status::{FCAST_OK, Failure, fcast_status};
use crate::table::Table;

static PIECES: Table<StorePiece> = Table::new(48, "piece of an object");

/// A piece that a store was asked to read or to write. Any thread answers it, once.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fcast_object_piece {
    /// Its number; 0: none.
    pub id: u64,
}

/// A piece whose memory the program has. It keeps what it is of from being closed.
enum StorePiece {
    Read {
        object: Arc<OpenObject>,
        len: usize,
        buffer: BufferMut,
        done: StoreCompletion<BufferMut>,
    },
    Write {
        upload: Arc<BegunUpload>,
        bytes: Buffer,
        done: StoreCompletion<Buffer>,
    },
}

impl StorePiece {
    fn len(&self) -> usize {
        match self {
            Self::Read { len, .. } => *len,
            Self::Write { bytes, .. } => bytes.len(),
        }
    }

    fn end(self, result: Result<usize, StoreError>) {
        // What it is of is let go first: whoever hears of the last piece may end it.
        match self {
            Self::Read {
                object,
                buffer,
                done,
                ..
            } => {
                drop(object);
                done.end(buffer, result);
            }
            Self::Write {
                upload,
                bytes,
                done,
            } => {
                drop(upload);
                done.end(bytes, result);
            }
        }
    }

    /// Gives it to a function of the program's.
    fn ask(self, function: &str, ask: impl FnOnce(fcast_object_piece) -> fcast_status) {
        // A table that is full drops the piece, which is an answer.
        let Ok(id) = PIECES.insert(self) else {
            return;
        };
        let status = inside(|| ask(fcast_object_piece { id }));
        // Whoever answered it has it already.
        if status != FCAST_OK
            && let Ok(piece) = PIECES.take(id)
        {
            piece.end(Err(store_error(function, status)));
        }
    }
}

/// An object that the program has opened.
struct OpenObject {
    store: Arc<StoreCaller>,
    object: *mut c_void,
    info: ObjectInfo,
}

// SAFETY: the pointer is not followed here, and the interface says that any thread uses it.
unsafe impl Send for OpenObject {}
// SAFETY: as above, and that several do at once.
unsafe impl Sync for OpenObject {}

impl Drop for OpenObject {
    fn drop(&mut self) {
        self.store.close(self.object);
    }
}

/// What a service has of an object that the program has opened.
pub(crate) struct CallerObject(Arc<OpenObject>);

impl CallerObject {
    pub(crate) fn new(store: &Arc<StoreCaller>, object: *mut c_void, info: ObjectInfo) -> Self {
        Self(Arc::new(OpenObject {
            store: Arc::clone(store),
            object,
            info,
        }))
    }
}

impl fmt::Debug for CallerObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("CallerObject");
        debug.field("info", &self.0.info).finish_non_exhaustive()
    }
}

impl StoredObject for CallerObject {
    fn info(&self) -> &ObjectInfo {
        &self.0.info
    }

    fn read(&self, at: u64, len: usize, mut buffer: BufferMut, done: StoreCompletion<BufferMut>) {
        let open = Arc::clone(&self.0);
        let Some(read) = open.store.calls.read else {
            return;
        };
        let len = len.min(buffer.len());
        let data = buffer.as_mut_ptr().cast::<c_void>();
        let (context, object) = (open.store.calls.context, open.object);
        let piece = StorePiece::Read {
            object: open,
            len,
            buffer,
            done,
        };
        piece.ask("read", |piece| {
            // SAFETY: the program has promised that it may be called so. The bytes are those of the
            // buffer, which has `len` of them and lies in the table, used by nobody else, until the
            // piece is answered.
            unsafe { read(context, object, at, data, len, piece) }
        });
    }
}

/// An upload that the program has begun.
struct BegunUpload {
    store: Arc<StoreCaller>,
    upload: *mut c_void,
    /// It was committed, or that failed.
    is_over: AtomicBool,
}

// SAFETY: as of `OpenObject`.
unsafe impl Send for BegunUpload {}
// SAFETY: as above.
unsafe impl Sync for BegunUpload {}

impl Drop for BegunUpload {
    fn drop(&mut self) {
        if !*self.is_over.get_mut() {
            self.store.abort(self.upload);
        }
    }
}

/// What a service has of an upload that the program has begun.
pub(crate) struct CallerUpload {
    begun: Arc<BegunUpload>,
    name: CString,
    size: u64,
    condition: PutCondition,
}

impl CallerUpload {
    pub(crate) fn new(
        store: &Arc<StoreCaller>,
        upload: *mut c_void,
        (name, size, condition): (CString, u64, PutCondition),
    ) -> Self {
        let begun = Arc::new(BegunUpload {
            store: Arc::clone(store),
            upload,
            is_over: AtomicBool::new(false),
        });
        Self {
            begun,
            name,
            size,
            condition,
        }
    }
}

impl fmt::Debug for CallerUpload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallerUpload")
            .field("name", &self.name)
            .field("size", &self.size)
            .finish_non_exhaustive()
    }
}

impl ObjectUpload for CallerUpload {
    fn write(&mut self, at: u64, bytes: Buffer, done: StoreCompletion<Buffer>) {
        let begun = Arc::clone(&self.begun);
        let Some(write) = begun.store.calls.write else {
            return;
        };
        let (data, len) = (bytes.as_ptr().cast::<c_void>(), bytes.len());
        let (context, upload) = (begun.store.calls.context, begun.upload);
        let piece = StorePiece::Write {
            upload: begun,
            bytes,
            done,
        };
        piece.ask("write", |piece| {
            // SAFETY: the program has promised that it may be called so. The bytes are those of the
            // buffer, which lies in the table, written by nobody, until the piece is answered.
            unsafe { write(context, upload, at, data, len, piece) }
        });
    }

    fn commit(self: Box<Self>, crc64: u64) -> Result<ObjectInfo, StoreError> {
        let begun = &self.begun;
        // No piece is out, each has let go of it before it was answered: `abort` is not called.
        begun.is_over.store(true, Ordering::Relaxed);
        match begun.store.commit(begun.upload, self.size, crc64) {
            Ok(committed) => committed,
            Err(status) => {
                let (name, condition) = (&self.name, &self.condition);
                Err(begun.store.refused("commit", status, name, condition))
            }
        }
    }
}

/// Answers a piece: FCAST_OK and how many bytes of it were read or written, or why they were not,
/// as fcast_object_store_calls says. Fewer bytes than were asked for are a failure, too. The memory
/// of the piece is the library's again. FCAST_INVALID: more bytes than it has; it has failed then.
/// FCAST_STALE: it was answered before, or its function has answered a failure. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn fcast_object_piece_done(
    piece: fcast_object_piece,
    status: fcast_status,
    moved: usize,
) -> fcast_status {
    call(|| {
        let piece = PIECES.take(piece.id)?;
        let len = piece.len();
        if status != FCAST_OK {
            piece.end(Err(store_error("piece", status)));
            return Ok(());
        }
        if moved > len {
            let text = format!("moved = {moved}: the piece has {len} bytes");
            piece.end(Err(StoreError::Failed(text.clone())));
            return Err(Failure::invalid(text));
        }
        piece.end(Ok(moved));
        Ok(())
    })
}
