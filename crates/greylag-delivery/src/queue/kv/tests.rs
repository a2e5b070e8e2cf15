use bytes::Bytes;
use greylag_core::CodecId;

use super::*;

const HOUR: u64 = 3_600_000;

fn controller(instance: u64) -> ControllerRef {
    ControllerRef { node: "localhost:17355#1".parse().unwrap(), path: "delivery/orders".into(), instance }
}

fn head(epoch: u64, instance: u64) -> QueueHead {
    let (stream_id, epoch, controller) = (StreamId(7), Epoch(epoch), controller(instance));
    QueueHead { stream_id, epoch, controller, current: SeqNr(1), highest_confirmed: SeqNr::NONE }
}

fn sent(seq_nr: u64, qualifier: &str) -> MessageSent<Encoded> {
    let message = Encoded { codec: CodecId::JSON, manifest: "order".into(), payload: Bytes::new() };
    MessageSent { seq_nr: SeqNr(seq_nr), message, ack: false, qualifier: qualifier.into(), timestamp_ms: 1 }
}

fn up_to(qualifier: &str, seq_nr: u64, timestamp_ms: u64) -> Confirmation {
    Confirmation::UpTo { qualifier: qualifier.into(), seq_nr: SeqNr(seq_nr), timestamp_ms }
}

/// A queue that controller 1 loaded under epoch 1.
fn loaded() -> KvQueue {
    let mut queue = KvQueue::new(Duration::from_millis(HOUR));
    let claim = queue.claim(None, &controller(1), StreamId(7)).unwrap();
    queue.claimed();
    let head = QueueHead::claimed(None, &claim).unwrap();
    let rows = QueueRows { head, confirmed: Vec::new(), messages: Vec::new() };
    queue.loaded(rows, Epoch(1)).unwrap();
    queue
}

/// Stores a batch as if the store acknowledged it; returns the change.
fn store(queue: &mut KvQueue, now_ms: u64, batch: Vec<MessageSent<Encoded>>) -> QueueChange {
    let change = queue.store(batch, now_ms).unwrap().unwrap();
    queue.written(&change);
    change
}

fn confirm(queue: &mut KvQueue, now_ms: u64, confirmation: Confirmation) -> QueueChange {
    let change = queue.confirm(vec![confirmation], now_ms).unwrap().unwrap();
    queue.written(&change);
    change
}

/// Of delivery §4.4: every change has the epoch of the load, and the head row stays when no message is left.
#[test]
fn changes_are_made_under_the_epoch_of_the_load() {
    let mut queue = loaded();
    let change = store(&mut queue, 1, vec![sent(1, ""), sent(2, "")]);
    assert_eq!((change.epoch, change.current), (Epoch(1), SeqNr(3)));
    let change = confirm(&mut queue, 1, up_to("", 2, 1));
    assert_eq!((change.removed.as_slice(), change.current), ([SeqNr(1), SeqNr(2)].as_slice(), SeqNr(3)));
    assert_eq!(change.highest_confirmed, SeqNr(2));
    assert_eq!(queue.confirm(vec![up_to("", 1, 9)], 9), Ok(None));
    assert_eq!(queue.store(vec![sent(1, "")], 9), Ok(None));
}

/// Of delivery §4.2 and scenario delivery 87: like the test of the event-sourced queue.
#[test]
fn scenario_87_a_start_that_is_known_to_be_stored_counts() {
    let mut queue = KvQueue::new(Duration::from_secs(1));
    for _ in 0..2 {
        let claim = queue.claim(Some(&head(3, 2)), &controller(1), StreamId(8)).unwrap();
        assert_eq!((claim.expected, claim.epoch, claim.stream_id), (Some(Epoch(3)), Epoch(4), StreamId(7)));
    }
    queue.claim(Some(&head(4, 1)), &controller(1), StreamId(8)).expect("its own start was stored though unanswered");
    let fenced = queue.claim(Some(&head(5, 2)), &controller(1), StreamId(8)).unwrap_err();
    assert_eq!(fenced, QueueError::Fenced { by: Some(controller(2)) });
    queue.claim(Some(&head(5, 2)), &controller(3), StreamId(8)).expect("a controller that never started");
}

/// Of delivery §4.1: a claim keeps the stored numbers, including those written since the head was read; a change needs
/// exactly its epoch.
#[test]
fn a_claim_leaves_the_numbers() {
    let seen = head(3, 2);
    let claim = KvQueue::new(Duration::from_secs(1)).claim(Some(&seen), &controller(1), StreamId(8)).unwrap();
    let stored = QueueHead { current: SeqNr(9), highest_confirmed: SeqNr(8), ..seen.clone() };
    let claimed = QueueHead::claimed(Some(stored.clone()), &claim).unwrap();
    assert_eq!(claimed, QueueHead { epoch: Epoch(4), controller: controller(1), ..stored.clone() });
    assert_eq!(QueueHead::claimed(Some(claimed.clone()), &claim), None, "not twice");
    assert_eq!(QueueHead::claimed(None, &claim), None);
    let change = store(&mut loaded(), 1, vec![sent(1, "")]);
    assert_eq!(QueueHead::changed(Some(head(2, 1)), &change), None);
    assert_eq!(QueueHead::changed(None, &change), None);
    assert_eq!(QueueHead::changed(Some(head(1, 1)), &change).unwrap().current, SeqNr(2));
}

/// Rows read after the claim of another controller are not loaded.
#[test]
fn rows_of_a_newer_epoch_are_not_loaded() {
    let mut queue = KvQueue::new(Duration::from_secs(1));
    queue.claim(Some(&head(3, 2)), &controller(1), StreamId(8)).unwrap();
    queue.claimed();
    let rows = QueueRows { head: head(5, 2), confirmed: Vec::new(), messages: Vec::new() };
    assert_eq!(queue.loaded(rows, Epoch(4)), Err(QueueError::Fenced { by: Some(controller(2)) }));
    assert_eq!(queue.store(vec![sent(1, "")], 1), Err(QueueError::NotLoaded));
}

#[test]
fn epochs_that_are_used_up_are_refused() {
    let mut queue = KvQueue::new(Duration::from_secs(1));
    let refused = queue.claim(Some(&head(u64::MAX, 2)), &controller(1), StreamId(8));
    assert!(matches!(refused, Err(QueueError::Rejected(_))), "{refused:?}");
}

/// Scenario delivery 43: between loads, a later write also forgets unused qualifiers, except those that it uses.
#[test]
fn scenario_43_later_writes_forget_old_qualifiers() {
    let mut queue = loaded();
    assert_eq!(queue.clean_up(10 * HOUR), Ok(None));
    store(&mut queue, 10 * HOUR, vec![sent(1, "old"), sent(2, "used"), sent(3, "waits"), sent(4, "waits")]);
    confirm(&mut queue, 10 * HOUR, up_to("old", 1, 10 * HOUR));
    confirm(&mut queue, 10 * HOUR, up_to("used", 2, 10 * HOUR));
    confirm(&mut queue, 10 * HOUR, up_to("waits", 3, 10 * HOUR));
    assert!(store(&mut queue, 10 * HOUR + HOUR / 4, vec![sent(5, "x")]).forgotten.is_empty(), "looked after just now");
    assert!(store(&mut queue, 10 * HOUR + HOUR / 2, vec![sent(6, "x")]).forgotten.is_empty(), "not old enough");
    let change = store(&mut queue, 11 * HOUR, vec![sent(7, "used")]);
    assert_eq!(change.forgotten, ["old".into()]);
    let change = confirm(&mut queue, 12 * HOUR, up_to("used", 7, 12 * HOUR));
    assert!(change.forgotten.is_empty(), "confirmed by this write");
    let change = confirm(&mut queue, 13 * HOUR, up_to("waits", 4, 13 * HOUR));
    assert_eq!(change.forgotten, ["used".into()]);
}

/// Many qualifiers are forgotten over several writes.
#[test]
fn a_large_cleanup_is_spread() {
    let mut queue = loaded();
    let qualifier = |seq_nr: u64| format!("q{seq_nr}");
    store(&mut queue, 1, (1..=2500).map(|seq_nr| sent(seq_nr, &qualifier(seq_nr))).collect());
    let all = (1..=2500).map(|seq_nr| up_to(&qualifier(seq_nr), seq_nr, 1)).collect();
    let change = queue.confirm(all, 1).unwrap().unwrap();
    queue.written(&change);
    let mut forgotten = Vec::new();
    while let Some(change) = queue.clean_up(2 * HOUR).unwrap() {
        queue.written(&change);
        forgotten.push(change.forgotten.len());
    }
    assert_eq!(forgotten, [1000, 1000, 500]);
}
