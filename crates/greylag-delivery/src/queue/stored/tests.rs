//! Tests of the rules, without a store.

use super::*;

fn sent(seq_nr: u64, qualifier: &str) -> MessageSent<&'static str> {
    MessageSent { seq_nr: SeqNr(seq_nr), message: "m", ack: false, qualifier: qualifier.into(), timestamp_ms: 1 }
}

fn queue(messages: &[(u64, &str)]) -> StoredQueue<&'static str> {
    let mut queue = StoredQueue::default();
    messages.iter().for_each(|(seq_nr, qualifier)| queue.add(sent(*seq_nr, qualifier)));
    queue
}

fn up_to(qualifier: &str, seq_nr: u64, timestamp_ms: u64) -> Confirmation {
    Confirmation::UpTo { qualifier: qualifier.into(), seq_nr: SeqNr(seq_nr), timestamp_ms }
}

fn exact(seq_nrs: &[u64]) -> Confirmation {
    Confirmation::Exact { seq_nrs: seq_nrs.iter().copied().map(SeqNr).collect(), timestamp_ms: 1 }
}

fn numbers<'a, M: 'a>(messages: impl IntoIterator<Item = &'a MessageSent<M>>) -> Vec<u64> {
    messages.into_iter().map(|message| message.seq_nr.get()).collect()
}

/// The numbers to be written of a batch with these numbers, by a controller that knows all up to `known`.
fn judged(queue: &StoredQueue<&'static str>, batch: &[u64], known: u64) -> Result<Vec<u64>, QueueError> {
    let batch = batch.iter().map(|seq_nr| sent(*seq_nr, "")).collect();
    queue.judge_batch(batch, SeqNr(known)).map(|batch| numbers(&batch))
}

/// Of delivery D1: numbers continue after the last message.
#[test]
fn a_message_is_added_at_the_end() {
    let queue = queue(&[(1, ""), (2, "")]);
    assert_eq!((queue.current(), numbers(queue.unconfirmed())), (SeqNr(3), vec![1, 2]));
    assert_eq!(StoredQueue::<()>::default().current(), SeqNr(1));
}

/// After a damaged history, one entity's confirmation does not remove another one's message.
#[test]
fn a_number_that_comes_twice_is_of_the_later_qualifier() {
    let mut queue = queue(&[(1, "q1"), (1, "q2")]);
    queue.confirm(&up_to("q1", 1, 7));
    assert_eq!(numbers(queue.unconfirmed()), [1]);
    queue.confirm(&up_to("q2", 1, 8));
    assert_eq!(numbers(queue.unconfirmed()), [0; 0]);
}

/// Scenario delivery 40, of delivery D4: stored messages are not written again, however old they are; of an overlapping
/// batch only the missing part is written; a gap is refused at once.
#[test]
fn scenario_40_a_batch_is_stored_once() {
    let queue = queue(&[(1, ""), (2, ""), (3, "")]);
    let out_of_order = |expected| Err(QueueError::OutOfOrder { expected: SeqNr(expected) });
    for (batch, written) in [
        (&[4, 5][..], Ok(vec![4, 5])),
        (&[3], Ok(vec![])),
        (&[1], Ok(vec![])),
        (&[1, 2], Ok(vec![])),
        (&[2, 3, 4, 5], Ok(vec![4, 5])),
        (&[], Ok(vec![])),
        (&[5], out_of_order(4)),
        (&[6, 7], out_of_order(4)),
        (&[4, 6], out_of_order(5)),
        (&[4, 4], out_of_order(5)),
        (&[0, 1], out_of_order(4)),
    ] {
        assert_eq!(judged(&queue, batch, 3), written, "{batch:?}");
    }
}

/// Scenario delivery 64: a number that this controller neither assigned nor loaded belongs to another controller's
/// message.
#[test]
fn scenario_64_number_of_another_controller_is_fenced_not_acknowledged() {
    let queue = queue(&[(1, ""), (2, "")]);
    let fenced = Err(QueueError::Fenced { by: None });
    assert_eq!(judged(&queue, &[1], 0), fenced);
    assert_eq!(judged(&queue, &[1, 2], 1), fenced);
    assert_eq!(judged(&queue, &[2, 3], 1), fenced, "not even the part that is missing is written");
    assert_eq!(judged(&queue, &[1], 1), Ok(vec![]));
}

#[test]
fn the_last_number_of_all_is_never_given() {
    let queue = StoredQueue { current: SeqNr(u64::MAX), ..queue(&[]) };
    assert!(matches!(judged(&queue, &[u64::MAX], 0), Err(QueueError::Rejected(_))));
    assert_eq!(judged(&queue, &[u64::MAX - 1], u64::MAX - 1), Ok(vec![]));
}

/// Scenario delivery 41, of delivery D2 and D5.
#[test]
fn scenario_41_a_confirmation_counts_once() {
    let mut queue = queue(&[(1, ""), (2, ""), (3, "")]);
    let news = queue.judge_confirmations(vec![up_to("", 2, 7)]).unwrap();
    assert_eq!(news, [up_to("", 2, 7)]);
    news.iter().for_each(|confirmation| queue.confirm(confirmation));
    assert_eq!((numbers(queue.unconfirmed()), queue.highest_confirmed()), (vec![3], SeqNr(2)));
    for again in [1, 2] {
        assert_eq!(queue.judge_confirmations(vec![up_to("", again, 8)]), Ok(vec![]));
    }
}

/// Scenario delivery 42: a confirmation affects only its own qualifier, and the highest number only rises.
#[test]
fn scenario_42_a_confirmation_is_of_one_qualifier() {
    let mut queue = queue(&[(1, "q1"), (2, "q1"), (3, "q2"), (4, "q2"), (5, "q2")]);
    queue.confirm(&up_to("q2", 4, 7));
    assert_eq!(numbers(queue.unconfirmed()), [1, 2, 5]);
    assert_eq!(queue.confirmed(), &[("q2".into(), (SeqNr(4), 7))].into());
    queue.confirm(&up_to("q1", 1, 8));
    assert_eq!((numbers(queue.unconfirmed()), queue.highest_confirmed()), (vec![2, 5], SeqNr(4)));
}

/// Scenario delivery 80, of delivery D2: exact numbers confirm nothing below them.
#[test]
fn scenario_80_exact_numbers_confirm_themselves_only() {
    let mut queue = queue(&[(1, ""), (2, ""), (3, "")]);
    let news = queue.judge_confirmations(vec![exact(&[3]), exact(&[1, 3])]).unwrap();
    assert_eq!(news, [exact(&[1, 3])], "all numbers of one flush go out as one");
    queue.confirm(&exact(&[3]));
    assert_eq!((numbers(queue.unconfirmed()), queue.highest_confirmed()), (vec![1, 2], SeqNr(3)));
    assert!(queue.confirmed().is_empty(), "nothing is known of what lies below");
    assert_eq!(queue.judge_confirmations(vec![exact(&[3])]), Ok(vec![]));
    assert_eq!(queue.judge_confirmations(vec![exact(&[2, 3])]), Ok(vec![exact(&[2])]));
}

/// Of delivery D5: of each qualifier only the highest number is kept.
#[test]
fn confirmations_are_written_in_the_fewest_words() {
    let queue = queue(&[(1, "a"), (2, "b"), (3, "a"), (4, "a")]);
    let news = queue.judge_confirmations(vec![up_to("a", 3, 1), up_to("b", 2, 2), up_to("a", 1, 3)]).unwrap();
    assert_eq!(news, [up_to("a", 3, 3), up_to("b", 2, 2)]);
}

#[test]
fn nothing_is_confirmed_before_it_is_stored() {
    let queue = queue(&[(1, "")]);
    let refused = Err(QueueError::OutOfOrder { expected: SeqNr(2) });
    assert_eq!(queue.judge_confirmations(vec![up_to("", 2, 1)]), refused);
    assert_eq!(queue.judge_confirmations(vec![up_to("", 1, 1), exact(&[2])]), refused);
}

/// Scenario delivery 43, of delivery D3: an old qualifier is forgotten unless one of its *own* messages is unconfirmed;
/// messages of others do not count.
#[test]
fn scenario_43_old_qualifiers_are_forgotten_when_nothing_of_theirs_waits() {
    let hour = Duration::from_secs(3600);
    let mut queue = queue(&[(1, "q1"), (2, "q1"), (3, "q2"), (4, "q3")]);
    queue.confirm(&up_to("q1", 1, 0));
    queue.confirm(&up_to("q2", 3, 3_600_000));
    assert_eq!(queue.unused_qualifiers(3_600_000, hour), Vec::<Qualifier>::new(), "q1 has an unconfirmed message");
    queue.confirm(&up_to("q1", 2, 0));
    assert_eq!(queue.unused_qualifiers(3_599_999, hour), Vec::<Qualifier>::new(), "not old enough");
    assert_eq!(queue.unused_qualifiers(3_600_000, hour), ["q1".into()], "although 4 of q3 is unconfirmed");
    queue.forget(&["q1".into()]);
    assert_eq!(queue.confirmed().keys().collect::<Vec<_>>(), [&Qualifier::from("q2")]);
    assert_eq!((numbers(queue.unconfirmed()), queue.highest_confirmed()), (vec![4], SeqNr(3)));
}

/// Confirming a qualifier's last message by exact number also frees the qualifier.
#[test]
fn exact_numbers_free_their_qualifier() {
    let mut queue = queue(&[(1, "q1"), (2, "q1")]);
    queue.confirm(&up_to("q1", 1, 0));
    queue.confirm(&exact(&[2]));
    assert_eq!(queue.unused_qualifiers(10, Duration::from_millis(10)), ["q1".into()]);
}

/// The unconfirmed messages from a number on leave out those before it.
#[cfg(feature = "persistence")]
#[test]
fn unconfirmed_messages_from_a_number_begin_there() {
    let queue = queue(&[(1, ""), (2, ""), (3, "")]);
    assert_eq!(numbers(queue.unconfirmed_from(SeqNr(2))), [2, 3]);
    assert_eq!(numbers(queue.unconfirmed_from(SeqNr(4))), [0; 0]);
}
