//! The fence: J3, J4, J10, J13, and advancing.

use std::sync::Arc;

use futures::future::join_all;
use futures::poll;
use greylag_core::Generation;
use tokio::task::coop::{consume_budget, has_budget_remaining};

use super::factories::JournalFactory;
use super::harness::{Checked, Stop, ensure, equal, must, skip};
use super::writer::{Writer, event, id, numbers, seq};
use crate::contract::driver::journal_store::Journal;
use crate::contract::driver::memory::AppendFault;
use crate::contract::error::{AdvanceError, AppendError, ClaimError, DeleteError, RejectReason};
use crate::contract::head::Under;
use crate::contract::journal::{Append, Health, ReadRange};
use crate::contract::records::event::{NewEvent, SeqNr, WriterEpoch, WriterUuid};

type J<'a> = &'a Arc<dyn Journal>;

fn is_fenced_by<T: std::fmt::Debug>(what: &str, answer: Result<T, AppendError>, by: &Writer) -> Checked {
    match &answer {
        Err(AppendError::Fenced { current }) if current.epoch == by.epoch() && current.writer_uuid == by.uuid => Ok(()),
        _ => Err(Stop::Failed(format!("{what} must answer Fenced with the head of the newer claim, but: {answer:?}"))),
    }
}

pub(super) async fn claim_fences(journal: J<'_>) -> Checked {
    let old = Writer::with_events(journal, "fences", 3).await?;
    let new = Writer::claim(journal, &old.id, 2).await?;
    ensure(new.epoch() == old.epoch().raised(), || {
        format!("a claim raises the epoch by one: {} after {}", new.epoch(), old.epoch())
    })?;
    is_fenced_by("an append under the old epoch", old.append(4, vec![event("zombie")]).await, &new)?;
    let deleted = old.delete_to(seq(2)).await;
    ensure(matches!(deleted, Err(DeleteError::Fenced { .. })), || {
        format!("a delete under the old epoch must answer Fenced, but: {deleted:?}")
    })?;
    new.expect("what the old owner tried left no trace", &[1, 2, 3]).await?;
    must("append by the new owner", new.append(4, vec![event("4")]).await)?;
    new.expect("numbers", &[1, 2, 3, 4]).await
}

/// Most units of tokio's budget that a turn of a task may have; tokio gives 128.
const TURN: usize = 1024;

/// Uses up the turn's budget, so that tokio's channels and semaphores answer `Pending` although they
/// have room; a busy task meets this by chance.
async fn use_up_the_turn() {
    for _ in 0..TURN {
        if !has_budget_remaining() {
            return;
        }
        consume_budget().await;
    }
}

/// Polls an append once, so that it is under way, and claims: the claim must see the append's events.
async fn append_in_flight(journal: J<'_>, name: &str, cancel: bool) -> Checked {
    for round in 0..20 {
        let old = Writer::claim(journal, &id(&format!("{name}-{round}")), 1).await?;
        let mut append = Box::pin(old.append(1, vec![event("in flight")]));
        if round % 2 == 1 {
            use_up_the_turn().await;
        }
        let mut answer = match poll!(append.as_mut()) {
            std::task::Poll::Ready(answer) => Some(answer),
            std::task::Poll::Pending => None,
        };
        let new = if cancel {
            drop(append);
            Writer::claim(journal, &old.id, 2).await?
        } else if answer.is_some() {
            Writer::claim(journal, &old.id, 2).await?
        } else {
            let (appended, claimed) = futures::join!(append, Writer::claim(journal, &old.id, 2));
            answer = Some(appended);
            claimed?
        };
        let stored = new.read(1, SeqNr::MAX).await?.len() as u64;
        equal("highest of the claim, and what is stored", new.claim.highest.as_u64(), stored)?;
        match answer {
            Some(Ok(_)) => equal("an append that answered Ok before the claim ended is seen by it", stored, 1)?,
            Some(answer) if stored == 0 => is_fenced_by("an append that lost against the claim", answer, &new)?,
            Some(answer) => return Err(Stop::Failed(format!("stored, but the append answers {answer:?}"))),
            // Cancelled before its answer: the append was begun, so it is finished, and the claim waited for it.
            None => equal("a cancelled append is stored all the same", stored, 1)?,
        }
        must("append by the new owner", new.append(u32::from(stored == 1) + 1, vec![event("next")]).await)?;
    }
    Ok(())
}

pub(super) async fn claim_sees_append_in_flight(journal: J<'_>) -> Checked {
    append_in_flight(journal, "in-flight", false).await
}

pub(super) async fn cancelled_append(journal: J<'_>) -> Checked {
    append_in_flight(journal, "cancelled", true).await
}

pub(super) async fn concurrent_claims(journal: J<'_>) -> Checked {
    let id = id("concurrent-claims");
    let generation = Generation::new(1, 1).map_err(|error| Stop::Failed(error.to_string()))?;
    let claims = (1..=10).map(|uuid| {
        let (journal, id, uuid) = (journal.clone(), id.clone(), WriterUuid::from_u128(uuid));
        async move {
            let claim = must("claim", journal.claim(&id, uuid, Under::Generation(generation)).await)?;
            Ok(Writer { journal, id, uuid, claim })
        }
    });
    let mut writers = join_all(claims).await.into_iter().collect::<Checked<Vec<_>>>()?;
    writers.sort_by_key(Writer::epoch);
    let epochs: Vec<u64> = writers.iter().map(|writer| writer.epoch().as_u64()).collect();
    ensure(epochs.windows(2).all(|pair| pair[0] < pair[1]), || format!("epochs must be distinct: {epochs:?}"))?;
    let Some((newest, older)) = writers.split_last() else { return Ok(()) };
    for writer in older {
        is_fenced_by("an append under a smaller epoch", writer.append(1, vec![event("old")]).await, newest)?;
    }
    must("append under the largest epoch", newest.append(1, vec![event("new")]).await)?;
    newest.expect("numbers", &[1]).await
}

pub(super) async fn identical_retry(journal: J<'_>) -> Checked {
    let old = Writer::with_events(journal, "retry", 1).await?;
    let append = old.build(2, vec![event("2"), event("3")]);
    let first = must("append", journal.append(append.clone()).await)?;
    let again = must("its repeat", journal.append(append.clone()).await)?;
    equal("the timestamp answered to the repeat", again, first)?;
    let new = Writer::claim(journal, &old.id, 2).await?;
    must("its repeat after another claim", journal.append(append.clone()).await)?;
    must("append by the new owner", new.append(4, vec![event("4")]).await)?;
    must("its repeat after another append", journal.append(append).await)?;
    new.expect("one copy", &[1, 2, 3, 4]).await?;
    is_fenced_by("a retry of what was never stored", old.append(5, vec![event("5")]).await, &new)
}

pub(super) async fn stale_number_below_deleted(journal: J<'_>) -> Checked {
    let old = Writer::with_events(journal, "stale", 3).await?;
    let new = Writer::claim(journal, &old.id, 2).await?;
    must("delete_to MAX", new.delete_to(SeqNr::MAX).await)?;
    for first in 1..=4 {
        is_fenced_by("a stale writer's append", old.append(first, vec![event("stale")]).await, &new)?;
    }
    for first in 1..=3 {
        let refused = new.append(first, vec![event("taken once")]).await;
        equal("append of a deleted number", refused, Err(AppendError::Conflict { highest: seq(3) }))?;
    }
    new.expect("nothing came back", &[]).await?;
    must("append of the next number", new.append(4, vec![event("4")]).await)?;
    new.expect("numbers", &[4]).await
}

pub(super) async fn advance(journal: J<'_>) -> Checked {
    let writer = Writer::claim(journal, &id("advance"), 1).await?;
    let to = |number| journal.advance(&writer.id, writer.epoch(), seq(number));
    let stale = journal.advance(&writer.id, WriterEpoch::NONE, seq(7)).await;
    ensure(matches!(stale, Err(AdvanceError::Fenced { .. })), || {
        format!("advance under another epoch must answer Fenced, but: {stale:?}")
    })?;
    must("advance of an empty history", to(7).await)?;
    must("its repeat", to(7).await)?;
    let head = must("head", journal.head(&writer.id).await)?;
    equal("highest and deleted_to", (head.highest, head.deleted_to), (seq(7), seq(7)))?;
    for (what, number) in [("downwards", 3), ("upwards again", 9)] {
        let answer = to(number).await;
        ensure(matches!(answer, Err(AdvanceError::NotEmpty { .. })), || {
            format!("advance {what} must be refused, but: {answer:?}")
        })?;
    }
    let conflict = writer.append(1, vec![event("1")]).await;
    equal("append of a number skipped", conflict, Err(AppendError::Conflict { highest: seq(7) }))?;
    must("append after it", writer.append(8, vec![event("8")]).await)?;
    writer.expect("numbers", &[8]).await?;
    let written = Writer::with_events(journal, "advance-written", 1).await?;
    let answer = journal.advance(&written.id, written.epoch(), seq(9)).await;
    equal("advance of a written history", answer, Err(AdvanceError::NotEmpty { highest: seq(1) }))?;
    numbers_end(journal).await
}

/// The last number can be used and read; there is none after it.
async fn numbers_end(journal: J<'_>) -> Checked {
    let writer = Writer::claim(journal, &id("advance-far"), 1).await?;
    must("advance to the end", journal.advance(&writer.id, writer.epoch(), SeqNr::LAST.previous()).await)?;
    let append = |first, text: &str| Append { first, ..writer.build(1, vec![event(text)]) };
    must("append of the last number", journal.append(append(SeqNr::LAST, "last")).await)?;
    let range = ReadRange::new(SeqNr::LAST, SeqNr::MAX);
    let page = must("read of the last number", journal.read(&writer.id, range).await)?;
    equal("numbers", numbers(&page.records), vec![SeqNr::LAST.as_u64()])?;
    let beyond = journal.append(append(SeqNr::MAX, "beyond")).await;
    equal("append beyond it", beyond, Err(AppendError::Rejected(RejectReason::SeqNrOverflow)))?;
    let used_up = Writer::claim(journal, &id("advance-all"), 1).await?;
    must("advance beyond every number", journal.advance(&used_up.id, used_up.epoch(), SeqNr::MAX).await)?;
    let page = must("read of no number", journal.read(&used_up.id, ReadRange::all()).await)?;
    equal("numbers of none", (numbers(&page.records), page.next), (Vec::new(), None))
}

pub(super) async fn flood_of_stale_appends(journal: J<'_>) -> Checked {
    let old = Writer::with_events(journal, "flood", 1).await?;
    let new = Writer::claim(journal, &old.id, 2).await?;
    for _ in 0..200 {
        is_fenced_by("a stale append", old.append(2, vec![event("stale")]).await, &new)?;
        let conflict = new.append(9, vec![event("hole")]).await;
        ensure(matches!(conflict, Err(AppendError::Conflict { .. })), || format!("a hole answers {conflict:?}"))?;
    }
    equal("health", journal.health(), Health::Up)?;
    must("append by the owner", new.append(2, vec![event("2")]).await)?;
    Writer::with_events(journal, "flood-other", 1).await.map(drop)
}

pub(super) async fn generations(journal: J<'_>) -> Checked {
    let id = id("generations");
    let generation = |seq| Generation::new(5, seq).map_err(|error| Stop::Failed(error.to_string()));
    let claim = async |uuid: u128, under| {
        let uuid = WriterUuid::from_u128(uuid);
        journal.claim(&id, uuid, under).await.map(|claim| Writer {
            journal: journal.clone(),
            id: id.clone(),
            uuid,
            claim,
        })
    };
    let first = must("first claim", claim(1, Under::Generation(generation(2)?)).await)?;
    must("append", first.append(1, vec![event("1")]).await)?;
    let before = must("head", journal.head(&id).await)?;
    equal("generation of the head", before.generation, Some(generation(2)?))?;
    let refused = claim(2, Under::Generation(generation(1)?)).await.map(|_| ());
    equal("claim under a smaller generation", refused, Err(ClaimError::Fenced { current: before }))?;
    equal("it changed nothing", must("head", journal.head(&id).await)?, before)?;
    must("append by the first owner", first.append(2, vec![event("2")]).await)?;
    let equal_one = must("claim under an equal generation", claim(3, Under::Generation(generation(2)?)).await)?;
    is_fenced_by("an append before that claim", first.append(3, vec![event("3")]).await, &equal_one)?;
    must("claim under a greater generation", claim(4, Under::Generation(generation(3)?)).await)?;
    let stored = must("head", journal.head(&id).await)?;
    equal("generation of the head", stored.generation, Some(generation(3)?))?;
    let seen = must("claim under the epoch stored", claim(5, Under::Seen(stored.epoch)).await)?;
    equal("highest", seen.claim.highest, seq(2))?;
    let after = must("head", journal.head(&id).await)?;
    equal("a claim without a generation leaves the greatest", after.generation, Some(generation(3)?))?;
    let refused = claim(6, Under::Generation(generation(2)?)).await.map(|_| ());
    equal("claim under a smaller generation", refused, Err(ClaimError::Fenced { current: after }))
}

pub(super) async fn unanswered_try(factory: &impl JournalFactory, journal: J<'_>) -> Checked {
    use AppendFault::{DeleteAllBefore, LoseAnswer, StorageLow, Unavailable};
    for (number, then) in [StorageLow, Unavailable, DeleteAllBefore].into_iter().enumerate() {
        for stored in [true, false] {
            let writer = Writer::with_events(journal, &format!("unanswered-{number}-{stored}"), 1).await?;
            if !factory.script_append(journal, &writer.id, &[LoseAnswer { stored }, then]).await {
                return skip("no hook to lose an answer");
            }
            let answer = writer.append(2, vec![event("2")]).await;
            let what = || {
                format!(
                    "after an unanswered try (stored: {stored}), {then:?} must lead to Ok or Unknown, but: {answer:?}"
                )
            };
            ensure(matches!(answer, Ok(_) | Err(AppendError::Unknown(_))), what)?;
            let highest = must("head", journal.head(&writer.id).await)?.highest;
            ensure(answer.is_err() || highest == seq(2), || "Ok, but not stored".to_owned())?;
        }
    }
    Ok(())
}

pub(super) async fn repeated_claim(journal: J<'_>) -> Checked {
    let first = Writer::with_events(journal, "repeated", 1).await?;
    let seen = Under::Seen(WriterEpoch::NONE);
    let again = must("a repeat of the claim", journal.claim(&first.id, first.uuid, seen).await)?;
    equal("its epoch", again.epoch, first.epoch())?;
    must("append after it", first.append(2, vec![event("2")]).await)?;
    let generation = Generation::new(1, 1).map_err(|error| Stop::Failed(error.to_string()))?;
    let owned = id("repeated-generation");
    let uuid = WriterUuid::from_u128(1);
    let one = must("claim", journal.claim(&owned, uuid, Under::Generation(generation)).await)?;
    let two = must("its repeat", journal.claim(&owned, uuid, Under::Generation(generation)).await)?;
    equal("its epoch", two, one)
}

pub(super) async fn retry_with_other_content(journal: J<'_>) -> Checked {
    let writer = Writer::with_events(journal, "other-content", 1).await?;
    must("append", writer.append(2, vec![event("2"), event("3")]).await)?;
    let before = writer.read(1, SeqNr::MAX).await?;
    let conflict = Err(AppendError::Conflict { highest: seq(3) });
    let other = writer.append(2, vec![event("2"), event("other")]).await;
    equal("same first and count, other content", other, conflict.clone())?;
    let tagged = NewEvent { tags: ["tag".to_owned()].into(), ..event("3") };
    equal("same payload, other tags", writer.append(2, vec![event("2"), tagged]).await, conflict)?;
    equal("the first content is intact", writer.read(1, SeqNr::MAX).await?, before)
}

pub(super) async fn claim_under_other_epoch(journal: J<'_>) -> Checked {
    let first = Writer::with_events(journal, "other-epoch", 1).await?;
    let second = Writer::claim(journal, &first.id, 2).await?;
    let before = must("head", journal.head(&first.id).await)?;
    for (uuid, seen) in [(1, WriterEpoch::NONE), (1, first.epoch()), (3, first.epoch()), (3, second.epoch().raised())] {
        let answer = journal.claim(&first.id, WriterUuid::from_u128(uuid), Under::Seen(seen)).await;
        let what = format!("claim of writer {uuid} under epoch {seen}, while {} is stored", second.epoch());
        equal(&what, answer, Err(ClaimError::Fenced { current: before }))?;
    }
    equal("nothing changed", must("head", journal.head(&first.id).await)?, before)?;
    let again = journal.claim(&first.id, second.uuid, Under::Seen(first.epoch())).await;
    equal("epoch answered to the writer stored", must("its claim", again)?.epoch, second.epoch())?;
    must("append by the writer stored", second.append(2, vec![event("2")]).await).map(drop)
}
