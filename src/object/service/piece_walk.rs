//! `PieceWalk`: a range of bytes that goes by in pieces. Pure.

/// A range of bytes that goes by in pieces, some at once, which end in any order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PieceWalk {
    /// Where the next piece begins.
    next: u64,
    end: u64,
    piece: u64,
    /// Pieces that were begun and are not over.
    pub(super) in_flight: u32,
    /// Bytes of pieces that are over.
    pub(super) moved: u64,
}

impl PieceWalk {
    pub(super) fn new(start: u64, len: u64, piece: usize) -> Self {
        Self {
            next: start,
            end: start.saturating_add(len),
            piece: piece.max(1) as u64,
            in_flight: 0,
            moved: 0,
        }
    }

    /// The next piece: where it begins, and its length.
    pub(super) fn peek(&self) -> Option<(u64, usize)> {
        let left = self.end - self.next;
        // At most a piece, which was a usize.
        (left > 0).then(|| (self.next, left.min(self.piece) as usize))
    }

    /// The piece that was shown is begun.
    pub(super) fn begin(&mut self) {
        if let Some((at, len)) = self.peek() {
            self.next = at + len as u64;
            self.in_flight += 1;
        }
    }

    /// A piece is over.
    pub(super) fn end(&mut self, len: usize) {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.moved += len as u64;
    }

    /// Whether every piece is over.
    pub(super) fn is_over(&self) -> bool {
        self.next == self.end && self.in_flight == 0
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_the_range_once() {
        let mut walk = PieceWalk::new(10, 25, 10);
        let mut pieces = Vec::new();
        while let Some(piece) = walk.peek() {
            walk.begin();
            pieces.push(piece);
        }
        assert_eq!(pieces, [(10, 10), (20, 10), (30, 5)]);
        assert_eq!(walk.in_flight, 3);
        assert!(!walk.is_over());
        for (_, len) in pieces {
            walk.end(len);
        }
        assert!(walk.is_over());
        assert_eq!(walk.moved, 25);
        assert!(PieceWalk::new(7, 0, 4).is_over());
    }
}
