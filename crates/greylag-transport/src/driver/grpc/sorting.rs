//! Which envelope of a frame goes to which worker.

use super::workers::Workers;
use crate::envelope::Inbound;
use crate::wire::{Arrived, ArrivedContent};

/// Puts each envelope of a frame to those of its worker.
pub(super) struct Sorting<'a> {
    workers: &'a Workers,
    bins: Vec<Vec<Arrived>>,
    room: usize,
    /// Where the one before went: most frames are for few recipients. Names are known by the place where they lie, which is
    /// that of no other name while the envelopes of the frame are here.
    last: Option<([usize; 2], usize)>,
}

impl<'a> Sorting<'a> {
    /// The first envelope for a worker makes room for `room` of them.
    pub(super) fn new(workers: &'a Workers, bins: usize, room: usize) -> Self {
        Self { workers, bins: (0..bins).map(|_| Vec::new()).collect(), room, last: None }
    }

    pub(super) fn push(&mut self, arrived: Arrived) {
        let bin = if self.bins.len() == 1 { 0 } else { self.bin(&arrived.content) };
        let bin = &mut self.bins[bin];
        if bin.is_empty() {
            bin.reserve(self.room);
        }
        bin.push(arrived);
    }

    /// How many the worker got that got most.
    pub(super) fn most(&self) -> usize {
        self.bins.iter().map(Vec::len).max().unwrap_or(0)
    }

    /// By worker, all of one in the order in which they came.
    pub(super) fn into_bins(self) -> Vec<Vec<Arrived>> {
        self.bins
    }

    fn bin(&mut self, content: &ArrivedContent) -> usize {
        match content {
            ArrivedContent::Message(Inbound { from, recipient, .. }) => {
                let names = [recipient.path.as_ptr().addr(), recipient.below().as_ptr().addr()];
                match self.last {
                    Some((last, bin)) if last == names => bin,
                    _ => {
                        let bin = self.workers.index(from, &recipient.path, recipient.below());
                        self.last = Some((names, bin));
                        bin
                    }
                }
            }
            ArrivedContent::Reply { ask_id, .. } => (*ask_id as usize) % self.bins.len(),
        }
    }
}
