//! GET and PUT with a control path of the program's.

#![allow(unsafe_code)] // A function of the program's is called here.

use std::ffi::{CString, c_char, c_void};

use fabricast::object::{CallbackError, ObjectChunk, ObjectOps, TransferFailed};

use crate::call::call;
use crate::object_client::{
    CLIENTS, MEMORIES, fcast_object_client, fcast_object_memory, operation_of,
};
use crate::pointer::{self, Out};
use crate::status::{Failure, fcast_status};

/// Has a server move one part of an object, and waits for its answer: how many bytes it moved, from
/// the part's begin on; or a negative number, which ends the request and is in the words of its
/// failure. `token` is the text of the part's token, good during the call; `offset` is where the
/// part begins in the object, `memory_offset` where in the memory, `len` its bytes.
///
/// It is called on the thread that called, with nothing locked, may call this interface, and must
/// not throw.
pub type fcast_object_fn = Option<
    unsafe extern "C" fn(
        context: *mut c_void,
        token: *const c_char,
        offset: u64,
        memory_offset: u64,
        len: u64,
    ) -> i64,
>;

/// A function of the program's, and what it is called with.
struct CallerOps {
    function: unsafe extern "C" fn(*mut c_void, *const c_char, u64, u64, u64) -> i64,
    context: *mut c_void,
}

impl CallerOps {
    fn ask(&self, chunk: &ObjectChunk<'_>) -> Result<u64, CallbackError> {
        let token = CString::new(chunk.token().to_string())?;
        let (offset, memory_offset) = (chunk.offset(), chunk.memory_offset());
        // SAFETY: the program gave both together, for the calls of this request.
        let moved = unsafe {
            (self.function)(
                self.context,
                token.as_ptr(),
                offset,
                memory_offset,
                chunk.len(),
            )
        };
        u64::try_from(moved).map_err(|_| format!("it answered {moved}").into())
    }
}

impl ObjectOps for CallerOps {
    fn get(&mut self, chunk: &ObjectChunk<'_>) -> Result<u64, CallbackError> {
        self.ask(chunk)
    }

    fn put(&mut self, chunk: &ObjectChunk<'_>) -> Result<u64, CallbackError> {
        self.ask(chunk)
    }
}

/// Gets or puts `len` bytes of an object, from `offset` on, into or from memory from
/// `memory_offset` on: `function` is called for one part after the other, each with a token of its
/// own, which is revoked when it returns. `*moved`: the bytes that it answered for; a part of which
/// it moved fewer than asked for ends the request. `operation`: FCAST_OBJECT_GET or
/// FCAST_OBJECT_PUT. Any thread.
///
/// FCAST_CLOSED: the function answered a negative number. FCAST_AGAIN: a transfer into the memory
/// was given up, and may still land.
///
/// # Safety
///
/// `function` may be called with `context` during the call; `moved`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_object_transfer(
    client: fcast_object_client,
    operation: u32,
    memory: fcast_object_memory,
    memory_offset: u64,
    len: u64,
    offset: u64,
    function: fcast_object_fn,
    context: *mut c_void,
    moved: *mut u64,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(moved, "moved") }?;
        let operation = operation_of(operation)?;
        let function = function.ok_or_else(|| pointer::null("function"))?;
        let mut ops = CallerOps { function, context };
        let client = CLIENTS.share(client.id)?.clone();
        let memory = MEMORIES.share(memory.id)?;
        let range = memory_offset..memory_offset.saturating_add(len);
        let done: Result<u64, TransferFailed> = match operation {
            fabricast::object::ObjectOperation::Get => {
                client.get(&mut ops, memory.get()?, range, offset)
            }
            fabricast::object::ObjectOperation::Put => {
                client.put(&mut ops, memory.get()?, range, offset)
            }
        };
        out.set(done.map_err(Failure::from)?);
        Ok(())
    })
}
