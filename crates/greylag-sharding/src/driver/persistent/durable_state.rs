//! Hosting of entities with a durable state in a shard.

use std::time::Instant;

use futures::future::BoxFuture;
use greylag_persistence::{
    DurableState, EntityCounters, Input, Persisted, PersistenceId, Scope, StateAnswer, StateCall, StateCodec,
    StateEntityCore, StateEntityInit, StatePhase, StatesInUse, StoreReturns, Work, WorkNo,
};

use crate::driver::persistent::entity::{Actions, HostedMachine, MachineState, PersistentEntity};
use crate::entity::{EntityInit, Failure};
use crate::host::ShardCx;

/// Hosts the machine of one entity with a durable state.
pub type DurableStateEntity<B> = PersistentEntity<StateEntityCore<B>>;

impl<B: DurableState> HostedMachine for StateEntityCore<B> {
    type Made = Persisted<B, StateCodec<B>>;
    type Command = B::Command;
    type Call = StateCall;
    type Answer = StateAnswer;
    type Store = StatesInUse;

    fn store(entity: &Self::Made, init: &EntityInit) -> Result<Self::Store, Failure> {
        let behavior = &entity.behavior;
        let stores = init.stores().ok_or_else(|| Failure::new("sharding was started without stores"))?;
        let selected = stores.select_states(behavior.state_plugin_id())?;
        if !init.allow_local_journal && selected.states.caps().scope != Scope::Shared {
            let plugin = behavior.state_plugin_id();
            return Err(Failure::new(format!(
                "state store {plugin:?} is not shared: other nodes would find nothing there"
            )));
        }
        Ok(selected)
    }

    fn counters(selected: &StatesInUse) -> EntityCounters {
        selected.counters.clone()
    }

    fn store_returns(selected: &StatesInUse) -> StoreReturns {
        selected.store_returns()
    }

    fn start(
        entity: Self::Made,
        selected: &StatesInUse,
        cx: &ShardCx<'_, B::Command>,
        actions: &mut Actions<Self>,
    ) -> Result<Self, Failure> {
        let stores = cx.node_services().stores.as_ref();
        let init = StateEntityInit {
            generation: Some(cx.generation()),
            start: cx.incarnation(),
            seed: rand::random(),
            caps: selected.states.caps(),
            settings: stores.map(|stores| stores.durable_state_settings().clone()).unwrap_or_default(),
            host: Some(cx.host()),
        };
        Ok(Self::start(entity, init, cx.now(), actions)?)
    }

    fn handle(&mut self, now: Instant, input: Input<B::Command, StateAnswer>, actions: &mut Actions<Self>) {
        self.handle(now, input, actions);
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.next_deadline()
    }

    fn machine_state(&self) -> MachineState {
        match self.phase() {
            StatePhase::Running => MachineState::Running,
            StatePhase::Persisting => MachineState::Persisting,
            StatePhase::Failed | StatePhase::Stopped => MachineState::Ended,
            _ => MachineState::Recovering,
        }
    }

    fn is_busy(&self) -> bool {
        false
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

    fn awaits(&self, _: &StateCall) -> bool {
        true
    }

    fn perform(selected: StatesInUse, call: StateCall) -> BoxFuture<'static, StateAnswer> {
        Box::pin(async move { selected.perform(call).await })
    }
}
