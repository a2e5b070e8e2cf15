//! Hosting of event-sourced entities in a shard.

use std::time::Instant;

use futures::future::BoxFuture;
use greylag_persistence::{
    EntityCore, EntityCounters, EntityInit as CoreInit, EventCodecs, EventSourced, Input, Marks, Persisted,
    PersistenceId, PhaseName, StoreAnswer, StoreCall, StoreReturns, Stores, Work, WorkNo,
};

use crate::driver::persistent::entity::{Actions, HostedMachine, MachineState, PersistentEntity};
use crate::entity::{EntityInit, Failure};
use crate::host::ShardCx;

/// Hosts the machine of one event-sourced entity.
pub type EventSourcedEntity<B> = PersistentEntity<EntityCore<B>>;

impl<B: EventSourced> EventSourcedEntity<B> {
    /// Deliveries marked as applied by the history; complete while the entity runs.
    pub fn marks(&self) -> Option<&Marks> {
        self.core().map(EntityCore::marks)
    }
}

impl<B: EventSourced> HostedMachine for EntityCore<B> {
    type Made = Persisted<B, EventCodecs<B>>;
    type Command = B::Command;
    type Call = StoreCall;
    type Answer = StoreAnswer;
    type Store = Stores;

    fn store(entity: &Self::Made, init: &EntityInit) -> Result<Stores, Failure> {
        let behavior = &entity.behavior;
        let stores = init.stores().ok_or_else(|| Failure::new("sharding was started without stores"))?;
        let stores = stores.select(behavior.journal_plugin_id(), behavior.snapshot_plugin_id())?;
        if !init.allow_local_journal && !stores.is_shared() {
            let plugin = behavior.journal_plugin_id();
            return Err(Failure::new(format!(
                "journal {plugin:?} is not shared: other nodes would find nothing there"
            )));
        }
        Ok(stores)
    }

    fn counters(stores: &Stores) -> EntityCounters {
        stores.counters().clone()
    }

    fn store_returns(stores: &Stores) -> StoreReturns {
        stores.store_returns()
    }

    fn start(
        entity: Self::Made,
        stores: &Stores,
        cx: &ShardCx<'_, B::Command>,
        actions: &mut Actions<Self>,
    ) -> Result<Self, Failure> {
        let init = CoreInit {
            generation: Some(cx.generation()),
            start: cx.incarnation(),
            seed: rand::random(),
            caps: stores.journal.caps(),
            snapshot_caps: stores.snapshots.caps(),
            settings: stores.event_sourced_settings().clone(),
            host: Some(cx.host()),
        };
        Ok(Self::start(entity, init, cx.now(), actions)?)
    }

    fn handle(&mut self, now: Instant, input: Input<B::Command>, actions: &mut Actions<Self>) {
        self.handle(now, input, actions);
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.next_deadline()
    }

    fn machine_state(&self) -> MachineState {
        match self.phase() {
            PhaseName::Running => MachineState::Running,
            PhaseName::Persisting => MachineState::Persisting,
            PhaseName::Failed | PhaseName::Stopped => MachineState::Ended,
            _ => MachineState::Recovering,
        }
    }

    /// An entity with unconfirmed deliveries must not be passivated: only a live entity sends them again.
    fn is_busy(&self) -> bool {
        self.is_delivering()
    }

    fn is_idle(&self) -> bool {
        self.is_idle()
    }

    fn waiting_count(&self) -> usize {
        self.waiting_count()
    }

    fn persistence_id(&self) -> &PersistenceId {
        self.persistence_id()
    }

    fn take_work(&mut self, no: WorkNo) -> Option<Work<B::Command>> {
        self.take_work(no)
    }

    fn take_waiting(&mut self) -> Vec<Self::Command> {
        self.take_waiting()
    }

    fn stop_for_restart(&mut self, actions: &mut Actions<Self>) -> Vec<Self::Command> {
        self.stop_for_restart(actions)
    }

    fn awaits(&self, call: &StoreCall) -> bool {
        match call {
            StoreCall::ReadHead { .. } => self.phase() != PhaseName::Running,
            StoreCall::Claim { .. }
            | StoreCall::Advance { .. }
            | StoreCall::LoadSnapshot { .. }
            | StoreCall::ReadPage { .. }
            | StoreCall::Append(_) => true,
            StoreCall::DeleteEvents { .. } | StoreCall::SaveSnapshot(_) | StoreCall::DeleteSnapshots { .. } => false,
        }
    }

    fn perform(stores: Stores, call: StoreCall) -> BoxFuture<'static, StoreAnswer> {
        Box::pin(async move { call.perform(&stores).await })
    }
}
