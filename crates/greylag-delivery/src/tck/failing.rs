//! Cases of a failing store: the queue's answers, and how a controller continues.

use super::case::{Case, Checked, confirm, controller, expect, expect_eq, far_ahead, numbers, sent, store, up_to};
use super::{QueueBench, Report};
use crate::driver::{DurableProducerQueue, QueueFault};
use crate::queue::QueueError;

const FAULTS: [QueueFault; 4] = [
    QueueFault::Unavailable,
    QueueFault::Rejected,
    QueueFault::AnswerLost { done: false },
    QueueFault::AnswerLost { done: true },
];

pub(super) async fn run<B: QueueBench>(bench: &B, report: &mut Report) {
    report.add("a failed store is told, and its repeat stores once (§4.2)", failed_store(bench).await);
    report.add("a failed confirmation is told, and its repeat counts", failed_confirmation(bench).await);
    report.add("a failed load is told, and its epoch is not used again", failed_load(bench).await);
}

/// Whether the error describes the outcome of a call with this fault.
fn tells(error: &QueueError, fault: QueueFault) -> bool {
    match fault {
        QueueFault::Unavailable => matches!(error, QueueError::NotStored(_) | QueueError::OutcomeUnknown),
        QueueFault::Rejected => matches!(error, QueueError::Rejected(_)),
        QueueFault::AnswerLost { .. } => matches!(error, QueueError::OutcomeUnknown),
    }
}

async fn failed_store<B: QueueBench>(bench: &B) -> Checked {
    for fault in FAULTS {
        let case = Case::new(bench, "fault-store");
        let (mut queue, first) = case.loaded(1).await?;
        store(&mut queue, [1]).await?;
        case.plan(0, fault).await?;
        let answer = store(&mut queue, [2, 3]).await;
        let is_told = answer.as_ref().is_err_and(|error| tells(error, fault));
        expect(is_told, format!("{fault:?}: the answer to the store was {answer:?}"))?;
        let state = queue.load(&controller(1)).await?;
        expect(state.epoch > first.epoch, format!("{fault:?}: the load raises the epoch"))?;
        let stored = if fault == (QueueFault::AnswerLost { done: true }) { vec![1, 2, 3] } else { vec![1] };
        expect_eq(&numbers(&state), &stored, &format!("{fault:?}: the messages"))?;
        expect_eq(&store(&mut queue, [2, 3]).await?, &3, "the same batch again")?;
        bench.close(queue).await;
        expect_eq(&case.stored(2).await?.unconfirmed, &sent(1..=3), "each message, once")?;
    }
    Ok(())
}

async fn failed_confirmation<B: QueueBench>(bench: &B) -> Checked {
    for fault in FAULTS {
        let case = Case::new(bench, "fault-confirm");
        let (mut queue, _) = case.loaded(1).await?;
        store(&mut queue, 1..=3).await?;
        case.plan(0, fault).await?;
        let answer = confirm(&mut queue, up_to("", 2, far_ahead())).await;
        let is_told = answer.as_ref().is_err_and(|error| tells(error, fault));
        expect(is_told, format!("{fault:?}: the answer to the confirmation was {answer:?}"))?;
        let state = queue.load(&controller(1)).await?;
        let left = if fault == (QueueFault::AnswerLost { done: true }) { vec![3] } else { vec![1, 2, 3] };
        expect_eq(&numbers(&state), &left, &format!("{fault:?}: the messages"))?;
        confirm(&mut queue, up_to("", 2, far_ahead())).await?;
        bench.close(queue).await;
        expect_eq(&numbers(&case.stored(2).await?), &vec![3], "the messages after the repeat")?;
    }
    Ok(())
}

async fn failed_load<B: QueueBench>(bench: &B) -> Checked {
    for fault in FAULTS {
        let case = Case::new(bench, "fault-load");
        let first = case.stored(1).await?;
        let mut queue = case.open().await;
        case.plan(0, fault).await?;
        let answer = queue.load(&controller(2)).await;
        expect(answer.is_err(), format!("{fault:?}: the load was answered though its write failed"))?;
        let unloaded = store(&mut queue, [1]).await;
        expect_eq(&unloaded, &Err(QueueError::NotLoaded), &format!("{fault:?}: a store after it"))?;
        let state = queue.load(&controller(2)).await?;
        let raised =
            if fault == (QueueFault::AnswerLost { done: true }) { first.epoch.0 + 2 } else { first.epoch.0 + 1 };
        expect(state.epoch.0 >= raised, format!("{fault:?}: epoch {} is used a second time", state.epoch))?;
        expect_eq(&store(&mut queue, [1]).await?, &1, "the queue goes on")?;
        bench.close(queue).await;
    }
    Ok(())
}
