//! `ObjectBody`: a range of an object as the body of a reply.

use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use fabricast::object::{StoreError, StoredObject};
use hyper::body::{Body, Bytes, Frame, SizeHint};

use crate::Failure;
use crate::pieces::Pieces;

/// Bytes of a piece of a body: what a connection keeps for a client that does not read, or has
/// sent a part of a piece.
pub(crate) const BODY_PIECE: usize = 128 << 10;

/// A piece that is being read.
type Loading = Pin<Box<dyn Future<Output = Result<Bytes, StoreError>> + Send>>;

/// Reads a piece when there is room for it in the connection: what a client does not read stays in
/// the store. No buffer that others wait for is kept meanwhile.
pub(crate) struct ObjectBody {
    pieces: Pieces,
    object: Arc<dyn StoredObject>,
    rest: Range<u64>,
    loading: Option<Loading>,
}

impl ObjectBody {
    pub(crate) fn new(pieces: Pieces, object: Arc<dyn StoredObject>, range: Range<u64>) -> Self {
        Self {
            pieces,
            object,
            rest: range,
            loading: None,
        }
    }

    fn load(&self) -> Loading {
        let (pieces, object) = (self.pieces.clone(), Arc::clone(&self.object));
        let at = self.rest.start;
        let len = (self.rest.end - at).min(BODY_PIECE as u64) as usize;
        Box::pin(async move {
            let (buffer, _permit) = pieces.load(&*object, at, len).await?;
            Ok(Bytes::copy_from_slice(&buffer))
        })
    }
}

impl Body for ObjectBody {
    type Data = Bytes;
    type Error = Failure;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Failure>>> {
        if self.rest.is_empty() {
            return Poll::Ready(None);
        }
        let mut loading = self.loading.take().unwrap_or_else(|| self.load());
        let Poll::Ready(loaded) = loading.as_mut().poll(context) else {
            self.loading = Some(loading);
            return Poll::Pending;
        };
        Poll::Ready(Some(match loaded {
            Ok(bytes) => {
                self.rest.start += bytes.len() as u64;
                Ok(Frame::data(bytes))
            }
            Err(error) => {
                self.rest.start = self.rest.end;
                Err(error.into())
            }
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.rest.end - self.rest.start)
    }
}
