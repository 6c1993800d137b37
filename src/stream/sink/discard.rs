//! `DiscardSink`: bytes that nobody needs, for measuring what is in front of a sink.

use super::{BlockSink, Kept, ReadBack, SinkError, SinkFactory, Stop, StreamOffer};
use crate::stream::Block;

/// Forgets every block. Their checksums are checked as for any sink.
#[derive(Debug, Clone, Copy, Default)]
pub struct DiscardSink;

impl SinkFactory for DiscardSink {
    fn make(&self, _offer: &StreamOffer) -> Result<Box<dyn BlockSink>, SinkError> {
        Ok(Box::new(Self))
    }

    fn takes_links(&self) -> bool {
        true
    }
}

impl BlockSink for DiscardSink {
    fn open(&self, _offer: &StreamOffer, _stop: &Stop) -> Result<Kept, SinkError> {
        Ok(Kept::default())
    }

    fn write(&self, _block: Block, _crc: u32, _bytes: &[u8]) -> Result<(), SinkError> {
        Ok(())
    }

    fn finish(&self, _stop: &Stop) -> Result<ReadBack, SinkError> {
        Ok(ReadBack::default())
    }

    fn abandon(&self) {}
}
