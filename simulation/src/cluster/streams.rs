//! The transport between virtual hosts, at the level of associations.
//!
//! Each process has the real [`Association`] machine per peer address. The gRPC driver is modelled here: dials, Hellos,
//! streams per lane, queues that wait for their gate, notices. A stream behaves as TCP does: nothing in it is lost or
//! overtaken while it lives; a lost packet is repeated, and later ones wait. A stream ends when a process ends (if its
//! kernel can say so), when a dial takes too long, or when keep-alive gets no answer (cluster T9); messages in it are
//! lost then (T10). A cut holds messages under way back; if it ends in time, they arrive late and together.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use greylag_cluster::{Message, SingletonMessage};
use greylag_core::{Uid, UniqueAddress};
use greylag_testkit::deadlines::assert_moved;
use greylag_transport::association::{Association, Effect, Event, Input};
use greylag_transport::{Destination, Lane, QuarantineReason, RejectCode, TransportSettings};
use rand::RngExt;

use super::plan::AddressIndex;
use super::world::{Happening, HostIndex, Micros, ProcessId, World, micros};

pub(super) type StreamId = usize;

/// The body of a message between two processes.
#[derive(Debug, Clone)]
pub(super) enum Body {
    Core(Message),
    Singleton(SingletonMessage),
    /// User traffic, to check order and incarnation of deliveries.
    Probe,
}

/// A message under way.
#[derive(Debug, Clone)]
pub(super) struct QueuedMessage {
    /// Number of the message in the run.
    pub(super) number: u64,
    /// The only incarnation that may receive it.
    pub(super) target: Option<Uid>,
    pub(super) body: Body,
}

#[derive(Debug)]
enum Frame {
    /// With the caller's cluster, if it has one; sent again once it has.
    Hello(Option<u128>),
    Accepted(Uid, Option<u128>),
    Rejected {
        code: RejectCode,
        by: Uid,
        reason: Option<QuarantineReason>,
        holder: Option<UniqueAddress>,
        detail: String,
    },
    QueuedMessage(QueuedMessage),
    Quarantined(QuarantineReason),
    Terminating,
}

/// Direction in a stream; forward is away from the dialling process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    Forward,
    Back,
}

#[derive(Debug, Default)]
struct Pipe {
    in_flight: VecDeque<Frame>,
    last_arrival: Micros,
    /// Count of arrivals that met a cut.
    held: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Dialing,
    Open,
    /// The dialler's end is closed. Frames that it has written still arrive, unless the link broke.
    Ended,
    Broken,
}

#[derive(Debug)]
pub(super) struct Stream {
    pub(super) from: ProcessId,
    pub(super) to: ProcessId,
    lane: Lane,
    seq: u64,
    state: State,
    /// Whether the called side has accepted it.
    admitted: bool,
    forward: Pipe,
    back: Pipe,
}

/// A process's state for one peer address.
pub(super) struct Peer {
    pub(super) association: Association,
    pub(super) deadline: Option<std::time::Instant>,
    lanes: [LaneOut; 3],
    /// The newest stream that the peer opened, per lane.
    inbound: [Option<Inbound>; 3],
}

#[derive(Debug, Clone, Copy)]
struct Inbound {
    uid: Uid,
    seq: u64,
    stream: StreamId,
}

#[derive(Default)]
struct LaneOut {
    queue: VecDeque<QueuedMessage>,
    open: Option<(Uid, StreamId)>,
    /// Streams of this lane that have not ended, with their numbers.
    streams: Vec<(u64, StreamId)>,
    wanted: bool,
}

const LANES: [Lane; 3] = [Lane::CONTROL, Lane::ordinary(0), Lane::LARGE];

fn index_of(lane: Lane) -> usize {
    LANES.iter().position(|known| *known == lane).unwrap_or(1)
}

impl Peer {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            association: Association::new(TransportSettings::default(), seed),
            deadline: None,
            lanes: Default::default(),
            inbound: [None; 3],
        }
    }
}

impl World {
    // --- sending --------------------------------------------------------------------------------

    pub(super) fn send(&mut self, from: ProcessId, to: &Destination, body: Body) {
        let place = Self::place_of(to.address());
        if place == self.processes[from].place || self.processes[from].gone {
            return;
        }
        let target = match to {
            Destination::Incarnation(ua) => Some(ua.uid()),
            Destination::Address(_) => None,
        };
        let lane = if matches!(body, Body::Probe) { LANES[1] } else { LANES[0] };
        self.numbers += 1;
        let message = QueuedMessage { number: self.numbers, target, body };
        let peer = self.peer(from, place);
        if target.is_some_and(|uid| peer.association.is_dead(uid)) {
            return;
        }
        let out = &mut peer.lanes[index_of(lane)];
        out.queue.push_back(message);
        if out.open.is_some() {
            self.flush(from, place, lane);
        } else if !out.wanted {
            out.wanted = true;
            self.associate(from, place, Input::Wanted { lane });
        }
    }

    fn flush(&mut self, from: ProcessId, place: AddressIndex, lane: Lane) {
        let peer = self.peer(from, place);
        let out = &mut peer.lanes[index_of(lane)];
        let Some((uid, stream)) = out.open else { return };
        let messages = std::mem::take(&mut out.queue);
        for message in messages {
            // Messages to an earlier incarnation are never sent (cluster T15).
            if message.target.is_none_or(|target| target == uid) {
                self.transmit(stream, Way::Forward, Frame::QueuedMessage(message));
            }
        }
    }

    fn transmit(&mut self, stream: StreamId, way: Way, frame: Frame) {
        let Stream { from, to, state, .. } = &self.streams[stream];
        if *state == State::Broken {
            return;
        }
        let (a, b) = if way == Way::Forward { (*from, *to) } else { (*to, *from) };
        let (a, b) = (self.processes[a].spot, self.processes[b].spot);
        let delay = self.travel_time(a, b, size_of(&frame));
        let now = self.now;
        let pipe = self.streams[stream].pipe(way);
        pipe.last_arrival = pipe.last_arrival.max(now + delay);
        pipe.in_flight.push_back(frame);
        let at = pipe.last_arrival;
        self.push(at, Happening::Arrival { stream, way });
    }

    fn travel_time(&mut self, from: HostIndex, to: HostIndex, bytes: u64) -> Micros {
        let link = self.link;
        let (least, most) = (micros(link.latency.0), micros(link.latency.1).max(1));
        let mut time = if least < most { self.rng.random_range(least..=most) } else { least };
        if link.tail > 0.0 && self.rng.random_bool(link.tail) {
            time *= self.rng.random_range(2..=10);
        }
        // A lost packet is repeated after 200 ms, then after twice as long, and so on.
        let mut repeat = 200_000;
        while link.loss > 0.0 && repeat < 3_000_000 && self.rng.random_bool(link.loss) {
            time += repeat;
            repeat *= 2;
        }
        let writing = bytes * 1_000_000 / link.bandwidth;
        let spots = self.spots;
        let busy = &mut self.busy_until[from * spots + to];
        *busy = (*busy).max(self.now) + writing;
        *busy - self.now + time
    }

    // --- arriving -------------------------------------------------------------------------------

    pub(super) fn on_arrival(&mut self, stream: StreamId, way: Way) {
        let (from, to) = (self.streams[stream].from, self.streams[stream].to);
        let (sender, receiver) = if way == Way::Forward { (from, to) } else { (to, from) };
        if self.is_cut(self.processes[sender].spot, self.processes[receiver].spot) {
            self.streams[stream].pipe(way).held += 1;
            return;
        }
        if let Some(until) = self.stands_still(receiver) {
            return self.push(until, Happening::Arrival { stream, way });
        }
        let Some(frame) = self.streams[stream].pipe(way).in_flight.pop_front() else { return };
        if self.processes[receiver].gone {
            // The kernel answers in place of the process, if the host still stands.
            if self.processes[receiver].host_stands {
                self.close_stream(stream);
            }
            return;
        }
        match way {
            Way::Forward => self.on_frame(stream, frame),
            Way::Back => self.on_answer(stream, frame),
        }
    }

    fn on_frame(&mut self, stream: StreamId, frame: Frame) {
        let Stream { from, to, lane, seq, admitted, state, .. } = self.streams[stream];
        if state == State::Broken {
            return;
        }
        let (caller, place) = (self.processes[from].address.clone(), self.processes[from].place);
        let uid = caller.uid();
        match frame {
            Frame::Hello(cluster_id) if admitted => self.greet_if_known(to, place, caller, cluster_id),
            Frame::Hello(_) if self.processes[to].ended.is_some() => {
                let by = self.processes[to].address.uid();
                let code = RejectCode::Terminating;
                let (reason, holder, detail) = Default::default();
                self.transmit(stream, Way::Back, Frame::Rejected { code, by, reason, holder, detail });
            }
            Frame::Hello(cluster_id) => {
                let host_id = self.processes[from].host_id.clone();
                self.associate_called(to, place, Input::Hello { uid, host_id }, stream);
                if self.streams[stream].admitted {
                    self.greet_if_known(to, place, caller, cluster_id);
                }
            }
            _ if !admitted => {}
            Frame::Terminating => self.associate(to, place, Input::Terminating { uid }),
            Frame::Quarantined(reason) => self.associate(to, place, Input::ToldQuarantined { by: uid, reason }),
            Frame::QueuedMessage(message) => {
                let peer = self.peer(to, place);
                let current = peer.inbound[index_of(lane)];
                let superseded = current.is_some_and(|current| current.uid == uid && current.seq > seq);
                if peer.association.is_dead(uid) {
                    self.associate(to, place, Input::Intruded { uid });
                } else if !superseded {
                    self.deliver(from, to, lane, message);
                }
            }
            Frame::Accepted(..) | Frame::Rejected { .. } => {}
        }
    }

    fn on_answer(&mut self, stream: StreamId, frame: Frame) {
        let Stream { from, to, lane, seq, state, .. } = self.streams[stream];
        let place = self.processes[to].place;
        match frame {
            Frame::Accepted(uid, cluster_id) if state == State::Dialing => {
                self.streams[stream].state = State::Open;
                let host_id = self.processes[to].host_id.clone();
                self.associate(from, place, Input::Accepted { lane, seq, uid, host_id: host_id.clone() });
                if self.peer(from, place).association.peer() == Some(uid) {
                    let peer = self.processes[to].address.clone();
                    self.greet_if_known(from, place, peer.clone(), cluster_id);
                    let host_id = host_id.as_deref().map(Into::into);
                    self.core_input(from, greylag_cluster::Input::DialOther { peer, host_id });
                }
            }
            Frame::Rejected { code, by, reason, holder, detail } if state == State::Dialing => {
                self.end_stream(stream);
                let by = Some(by);
                self.associate(from, place, Input::Rejected { lane, seq, code, by, reason, holder, detail });
            }
            Frame::Quarantined(reason) => {
                let by = self.processes[to].address.uid();
                self.associate(from, place, Input::ToldQuarantined { by, reason });
            }
            _ => {}
        }
    }

    // --- streams end ----------------------------------------------------------------------------

    /// The dialler closes the stream; frames that it has written still arrive.
    fn end_stream(&mut self, stream: StreamId) {
        let Stream { from, to, lane, seq, .. } = self.streams[stream];
        if self.streams[stream].state != State::Broken {
            self.streams[stream].state = State::Ended;
        }
        let place = self.processes[to].place;
        let out = &mut self.peer(from, place).lanes[index_of(lane)];
        out.streams.retain(|(known, _)| *known != seq);
        out.open = out.open.filter(|(_, open)| *open != stream);
    }

    /// The called side's kernel closes the stream.
    fn close_stream(&mut self, stream: StreamId) {
        let at = self.now + 1_000;
        self.push(at, Happening::HungUp { stream });
    }

    pub(super) fn on_closed_by_peer(&mut self, stream: StreamId) {
        let (from, to) = (self.streams[stream].from, self.streams[stream].to);
        if !self.is_cut(self.processes[to].spot, self.processes[from].spot) {
            self.break_stream(stream);
        }
    }

    /// Keep-alive has waited since `since`: the stream breaks if its other end is still silent.
    pub(super) fn on_suspicion(&mut self, stream: StreamId, since: Micros) {
        let (from, to) = (self.streams[stream].from, self.streams[stream].to);
        let (a, b) = (self.processes[from].spot, self.processes[to].spot);
        let blocked = |world: &Self, x: HostIndex, y: HostIndex| {
            world.cut_since[x * world.spots + y].is_some_and(|cut| cut <= since)
        };
        let stood = |process: ProcessId| {
            let process = &self.processes[process];
            process.gone || process.paused.is_some_and(|(began, until)| began <= since && until > self.now)
        };
        let silent = blocked(self, a, b) || blocked(self, b, a) || (stood(from) != stood(to));
        if silent {
            self.break_stream(stream);
        }
    }

    fn break_stream(&mut self, stream: StreamId) {
        let Stream { from, to, lane, seq, state, .. } = self.streams[stream];
        if state == State::Broken {
            return;
        }
        self.streams[stream].state = State::Broken;
        (self.streams[stream].forward, self.streams[stream].back) = Default::default();
        if matches!(state, State::Dialing | State::Open) && !self.processes[from].gone {
            if let Some(until) = self.stands_still(from) {
                // A paused process notices when it wakes.
                self.streams[stream].state = state;
                return self.push(until, Happening::Broken { stream });
            }
            self.end_stream(stream);
            let place = self.processes[to].place;
            self.associate(from, place, Input::Failed { lane, seq });
        }
    }

    pub(super) fn on_broken(&mut self, stream: StreamId) {
        self.break_stream(stream);
    }

    pub(super) fn on_dial_timeout(&mut self, stream: StreamId) {
        if self.streams[stream].state == State::Dialing {
            self.break_stream(stream);
        }
    }

    /// Schedules keep-alive checks after a fault of a host or a link, for all open streams that it touches.
    pub(super) fn suspect(&mut self, touches: impl Fn(&Self, ProcessId, ProcessId) -> bool) {
        for stream in 0..self.streams.len() {
            let Stream { from, to, state, .. } = self.streams[stream];
            if matches!(state, State::Dialing | State::Open) && touches(self, from, to) {
                let time_limit = TransportSettings::default();
                let least = micros(time_limit.http2_keepalive_timeout);
                let most = least + micros(time_limit.http2_keepalive_interval);
                let at = self.now + self.rng.random_range(least..=most);
                let since = self.now;
                self.push(at, Happening::Suspicion { stream, since });
            }
        }
    }

    /// Closes all streams of a process that is gone; its kernel tells the other ends.
    pub(super) fn close_all_of(&mut self, gone: ProcessId) {
        for stream in 0..self.streams.len() {
            let Stream { from, to, state, .. } = self.streams[stream];
            if to == gone && matches!(state, State::Dialing | State::Open) {
                self.close_stream(stream);
            }
            if from == gone && matches!(state, State::Dialing | State::Open) {
                self.streams[stream].state = State::Ended;
            }
        }
    }

    /// Links are whole again: frames that were held back arrive soon.
    pub(super) fn resume_streams(&mut self) {
        for stream in 0..self.streams.len() {
            for way in [Way::Forward, Way::Back] {
                let held = std::mem::take(&mut self.streams[stream].pipe(way).held);
                if held > 0 {
                    let at = self.now + self.rng.random_range(1_000..3_000_000);
                    let pipe = self.streams[stream].pipe(way);
                    pipe.last_arrival = pipe.last_arrival.max(at);
                    for _ in 0..held {
                        self.push(at, Happening::Arrival { stream, way });
                    }
                }
            }
        }
    }

    /// Sends a last frame on every lane of a process that ends in order (cluster T33).
    pub(super) fn say_terminating(&mut self, process: ProcessId) {
        for place in 0..self.places {
            let Some(peer) = &self.processes[process].peers[place] else { continue };
            let open: Vec<StreamId> = peer.lanes.iter().filter_map(|out| Some(out.open?.1)).collect();
            for stream in open {
                self.transmit(stream, Way::Forward, Frame::Terminating);
            }
        }
    }

    // --- associations ---------------------------------------------------------------------------

    fn peer(&mut self, process: ProcessId, place: AddressIndex) -> &mut Peer {
        let seed = self.processes[process].address.uid().get() ^ place as u64;
        self.processes[process].peers[place].get_or_insert_with(|| Box::new(Peer::new(seed)))
    }

    pub(super) fn associate(&mut self, process: ProcessId, place: AddressIndex, input: Input) {
        self.run_association(process, place, input, None);
    }

    fn associate_called(&mut self, process: ProcessId, place: AddressIndex, input: Input, stream: StreamId) {
        self.run_association(process, place, input, Some(stream));
    }

    fn run_association(&mut self, process: ProcessId, place: AddressIndex, input: Input, called: Option<StreamId>) {
        let now = self.clock(process);
        let mut effects = Vec::new();
        self.steps += 1;
        let peer = self.peer(process, place);
        let ticks = matches!(input, Input::Tick);
        peer.association.handle(now, input, &mut effects);
        if ticks {
            assert_moved("association", now, peer.association.next_deadline());
        }
        peer.deadline = peer.association.next_deadline();
        for effect in effects {
            self.on_association(process, place, effect, called);
        }
        self.reschedule(process);
    }

    fn on_association(&mut self, process: ProcessId, place: AddressIndex, effect: Effect, called: Option<StreamId>) {
        match effect {
            Effect::Dial { lane, seq } => self.dial(process, place, lane, seq),
            Effect::Open { lane, seq, uid } => {
                let out = &mut self.peer(process, place).lanes[index_of(lane)];
                out.open = out.streams.iter().find(|(known, _)| *known == seq).map(|(_, stream)| (uid, *stream));
                self.flush(process, place, lane);
            }
            Effect::Shut { lane, .. } => self.peer(process, place).lanes[index_of(lane)].open = None,
            Effect::Close { lane, seq } => {
                let out = &self.peer(process, place).lanes[index_of(lane)];
                let stream = out.streams.iter().find(|(known, _)| *known == seq).map(|(_, stream)| *stream);
                if let Some(stream) = stream {
                    self.end_stream(stream);
                }
            }
            Effect::Rest { lane } => {
                let out = &mut self.peer(process, place).lanes[index_of(lane)];
                out.wanted = !out.queue.is_empty();
                if out.wanted {
                    self.associate(process, place, Input::Wanted { lane });
                }
            }
            Effect::NewIncarnation { old: Some(old), .. } => self.forget_messages(process, place, old),
            Effect::FailQueue { lane, .. } => self.peer(process, place).lanes[index_of(lane)].queue.clear(),
            Effect::HandBack { uid } => self.forget_messages(process, place, uid),
            Effect::Notify { uid, reason } => self.notify(process, place, uid, reason),
            Effect::Hold { holder, detail } => {
                if let Some(stream) = called {
                    let (by, code) = (self.processes[process].address.uid(), RejectCode::NotReady);
                    let frame = Frame::Rejected { code, by, reason: None, holder: Some(holder), detail };
                    self.transmit(stream, Way::Back, frame);
                }
            }
            Effect::Admit | Effect::AdmitForJoin => {
                if let Some(stream) = called {
                    self.admit(process, place, stream);
                }
            }
            Effect::Refuse { reason } => {
                if let Some(stream) = called {
                    let by = self.processes[process].address.uid();
                    let (code, holder, detail) = (RejectCode::Quarantined, None, String::new());
                    self.transmit(stream, Way::Back, Frame::Rejected { code, by, reason, holder, detail });
                }
            }
            Effect::Publish(event) => self.on_link_event(process, place, event),
            _ => {}
        }
    }

    fn admit(&mut self, process: ProcessId, place: AddressIndex, stream: StreamId) {
        let Stream { from, lane, seq, .. } = self.streams[stream];
        let uid = self.processes[from].address.uid();
        self.streams[stream].admitted = true;
        let inbound = &mut self.peer(process, place).inbound[index_of(lane)];
        if inbound.is_none_or(|known| known.uid != uid || known.seq < seq) {
            *inbound = Some(Inbound { uid, seq, stream });
        }
        let own = self.processes[process].address.uid();
        let cluster_id = self.cluster_id_of(process);
        self.transmit(stream, Way::Back, Frame::Accepted(own, cluster_id));
    }

    fn cluster_id_of(&self, process: ProcessId) -> Option<u128> {
        Some(self.processes[process].core.gossip().cluster_id).filter(|id| *id != 0)
    }

    /// Sends Hello again on every connection when the process has got a cluster (cluster T12).
    pub(super) fn say_hello_again(&mut self, process: ProcessId) {
        let cluster_id = self.cluster_id_of(process);
        for place in 0..self.places {
            let Some(peer) = &self.processes[process].peers[place] else { continue };
            if let Some((_, stream)) = peer.lanes[0].open {
                self.transmit(stream, Way::Forward, Frame::Hello(cluster_id));
            }
        }
    }

    fn forget_messages(&mut self, process: ProcessId, place: AddressIndex, uid: Uid) {
        for out in &mut self.peer(process, place).lanes {
            out.queue.retain(|message| message.target != Some(uid));
        }
    }

    /// Sends a quarantine notice, on the process's own stream to the peer if there is one, else on one that the peer
    /// opened.
    fn notify(&mut self, process: ProcessId, place: AddressIndex, uid: Uid, reason: QuarantineReason) {
        let peer = self.peer(process, place);
        let inbound = peer.inbound.iter().flatten().filter(|inbound| inbound.uid == uid).map(|inbound| inbound.stream);
        let own: Vec<StreamId> = peer.lanes[0].streams.iter().map(|(_, stream)| *stream).collect();
        let inbound: Vec<StreamId> = inbound.collect();
        let leads_there = |world: &Self, stream: &StreamId| {
            let stream = &world.streams[*stream];
            stream.state == State::Open && world.processes[stream.to].address.uid() == uid
        };
        if let Some(stream) = own.into_iter().find(|stream| leads_there(self, stream)) {
            self.transmit(stream, Way::Forward, Frame::Quarantined(reason));
        } else if let Some(stream) = inbound.into_iter().find(|stream| self.streams[*stream].state == State::Open) {
            self.transmit(stream, Way::Back, Frame::Quarantined(reason));
        }
    }

    fn on_link_event(&mut self, process: ProcessId, place: AddressIndex, event: Event) {
        let known = |uid: Uid| UniqueAddress::new(Self::address(place), uid);
        match event {
            Event::LinkLost { uid, lane } if lane == Lane::CONTROL => {
                self.core_input(process, greylag_cluster::Input::LinkLost(known(uid)));
            }
            Event::Quarantined { uid, reason, harmless } => {
                let peer = known(uid);
                self.core_input(process, greylag_cluster::Input::PeerQuarantined { peer, reason, harmless });
            }
            Event::HandshakeRejected { code, holder, detail } => {
                let address = Self::address(place);
                self.core_input(process, greylag_cluster::Input::HelloRefused { address, code, holder, detail });
            }
            Event::AddressHeld { holder, claimant } => {
                let claimant = known(claimant);
                self.core_input(process, greylag_cluster::Input::AddressHeld { holder, claimant });
            }
            Event::ThisNodeQuarantined { by, reason } => {
                let by = known(by);
                self.core_input(process, greylag_cluster::Input::ThisNodeQuarantined { by, reason });
            }
            _ => {}
        }
    }

    /// Tells the core of a handshake, if the association knows this process as its peer; a process that may only ask to
    /// join is not reported.
    fn greet_if_known(
        &mut self,
        process: ProcessId,
        place: AddressIndex,
        peer: UniqueAddress,
        cluster_id: Option<u128>,
    ) {
        if self.peer(process, place).association.peer() != Some(peer.uid()) {
            return;
        }
        self.core_input(process, greylag_cluster::Input::PeerHandshake { peer, cluster_id });
    }

    fn dial(&mut self, process: ProcessId, place: AddressIndex, lane: Lane, seq: u64) {
        let stream = self.streams.len();
        let timeout = self.now + micros(TransportSettings::default().connection_timeout);
        let Some(target) = self.at[place] else {
            // No process has ever run there: the host refuses.
            let at = self.now + 1_000;
            return self.push(at, Happening::Refused { process, place, lane, seq });
        };
        let (forward, back) = Default::default();
        let state = State::Dialing;
        self.streams.push(Stream { from: process, to: target, lane, seq, state, admitted: false, forward, back });
        self.peer(process, place).lanes[index_of(lane)].streams.push((seq, stream));
        let cluster_id = self.cluster_id_of(process);
        self.transmit(stream, Way::Forward, Frame::Hello(cluster_id));
        self.push(timeout, Happening::DialTimeout { stream });
    }
}

impl Stream {
    fn pipe(&mut self, way: Way) -> &mut Pipe {
        match way {
            Way::Forward => &mut self.forward,
            Way::Back => &mut self.back,
        }
    }
}

/// Size of the frame on the wire in bytes, roughly.
fn size_of(frame: &Frame) -> u64 {
    match frame {
        Frame::QueuedMessage(QueuedMessage { body: Body::Core(message), .. }) => match message {
            Message::GossipEnvelope { gossip, .. } | Message::Welcome { gossip, .. } => 200 + gossip_size(gossip),
            Message::GossipStatus { version, .. } => 60 + 20 * version.iter().len() as u64,
            _ => 60,
        },
        _ => 80,
    }
}

fn gossip_size(gossip: &Arc<greylag_cluster::Gossip>) -> u64 {
    90 * gossip.members.len() as u64 + 40 * gossip.tombstones.len() as u64
}

/// Timeout of the dial of a proof (cluster S20).
pub(super) const DIAL_TIMEOUT: Duration = Duration::from_secs(1);
