//! A region without a cluster: frames arrive at once, and entities answer as scripted.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, mpsc};

use futures::StreamExt;
use futures::stream::BoxStream;
use greylag_core::{CodecId, DeadLetterReason, Registry};
use greylag_transport::memory::MemoryNetwork;
use greylag_transport::{Destination, Envelope, Recipient, Remoting};
use tokio::sync::broadcast;

use super::PATIENCE;
use crate::delivery::payload::Payload;
use crate::driver::region::{Downstream, Home, RouteEvent, SendRefusal};
use crate::ids::{ControllerRef, SeqNr};
use crate::machine::portable::Portable;
use crate::message::{BatchHeader, Frames, ProducerStopped, SequencedBatch, Upstream, UpstreamMessage};
use crate::wire;

/// How entities answer frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answers {
    Silent,
    /// Grant demand, confirm nothing.
    Grant,
    /// Confirm every message at once.
    Confirm,
}

/// Accepts messages of any type; records the values of numbers.
pub(super) struct TestRegion {
    pub(super) network: MemoryNetwork,
    pub(super) remoting: Arc<dyn Remoting>,
    state: Mutex<State>,
    route_events: broadcast::Sender<RouteEvent>,
}

struct State {
    answers: Answers,
    answers_of: BTreeMap<Arc<str>, Answers>,
    /// Entity, value (-1 if not a number) and total of every frame.
    frames: Vec<(Arc<str>, i64, SeqNr)>,
    /// Number of messages without bytes among the frames.
    without_bytes: usize,
    /// Payload bytes of each batch.
    batches: Vec<usize>,
    /// The header of the last batch to each entity.
    headers: BTreeMap<Arc<str>, BatchHeader>,
    /// By link: the end of the contiguous run of received frames, and the frames beyond it.
    received: BTreeMap<ControllerRef, u64>,
    routed: bool,
    hands_over: bool,
    homes: BTreeMap<Arc<str>, u64>,
    refuses: Option<(SendRefusal, usize)>,
}

impl TestRegion {
    pub(super) fn new(answers: Answers) -> Arc<Self> {
        let network = MemoryNetwork::new();
        let remoting = network.node("n:1#1".parse().unwrap(), Arc::new(Registry::new()));
        let state = State {
            answers,
            answers_of: BTreeMap::new(),
            frames: Vec::new(),
            without_bytes: 0,
            batches: Vec::new(),
            headers: BTreeMap::new(),
            received: BTreeMap::new(),
            routed: true,
            hands_over: false,
            homes: BTreeMap::new(),
            refuses: None,
        };
        Arc::new(Self { network, remoting, state: state.into(), route_events: broadcast::channel(4096).0 })
    }

    pub(super) fn answer(&self, entity: &str, answers: Answers) {
        self.state.lock().unwrap().answers_of.insert(entity.into(), answers);
    }

    pub(super) fn answer_all(&self, answers: Answers) {
        let mut state = self.state.lock().unwrap();
        state.answers = answers;
        state.answers_of.clear();
    }

    pub(super) fn has_routes(&self, routed: bool) {
        self.state.lock().unwrap().routed = routed;
    }

    /// Sets whether the entities are on the producer's node from here on.
    pub(super) fn hands_over(&self, hands_over: bool) {
        self.state.lock().unwrap().hands_over = hands_over;
    }

    /// Gives the shard another home from here on.
    pub(super) fn moves(&self, shard: &str) {
        *self.state.lock().unwrap().homes.entry(shard.into()).or_default() += 1;
    }

    /// Refuses the next `times` batches for this reason.
    pub(super) fn takes(&self, not: SendRefusal, times: usize) {
        self.state.lock().unwrap().refuses = Some((not, times));
    }

    pub(super) fn tell(&self, event: RouteEvent) {
        self.route_events.send(event).ok();
    }

    /// Number of frames taken.
    pub(super) fn frames(&self) -> usize {
        self.state.lock().unwrap().frames.len()
    }

    /// Number of messages without bytes taken.
    pub(super) fn without_bytes(&self) -> usize {
        self.state.lock().unwrap().without_bytes
    }

    /// Payload bytes of each batch taken.
    pub(super) fn batches(&self) -> Vec<usize> {
        self.state.lock().unwrap().batches.clone()
    }

    pub(super) fn frames_to(&self, entity: &str) -> usize {
        self.state.lock().unwrap().frames.iter().filter(|(to, ..)| &**to == entity).count()
    }

    /// Value and total of every frame taken, in order of arrival.
    pub(super) fn delivered(&self) -> Vec<(i64, SeqNr)> {
        self.state.lock().unwrap().frames.iter().map(|(_, value, total)| (*value, *total)).collect()
    }

    pub(super) fn delivered_to(&self, entity: &str) -> Vec<(i64, SeqNr)> {
        let state = self.state.lock().unwrap();
        state.frames.iter().filter(|(to, ..)| &**to == entity).map(|(_, value, total)| (*value, *total)).collect()
    }

    /// The entity confirms everything received, then `events` follow. No task of this thread runs before both are queued.
    pub(super) fn confirm_before(&self, entity: &str, events: &[RouteEvent]) {
        let state = self.state.lock().unwrap();
        let header = state.headers[entity].clone();
        let confirmed = state.received[&header.controller];
        drop(state);
        self.send_upstream(header, Upstream::Ack { confirmed, up_to: confirmed + 20 });
        let (arrived, has_arrived) = mpsc::channel();
        let arrived = Mutex::new(arrived);
        let done = move || arrived.lock().unwrap().send(()).unwrap_or_default();
        self.remoting.flush(self.remoting.self_address(), Box::new(done));
        has_arrived.recv_timeout(PATIENCE).expect("the network has a thread of its own");
        events.iter().for_each(|event| self.tell(event.clone()));
    }

    /// Sends a message of an entity to its producer, through the transport.
    fn send_upstream(&self, header: BatchHeader, message: Upstream) {
        let from = ControllerRef { node: self.remoting.self_address().clone(), path: "e".into(), instance: 1 };
        let recipient = Recipient { path: header.controller.path.clone(), sub_path: None, instance: 0 };
        let node = header.controller.node.clone();
        let message = UpstreamMessage { from, to: header.controller, epoch: Some(header.epoch), message };
        let envelope = Envelope::new(recipient, CodecId::INTERNAL, wire::UPSTREAM, wire::write_upstream(&[message]));
        self.remoting.send(&Destination::Incarnation(node), envelope).ok();
    }
}

impl<T: Send + Sync + 'static> Downstream<T> for TestRegion {
    fn shard_of(&self, entity: &str) -> Result<Arc<str>, DeadLetterReason> {
        if entity.is_empty() { Err(DeadLetterReason::EmptyEntityId) } else { Ok(entity.into()) }
    }

    fn send(&self, entity: Arc<str>, batch: SequencedBatch<Payload<T>>) -> Result<(), SendRefusal> {
        let mut state = self.state.lock().unwrap();
        if let Some((not, times)) = &mut state.refuses
            && *times > 0
        {
            *times -= 1;
            return Err(*not);
        }
        let answers = state.answers_of.get(&entity).copied().unwrap_or(state.answers);
        let SequencedBatch { header, frames } = batch;
        state.headers.insert(entity.clone(), header.clone());
        state.batches.push(frames.iter().map(|message| message.frame.payload.size()).sum());
        for message in frames {
            let frame = message.frame;
            state.without_bytes += usize::from(!frame.payload.is_portable());
            let value = Payload::join(&Frames::Whole(frame.payload), u64::MAX).ok();
            let number = value.and_then(|value| (&*value as &dyn Any).downcast_ref::<i64>().copied());
            let value = number.unwrap_or(-1);
            state.frames.push((entity.clone(), value, frame.total));
            let received = state.received.entry(header.controller.clone()).or_default();
            *received = (*received).max(if frame.seq_nr == *received + 1 { frame.seq_nr } else { 0 });
        }
        let last = state.received.get(&header.controller).copied().unwrap_or_default();
        let confirmed = match answers {
            Answers::Silent => return Ok(()),
            Answers::Grant => 0,
            Answers::Confirm => last,
        };
        drop(state);
        self.send_upstream(
            header,
            Upstream::Request { confirmed, up_to: last + 20, support_resend: true, via_timeout: false },
        );
        Ok(())
    }

    fn stopped(&self, _: &ControllerRef, _: ProducerStopped) {}

    fn home_of(&self, shard: &Arc<str>) -> Option<Home> {
        let state = self.state.lock().unwrap();
        let moves = state.homes.get(shard).copied().unwrap_or_default();
        let node = format!("home{moves}:1#1").parse().unwrap();
        state.routed.then_some(Home { node, hands_over: state.hands_over })
    }

    fn route_events(&self) -> BoxStream<'static, RouteEvent> {
        let events = futures::stream::unfold(self.route_events.subscribe(), async |mut events| {
            Some((events.recv().await.ok()?, events))
        });
        events.boxed()
    }
}
