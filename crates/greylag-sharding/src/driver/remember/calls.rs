//! The store calls of a shard's task; answers come through the task's control inbox.

use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::task::AbortHandle;

use super::shard_memory::ShardMemory;
use crate::driver::metrics::histogram::WriteRecorder;
use crate::driver::node::clock;
use crate::driver::shard::control_item::Control;
use crate::inbox::Inbox;
use crate::machine::shard::StoreUpdate;

/// See the module's description. Dropping this value gives the calls up.
pub(crate) struct StoreCalls<M> {
    store: Arc<dyn ShardMemory>,
    control: Arc<Inbox<Control<M>>>,
    runtime: Handle,
    writes: Arc<WriteRecorder>,
    load: Option<AbortHandle>,
    update: Option<AbortHandle>,
    /// Whether it was reported that another kind of store would be better.
    is_reported: bool,
}

impl<M: Send + 'static> StoreCalls<M> {
    pub(crate) fn new(
        store: Arc<dyn ShardMemory>,
        control: Arc<Inbox<Control<M>>>,
        runtime: Handle,
        writes: Arc<WriteRecorder>,
    ) -> Self {
        Self { store, control, runtime, writes, load: None, update: None, is_reported: false }
    }

    /// Reads all remembered entities; gives up a read under way.
    pub(crate) fn load(&mut self) {
        let (store, control) = (self.store.clone(), self.control.clone());
        let task = self.runtime.spawn(async move {
            control.push_anyway(Control::Loaded(store.load().await));
        });
        if let Some(late) = self.load.replace(task.abort_handle()) {
            late.abort();
        }
    }

    /// Whether to report now that another kind of store is better for so many entities. True once.
    pub(crate) fn is_too_small_for(&mut self, entities: usize) -> bool {
        entities > self.store.many() && !std::mem::replace(&mut self.is_reported, true)
    }

    /// Writes a change; the previous change must have been answered.
    pub(crate) fn update(&mut self, number: u64, update: StoreUpdate) {
        let (store, control, writes) = (self.store.clone(), self.control.clone(), self.writes.clone());
        let (began, ids) = (clock::now(), update.starts.len() + update.stops.len());
        let task = self.runtime.spawn(async move {
            let result = store.update(update).await;
            writes.record(clock::now().saturating_duration_since(began), ids);
            control.push_anyway(Control::Stored { number, result });
        });
        self.update = Some(task.abort_handle());
    }
}

impl<M> Drop for StoreCalls<M> {
    fn drop(&mut self) {
        for call in [self.load.take(), self.update.take()].into_iter().flatten() {
            call.abort();
        }
    }
}
