//! Helpers of the cases: a queue with a fresh name, its controllers, and expectations.

use std::fmt::Debug;

use bytes::Bytes;
use greylag_core::{CodecId, Encoded, NodeAddress, Uid, UniqueAddress};

use super::QueueBench;
use crate::driver::{DurableProducerQueue, QueueFault};
use crate::ids::{ControllerRef, SeqNr};
use crate::queue::{Confirmation, MessageSent, QueueError, QueueState};

pub(super) type Checked<T = ()> = Result<T, Failure>;

pub(super) enum Failure {
    Skipped(&'static str),
    Wrong(String),
}

impl From<QueueError> for Failure {
    fn from(error: QueueError) -> Self {
        Self::Wrong(format!("a call failed: {error}"))
    }
}

pub(super) fn expect(holds: bool, what: impl Into<String>) -> Checked {
    if holds { Ok(()) } else { Err(Failure::Wrong(what.into())) }
}

pub(super) fn expect_eq<T: PartialEq + Debug>(found: &T, expected: &T, what: &str) -> Checked {
    expect(found == expected, format!("{what}: expected {expected:?}, found {found:?}"))
}

pub(super) fn expect_fenced<T: Debug>(answer: &Result<T, QueueError>, what: &str) -> Checked {
    expect(matches!(answer, Err(QueueError::Fenced { .. })), format!("{what}: expected Fenced, found {answer:?}"))
}

/// A time long ago: confirmations of that time may be forgotten.
pub(super) const LONG_AGO: u64 = 1;

/// A queue with a name that no other case and no other run uses.
pub(super) struct Case<'a, B> {
    pub(super) bench: &'a B,
    pub(super) name: String,
}

impl<'a, B: QueueBench> Case<'a, B> {
    pub(super) fn new(bench: &'a B, name: &str) -> Self {
        Self { bench, name: format!("conformance-{name}-{}", uuid::Uuid::new_v4().simple()) }
    }

    pub(super) async fn open(&self) -> B::Queue {
        self.bench.open(&self.name).await
    }

    /// A queue that controller `instance` has loaded.
    pub(super) async fn loaded(&self, instance: u64) -> Result<(B::Queue, QueueState<Encoded>), QueueError> {
        let mut queue = self.open().await;
        let state = queue.load(&controller(instance)).await?;
        Ok((queue, state))
    }

    /// The state that controller `instance` loads; closes the queue afterwards.
    pub(super) async fn stored(&self, instance: u64) -> Result<QueueState<Encoded>, QueueError> {
        let (queue, state) = self.loaded(instance).await?;
        self.bench.close(queue).await;
        Ok(state)
    }

    pub(super) async fn plan(&self, passing: u32, fault: QueueFault) -> Checked {
        let planned = self.bench.plan(&self.name, passing, fault).await;
        if planned { Ok(()) } else { Err(Failure::Skipped("no hook that lets a write fail")) }
    }

    /// The number of writes so far; always 0 if they are not counted.
    pub(super) async fn writes(&self) -> u64 {
        self.bench.writes(&self.name).await.unwrap_or_default()
    }

    /// Skips the case if writes are not counted.
    pub(super) async fn counts_writes(&self) -> Checked {
        let counts = self.bench.writes(&self.name).await.is_some();
        if counts { Ok(()) } else { Err(Failure::Skipped("no hook that counts writes")) }
    }
}

pub(super) fn controller(instance: u64) -> ControllerRef {
    let address = NodeAddress::new("localhost", 17355).expect("a valid address");
    let node = UniqueAddress::new(address, Uid::new(1).expect("not zero"));
    ControllerRef { node, path: "delivery/conformance".into(), instance }
}

pub(super) fn message(seq_nr: u64, qualifier: &str, payload: impl Into<Bytes>) -> MessageSent<Encoded> {
    let message = Encoded { codec: CodecId::JSON, manifest: "order".into(), payload: payload.into() };
    MessageSent { seq_nr: SeqNr(seq_nr), message, ack: false, qualifier: qualifier.into(), timestamp_ms: LONG_AGO }
}

pub(super) fn sent(seq_nrs: impl IntoIterator<Item = u64>) -> Vec<MessageSent<Encoded>> {
    seq_nrs.into_iter().map(|seq_nr| message(seq_nr, "", format!("order {seq_nr}"))).collect()
}

pub(super) async fn store(
    queue: &mut impl DurableProducerQueue<Encoded>,
    seq_nrs: impl IntoIterator<Item = u64>,
) -> Result<u64, QueueError> {
    queue.store_message_sent(sent(seq_nrs)).await.map(SeqNr::get)
}

pub(super) fn up_to(qualifier: &str, seq_nr: u64, timestamp_ms: u64) -> Confirmation {
    Confirmation::UpTo { qualifier: qualifier.into(), seq_nr: SeqNr(seq_nr), timestamp_ms }
}

pub(super) fn exact(seq_nrs: impl IntoIterator<Item = u64>) -> Confirmation {
    Confirmation::Exact { seq_nrs: seq_nrs.into_iter().map(SeqNr).collect(), timestamp_ms: LONG_AGO }
}

/// A time far in the future: confirmations of that time may not be forgotten.
pub(super) fn far_ahead() -> u64 {
    u64::from(u32::MAX) * 1000
}

pub(super) async fn confirm(
    queue: &mut impl DurableProducerQueue<Encoded>,
    confirmation: Confirmation,
) -> Result<(), QueueError> {
    queue.store_message_confirmed(vec![confirmation]).await
}

pub(super) fn numbers(state: &QueueState<Encoded>) -> Vec<u64> {
    state.unconfirmed.iter().map(|sent| sent.seq_nr.get()).collect()
}
