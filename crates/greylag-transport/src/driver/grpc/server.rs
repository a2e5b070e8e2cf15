//! The called side: answers Hellos and reads streams.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use greylag_core::{DeadLetterReason, UniqueAddress};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::body::Body;
use tonic::codegen::{BoxFuture, http};
use tonic::server::{Grpc, StreamingService};
use tonic::{Code, Request, Response, Status, Streaming};

use super::accept::Caller;
use super::caller_slots::CallerSlot;
use super::codec::{FrameCodec, OutFrame};
use super::connection_guard::OpenStream;
use super::flushes::Mark;
use super::link::{FRAME_OVERHEAD, METHOD};
use super::opening::Opening;
use super::peer::{Admission, Refused};
use super::shared::{Announcement, Shared};
use super::sorting::Sorting;
use super::streams::{NoTurn, Turn};
use super::workers::{Delivery, drop_arrived};
use crate::admission_control::Intrusion;
use crate::association::Input;
use crate::envelope::EncodedMessage;
use crate::hello::{Accepted, Features, Hello, HelloReply, Rejected};
use crate::lane::{Lane, LaneKind};
use crate::reliable::ReceiverEffect;
use crate::remoting::{PeerInfo, RejectCode, TransportEvent};
use crate::wire::{self, Arrived, BatchPosition, BatchReader, Frame, MAX_CONTROL_BATCH, Malformed, Names};

type Replies = mpsc::Sender<Result<OutFrame, Status>>;

/// Answers one call.
pub(super) async fn answer(shared: Arc<Shared>, caller: Caller, request: http::Request<Body>) -> http::Response<Body> {
    if caller.guard.is_rejected() {
        return Status::unavailable("this connection is being closed").into_http();
    }
    if request.uri().path() != METHOD {
        caller.guard.report(Intrusion::NotGrpc, &format!("there is no {:?} here", request.uri().path()));
        return Status::unimplemented(which_port(&shared)).into_http();
    }
    let max = shared.settings.largest_message_size() + FRAME_OVERHEAD;
    let mut grpc = Grpc::new(FrameCodec).max_decoding_message_size(max).max_encoding_message_size(max);
    grpc.streaming(Open { shared, caller }, request.map(Opening::of)).await
}

/// The answer to a caller of another gRPC service: which port this is, and which setting names the admin service's.
fn which_port(shared: &Shared) -> String {
    format!(
        "this is the transport port of the node {}, which its peers dial; its admin service, if it has one, listens where \
         the node's setting management.address says",
        shared.endpoint.self_address.address()
    )
}

/// The service's one method.
struct Open {
    shared: Arc<Shared>,
    caller: Caller,
}

impl StreamingService<Bytes> for Open {
    type Response = OutFrame;
    type ResponseStream = ReceiverStream<Result<OutFrame, Status>>;
    type Future = BoxFuture<Response<Self::ResponseStream>, Status>;

    fn call(&mut self, request: Request<Streaming<Bytes>>) -> Self::Future {
        Box::pin(open(self.shared.clone(), self.caller.clone(), request))
    }
}

/// Limit of frames queued on the answering half.
const REPLIES: usize = 16;

async fn open(
    shared: Arc<Shared>,
    caller: Caller,
    request: Request<Streaming<Bytes>>,
) -> Result<Response<ReceiverStream<Result<OutFrame, Status>>>, Status> {
    let guard = &caller.guard;
    let mut frames = request.into_inner();
    let hello = match read_hello(&shared, &mut frames).await {
        Ok(hello) => hello,
        Err(None) => return Err(Status::cancelled("the stream broke before its Hello")),
        Err(Some(violation)) => {
            if violation.intrusion == Intrusion::Malformed {
                shared.counters.malformed();
            }
            guard.report(violation.intrusion, &violation.detail);
            return Err(Status::invalid_argument(violation.detail));
        }
    };
    let (replies, answers) = mpsc::channel(REPLIES);
    let (reply, greeted) = match greet(&shared, &hello, &caller, &replies).await {
        Ok(greeted) => {
            let version = greeted.version;
            let max = shared.settings.maximum_message_size(hello.lane.kind()) + FRAME_OVERHEAD;
            let from = shared.endpoint.self_address.clone();
            let features = hello.features.and(Features::OURS);
            let max_names = u32::try_from(shared.settings.intern_table_max).unwrap_or(u32::MAX);
            let (host_id, cluster_id) = (shared.host_id.clone(), shared.cluster_id());
            let accepted =
                Accepted { from, version, features, max_frame_bytes: max as u64, max_names, cluster_id, host_id };
            (HelloReply::Accepted(accepted), Some(greeted))
        }
        Err(rejected) => {
            let detail = format!("the Hello of {} for {}: {}", hello.from, hello.lane, rejected.detail);
            if rejected.code == RejectCode::Terminating {
                // Log at debug level: the caller cannot know yet that this node ends.
                tracing::debug!(ip = %guard.ip, "refused: {detail}");
            } else {
                guard.report(Intrusion::Refused(rejected.code), &detail);
            }
            let from = Some(shared.endpoint.self_address.clone());
            (HelloReply::Rejected(Rejected { from, ..rejected }), None)
        }
    };
    let reply = wire::write_frame(&Frame::HelloReply(reply));
    replies.try_send(Ok(OutFrame::Ready(reply))).map_err(|_| Status::internal("no room for the first answer"))?;
    if let Some(Greeted { turn, slot, .. }) = greeted {
        let runtime = if hello.lane == Lane::CONTROL {
            &shared.control
        } else {
            caller.runtime.move_to_data();
            &shared.data
        };
        let names = Names::new(shared.settings.intern_table_max);
        let reader = Reader {
            shared: shared.clone(),
            ip: guard.ip,
            _open: guard.greeted(),
            _slot: slot,
            hello,
            replies,
            names,
            read: 0,
            reported: 0,
            last_most: 0,
            acknowledgement: None,
            announcement: PendingAnnouncement::default(),
        };
        runtime.spawn(reader.run(frames, turn));
    }
    Ok(Response::new(ReceiverStream::new(answers)))
}

/// A breach of the protocol by the peer.
struct Violation {
    intrusion: Intrusion,
    detail: String,
}

impl Violation {
    fn new(intrusion: Intrusion, detail: impl Into<String>) -> Self {
        Self { intrusion, detail: detail.into() }
    }

    /// The violation behind tonic's error about a frame. `None`: the connection broke.
    fn from_status(status: &Status) -> Option<Self> {
        let is_broken = std::error::Error::source(status).is_some();
        match status.code() {
            Code::OutOfRange => Some(Self::new(Intrusion::Oversized, status.message())),
            Code::Internal if !is_broken => Some(Self::new(Intrusion::Malformed, status.message())),
            _ => None,
        }
    }
}

impl From<Malformed> for Violation {
    fn from(error: Malformed) -> Self {
        Self::new(Intrusion::Malformed, error.to_string())
    }
}

/// Reads the first frame, which must come soon and be a Hello. `Err(None)`: the caller has gone.
async fn read_hello(shared: &Shared, frames: &mut Streaming<Bytes>) -> Result<Hello, Option<Violation>> {
    let violation = |intrusion, detail| Some(Violation::new(intrusion, detail));
    let first = tokio::time::timeout(shared.settings.handshake_timeout, frames.message()).await;
    let first = first.map_err(|_| violation(Intrusion::NoHello, "no Hello came in time"))?;
    let first = first.map_err(|status| Violation::from_status(&status))?;
    let first = first.ok_or_else(|| violation(Intrusion::NoHello, "the stream ended before its Hello"))?;
    match wire::read_frame(first).map_err(|error| Some(error.into()))? {
        Frame::Hello(hello) => Ok(hello),
        _ => Err(violation(Intrusion::WrongFirstFrame, "the first frame must be a Hello")),
    }
}

/// The pause that a caller is told to make whose address a member holds (cluster T15).
const HELD_RETRY: Duration = Duration::from_secs(1);
/// A stream that was accepted.
struct Greeted {
    version: u32,
    turn: Turn,
    /// `None`: the peer is a member, or was reached.
    slot: Option<CallerSlot>,
}

/// Makes all checks that precede the reading of a stream.
async fn greet(shared: &Arc<Shared>, hello: &Hello, caller: &Caller, replies: &Replies) -> Result<Greeted, Rejected> {
    let own = &shared.endpoint.self_address;
    let version = hello.judge(own, &shared.settings.cluster_name)?;
    if let (Some(files), Some(certificate)) = (&shared.tls, &caller.certificate) {
        let checked = files.may_speak_for(certificate, hello.from.address().host());
        checked.map_err(|error| Rejected::new(RejectCode::Unauthorized, error.to_string()))?;
    }
    if hello.lane == Lane::CONTROL && shared.settings.untrusted_mode && shared.is_stranger(&hello.from) {
        let detail = format!("{} is no member, and this node is in untrusted mode", hello.from);
        return Err(Rejected::new(RejectCode::Unauthorized, detail));
    }
    if shared.is_shutting_down.load(Ordering::Acquire) {
        return Err(Rejected::new(RejectCode::Terminating, format!("{own} is shutting down")));
    }
    let slot = shared.caller_slot(&hello.from, caller.guard.ip);
    let slot = slot.map_err(|full| Rejected::new(RejectCode::TooManyStreams, full.to_string()))?;
    let peer = shared.peer(hello.from.address());
    if peer.fault.drops_inbound() {
        return Err(Rejected::new(RejectCode::NotReady, "blackholed on purpose"));
    }
    let dead = |reason| Rejected {
        reason,
        ..Rejected::new(RejectCode::Quarantined, format!("{own} takes {} for dead", hello.from))
    };
    let refused = |refused| match refused {
        Refused::Dead(reason) => dead(reason),
        Refused::Held(holder, detail) => Rejected {
            holder: Some(holder),
            retry_after: Some(HELD_RETRY),
            ..Rejected::new(RejectCode::NotReady, detail)
        },
    };
    let admission = peer.hello(shared, hello.from.uid(), hello.host_id.clone()).map_err(refused)?;
    // Fetch the peer again: it may have been dropped when the Hello came.
    let peer = shared.peer(hello.from.address());
    if slot.is_some() {
        peer.input(shared, Input::Unproven);
    }
    match admission {
        Admission::Known if peer.introduce(shared, info(hello, caller.guard.ip)) => {}
        Admission::Known => return Err(dead(None)),
        // Accept, but learn nothing from the Hello: the process joins over its control stream (cluster T15).
        Admission::ForJoin if hello.lane == Lane::CONTROL => {}
        Admission::ForJoin => {
            return Err(Rejected::new(
                RejectCode::NotReady,
                "the caller's address is dialled first to verify the process",
            ));
        }
    }
    match shared.streams.supersede(&hello.from, hello.lane, hello.stream_seq, replies).await {
        // Check again: the caller may have been replaced before its stream was entered here, too early for the
        // replacement to end the stream.
        Ok(_) if admission == Admission::Known && !peer.is_current(hello.from.uid()) => Err(dead(None)),
        Ok(turn) => Ok(Greeted { version, turn, slot }),
        Err(NoTurn::Older) => Err(Rejected::new(RejectCode::NotReady, "a newer stream of this lane is open")),
        Err(NoTurn::TooMany(count)) => {
            Err(Rejected::new(RejectCode::TooManyStreams, format!("{count} streams of {} are open", hello.from)))
        }
    }
}

/// The peer's facts as its Hello states them.
fn info(hello: &Hello, ip: IpAddr) -> PeerInfo {
    let (host_id, cluster_id) = (hello.host_id.clone(), hello.cluster_id);
    PeerInfo { peer: hello.from.clone(), ip, reached: false, host_id, cluster_id }
}

/// Reads one accepted stream.
struct Reader {
    shared: Arc<Shared>,
    ip: IpAddr,
    /// Lets the connection stay while the stream is open.
    _open: OpenStream,
    /// The slot of a caller that was never reached.
    _slot: Option<CallerSlot>,
    hello: Hello,
    replies: Replies,
    names: Names,
    /// Envelopes read, and how many of them the peer was told of.
    read: u64,
    reported: u64,
    /// The most envelopes that one worker got from the frame before; sizes the next bins.
    last_most: usize,
    /// The acknowledgement of numbered messages that is still to be sent.
    acknowledgement: Option<Frame>,
    announcement: PendingAnnouncement,
}

/// Whether the peer's later Hellos hold facts that the listeners were not told.
#[derive(Default)]
struct PendingAnnouncement {
    is_pending: bool,
    announced_at: Option<Instant>,
}

/// Why the reading of a stream ended.
enum End {
    /// The peer ended the stream in order.
    Finished,
    /// The connection broke, or sent a frame that cannot be read.
    Broken,
    /// A newer stream took over, or this node ends the stream.
    Superseded,
}

/// Whether a batch holds more envelopes than were read so far.
#[derive(PartialEq, Eq)]
enum Progress {
    More,
    AtEnd,
}

/// Envelopes of one frame that are read before they are handed to their workers; with the default settings no frame
/// holds more.
const AT_ONCE: usize = 1024;
/// How long to wait for a peer that leaves its answers unread before dropping the reason of a close.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// Least time between two announcements of a peer's facts; an honest peer has new facts once.
const ANNOUNCE_INTERVAL: Duration = Duration::from_secs(1);
/// Delay between reading envelopes and telling the peer how many were read.
const REPORT_AFTER: Duration = Duration::from_millis(100);

impl Reader {
    async fn run(mut self, frames: Streaming<Bytes>, turn: Turn) {
        let mut is_orderly = false;
        let end = self.read_all(frames, &turn, &mut is_orderly).await;
        self.report();
        let (from, lane) = (self.hello.from.clone(), self.hello.lane);
        // Report no loss for a stream that its peer ended in order; any other stream may have lost messages.
        if !is_orderly && !matches!(end, End::Finished) && !self.shared.is_blocked(&from) {
            self.shared.announce(Announcement::Event(TransportEvent::LinkLost { peer: from, lane }));
        }
        // Only now may a newer stream of the lane be read.
        drop(turn);
    }

    async fn read_all(&mut self, mut frames: Streaming<Bytes>, turn: &Turn, is_orderly: &mut bool) -> End {
        let superseded = turn.end.notified();
        tokio::pin!(superseded);
        let report = tokio::time::sleep(Duration::ZERO);
        tokio::pin!(report);
        let mut is_report_due = false;
        loop {
            let is_due = self.read > self.reported || self.acknowledgement.is_some() || self.announcement.is_pending;
            if is_due && !is_report_due {
                is_report_due = true;
                report.as_mut().reset(tokio::time::Instant::now() + REPORT_AFTER);
            }
            let frame = tokio::select! {
                biased;
                () = &mut superseded => {
                    self.drop_unread(frames).await;
                    return End::Superseded;
                }
                // First among the branches: under load frames never pause.
                () = &mut report, if is_report_due => {
                    is_report_due = false;
                    self.report();
                    continue;
                }
                frame = frames.message() => frame,
            };
            let frame = match frame {
                Ok(Some(bytes)) => self.read_frame(bytes),
                Ok(None) => return End::Finished,
                Err(status) => match Violation::from_status(&status) {
                    Some(violation) => Err(violation),
                    None => return End::Broken,
                },
            };
            let taken = match frame {
                Ok(frame) => self.take(frame, is_orderly).await,
                Err(violation) => Err(violation),
            };
            if let Err(Violation { intrusion, detail }) = taken {
                self.shared.counters.malformed();
                let (from, lane) = (&self.hello.from, self.hello.lane);
                let detail = format!("the stream of {from} for {lane} is closed: {detail}");
                self.shared.intruded(self.ip, intrusion, &detail);
                // Report now: no frame follows the reason.
                self.report();
                let close = wire::write_frame(&Frame::Close("PROTOCOL".to_owned()));
                // With a time limit: a peer that reads nothing must not hold its place by that.
                tokio::time::timeout(CLOSE_TIMEOUT, self.replies.send(Ok(OutFrame::Ready(close)))).await.ok();
                return End::Broken;
            }
        }
    }

    fn read_frame(&self, bytes: Bytes) -> Result<Frame, Violation> {
        let max = self.shared.settings.maximum_message_size(self.hello.lane.kind()) + FRAME_OVERHEAD;
        if bytes.len() > max {
            let detail = format!("a frame of {} bytes, where at most {max} are allowed", bytes.len());
            return Err(Violation::new(Intrusion::Oversized, detail));
        }
        Ok(wire::read_frame_within(bytes, max)?)
    }

    /// Refuses a frame that names another speaker than the stream's own peer (cluster T16).
    fn check_speaker(&self, speaker: &UniqueAddress) -> Result<(), Violation> {
        if *speaker == self.hello.from {
            return Ok(());
        }
        Err(Violation::new(Intrusion::Forged, format!("it speaks in the name of {speaker}")))
    }

    async fn take(&mut self, frame: Frame, is_orderly: &mut bool) -> Result<(), Violation> {
        let is_notice = matches!(frame, Frame::Batch(_) | Frame::Quarantined { .. });
        if !is_notice && self.shared.is_blocked(&self.hello.from) {
            // Batches are not counted here but with their messages.
            let peer = self.shared.peer(self.hello.from.address());
            peer.input(&self.shared, Input::Intruded { uid: self.hello.from.uid() });
            return Ok(());
        }
        match frame {
            Frame::Batch(batch) => return Ok(self.take_batch(batch).await?),
            Frame::Terminating { from } => {
                self.check_speaker(&from)?;
                *is_orderly = true;
                let peer = self.shared.peer(self.hello.from.address());
                peer.input(&self.shared, Input::Terminating { uid: self.hello.from.uid() });
                self.answer(Frame::TerminatingAck);
            }
            Frame::Flush(id) => {
                // The mark answers once the workers have taken everything before it.
                let mark = Mark::remote(self.replies.clone(), wire::write_frame(&Frame::FlushAck(id)));
                self.shared.workers.mark(&self.hello.from, self.hello.lane, mark).await;
            }
            Frame::Reliable { seq, message } => self.take_numbered(seq, message.map(|message| *message)).await,
            Frame::Quarantined { from, to, reason } => {
                self.check_speaker(&from)?;
                if to == self.shared.endpoint.self_address {
                    let peer = self.shared.peer(self.hello.from.address());
                    peer.input(&self.shared, Input::ToldQuarantined { by: self.hello.from.uid(), reason });
                }
            }
            // A later Hello: the peer has learned more about itself, such as its cluster.
            Frame::Hello(again) => {
                self.check_speaker(&again.from)?;
                let (host_id, cluster_id) = (again.host_id, again.cluster_id);
                self.announcement.is_pending |= (&host_id, cluster_id) != (&self.hello.host_id, self.hello.cluster_id);
                (self.hello.host_id, self.hello.cluster_id) = (host_id, cluster_id);
                self.announce_facts();
            }
            _ => self.shared.counters.skipped(),
        }
        Ok(())
    }

    /// Whether a numbered message comes from a stranger and its recipient is closed to strangers; counts the message
    /// then. This node does not acknowledge such a message, so its sender repeats it until the sender is known here as
    /// a member: a node that has just joined is known to the others a moment later. Source: cluster T17, T28.
    fn is_unwelcome(&self, message: Option<&EncodedMessage>) -> bool {
        let shared = &self.shared;
        let Some(message) = message.filter(|_| shared.is_stranger(&self.hello.from)) else { return false };
        let Some(reason) = shared.closed_to_strangers(&message.recipient) else { return false };
        let (lane, peer) = (Some(self.hello.lane), Some(self.hello.from.address()));
        let what = || format!("a numbered message for {}", message.recipient);
        shared.endpoint.count_dead_letter(Instant::now(), reason, lane, peer, 1, what);
        true
    }

    /// Delivers a numbered message if it is the next in order, and acknowledges the numbers received so far.
    async fn take_numbered(&mut self, seq: u64, message: Option<EncodedMessage>) {
        let peer = self.shared.peer(self.hello.from.address());
        if peer.fault.drops_inbound() || self.is_unwelcome(message.as_ref()) {
            return;
        }
        for effect in peer.numbered.arrived(self.hello.from.uid(), seq, message) {
            match effect {
                ReceiverEffect::Deliver(message) => {
                    self.shared.counters.received_frame();
                    self.shared.counters.received_envelopes(1);
                    let (from, lane) = (self.hello.from.clone(), self.hello.lane);
                    let (arrived, read_at) = (vec![Arrived::of(from.clone(), message)], Instant::now());
                    let delivery = Delivery { from, lane, arrived, read_at, mark: None };
                    let untaken = self.shared.workers.deliver(0, delivery).await;
                    self.drop_all(untaken, DeadLetterReason::ShuttingDown);
                }
                ReceiverEffect::Ack { seq } => self.acknowledgement = Some(Frame::Ack(seq)),
                ReceiverEffect::Nack { seq } => self.acknowledgement = Some(Frame::Nack(seq)),
            }
        }
        if peer.fault.drops_outbound() {
            self.acknowledgement = None;
        }
        self.acknowledge();
    }

    /// Sends the acknowledgement; if there is no room, the next report sends it, and a later acknowledgement includes
    /// it.
    fn acknowledge(&mut self) {
        if let Some(frame) = &self.acknowledgement
            && self.replies.try_send(Ok(OutFrame::Ready(wire::write_frame(frame)))).is_ok()
        {
            self.acknowledgement = None;
        }
    }

    /// Hands the envelopes of a frame over to their workers, also those before a malformed one. They are read and
    /// handed over in parts, because an envelope of few bytes takes many bytes in memory.
    async fn take_batch(&mut self, batch: Bytes) -> Result<(), Malformed> {
        let inbound_is_dropped = self.shared.peer(self.hello.from.address()).fault.drops_inbound();
        let read_at = Instant::now();
        self.shared.counters.received_frame();
        let mut position = BatchPosition::default();
        loop {
            let (sorted, end) = self.read_batch(&batch, &mut position);
            let count = sorted.iter().map(Vec::len).sum::<usize>() as u64;
            self.read += count;
            self.shared.counters.received_envelopes(count);
            let (from, lane) = (&self.hello.from, self.hello.lane);
            for (index, arrived) in sorted.into_iter().enumerate() {
                if !arrived.is_empty() && !inbound_is_dropped {
                    let delivery = Delivery { from: from.clone(), lane, arrived, read_at, mark: None };
                    let untaken = self.shared.workers.deliver(index, delivery).await;
                    self.drop_all(untaken, DeadLetterReason::ShuttingDown);
                }
            }
            if end? == Progress::AtEnd {
                return Ok(());
            }
        }
    }

    /// Reads the next envelopes of a batch, sorted by worker: up to the batch's end, to the first malformed envelope,
    /// or as many as are read at once.
    fn read_batch(
        &mut self,
        batch: &Bytes,
        position: &mut BatchPosition,
    ) -> (Vec<Vec<Arrived>>, Result<Progress, Malformed>) {
        // Limit a control frame: every peer's heartbeats wait behind what one frame of each other peer holds (cluster
        // T26).
        let is_control = self.hello.lane.kind() == LaneKind::Control;
        let max = if is_control { MAX_CONTROL_BATCH } else { usize::MAX };
        let workers = &self.shared.workers;
        let mut sorting = Sorting::new(workers, if is_control { 1 } else { workers.count() }, self.last_most);
        let mut reader = BatchReader::going_on(&self.hello.from, batch.clone(), &mut self.names, *position);
        let begin = position.count;
        let end = loop {
            let count = reader.position().count;
            if count - begin == AT_ONCE {
                break Ok(Progress::More);
            }
            let has_room = count < max;
            match reader.read_next(|arrived| {
                if has_room {
                    sorting.push(arrived);
                }
            }) {
                Ok(Some(())) if !has_room => {
                    break Err(Malformed(format!("more than {max} envelopes in a control frame")));
                }
                Ok(Some(())) => {}
                Ok(None) => break Ok(Progress::AtEnd),
                Err(error) => break Err(error),
            }
        };
        *position = reader.position();
        self.last_most = sorting.most();
        (sorting.into_bins(), end)
    }

    /// Counts messages that are not delivered.
    fn drop_all(&self, arrived: impl IntoIterator<Item = Arrived>, reason: DeadLetterReason) {
        let (now, of) = (Instant::now(), (&self.hello.from, self.hello.lane));
        arrived.into_iter().for_each(|arrived| drop_arrived(&self.shared, now, of, arrived.content, reason));
    }

    /// Announces the peer's latest facts, unless facts were announced a moment ago.
    fn announce_facts(&mut self) {
        let is_due = |at: Instant| at.elapsed() >= ANNOUNCE_INTERVAL;
        if self.announcement.is_pending && self.announcement.announced_at.is_none_or(is_due) {
            self.announcement = PendingAnnouncement { is_pending: false, announced_at: Some(Instant::now()) };
            let peer = self.shared.peer(self.hello.from.address());
            peer.introduce(&self.shared, info(&self.hello, self.ip));
        }
    }

    fn answer(&self, frame: Frame) {
        // Dropped if there is no room: a peer that leaves so many answers unread does not wait for this one.
        self.replies.try_send(Ok(OutFrame::Ready(wire::write_frame(&frame)))).ok();
    }

    fn report(&mut self) {
        self.acknowledge();
        self.announce_facts();
        if self.read > self.reported {
            self.reported = self.read;
            self.answer(Frame::Received(self.read));
        }
    }

    /// Counts messages that had arrived and are not delivered, because a newer stream took over or this node ends.
    async fn drop_unread(&mut self, mut frames: Streaming<Bytes>) {
        let is_end = self.shared.is_shutting_down.load(Ordering::Acquire);
        let reason = if is_end { DeadLetterReason::ShuttingDown } else { DeadLetterReason::SupersededStream };
        while let Ok(Ok(Some(bytes))) = tokio::time::timeout(Duration::ZERO, frames.message()).await {
            if let Ok(Frame::Batch(batch)) = self.read_frame(bytes) {
                let arrived = BatchReader::new(&self.hello.from, batch, &mut self.names).flatten().collect::<Vec<_>>();
                self.drop_all(arrived, reason);
            }
        }
    }
}
