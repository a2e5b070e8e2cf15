//! The writer of one stream: tonic polls it for the frames of a lane.
//!
//! The writer runs only when the connection has room, takes what is queued then, and writes it into one
//! frame; it never waits for more. So there is no queue between the lane's and the socket, and a broken
//! stream loses only what the connection itself had taken. Source: cluster T10, T26, T27.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use greylag_core::{DeadLetterReason, Uid, UniqueAddress};
use tokio_stream::Stream;

use super::frame_writer::{FrameEnd, FrameWriter};
use crate::driver::grpc::codec::OutFrame;
use crate::driver::grpc::peers::{DropFault, Peer};
use crate::driver::grpc::shared::TransportInner;
use crate::endpoints::endpoint::Reply;
use crate::lanes::lane::{Lane, LaneKind};
use crate::lanes::queue::{Item, LaneQueue, Taken};
use crate::wire::{self, Frame};

/// The state shared by the task that listens on a stream and the writer of the stream.
#[derive(Default)]
pub(crate) struct StreamState {
    /// Envelopes written, to count those that a break loses.
    written: AtomicU64,
    agreed: OnceLock<Agreed>,
}

/// The features that the reader of a stream understands, by its answer to the Hello.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Agreed {
    pub(crate) max_names: usize,
    pub(crate) zstd: bool,
}

impl StreamState {
    pub(crate) fn agree(&self, agreed: Agreed) {
        self.agreed.set(agreed).ok();
    }

    fn agreed(&self) -> Agreed {
        self.agreed.get().copied().unwrap_or_default()
    }

    /// How many of the envelopes written are not known to be read, once the reader has said that it has read `read`.
    pub(crate) fn unread(&self, read: u64) -> u64 {
        self.written.load(Ordering::Relaxed).saturating_sub(read)
    }
}

/// Yields the frames of one stream, the Hello first.
pub(crate) struct Outbound {
    shared: Arc<TransportInner>,
    peer: Arc<Peer>,
    lane: Lane,
    queue: Arc<LaneQueue>,
    seq: u64,
    hello: Option<Bytes>,
    stream_state: Arc<StreamState>,
    taken: VecDeque<Item>,
    frame: FrameWriter,
    drop_fault: DropFault,
    /// A replaced incarnation for which an item was taken: all items that wait for it are handed back once no lock of
    /// the queue is held.
    stale: Option<Uid>,
    /// Answers that were too large; their askers are told once no lock of the queue is held.
    too_large: Vec<(UniqueAddress, u64)>,
}

impl Outbound {
    pub(crate) fn new(
        shared: Arc<TransportInner>,
        peer: Arc<Peer>,
        lane: Lane,
        seq: u64,
        hello: Bytes,
        stream_state: Arc<StreamState>,
    ) -> Self {
        let settings = &shared.node.settings;
        let max_message = settings.maximum_message_size(lane.kind());
        Self {
            queue: peer.queue(lane).clone(),
            frame: FrameWriter::new(max_message, settings.max_batch_bytes.min(max_message)),
            drop_fault: DropFault::new(seq),
            shared,
            peer,
            lane,
            seq,
            hello: Some(hello),
            stream_state,
            taken: VecDeque::new(),
            stale: None,
            too_large: Vec::new(),
        }
    }

    /// The items taken, as one frame; items that do not fit, or are for another incarnation, go back to the queue.
    /// `None` if nothing is left to write.
    fn write(&mut self, to: Uid) -> Option<OutFrame> {
        if self.taken.front().is_some_and(Item::is_alone) {
            let frame = self.taken.pop_front().and_then(|item| self.write_alone(item, to));
            return frame.map(OutFrame::Ready);
        }
        let peer = UniqueAddress::new(self.peer.address.clone(), to);
        let own_max = self.shared.node.settings.intern_table_max;
        self.frame.begin(|| self.stream_state.agreed().max_names.min(own_max));
        let (mut count, mut done) = (0, 0);
        // Written in place, and dropped together.
        let mut taken = std::mem::take(&mut self.taken);
        for item in &mut taken {
            let mark = self.frame.mark();
            if item.is_alone() {
                break;
            }
            if let Some(other) = item.target().filter(|target| *target != to) {
                self.stale = Some(other);
                break;
            }
            let written = self.write_item(item, &peer, &mark);
            let is_next = written.is_ok() && self.frame.is_over_full() && count > 0;
            let is_swallowed = written.is_ok() && !is_next && self.drop_fault.drops(self.peer.fault.outbound());
            if written.is_ok() && !is_next && !is_swallowed {
                (count, done) = (count + 1, done + 1);
                continue;
            }
            self.frame.undo(&mark);
            if is_next {
                break;
            }
            done += 1;
            if let Err(reason) = written {
                self.drop_item(item, reason);
            } else {
                self.shared.counters.swallowed();
            }
        }
        taken.drain(..done);
        self.taken = taken;
        let written = self.frame.end()?;
        self.stream_state.written.fetch_add(count, Ordering::Relaxed);
        Some(self.finish(count, written))
    }

    /// Makes a frame of the batch, compressed where the settings want it, the reader understands it, and it saves
    /// bytes.
    fn finish(&self, count: u64, batch: BytesMut) -> OutFrame {
        let settings = &self.shared.node.settings;
        let is_wanted = self.lane.kind() != LaneKind::Ordinary || settings.compress_ordinary;
        if is_wanted && batch.len() > settings.compress_above && self.stream_state.agreed().zstd {
            let mut frame = BytesMut::with_capacity(batch.len() + 11);
            wire::write_batch_head(batch.len(), &mut frame);
            frame.extend_from_slice(&batch);
            if let Some(packed) = wire::compress(&frame) {
                self.shared.counters.compressed();
                self.shared.counters.sent(count, packed.len());
                return OutFrame::Ready(packed);
            }
        }
        self.shared.counters.sent(count, batch.len());
        OutFrame::Batch(batch)
    }

    /// Writes an item behind the mark.
    fn write_item(&mut self, item: &mut Item, peer: &UniqueAddress, mark: &FrameEnd) -> Result<(), DeadLetterReason> {
        let shared = &self.shared;
        let payload = match item {
            Item::Envelope(envelope) => {
                if let Some(ask) = &mut envelope.ask {
                    // Send the time the asker has left; a question whose asker has given up does not leave.
                    let left = shared.node.endpoint.asks.sent_to(ask.id, peer);
                    let deadline = left.ok_or(DeadLetterReason::Expired)?;
                    ask.budget = deadline.saturating_duration_since(Instant::now());
                }
                let payload = self.frame.write_envelope(envelope)?;
                let limit = shared.node.settings.log_frame_size_exceeding;
                shared.largest.note(limit, &envelope.manifest, payload);
                payload
            }
            Item::Reply { to, ask_id, reply } => self.frame.write_reply(*to, *ask_id, reply),
            Item::Reliable { .. } | Item::Flush { .. } | Item::Terminating => 0,
        };
        if self.frame.is_too_large(payload, mark) { Err(DeadLetterReason::TooLarge) } else { Ok(()) }
    }

    fn drop_item(&mut self, item: &Item, reason: DeadLetterReason) {
        let endpoint = &self.shared.node.endpoint;
        match item {
            Item::Envelope(envelope) => {
                endpoint.drop_unsent(Instant::now(), self.lane, &self.peer.address, envelope, reason);
            }
            Item::Reply { to, ask_id, .. } => {
                let (lane, peer) = (Some(self.lane), Some(&self.peer.address));
                endpoint.count_dead_letter(Instant::now(), reason, lane, peer, 1, || format!("the answer to {ask_id}"));
                if reason == DeadLetterReason::TooLarge {
                    self.too_large.push((UniqueAddress::new(self.peer.address.clone(), *to), *ask_id));
                }
            }
            Item::Reliable { .. } | Item::Flush { .. } | Item::Terminating => {}
        }
    }

    /// Writes an item that is a frame of its own. `None`: the item is for another incarnation, or a fault swallows it.
    fn write_alone(&mut self, item: Item, to: Uid) -> Option<Bytes> {
        if item.target().is_some_and(|target| target != to) {
            return None;
        }
        let frame = match item {
            Item::Reliable { frame, .. } => frame,
            Item::Flush { id, .. } => wire::write_frame(&Frame::Flush(id)),
            _ => wire::write_frame(&Frame::Terminating { from: self.shared.node.endpoint.self_address.clone() }),
        };
        if self.drop_fault.drops(self.peer.fault.outbound()) {
            self.shared.counters.swallowed();
            return None;
        }
        self.shared.counters.sent(0, frame.len());
        Some(frame)
    }
}

impl Stream for Outbound {
    type Item = OutFrame;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<OutFrame>> {
        let this = &mut *self;
        if let Some(hello) = this.hello.take() {
            return Poll::Ready(Some(OutFrame::Ready(hello)));
        }
        let queue = this.queue.clone();
        loop {
            let writing = queue.writing();
            let max = this.shared.node.settings.max_batch_messages;
            let max = if this.lane == Lane::CONTROL { max.min(wire::MAX_CONTROL_BATCH) } else { max };
            match ready!(queue.poll_take(cx, this.seq, max, &mut this.taken)) {
                Taken::Ended => return Poll::Ready(None),
                Taken::Notice(frame) => return Poll::Ready(Some(OutFrame::Ready(frame))),
                Taken::Items(to) => {
                    let frame = this.write(to);
                    queue.put_back(&mut this.taken);
                    drop(writing);
                    if let Some(stale) = this.stale.take() {
                        this.peer.hand_back(&this.shared.node, stale, DeadLetterReason::StaleIncarnation);
                    }
                    for (to, ask_id) in this.too_large.drain(..) {
                        this.shared.send_reply(&to, ask_id, Reply::Dropped(DeadLetterReason::TooLarge));
                    }
                    if let Some(frame) = frame {
                        return Poll::Ready(Some(frame));
                    }
                }
            }
        }
    }
}
