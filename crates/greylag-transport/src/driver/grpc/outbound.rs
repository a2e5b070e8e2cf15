//! The writer of one stream: what tonic polls for the frames of a lane.
//!
//! It runs only when the connection has room, takes what is queued then, and writes it into one
//! frame; it never waits for more. So there is no queue between the lane's and the socket, and what
//! a broken stream loses is what the connection itself had taken. Source: cluster T10, T26, T27.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use greylag_core::{DeadLetterReason, Uid, UniqueAddress};
use tokio_stream::Stream;

use super::codec::OutFrame;
use super::fault::Gremlin;
use super::peer::Peer;
use super::shared::Shared;
use crate::endpoint::Reply;
use crate::lane::Lane;
use crate::queue::{Item, LaneQueue, Taken};
use crate::wire::{self, Frame};

/// Yields the frames of one stream, the Hello first.
pub(super) struct Outbound {
    shared: Arc<Shared>,
    peer: Arc<Peer>,
    lane: Lane,
    queue: Arc<LaneQueue>,
    seq: u64,
    hello: Option<Bytes>,
    /// Envelopes written, for the count of what a break loses.
    written: Arc<AtomicU64>,
    taken: VecDeque<Item>,
    scratch: BytesMut,
    frame_size: usize,
    max_message: usize,
    max_batch: usize,
    gremlin: Gremlin,
    /// Answers that were too large; their askers are told once no lock of the queue is held.
    too_large: Vec<(UniqueAddress, u64)>,
}

impl Outbound {
    pub(super) fn new(
        shared: Arc<Shared>,
        peer: Arc<Peer>,
        lane: Lane,
        seq: u64,
        hello: Bytes,
        written: Arc<AtomicU64>,
    ) -> Self {
        let max_message = shared.settings.maximum_message_size(lane.kind());
        Self {
            queue: peer.queue(lane).clone(),
            max_message,
            max_batch: shared.settings.max_batch_bytes.min(max_message),
            gremlin: Gremlin::new(seq),
            shared,
            peer,
            lane,
            seq,
            hello: Some(hello),
            written,
            taken: VecDeque::new(),
            scratch: BytesMut::new(),
            frame_size: 1024,
            too_large: Vec::new(),
        }
    }

    /// The items taken, as one frame; what does not fit goes back to the queue. `None` if all of
    /// them were dropped.
    fn write(&mut self, to: Uid) -> Option<OutFrame> {
        if matches!(self.taken.front(), Some(Item::Terminating)) {
            self.taken.pop_front();
            let from = self.shared.endpoint.self_address.clone();
            return Some(OutFrame::Ready(wire::write_frame(&Frame::Terminating { from })));
        }
        let peer = UniqueAddress::new(self.peer.address.clone(), to);
        let mut batch = BytesMut::with_capacity(self.frame_size);
        let mut count = 0;
        while let Some(item) = self.taken.pop_front() {
            let start = batch.len();
            if matches!(item, Item::Terminating) {
                self.taken.push_front(item);
                break;
            }
            if let Err(reason) = self.write_item(&item, &peer, &mut batch) {
                batch.truncate(start);
                self.drop_item(&item, reason);
                continue;
            }
            if batch.len() > self.max_batch && count > 0 {
                batch.truncate(start);
                self.taken.push_front(item);
                break;
            }
            if self.gremlin.swallows(self.peer.fault.outbound()) {
                batch.truncate(start);
                self.shared.counters.swallowed_envelopes.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            count += 1;
        }
        if count == 0 {
            return None;
        }
        self.written.fetch_add(count, Ordering::Relaxed);
        self.shared.counters.sent(count, batch.len());
        // The next frame will be much like this one.
        self.frame_size = (batch.len() + batch.len() / 8).max(1024);
        Some(OutFrame::Batch(batch))
    }

    fn write_item(&mut self, item: &Item, peer: &UniqueAddress, batch: &mut BytesMut) -> Result<(), DeadLetterReason> {
        if item.target().is_some_and(|target| target != peer.uid()) {
            return Err(DeadLetterReason::StaleIncarnation);
        }
        let start = batch.len();
        match item {
            Item::Envelope(envelope) => {
                if let Some(ask) = envelope.ask {
                    self.shared.endpoint.asks.sent_to(ask.id, peer);
                }
                wire::write_envelope(envelope, &mut self.scratch, batch)
                    .map_err(|_| DeadLetterReason::SerializeFailed)?;
            }
            Item::Reply { to, ask_id, reply } => wire::write_reply(*to, *ask_id, reply, batch),
            Item::Terminating => {}
        }
        if batch.len() - start > self.max_message { Err(DeadLetterReason::TooLarge) } else { Ok(()) }
    }

    fn drop_item(&mut self, item: &Item, reason: DeadLetterReason) {
        let endpoint = &self.shared.endpoint;
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
            Item::Terminating => {}
        }
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
            let max = this.shared.settings.max_batch_messages;
            match ready!(queue.poll_take(cx, this.seq, max, &mut this.taken)) {
                Taken::Ended => return Poll::Ready(None),
                Taken::Notice(frame) => return Poll::Ready(Some(OutFrame::Ready(frame))),
                Taken::Items(to) => {
                    let frame = this.write(to);
                    queue.put_back(&mut this.taken);
                    drop(writing);
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
