//! The streams that peers have opened to this node; decides which of two for one lane counts.
//!
//! A newer stream (higher `stream_seq`) of the same incarnation and lane supersedes the older one:
//! the older reader finishes what it has read and stops; only then does the newer one begin. So a
//! reconnect never reorders. Source: cluster T24.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use greylag_core::UniqueAddress;
use tokio::sync::{Notify, OwnedMutexGuard, mpsc};

use crate::driver::grpc::codec::OutFrame;
use crate::lanes::lane::Lane;

/// The inbound streams of one node.
#[derive(Default)]
pub(crate) struct Streams {
    open: Open,
}

type Key = (UniqueAddress, Lane);
type Open = Arc<Mutex<HashMap<Key, Slot>>>;

struct Slot {
    seq: u64,
    end: Arc<Notify>,
    turn: Arc<tokio::sync::Mutex<()>>,
    replies: mpsc::Sender<Result<OutFrame, tonic::Status>>,
    /// The stream ended before its turn came; the slot is removed with the older stream, which reads still.
    is_abandoned: bool,
}

/// Why a stream is not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoTurn {
    /// A newer stream of the same lane counts already.
    Older,
    /// The peer has this many streams open already.
    TooMany(usize),
}

/// Lanes of one incarnation that may be open at once; settings allow as many and no more.
pub(crate) const STREAMS_PER_PEER: usize = crate::settings::MAX_LANES as usize + 2;

/// The right to read a stream, and the stream's place among the open ones. Both end when the turn is dropped, also if
/// the connection breaks while the stream waits.
pub(crate) struct Turn {
    pub(crate) end: Arc<Notify>,
    open: Open,
    key: Key,
    seq: u64,
    /// `None` while an older stream reads.
    reading: Option<OwnedMutexGuard<()>>,
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut open = self.open.lock().expect(NO_PANIC);
        // Give the turn back under the lock, so that the next stream that ends sees either a reader or none.
        let has_read = self.reading.take().is_some();
        let Some(slot) = open.get_mut(&self.key) else { return };
        let is_last = if slot.seq == self.seq {
            // Keep the slot while another stream reads: without it the next stream would not wait for that one.
            slot.is_abandoned = !has_read && slot.turn.try_lock().is_err();
            !slot.is_abandoned
        } else {
            has_read && slot.is_abandoned
        };
        if is_last {
            open.remove(&self.key);
        }
    }
}

impl Streams {
    /// Makes this stream the one that counts, and waits until the stream before it has stopped.
    ///
    /// # Errors
    /// [`NoTurn`]; nothing has changed.
    pub(crate) async fn supersede(
        &self,
        from: &UniqueAddress,
        lane: Lane,
        seq: u64,
        replies: &mpsc::Sender<Result<OutFrame, tonic::Status>>,
    ) -> Result<Turn, NoTurn> {
        let (key, end) = ((from.clone(), lane), Arc::new(Notify::new()));
        let turn = {
            let mut open = self.open.lock().expect(NO_PANIC);
            let turn = match open.get(&key) {
                Some(slot) if slot.seq >= seq => return Err(NoTurn::Older),
                Some(slot) => {
                    slot.end.notify_one();
                    slot.turn.clone()
                }
                None => {
                    let count = open.keys().filter(|(peer, _)| peer == from).count();
                    if count >= STREAMS_PER_PEER {
                        return Err(NoTurn::TooMany(count));
                    }
                    Arc::default()
                }
            };
            let (end, turn_of, replies) = (end.clone(), turn.clone(), replies.clone());
            open.insert(key.clone(), Slot { seq, end, turn: turn_of, replies, is_abandoned: false });
            turn
        };
        let mut claim = Turn { end, open: self.open.clone(), key, seq, reading: None };
        claim.reading = Some(turn.lock_owned().await);
        Ok(claim)
    }

    /// The number of open streams.
    pub(crate) fn count(&self) -> usize {
        self.open.lock().expect(NO_PANIC).len()
    }

    /// Sends a frame on the answering half of every stream of this incarnation.
    pub(crate) fn notify(&self, from: &UniqueAddress, frame: &Bytes) {
        let open = self.open.lock().expect(NO_PANIC);
        for (_, slot) in open.iter().filter(|((peer, _), _)| peer == from) {
            // Dropped if there is no room: the peer does not read, and would not read this frame either.
            slot.replies.try_send(Ok(OutFrame::Ready(frame.clone()))).ok();
        }
    }

    /// Ends every stream of this incarnation.
    pub(crate) fn end_all_of(&self, from: &UniqueAddress) {
        let open = self.open.lock().expect(NO_PANIC);
        open.iter().filter(|((peer, _), _)| peer == from).for_each(|(_, slot)| slot.end.notify_one());
    }

    /// Ends every stream.
    pub(crate) fn end_all(&self) {
        self.open.lock().expect(NO_PANIC).values().for_each(|slot| slot.end.notify_one());
    }
}

const NO_PANIC: &str = "nothing under this lock panics";

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_newer_stream_waits_for_the_older_and_an_older_one_is_refused() {
        let streams = Streams::default();
        let peer: UniqueAddress = "a:1#1".parse().unwrap();
        let (replies, _answers) = mpsc::channel(1);
        let supersede = |seq| streams.supersede(&peer, Lane::CONTROL, seq, &replies);
        let first = supersede(2).await.expect("it is the first");
        assert!(supersede(1).await.is_err());
        let mut second = Box::pin(supersede(3));
        let mut waits = async || tokio::time::timeout(std::time::Duration::ZERO, &mut second).await.is_err();
        assert!(waits().await, "the older one still reads");
        first.end.notified().await;
        assert!(waits().await, "told to end, it has not ended yet");
        drop(first);
        let second = second.await.expect("the older one has stopped");
        assert_eq!(streams.count(), 1, "the end of an older stream does not remove the newer");
        assert!(supersede(3).await.is_err());
        drop(second);
        assert_eq!(streams.count(), 0);
    }

    /// Cluster T24: a stream that breaks while it waits leaves nothing behind, and the next one still waits for the
    /// stream that reads.
    #[tokio::test]
    async fn a_stream_that_ends_before_its_turn_leaves_nothing_behind() {
        let streams = Streams::default();
        let peer: UniqueAddress = "a:1#1".parse().unwrap();
        let (replies, _answers) = mpsc::channel(1);
        let supersede = |seq| Box::pin(streams.supersede(&peer, Lane::CONTROL, seq, &replies));
        let first = supersede(1).await.expect("it is the first");
        let mut second = supersede(2);
        assert!(tokio::time::timeout(std::time::Duration::ZERO, &mut second).await.is_err());
        drop(second);
        let mut third = supersede(3);
        assert!(tokio::time::timeout(std::time::Duration::ZERO, &mut third).await.is_err(), "the first one reads");
        drop(third);
        assert_eq!(streams.count(), 1);
        drop(first);
        assert_eq!(streams.count(), 0);
    }
}
