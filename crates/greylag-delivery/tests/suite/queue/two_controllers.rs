//! Two controllers of one queue: one continues, the other is fenced.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use greylag_core::Encoded;
use greylag_delivery::queue::{QueueError, QueueState};
use greylag_delivery::{DurableProducerQueue, SeqNr};
use greylag_persistence::driver::StoreFault;
use greylag_persistence::{FaultyJournal, InMemoryJournal, InMemorySnapshots, JournalOp, Stores};

use crate::queue::support::*;

fn faulty() -> (Arc<FaultyJournal>, Stores) {
    let journal = Arc::new(FaultyJournal::new(Arc::new(InMemoryJournal::default())));
    let stores = Stores::new(journal.clone(), Arc::new(InMemorySnapshots::default()));
    (journal, stores)
}

fn is_fenced<T>(answer: &Result<T, QueueError>) -> bool {
    matches!(answer, Err(QueueError::Fenced { .. }))
}

/// Of delivery §4.1: every write is made under the epoch of its load, and a write under an older epoch is fenced.
#[tokio::test]
async fn a_second_controller_fences_the_first() {
    let stores = Stores::in_memory();
    let (mut first, _) = loaded(&stores, 1).await;
    store(&mut first, [1]).await.unwrap();
    let (mut second, state) = loaded(&stores, 2).await;
    assert_eq!(numbers(&state), [1]);
    assert!(is_fenced(&store(&mut first, [2]).await));
    assert!(is_fenced(&store(&mut first, [2]).await), "for good");
    assert!(is_fenced(&confirm(&mut first, "", 1).await));
    assert!(is_fenced(&first.load(&controller(1)).await), "loading again would take it from its owner");
    assert_eq!(store(&mut second, [2]).await, Ok(2));
    first.close().await;
}

/// Scenario delivery 64: K0's store of [1: a] has an unknown outcome, and is not stored. K1 starts and stores [1: b].
/// K0's queue restarts: it is fenced, without a claim; K1 goes on undisturbed.
#[tokio::test(start_paused = true)]
async fn scenario_64_a_stale_controller_claims_nothing() {
    let (journal, stores) = faulty();
    let (mut stale, _) = loaded(&stores, 1).await;
    journal.plan(None, JournalOp::Append, 0, StoreFault::AnswerLost { done: false });
    let unknown = stale.store_message_sent(vec![message(1, "", "a")]).await;
    assert_eq!(unknown, Err(QueueError::OutcomeUnknown));
    let (mut owner, state) = loaded(&stores, 2).await;
    assert_eq!(state.current_seq_nr, SeqNr(1));
    owner.store_message_sent(vec![message(1, "", "b")]).await.unwrap();

    let head = stores.journal.head(&id()).await.unwrap();
    assert!(is_fenced(&stale.load(&controller(1)).await));
    let again = stale.store_message_sent(vec![message(1, "", "a")]).await;
    assert!(is_fenced(&again), "{again:?}");
    assert_eq!(stores.journal.head(&id()).await.unwrap(), head, "no claim was made");
    assert_eq!(store(&mut owner, [2]).await, Ok(2));
    let texts: Vec<Bytes> =
        loaded(&stores, 3).await.1.unconfirmed.into_iter().map(|sent| sent.message.payload).collect();
    assert_eq!(texts, ["b", "order 2"]);
}

/// Scenario delivery 87: the predecessor is dead. After any outcome of the first claim, the queue can be loaded
/// although the newest start is the predecessor's.
#[tokio::test(start_paused = true)]
async fn scenario_87_start_of_a_dead_predecessor_blocks_no_successor() {
    for fault in
        [StoreFault::AnswerLost { done: true }, StoreFault::AnswerLost { done: false }, StoreFault::Unavailable]
    {
        let (journal, stores) = faulty();
        let (mut predecessor, _) = loaded(&stores, 1).await;
        store(&mut predecessor, [1]).await.unwrap();
        predecessor.close().await;
        journal.plan(None, JournalOp::Claim, 0, fault);
        let (mut queue, state) = loaded(&stores, 2).await;
        assert_eq!(numbers(&state), [1], "{fault:?}");
        assert_eq!(store(&mut queue, [2]).await, Ok(2), "{fault:?}");
    }
}

/// One of the two controllers.
struct Controller {
    instance: u64,
    queue: Queue,
    state: Option<QueueState<Encoded>>,
    /// The number of the message to store, or to store again.
    next: u64,
    is_fenced: bool,
    /// The acknowledged messages, by number.
    acknowledged: BTreeMap<u64, String>,
}

impl Controller {
    fn new(stores: &Stores, instance: u64) -> Self {
        let (queue, acknowledged) = (open(stores), BTreeMap::new());
        Self { instance, queue, state: None, next: 0, is_fenced: false, acknowledged }
    }

    /// Makes the controller's next call: a load if one is needed, otherwise a store of one message, repeated until it
    /// is acknowledged.
    async fn step(&mut self) {
        if self.is_fenced {
            return;
        }
        let error = if self.state.is_none() {
            match self.queue.load(&controller(self.instance)).await {
                Ok(state) => {
                    self.next = self.next.max(state.current_seq_nr.get());
                    self.state = Some(state);
                    return;
                }
                Err(error) => error,
            }
        } else {
            let text = format!("{} of {}", self.next, self.instance);
            match self.queue.store_message_sent(vec![message(self.next, "", &text)]).await {
                Ok(_) => {
                    self.acknowledged.insert(self.next, text);
                    self.next += 1;
                    return;
                }
                Err(error) => error,
            }
        };
        match error {
            QueueError::Fenced { .. } => self.is_fenced = true,
            QueueError::NotLoaded | QueueError::NotStored(_) | QueueError::OutcomeUnknown => self.state = None,
            other => panic!("controller {}: {other}", self.instance),
        }
    }
}

/// Scenario delivery 87: two living controllers without generations, in every order of six calls, with every single
/// fault of a claim or an append: exactly one continues, and acknowledged messages are stored.
#[tokio::test(start_paused = true)]
async fn scenario_87_of_two_controllers_exactly_one_goes_on() {
    const STEPS: u32 = 6;
    let lost = [StoreFault::AnswerLost { done: true }, StoreFault::AnswerLost { done: false }, StoreFault::Unavailable];
    let mut faults = vec![None];
    for fault in lost {
        faults.extend((0..4).map(|nth| Some((JournalOp::Append, nth, fault))));
        faults.extend((0..2).map(|nth| Some((JournalOp::Claim, nth, fault))));
    }
    for (order, fault) in (0..1_u32 << STEPS).flat_map(|order| faults.iter().map(move |fault| (order, *fault))) {
        let (journal, stores) = faulty();
        if let Some((op, nth, fault)) = fault {
            journal.plan(None, op, nth, fault);
        }
        let mut controllers = [Controller::new(&stores, 1), Controller::new(&stores, 2)];
        for step in 0..STEPS {
            controllers[(order >> step & 1) as usize].step().await;
        }
        for _ in 0..4 {
            for controller in &mut controllers {
                controller.step().await;
            }
        }
        let scenario = format!("order {order:07b}, fault {fault:?}");
        let [one, two] = &mut controllers;
        assert!(one.is_fenced != two.is_fenced, "{scenario}: exactly one is fenced");
        let winner = if one.is_fenced { two } else { one };
        let known = winner.acknowledged.len();
        winner.step().await;
        winner.step().await;
        assert!(winner.acknowledged.len() > known, "{scenario}: it goes on");

        let state = loaded(&stores, 3).await.1;
        let stored: BTreeMap<u64, Bytes> =
            state.unconfirmed.into_iter().map(|sent| (sent.seq_nr.get(), sent.message.payload)).collect();
        for (seq_nr, text) in controllers.iter().flat_map(|controller| &controller.acknowledged) {
            assert_eq!(stored.get(seq_nr), Some(&Bytes::from(text.clone())), "{scenario}: message {seq_nr}");
        }
        assert!(stored.keys().copied().eq(1..=stored.len() as u64), "{scenario}: no gap");
    }
}
