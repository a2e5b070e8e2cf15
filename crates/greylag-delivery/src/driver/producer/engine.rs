//! The engine of sharding producers: runs the machine, and sends its frames through the region.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt};
use greylag_core::Encoded;

use super::entity::{Entity, PublishedEntities};
use crate::delivery::payload::Payload;
use crate::driver::region::{Downstream, Home, KnownShardHomes, RouteEvent, SendRefusal};
use crate::driver::sending::{Addressed, Base, Batches, Encoding, Engine, Granted, Input, Outcome, now};
use crate::error::ProducerError;
use crate::ids::SeqNr;
use crate::machine::controller::{Failure, Refusal};
use crate::machine::sharding_producer::{self, Effect, RoutedMessage, ShardingProducer as Machine};
use crate::machine::storing::StoringState;
use crate::queue::{MessageSent, QueueError};

/// Maximum number of region events handled before effects are carried out.
const RUN: usize = 256;

/// See the module's documentation.
pub(super) struct Entities<T> {
    machine: Machine<Payload<T>>,
    encoding: Arc<Encoding<T>>,
    downstream: Arc<dyn Downstream<T>>,
    /// Empty after each round of effects.
    batches: Batches<Arc<str>, T>,
    route_events: BoxStream<'static, RouteEvent>,
    /// A region event that is not handled yet.
    next_event: Option<RouteEvent>,
    homes: KnownShardHomes,
    effects: Vec<Effect<Payload<T>>>,
}

impl<T: Send + Sync + 'static> Entities<T> {
    /// An engine around a machine that has not started.
    pub(super) fn new(base: &Base<T>, machine: Machine<Payload<T>>, downstream: Arc<dyn Downstream<T>>) -> Self {
        let (encoding, batches) = (base.encoding.clone(), Batches::new(&*base.remoting));
        let (route_events, homes) = (downstream.route_events(), KnownShardHomes::default());
        let (next_event, effects) = (None, Vec::new());
        let mut entities = Self { machine, encoding, downstream, batches, route_events, next_event, homes, effects };
        entities.handle(sharding_producer::Input::Start);
        entities
    }

    fn handle(&mut self, input: sharding_producer::Input<Payload<T>>) {
        self.machine.handle(now(), input, &mut self.effects);
    }

    // ---- region events ------------------------------------------------------------------------------

    /// Handles one event. Returns whether events were lost, so that every route must be looked up.
    fn on_route_event(&mut self, event: RouteEvent) -> bool {
        use sharding_producer::Input;

        match event {
            RouteEvent::Moved(shard) => {
                self.set_home(&shard, self.downstream.home_of(&shard));
                self.handle(Input::ShardMoved(shard));
            }
            RouteEvent::Routed(shard, routed) => {
                self.handle(Input::RouteChanged { shard: shard.clone(), routed });
                self.set_home(&shard, self.downstream.home_of(&shard));
            }
            RouteEvent::Dropped(entity) => self.handle(Input::NotKept(entity)),
            RouteEvent::DroppedMany => {
                for shard in self.homes.retain(self.machine.shards()) {
                    self.handle(Input::NotBuffered(shard));
                }
            }
            RouteEvent::RefreshUnrouted => {
                for shard in self.homes.retain(self.machine.shards()) {
                    if self.downstream.home_of(&shard).is_none() {
                        self.handle(Input::RouteChanged { shard: shard.clone(), routed: false });
                        self.handle(Input::ShardMoved(shard));
                    }
                }
            }
            RouteEvent::RefreshAll => return true,
        }
        false
    }

    /// Tells the machine the home of a shard. Returns whether the home is another node than before.
    fn set_home(&mut self, shard: &Arc<str>, home: Option<Home>) -> bool {
        let Some(Home { node, hands_over }) = home else { return false };
        self.handle(sharding_producer::Input::Homed { shard: shard.clone(), is_here: hands_over });
        self.homes.note(shard, node)
    }

    /// Looks up the route of every shard, since events were lost. Links of a shard that has not moved go on: an entity
    /// that has forgotten its links meanwhile asks its producer to start over.
    fn refresh_routes(&mut self) {
        use sharding_producer::Input;

        for shard in self.homes.retain(self.machine.shards()) {
            let home = self.downstream.home_of(&shard);
            self.handle(Input::RouteChanged { shard: shard.clone(), routed: home.is_some() });
            let has_moved = self.set_home(&shard, home);
            self.handle(Input::NotBuffered(shard.clone()));
            if has_moved {
                self.handle(Input::ShardMoved(shard));
            }
        }
    }

    // ---- the queue ----------------------------------------------------------------------------------

    /// Prepares a message of the queue for sending: cuts it into chunks, and adds the shard of its entity.
    fn routed(&self, sent: MessageSent<Encoded>) -> Result<MessageSent<RoutedMessage<Payload<T>>>, QueueError> {
        let shard = self.downstream.shard_of(&sent.qualifier).map_err(|reason| {
            let error = format!("invalid entity id {}: {reason}", sent.qualifier);
            tracing::warn!(%error, "a producer's queue has a message that cannot be sent");
            QueueError::Closed(error)
        })?;
        Ok(sent.map(|encoded| {
            let bytes = encoded.payload.len();
            RoutedMessage { shard, bytes, frames: self.encoding.frames_of(encoded) }
        }))
    }

    // ---- effects --------------------------------------------------------------------------------

    /// Sends a batch. `refused` has, by link, the range of frames of this round that found no room; later frames of
    /// such a link extend its range, so that no frame is sent before an earlier one.
    fn transmit(&mut self, full: Addressed<Arc<str>, T>, refused: &mut BTreeMap<u64, (u64, u64)>) {
        let Addressed { to: entity, batch, .. } = full;
        let instance = batch.header.controller.instance;
        let numbers = || batch.frames.iter().map(|message| message.frame.seq_nr);
        let (from, to) = (numbers().min().unwrap_or_default(), numbers().max().unwrap_or_default());
        if let Some(range) = refused.get_mut(&instance) {
            *range = (range.0.min(from), range.1.max(to));
            return;
        }
        match self.downstream.send(entity.clone(), batch) {
            Ok(()) | Err(SendRefusal::Otherwise) => {}
            Err(SendRefusal::NoRoom) => drop(refused.insert(instance, (from, to))),
            Err(SendRefusal::NotBuffered) => self.handle(sharding_producer::Input::NotKept(entity)),
        }
    }

    /// Translates the machine's effects other than frames into outcomes for the task.
    fn outcome(&self, effect: Effect<Payload<T>>) -> Option<Outcome<T, Entity>> {
        Some(match effect {
            Effect::Transmit { .. } | Effect::Stop { .. } => return None,
            Effect::Admitted { ticket, total } => Outcome::Accepted { ticket, total },
            Effect::Permit { permit } => Outcome::Permitted(Granted {
                permit,
                current_seq_nr: self.machine.current_seq_nr(),
                confirmed_seq_nr: self.machine.highest_confirmed(),
                demand: self.machine.demand().clone(),
            }),
            Effect::Queue { id, call } => Outcome::Call { id, call: call.map(|routed| routed.frames.encoded()) },
            Effect::Confirmed { ticket, total } => Outcome::Confirmed { ticket, total },
            Effect::StoreUnknown { ticket, total } => Outcome::Unknown { ticket, total },
            Effect::Unavailable { ticket, frames } => {
                Outcome::Refused { ticket, frames: Some(frames), why: Refusal::Unavailable }
            }
            Effect::Refused { ticket, frames } => {
                Outcome::Refused { ticket, frames: Some(frames), why: Refusal::Closed }
            }
            Effect::Undelivered { ticket, entity, .. } => {
                Outcome::Undelivered { ticket: (ticket > 0).then_some(ticket), to: entity }
            }
            Effect::Unsendable { ticket, entity, total, error } => {
                Outcome::Unsendable { ticket: (ticket > 0).then_some(ticket), to: entity, total, error }
            }
            Effect::Fenced { newer } => Outcome::Failed(ProducerError::Fenced { newer: Some(newer), by: None }),
            Effect::QueueEnded(end) => Outcome::Failed(ProducerError::from(Failure::from(end))),
            Effect::Closed => Outcome::Closed,
        })
    }
}

impl<T: Send + Sync + 'static> Engine<T> for Entities<T> {
    type To = Entity;

    fn handle_input(&mut self, input: Input<T, Entity>) {
        use sharding_producer::Input as To;

        let input = match input {
            // No input for the machine: sends of former handles go on, the task releases their permits, and routes
            // replace registrations.
            Input::Start { .. } | Input::Register(_) => return,
            Input::Admit { ticket, to, message, permit, .. } => {
                if let Some(permit) = permit {
                    self.handle(To::UsePermit { permit, ticket });
                }
                let Entity { id: entity, shard, .. } = to;
                if self.homes.add_if_new(&shard) {
                    let home = self.downstream.home_of(&shard);
                    self.handle(To::RouteChanged { shard: shard.clone(), routed: home.is_some() });
                    self.set_home(&shard, home);
                }
                let (frames, bytes, ack) = (message.frames, message.bytes, message.ack);
                To::Admit { ticket, entity, shard, frames, bytes, ack }
            }
            Input::Withdraw { ticket, to } => To::Withdraw { ticket, entity: to.id },
            Input::Reserve { permit, .. } => To::RequestPermit { permit },
            Input::Release { permit } => To::ReleasePermit { permit },
            Input::Received(message) => To::Received(message),
            Input::Answered { call, answer } => To::Queue { call, answer: answer.try_map(|sent| self.routed(sent)) },
            Input::Close => To::Close,
            Input::Tick => To::Tick,
        };
        self.handle(input);
    }

    fn apply_effects(&mut self, out: &mut Vec<Outcome<T, Entity>>) {
        while !self.effects.is_empty() {
            let mut refused = BTreeMap::new();
            for effect in std::mem::take(&mut self.effects) {
                match effect {
                    Effect::Transmit { entity, header, message } => {
                        if let Some(full) = self.batches.add(entity, header, message) {
                            self.transmit(full, &mut refused);
                        }
                    }
                    Effect::Stop { to, message } => {
                        if let Some(last) = self.batches.take(message.controller.instance) {
                            self.transmit(last, &mut refused);
                        }
                        self.downstream.stopped(&to, message);
                    }
                    effect => out.extend(self.outcome(effect)),
                }
            }
            self.batches.take_all().for_each(|batch| self.transmit(batch, &mut refused));
            for (instance, (from, to)) in refused {
                self.handle(sharding_producer::Input::Refused { instance, from, to });
            }
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.machine.next_deadline()
    }

    /// Waits for an event of the region.
    async fn next_event(&mut self) {
        match self.route_events.next().await {
            Some(event) => self.next_event = Some(event),
            None => std::future::pending().await,
        }
    }

    /// Handles up to `RUN` events; one look-up of all routes replaces every event that was lost.
    fn handle_events(&mut self) {
        let mut missed = false;
        for _ in 0..RUN {
            let next = self.next_event.take().or_else(|| self.route_events.next().now_or_never().flatten());
            let Some(event) = next else { break };
            missed |= self.on_route_event(event);
        }
        if missed {
            self.refresh_routes();
        }
    }

    fn room(&self) -> u64 {
        self.machine.room()
    }

    fn confirmed(&self) -> SeqNr {
        self.machine.confirmed()
    }

    fn storing_state(&self) -> StoringState {
        self.machine.storing_state()
    }

    fn has_unconfirmed_recovered(&self) -> bool {
        self.machine.has_unconfirmed_recovered()
    }

    fn publish(&self, published: &mut PublishedEntities) {
        published.stats = self.machine.stats(now());
        published.store = self.machine.storing_state();
        published.buffer_size_per_entity = self.machine.settings().buffer_size_per_entity;
        if published.wants_demand {
            published.demand = self.machine.demand().clone();
        }
    }
}
