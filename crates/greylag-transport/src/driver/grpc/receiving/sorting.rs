//! Sorts the envelopes of a frame by worker.

use super::workers::Workers;
use crate::messages::envelope::Inbound;
use crate::wire::{Arrived, ArrivedContent};

/// Collects the envelopes of a frame, one bin per worker.
pub(crate) struct Sorting<'a> {
    workers: &'a Workers,
    bins: Vec<Vec<Arrived>>,
    room: usize,
    /// The worker of the envelope before: most frames are for few recipients. Names are compared by their address in
    /// memory, which no other name has while the envelopes of the frame are here.
    last: Option<([usize; 2], usize)>,
}

impl<'a> Sorting<'a> {
    /// Makes empty bins; the first envelope of a bin reserves room for `room` of them.
    pub(crate) fn new(workers: &'a Workers, bins: usize, room: usize) -> Self {
        Self { workers, bins: (0..bins).map(|_| Vec::new()).collect(), room, last: None }
    }

    pub(crate) fn push(&mut self, arrived: Arrived) {
        let bin = if self.bins.len() == 1 { 0 } else { self.bin(&arrived.content) };
        let bin = &mut self.bins[bin];
        if bin.is_empty() {
            bin.reserve(self.room);
        }
        bin.push(arrived);
    }

    /// The number of envelopes in the fullest bin.
    pub(crate) fn most(&self) -> usize {
        self.bins.iter().map(Vec::len).max().unwrap_or(0)
    }

    /// The envelopes by worker; those of one worker are in the order in which they came.
    pub(crate) fn into_bins(self) -> Vec<Vec<Arrived>> {
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
