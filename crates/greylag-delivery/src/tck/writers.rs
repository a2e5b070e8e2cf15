//! Cases of two controllers of one queue: one continues, the other is fenced.

use std::collections::BTreeMap;

use bytes::Bytes;
use greylag_core::Encoded;

use super::case::{
    Case, Checked, confirm, controller, expect, expect_eq, expect_fenced, far_ahead, message, numbers, store, up_to,
};
use super::{QueueBench, Report};
use crate::driver::{DurableProducerQueue, QueueFault};
use crate::queue::{QueueError, QueueState};

/// Number of calls whose order is varied, without and with faults.
const STEPS: u32 = 6;
const STEPS_WITH_FAULTS: u32 = 4;

const FAULTS: [QueueFault; 3] =
    [QueueFault::Unavailable, QueueFault::AnswerLost { done: false }, QueueFault::AnswerLost { done: true }];

pub(super) async fn run<B: QueueBench>(bench: &B, report: &mut Report) {
    report.add("a second controller fences the first, for good", overtaken(bench).await);
    report.add("a number of another controller is fenced, not stored already (64)", stale_number(bench).await);
    report.add("a stale controller whose store failed claims nothing (64)", stale_claim(bench).await);
    report.add("the start of a dead predecessor keeps nobody out (87)", dead_predecessor(bench).await);
    report.add("of two controllers exactly one goes on, in every order (87)", interleaved(bench).await);
    report.add("the same with every single failure of a write (87)", interleaved_with_faults(bench).await);
}

async fn overtaken<B: QueueBench>(bench: &B) -> Checked {
    let case = Case::new(bench, "overtaken");
    let (mut first, _) = case.loaded(1).await?;
    store(&mut first, [1]).await?;
    let (mut second, state) = case.loaded(2).await?;
    expect_eq(&numbers(&state), &vec![1], "what the second one finds")?;
    // Each kind of call of the overtaken controller must be fenced, whichever comes first.
    expect_fenced(&confirm(&mut first, up_to("", 1, far_ahead())).await, "a confirmation by the first")?;
    expect_fenced(&store(&mut first, [2]).await, "a store by the first")?;
    expect_fenced(&first.load(&controller(1)).await, "a load by the first, which would take the queue from its owner")?;
    expect_fenced(&store(&mut first, [2]).await, "a store by the first after that")?;
    bench.close(first).await;
    expect_eq(&store(&mut second, [2]).await?, &2, "a store by the second, undisturbed")?;
    bench.close(second).await;
    let state = case.stored(3).await?;
    expect_eq(&numbers(&state), &vec![1, 2], "the messages")
}

async fn stale_number<B: QueueBench>(bench: &B) -> Checked {
    let case = Case::new(bench, "stale-number");
    let (mut stale, _) = case.loaded(1).await?;
    let (mut owner, _) = case.loaded(2).await?;
    owner.store_message_sent(vec![message(1, "", "b")]).await?;
    expect_fenced(&stale.store_message_sent(vec![message(1, "", "a")]).await, "a store of a number of another one")?;
    bench.close(stale).await;
    expect_eq(&store(&mut owner, [2]).await?, &2, "a store by the owner")?;
    bench.close(owner).await;
    let state = case.stored(3).await?;
    let texts: Vec<&Bytes> = state.unconfirmed.iter().map(|sent| &sent.message.payload).collect();
    expect_eq(&texts, &vec![&Bytes::from("b"), &Bytes::from("order 2")], "the messages")
}

async fn stale_claim<B: QueueBench>(bench: &B) -> Checked {
    let case = Case::new(bench, "stale-claim");
    let (mut stale, _) = case.loaded(1).await?;
    case.plan(0, QueueFault::AnswerLost { done: false }).await?;
    let answer = stale.store_message_sent(vec![message(1, "", "a")]).await;
    expect_eq(&answer, &Err(QueueError::OutcomeUnknown), "a store whose answer is lost")?;
    let (mut owner, owned) = case.loaded(2).await?;
    expect(owned.unconfirmed.is_empty(), "it was not stored")?;
    owner.store_message_sent(vec![message(1, "", "b")]).await?;
    let before = case.writes().await;
    expect_fenced(&stale.load(&controller(1)).await, "the stale one's load")?;
    expect_eq(&case.writes().await, &before, "the number of writes: no claim was made")?;
    expect_fenced(&stale.store_message_sent(vec![message(1, "", "a")]).await, "its store")?;
    expect_eq(&store(&mut owner, [2]).await?, &2, "a store by the owner, undisturbed")?;
    bench.close(stale).await;
    bench.close(owner).await;
    let state = case.stored(3).await?;
    expect_eq(&state.epoch.0, &(owned.epoch.0 + 1), "the epoch: nothing raised it meanwhile")?;
    let texts: Vec<&Bytes> = state.unconfirmed.iter().map(|sent| &sent.message.payload).collect();
    expect_eq(&texts, &vec![&Bytes::from("b"), &Bytes::from("order 2")], "the messages")
}

async fn dead_predecessor<B: QueueBench>(bench: &B) -> Checked {
    for fault in FAULTS {
        let case = Case::new(bench, "dead");
        let (mut predecessor, _) = case.loaded(1).await?;
        store(&mut predecessor, [1]).await?;
        bench.close(predecessor).await;
        let mut queue = case.open().await;
        case.plan(0, fault).await?;
        let _failed = queue.load(&controller(2)).await;
        let state = queue.load(&controller(2)).await;
        expect(state.is_ok(), format!("{fault:?}: the second load was answered {state:?}"))?;
        expect_eq(&numbers(&state?), &vec![1], "the messages")?;
        expect_eq(&store(&mut queue, [2]).await?, &2, "the queue goes on")?;
        bench.close(queue).await;
    }
    Ok(())
}

/// One of the two controllers.
struct Controller<Q> {
    instance: u64,
    queue: Q,
    state: Option<QueueState<Encoded>>,
    /// The number of the message to store, or to store again.
    next: u64,
    is_fenced: bool,
    /// The acknowledged messages, by number.
    acknowledged: BTreeMap<u64, String>,
}

impl<Q: DurableProducerQueue<Encoded>> Controller<Q> {
    fn new(queue: Q, instance: u64) -> Self {
        Self { instance, queue, state: None, next: 0, is_fenced: false, acknowledged: BTreeMap::new() }
    }

    /// Makes the controller's next call: a load if one is needed, otherwise a store of one message, repeated until it
    /// is acknowledged.
    async fn step(&mut self) -> Checked {
        if self.is_fenced {
            return Ok(());
        }
        match self.call().await {
            Ok(()) => {}
            Err(QueueError::Fenced { .. }) => self.is_fenced = true,
            Err(QueueError::NotLoaded | QueueError::NotStored(_) | QueueError::OutcomeUnknown) => self.state = None,
            Err(other) => return Err(other.into()),
        }
        Ok(())
    }

    async fn call(&mut self) -> Result<(), QueueError> {
        if self.state.is_none() {
            let state = self.queue.load(&controller(self.instance)).await?;
            self.next = self.next.max(state.current_seq_nr.get());
            self.state = Some(state);
        } else {
            let text = format!("{} of {}", self.next, self.instance);
            self.queue.store_message_sent(vec![message(self.next, "", text.clone())]).await?;
            self.acknowledged.insert(self.next, text);
            self.next += 1;
        }
        Ok(())
    }
}

async fn interleaved<B: QueueBench>(bench: &B) -> Checked {
    for order in 0..1_u32 << STEPS {
        let case = Case::new(bench, "order");
        one_goes_on(&case, order, STEPS, &format!("order {order:06b}")).await?;
    }
    Ok(())
}

async fn interleaved_with_faults<B: QueueBench>(bench: &B) -> Checked {
    for order in 0..1_u32 << STEPS_WITH_FAULTS {
        for (fault, passing) in FAULTS.into_iter().flat_map(|fault| (0..4).map(move |passing| (fault, passing))) {
            let case = Case::new(bench, "order");
            case.plan(passing, fault).await?;
            let scenario = format!("order {order:04b}, {fault:?} after {passing} writes");
            one_goes_on(&case, order, STEPS_WITH_FAULTS, &scenario).await?;
        }
    }
    Ok(())
}

/// Runs two controllers in the order given by the bits of `order`, then alternately.
async fn one_goes_on<B: QueueBench>(case: &Case<'_, B>, order: u32, steps: u32, scenario: &str) -> Checked {
    let mut one = Controller::new(case.open().await, 1);
    let mut two = Controller::new(case.open().await, 2);
    for step in 0..steps {
        let is_second = order >> step & 1 == 1;
        if is_second { two.step().await? } else { one.step().await? }
    }
    for _ in 0..4 {
        one.step().await?;
        two.step().await?;
    }
    let fenced = (one.is_fenced, two.is_fenced);
    expect(fenced.0 != fenced.1, format!("{scenario}: exactly one is to be fenced, found {fenced:?}"))?;
    let winner = if one.is_fenced { &mut two } else { &mut one };
    let known = winner.acknowledged.len();
    winner.step().await?;
    winner.step().await?;
    expect(winner.acknowledged.len() > known, format!("{scenario}: the winner goes on"))?;

    let acknowledged: Vec<(u64, String)> = one.acknowledged.into_iter().chain(two.acknowledged).collect();
    case.bench.close(one.queue).await;
    case.bench.close(two.queue).await;
    let state = case.stored(3).await?;
    let stored: BTreeMap<u64, &Bytes> =
        state.unconfirmed.iter().map(|sent| (sent.seq_nr.get(), &sent.message.payload)).collect();
    for (seq_nr, text) in acknowledged {
        let kept = stored.get(&seq_nr).is_some_and(|kept| **kept == text);
        expect(kept, format!("{scenario}: message {seq_nr}, acknowledged as {text:?}, is {:?}", stored.get(&seq_nr)))?;
    }
    expect(numbers(&state).into_iter().eq(1..=stored.len() as u64), format!("{scenario}: the numbers have no gap"))
}
