//! Reads an accepted stream: hands its envelopes to the workers, and carries out its other frames.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use greylag_core::{DeadLetterReason, UniqueAddress};
use tokio::sync::mpsc;
use tonic::{Status, Streaming};

use super::caller_slots::CallerSlot;
use super::connection_guard::OpenStream;
use super::violation::Violation;
use crate::admission::control::Intrusion;
use crate::association::Input;
use crate::driver::grpc::codec::OutFrame;
use crate::driver::grpc::http2::FRAME_OVERHEAD;
use crate::driver::grpc::local::{Announcement, Turn};
use crate::driver::grpc::receiving::{Delivery, Sorting, drop_arrived};
use crate::driver::grpc::sending::Mark;
use crate::driver::grpc::shared::TransportInner;
use crate::lanes::lane::LaneKind;
use crate::messages::envelope::EncodedMessage;
use crate::messages::hello::Hello;
use crate::reliable::ReceiverEffect;
use crate::remoting::{PeerInfo, TransportEvent};
use crate::wire::{self, Arrived, BatchPosition, BatchReader, Frame, MAX_CONTROL_BATCH, Malformed, Names};

/// The answering half of a stream.
pub(super) type Replies = mpsc::Sender<Result<OutFrame, Status>>;

/// The peer's facts as its Hello states them.
pub(super) fn facts(hello: &Hello, ip: IpAddr) -> PeerInfo {
    let (host_id, cluster_id) = (hello.host_id.clone(), hello.cluster_id);
    PeerInfo { peer: hello.from.clone(), ip, reached: false, host_id, cluster_id }
}

/// Reads one accepted stream.
pub(super) struct Reader {
    shared: Arc<TransportInner>,
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
    pub(super) fn new(
        shared: Arc<TransportInner>,
        ip: IpAddr,
        open: OpenStream,
        slot: Option<CallerSlot>,
        hello: Hello,
        replies: Replies,
    ) -> Self {
        let names = Names::new(shared.node.settings.intern_table_max);
        Self {
            shared,
            ip,
            _open: open,
            _slot: slot,
            hello,
            replies,
            names,
            read: 0,
            reported: 0,
            last_most: 0,
            acknowledgement: None,
            announcement: PendingAnnouncement::default(),
        }
    }

    pub(super) async fn run(mut self, frames: Streaming<Bytes>, turn: Turn) {
        let mut is_orderly = false;
        let end = self.read_all(frames, &turn, &mut is_orderly).await;
        self.report();
        let (from, lane) = (self.hello.from.clone(), self.hello.lane);
        // Report no loss for a stream that its peer ended in order; any other stream may have lost messages.
        if !is_orderly && !matches!(end, End::Finished) && !self.shared.node.is_blocked(&from) {
            self.shared.node.announce(Announcement::Event(TransportEvent::LinkLost { peer: from, lane }));
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
                self.shared.admission.intruded(self.ip, intrusion, &detail);
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
        let max = self.shared.node.settings.maximum_message_size(self.hello.lane.kind()) + FRAME_OVERHEAD;
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
        if !is_notice && self.shared.node.is_blocked(&self.hello.from) {
            // Batches are not counted here but with their messages.
            let peer = self.shared.peer(self.hello.from.address());
            self.shared.input(&peer, Input::Intruded { uid: self.hello.from.uid() });
            return Ok(());
        }
        match frame {
            Frame::Batch(batch) => return Ok(self.take_batch(batch).await?),
            Frame::Terminating { from } => {
                self.check_speaker(&from)?;
                *is_orderly = true;
                let peer = self.shared.peer(self.hello.from.address());
                self.shared.input(&peer, Input::Terminating { uid: self.hello.from.uid() });
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
                if to == self.shared.node.endpoint.self_address {
                    let peer = self.shared.peer(self.hello.from.address());
                    self.shared.input(&peer, Input::ToldQuarantined { by: self.hello.from.uid(), reason });
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
        let Some(message) = message.filter(|_| shared.node.is_stranger(&self.hello.from)) else { return false };
        let Some(reason) = shared.node.closed_to_strangers(&message.recipient) else { return false };
        let (lane, peer) = (Some(self.hello.lane), Some(self.hello.from.address()));
        let what = || format!("a numbered message for {}", message.recipient);
        shared.node.endpoint.count_dead_letter(Instant::now(), reason, lane, peer, 1, what);
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
            peer.introduce(&self.shared.node, facts(&self.hello, self.ip));
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
        let is_end = self.shared.node.shutdown.is_begun();
        let reason = if is_end { DeadLetterReason::ShuttingDown } else { DeadLetterReason::SupersededStream };
        while let Ok(Ok(Some(bytes))) = tokio::time::timeout(Duration::ZERO, frames.message()).await {
            if let Ok(Frame::Batch(batch)) = self.read_frame(bytes) {
                let arrived = BatchReader::new(&self.hello.from, batch, &mut self.names).flatten().collect::<Vec<_>>();
                self.drop_all(arrived, reason);
            }
        }
    }
}
