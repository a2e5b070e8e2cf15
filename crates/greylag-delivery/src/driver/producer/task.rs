//! The task of a sharding producer: runs the machine and carries out what it asks for.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::{FutureExt, StreamExt};
use greylag_core::{DeadLetterReason, Encoded};
use greylag_transport::Remoting;
use tokio::sync::{mpsc, oneshot};

use super::batches::{Addressed, Batches};
use super::{Command, Letter, SharedState, Submission, lock};
use crate::driver::permits::Granted;
use crate::driver::region::{Homes, NotTaken, RouteNews};
use crate::driver::replies::Replies;
use crate::driver::sending::now;
use crate::driver::storing::Store;
use crate::error::{ProducerError, SentError};
use crate::ids::SeqNr;
use crate::machine::producer_link::Frames;
use crate::machine::sharding_producer::{Effect, Input, ShardingProducer as Machine};
use crate::machine::storing::{Answer, Call, End};
use crate::message::UpstreamMessage;
use crate::payload::Payload;
use crate::wire;

/// Inputs between two rounds of effects.
const RUN: usize = 256;

/// See the module's documentation.
pub(super) struct Task<T> {
    pub(super) machine: Machine<Payload<T>>,
    pub(super) shared: Arc<SharedState<T>>,
    remoting: Arc<dyn Remoting>,
    path: Arc<str>,
    replies: Replies<T>,
    /// Permits that are asked for, with who asks, or granted and not used.
    permits: BTreeMap<u64, Option<oneshot::Sender<Granted>>>,
    /// Messages that asked for room and do not ask any more.
    served: Arc<AtomicU64>,
    homes: Homes,
    effects: Vec<Effect<Payload<T>>>,
    /// Calls of the queue that the machine asked for.
    pub(super) calls: Vec<(u64, Call<Encoded>)>,
    drain_on_drop: Duration,
    closers: Vec<oneshot::Sender<()>>,
    is_closed: bool,
}

impl<T: Send + Sync + 'static> Task<T> {
    pub(super) fn new(
        machine: Machine<Payload<T>>,
        shared: Arc<SharedState<T>>,
        remoting: Arc<dyn Remoting>,
        path: Arc<str>,
        served: Arc<AtomicU64>,
        drain_on_drop: Duration,
    ) -> Self {
        Self {
            machine,
            shared,
            remoting,
            path,
            replies: Replies::default(),
            permits: BTreeMap::new(),
            served,
            homes: Homes::default(),
            effects: Vec::new(),
            calls: Vec::new(),
            drain_on_drop,
            closers: Vec::new(),
            is_closed: false,
        }
    }

    pub(super) async fn run(
        mut self,
        mut commands: mpsc::UnboundedReceiver<Command<T>>,
        mut upstream: mpsc::Receiver<UpstreamMessage>,
        mut store: Option<Store>,
    ) {
        let mut news = self.shared.downstream.news();
        let mut timer = std::pin::pin!(tokio::time::sleep_until(now().into()));
        let mut gives_up_at = None;
        let mut has_handles = true;
        self.tell(Input::Start);
        loop {
            self.carry_out();
            for (id, call) in self.calls.drain(..) {
                if let Some(store) = &store {
                    store.call(id, call);
                }
            }
            if self.is_closed {
                break;
            }
            if gives_up_at.is_some_and(|at| at <= now() || self.is_drained()) {
                gives_up_at = None;
                self.tell(Input::Close);
                continue;
            }
            let deadline = [self.machine.next_deadline(), gives_up_at].into_iter().flatten().min();
            if let Some(deadline) = deadline
                && timer.deadline() != deadline.into()
            {
                timer.as_mut().reset(deadline.into());
            }
            tokio::select! {
                () = timer.as_mut(), if deadline.is_some() => self.tell(Input::Tick),
                (call, answer) = answer_of(&mut store) => self.on_answer(call, answer),
                Some(message) = upstream.recv() => {
                    self.tell(Input::Received(message));
                    for _ in 0..RUN {
                        let Ok(message) = upstream.try_recv() else { break };
                        self.tell(Input::Received(message));
                    }
                }
                Some(event) = news.next() => {
                    // After a flood of events one look at the routes serves for all that were missed.
                    let mut missed = self.on_news(event);
                    for _ in 0..RUN {
                        let Some(Some(event)) = news.next().now_or_never() else { break };
                        missed |= self.on_news(event);
                    }
                    if missed {
                        self.look_at_all();
                    }
                }
                command = commands.recv(), if has_handles => match command {
                    None => {
                        has_handles = false;
                        gives_up_at = Some(now() + self.drain_on_drop);
                    }
                    Some(command) => {
                        self.on_command(command);
                        for _ in 0..RUN {
                            let Ok(command) = commands.try_recv() else { break };
                            self.on_command(command);
                        }
                    }
                },
            }
        }
        self.remoting.unregister(&self.path);
        self.shared.is_running.store(false, Ordering::Relaxed);
        // The answer comes last, so that the task that closed the producer finds everything settled.
        commands.close();
        while let Ok(command) = commands.try_recv() {
            self.on_command(command);
            self.carry_out();
        }
    }

    pub(super) fn tell(&mut self, input: Input<Payload<T>>) {
        self.machine.handle(now(), input, &mut self.effects);
    }

    /// Whether everything that was sent is settled, also what the queue had.
    fn is_drained(&self) -> bool {
        self.replies.is_settled() && !self.machine.owes_recovered()
    }

    // ---- what handles ask -----------------------------------------------------------------------

    fn on_command(&mut self, command: Command<T>) {
        match command {
            Command::Send(submission) => self.on_send(*submission),
            Command::Withdraw { ticket, entity } => {
                // One that was accepted meanwhile is delivered.
                if self.replies.withdraw(ticket) {
                    self.serve();
                    self.tell(Input::Withdraw { ticket, entity });
                }
            }
            Command::Permit { permit, reply } => {
                self.replies.pass(permit);
                if !self.is_closed {
                    self.permits.insert(permit, Some(reply));
                    self.tell(Input::RequestPermit { permit });
                }
            }
            Command::Release { permit } => {
                if self.permits.remove(&permit).is_some() {
                    self.tell(Input::ReleasePermit { permit });
                }
            }
            Command::StartAgain => {
                for permit in std::mem::take(&mut self.permits).into_keys() {
                    self.tell(Input::ReleasePermit { permit });
                }
            }
            Command::Drain(done) => self.replies.drain(done),
            Command::Close(done) => {
                self.closers.push(done);
                self.tell(Input::Close);
            }
        }
    }

    fn on_send(&mut self, submission: Submission<T>) {
        let Submission { ticket, letter, permit, accepted, confirmed } = submission;
        let Letter { entity, shard, payload, ack } = letter;
        // A sender that gave up already has its number all the same: it follows in its own call.
        self.replies.enter(ticket, accepted, confirmed);
        if let Some(permit) = permit {
            self.permits.remove(&permit);
            self.tell(Input::UsePermit { permit, ticket });
        }
        if self.homes.meet(&shard, || self.shared.downstream.home_of(&shard)) {
            self.tell(Input::RouteChanged { shard: shard.clone(), routed: false });
        }
        let bytes = payload.size();
        let frames = payload.frames(self.shared.limits.chunk_bytes);
        self.tell(Input::Admit { ticket, entity, shard, frames, bytes, ack });
    }

    /// A message asks for room no more.
    fn serve(&self) {
        self.served.fetch_add(1, Ordering::Release);
    }

    // ---- what the region says -------------------------------------------------------------------

    /// Whether events were missed, so that every route is to be looked at.
    fn on_news(&mut self, news: RouteNews) -> bool {
        match news {
            RouteNews::Moved(shard) => {
                self.homes.note(&shard, self.shared.downstream.home_of(&shard));
                self.tell(Input::ShardMoved(shard));
            }
            RouteNews::Routed(shard, routed) => {
                self.homes.note(&shard, self.shared.downstream.home_of(&shard));
                self.tell(Input::RouteChanged { shard, routed });
            }
            RouteNews::Dropped(entity) => self.tell(Input::NotKept(entity)),
            RouteNews::DroppedMany => {
                for shard in self.homes.retain(self.machine.shards()) {
                    self.tell(Input::NotBuffered(shard));
                }
            }
            RouteNews::LookAtUnrouted => {
                for shard in self.homes.retain(self.machine.shards()) {
                    if self.shared.downstream.home_of(&shard).is_none() {
                        self.tell(Input::RouteChanged { shard: shard.clone(), routed: false });
                        self.tell(Input::ShardMoved(shard));
                    }
                }
            }
            RouteNews::LookAtAll => return true,
        }
        false
    }

    /// Events were lost: what they would have said is seen from the routes. A shard that is where it was has nothing to
    /// begin again for; what an entity forgot meanwhile it asks for itself.
    fn look_at_all(&mut self) {
        for shard in self.homes.retain(self.machine.shards()) {
            let home = self.shared.downstream.home_of(&shard);
            let routed = home.is_some();
            let has_moved = self.homes.note(&shard, home);
            self.tell(Input::RouteChanged { shard: shard.clone(), routed });
            self.tell(Input::NotBuffered(shard.clone()));
            if has_moved {
                self.tell(Input::ShardMoved(shard));
            }
        }
    }

    // ---- effects --------------------------------------------------------------------------------

    fn carry_out(&mut self) {
        while !self.effects.is_empty() {
            let mut batches = Batches::new();
            let mut refused = BTreeMap::new();
            for effect in std::mem::take(&mut self.effects) {
                match effect {
                    Effect::Transmit { entity, header, message } => {
                        if let Some(full) = batches.add(entity, header, message) {
                            self.transmit(full, &mut refused);
                        }
                    }
                    Effect::Stop { to, message } => {
                        if let Some(last) = batches.take(message.controller.instance) {
                            self.transmit(last, &mut refused);
                        }
                        self.shared.downstream.stopped(&to, message);
                    }
                    effect => self.carry_out_one(effect),
                }
            }
            batches.take_all().for_each(|batch| self.transmit(batch, &mut refused));
            for (instance, (from, to)) in refused {
                self.tell(Input::Refused { instance, from, to });
            }
        }
        self.publish();
    }

    /// Sends a batch. `refused` has the frames of this round that found no room, by link: what comes after such a frame is
    /// not sent before it.
    fn transmit(&mut self, (entity, batch): Addressed<T>, refused: &mut BTreeMap<u64, (u64, u64)>) {
        let instance = batch.header.controller.instance;
        let numbers = || batch.frames.iter().map(|message| message.frame.seq_nr);
        let (from, to) = (numbers().min().unwrap_or_default(), numbers().max().unwrap_or_default());
        if let Some(range) = refused.get_mut(&instance) {
            *range = (range.0.min(from), range.1.max(to));
            return;
        }
        match self.shared.downstream.send(entity.clone(), batch) {
            Ok(()) | Err(NotTaken::Otherwise) => {}
            Err(NotTaken::NoRoom) => drop(refused.insert(instance, (from, to))),
            Err(NotTaken::NotBuffered) => self.tell(Input::NotKept(entity)),
        }
    }

    fn carry_out_one(&mut self, effect: Effect<Payload<T>>) {
        match effect {
            Effect::Transmit { .. } | Effect::Stop { .. } => {}
            Effect::Admitted { ticket, total } => {
                self.serve();
                self.replies.accept(ticket, total);
            }
            Effect::Permit { permit } => self.grant(permit),
            Effect::Queue { id, call } => self.call_store(id, call),
            Effect::Confirmed { ticket, total } => self.replies.confirm(ticket, total),
            Effect::StoreUnknown { ticket, total } => {
                self.serve();
                self.replies.refuse(ticket, SentError::StoreUnknown { seq_nr: total }, None);
            }
            Effect::Unavailable { ticket, frames } => self.refuse(ticket, SentError::Unavailable, frames),
            Effect::Refused { ticket, frames } => self.refuse(ticket, self.shared.end(), frames),
            Effect::Undelivered { ticket, entity, .. } => {
                self.replies.give_up(ticket);
                self.remoting.dead_letter(DeadLetterReason::ProducerClosed, &entity, wire::BATCH);
            }
            Effect::Fenced { newer } => self.end(ProducerError::Fenced { newer: Some(newer), by: None }),
            Effect::QueueEnded(End::Fenced { by }) => self.end(ProducerError::Fenced { newer: None, by }),
            Effect::QueueEnded(End::Lost { expected }) => self.end(ProducerError::QueueLost { expected }),
            Effect::QueueEnded(End::Exhausted) => self.end(ProducerError::Exhausted),
            Effect::Closed => {
                self.is_closed = true;
                self.permits.clear();
            }
        }
    }

    fn refuse(&mut self, ticket: u64, error: SentError, frames: Frames<Payload<T>>) {
        self.serve();
        self.replies.refuse(ticket, error, frames.into_value());
    }

    fn grant(&mut self, permit: u64) {
        let granted = Granted {
            permit,
            current_seq_nr: self.machine.current_seq_nr(),
            confirmed_seq_nr: self.machine.highest_confirmed(),
            demand: self.machine.demand().clone(),
        };
        let is_wanted = match self.permits.get_mut(&permit).and_then(Option::take) {
            Some(reply) => reply.send(granted).is_ok(),
            None => false,
        };
        if !is_wanted {
            self.permits.remove(&permit);
            self.tell(Input::ReleasePermit { permit });
        }
    }

    fn end(&self, error: ProducerError) {
        tracing::error!(%error, "the producer ends");
        *lock(&self.shared.end) = Some(error);
    }

    fn publish(&mut self) {
        {
            let mut seen = lock(&self.shared.seen);
            seen.stats = self.machine.stats(now());
            seen.store = self.machine.storing_state();
            if self.shared.wants_demand.load(Ordering::Relaxed) {
                seen.demand = self.machine.demand().clone();
            }
        }
        let confirmed: SeqNr = self.machine.confirmed();
        self.shared.confirmed.send_if_modified(|known| std::mem::replace(known, confirmed) != confirmed);
        if !self.machine.owes_recovered() {
            self.replies.answer_drains();
        }
    }
}

/// The next answer of the queue, if there is one.
async fn answer_of(store: &mut Option<Store>) -> (u64, Answer<Encoded>) {
    match store {
        Some(store) => store.answer().await,
        None => std::future::pending().await,
    }
}
