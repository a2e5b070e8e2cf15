//! What the incarnation in a slot has begun, and what ends with it: repeating timers, and asynchronous work.

use crate::driver::shard::works::Works;
use crate::held::Held;
use crate::host::MakeMessage;
use crate::machine::shard::{Repeats, SlotId};

/// See the module's description.
pub(in crate::driver) struct SlotWork<M> {
    pub(in crate::driver) repeats: Repeats<Held<MakeMessage<M>>>,
    pub(in crate::driver) works: Works,
}

impl<M> Default for SlotWork<M> {
    fn default() -> Self {
        Self { repeats: Repeats::default(), works: Works::default() }
    }
}

impl<M> SlotWork<M> {
    /// Ends the timers and cancels the work of an incarnation.
    pub(in crate::driver) fn cancel(&mut self, slot: SlotId) {
        self.repeats.end(slot);
        self.works.cancel(slot);
    }
}
