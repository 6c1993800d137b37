//! `Parts`: a GET or PUT, one callback after the other.

use std::ops::Range;
use std::time::{Duration, Instant};

use crate::object::memory::PartLoan;
use crate::object::{
    AsyncObjectOps, CallbackError, FailureKind, ObjectChunk, ObjectClient, ObjectError,
    ObjectMemory, ObjectOperation, ObjectOps, TransferCause, TransferFailed,
};

/// How often somebody who waits for memory that is quarantined looks.
const QUARANTINE_LOOK: Duration = Duration::from_millis(1);

/// A request, part by part.
pub(super) struct Parts<'a> {
    client: &'a ObjectClient,
    memory: &'a ObjectMemory,
    operation: ObjectOperation,
    range: Range<u64>,
    offset: u64,
    done: u64,
    /// A callback answered for less than it was given.
    is_over: bool,
    began: Instant,
    /// When the callback was called that has not answered.
    called: Option<Instant>,
    /// It was counted what became of it.
    is_counted: bool,
}

impl<'a> Parts<'a> {
    pub(super) fn new(
        client: &'a ObjectClient,
        operation: ObjectOperation,
        memory: &'a ObjectMemory,
        range: Range<u64>,
        offset: u64,
    ) -> Result<Self, TransferFailed> {
        let mut parts = Self {
            client,
            memory,
            operation,
            range,
            offset,
            done: 0,
            is_over: false,
            began: Instant::now(),
            called: None,
            is_counted: false,
        };
        match parts.check() {
            Ok(()) => Ok(parts),
            Err(cause) => Err(parts.failed(cause)),
        }
    }

    /// Whether all of it can be asked for: no server is told of a part of what can't be.
    fn check(&self) -> Result<(), TransferCause> {
        if !self.memory.is_of(&self.client.core) {
            return Err(TransferCause::OtherClient);
        }
        let (_, len) = self.memory.check(&self.range, self.operation)?;
        let (offset, len) = (self.offset, len as u64);
        match offset.checked_add(len) {
            Some(_) => Ok(()),
            None => Err(TransferCause::BeyondObjects { offset, len }),
        }
    }

    /// Where the next part lies in the memory; `None` when all was asked for.
    fn part(&self) -> Option<Range<u64>> {
        // The range was checked, and no more is done than was asked for.
        let start = self.range.start + self.done;
        let left = self.range.end - start;
        if self.is_over || left == 0 {
            return None;
        }
        Some(start..start + left.min(self.memory.max_callback_size()))
    }

    /// Calls back for one part after the other; how many bytes were moved.
    pub(super) fn call(mut self, ops: &mut impl ObjectOps) -> Result<u64, TransferFailed> {
        while let Some(loan) = self.next_waiting()? {
            let chunk = self.chunk(&loan);
            let said = match self.operation {
                ObjectOperation::Get => ops.get(&chunk),
                ObjectOperation::Put => ops.put(&chunk),
            };
            self.end(loan, said)?;
        }
        Ok(self.over())
    }

    /// The same, and waits for nothing but the answers.
    pub(super) async fn call_async(
        mut self,
        ops: &mut impl AsyncObjectOps,
    ) -> Result<u64, TransferFailed> {
        while let Some(loan) = self.next()? {
            let chunk = self.chunk(&loan);
            let said = match self.operation {
                ObjectOperation::Get => ops.get(&chunk).await,
                ObjectOperation::Put => ops.put(&chunk).await,
            };
            self.end(loan, said)?;
        }
        Ok(self.over())
    }

    /// The token of the next part; `None` when all was asked for.
    fn next(&mut self) -> Result<Option<PartLoan>, TransferFailed> {
        let Some(part) = self.part() else {
            return Ok(None);
        };
        let lent = self.memory.loan(part, self.operation);
        lent.map(Some).map_err(|error| self.failed(error.into()))
    }

    /// The same, and waits for memory that is quarantined, and for a buffer.
    fn next_waiting(&mut self) -> Result<Option<PartLoan>, TransferFailed> {
        let Some(part) = self.part() else {
            return Ok(None);
        };
        let begin = Instant::now();
        let at_most = self.client.core.config.quarantine;
        loop {
            match self.memory.loan(part.clone(), self.operation) {
                Err(ObjectError::Quarantined | ObjectError::StagingBusy { .. })
                    if begin.elapsed() < at_most =>
                {
                    std::thread::sleep(QUARANTINE_LOOK);
                }
                lent => return lent.map(Some).map_err(|error| self.failed(error.into())),
            }
        }
    }

    fn chunk<'t>(&mut self, loan: &'t PartLoan) -> ObjectChunk<'t> {
        self.called = Some(Instant::now());
        ObjectChunk {
            token: loan.token(),
            offset: self.offset + self.done,
            memory_offset: self.range.start + self.done,
        }
    }

    /// The callback has answered.
    fn end(
        &mut self,
        loan: PartLoan,
        said: Result<u64, CallbackError>,
    ) -> Result<(), TransferFailed> {
        let asked = loan.token().len();
        let took = self.called.take().unwrap_or(self.began).elapsed();
        self.client
            .core
            .telemetry()
            .on_callback(took, said.is_err());
        let said = match said {
            Ok(said) if said <= asked => said,
            Ok(said) => return Err(self.failed(TransferCause::TooMany { said, asked })),
            Err(error) => return Err(self.failed(TransferCause::Callback(error))),
        };
        let at = self.range.start + self.done;
        if let Err(cause) = self.memory.end_loan(loan, at, said) {
            return Err(self.failed(cause));
        }
        self.done += said;
        self.is_over = said < asked;
        Ok(())
    }

    /// All was moved that there was to move.
    fn over(mut self) -> u64 {
        self.count(Ok(()));
        self.done
    }

    fn failed(&mut self, cause: TransferCause) -> TransferFailed {
        self.count(Err((&cause).into()));
        TransferFailed {
            operation: self.operation,
            transferred: self.done,
            cause,
        }
    }

    /// Once.
    fn count(&mut self, outcome: Result<(), FailureKind>) {
        if !std::mem::replace(&mut self.is_counted, true) {
            let (done, took) = (self.done, self.began.elapsed());
            let telemetry = self.client.core.telemetry();
            telemetry.on_transfer(self.operation, done, took, outcome);
        }
    }
}

impl Drop for Parts<'_> {
    /// A future that was dropped in the middle.
    fn drop(&mut self) {
        self.count(Err(FailureKind::Reset));
    }
}
