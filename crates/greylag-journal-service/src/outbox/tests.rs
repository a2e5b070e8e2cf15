//! Lost connections, lost answers, and the outcomes of calls.

use super::*;
use crate::generated as proto;

const TIMEOUT: Duration = Duration::from_secs(10);

struct World {
    now: Instant,
    outbox: Outbox<&'static str>,
    done: Vec<Done<&'static str>>,
}

impl World {
    fn new() -> Self {
        let outbox = Outbox::new(Duration::from_millis(50), Duration::from_secs(3));
        Self { now: Instant::now(), outbox, done: Vec::new() }
    }

    fn submit(&mut self, request_id: u64, name: &'static str) {
        let encoded = Bytes::from_static(name.as_bytes());
        self.outbox.submit(Submitted { request_id, encoded, deadline: self.now + TIMEOUT, reply: name });
    }

    fn frame(&mut self) -> Vec<Bytes> {
        self.outbox.next_frame(1000)
    }

    fn answer(&mut self, request_id: u64, failure: Option<failure::Failure>) {
        let answer = match failure {
            Some(failure) => answer::Answer::Failure(proto::Failure { failure: Some(failure), is_answer: false }),
            None => answer::Answer::Appended(proto::Appended { timestamp: 1 }),
        };
        self.outbox.answered(self.now, Answer { request_id, answer: Some(answer) }, &mut self.done);
    }

    fn advance(&mut self, by: Duration) {
        self.now += by;
        self.outbox.tick(self.now, &mut self.done);
    }

    fn outcome(&mut self, name: &str) -> Option<Outcome> {
        let at = self.done.iter().position(|(reply, _)| *reply == name)?;
        Some(self.done.remove(at).1)
    }
}

fn ok(tried_before: bool) -> Option<Outcome> {
    Some(Outcome::Answered { answer: answer::Answer::Appended(proto::Appended { timestamp: 1 }), tried_before })
}

#[test]
fn calls_share_frames_in_order() {
    let mut world = World::new();
    for (id, name) in [(1, "a"), (2, "b"), (3, "c")] {
        world.submit(id, name);
    }
    assert_eq!(world.outbox.next_frame(2), ["a", "b"]);
    assert_eq!(world.outbox.next_frame(0), ["c"], "a call larger than a frame goes alone");
    assert!(!world.outbox.has_unsent());
    world.answer(2, None);
    assert_eq!(world.outcome("b"), ok(false));
    assert_eq!(world.outbox.len(), 2);
}

#[test]
fn sent_calls_are_resent_in_their_order() {
    let mut world = World::new();
    world.submit(1, "a");
    world.submit(2, "b");
    world.frame();
    world.submit(3, "c");
    world.outbox.disconnected(world.now, "reset");
    world.outbox.connected();
    assert_eq!(world.frame(), ["a", "b", "c"]);
    world.answer(1, None);
    world.answer(1, None);
    world.answer(3, None);
    assert_eq!((world.outcome("a"), world.outcome("a"), world.outcome("c")), (ok(true), None, ok(false)));
}

#[test]
fn only_unsent_calls_are_certainly_not_stored() {
    let mut world = World::new();
    world.submit(1, "sent");
    world.frame();
    world.outbox.disconnected(world.now, "reset");
    world.submit(2, "unsent");
    world.advance(Duration::from_secs(2));
    assert!(world.done.is_empty());
    world.advance(Duration::from_secs(1));
    let cause = "the server cannot be reached: reset".to_owned();
    assert_eq!(world.outcome("unsent"), Some(Outcome::NeverSent { cause }));
    assert!(world.done.is_empty(), "the other one waits for its deadline");
    let late_at = world.now - Duration::from_secs(3) + TIMEOUT;
    assert_eq!(world.outbox.next_deadline(), Some(late_at), "nothing is to be done before");
    world.submit(3, "late");
    world.advance(Duration::ZERO);
    assert!(matches!(world.outcome("late"), Some(Outcome::NeverSent { .. })), "refused at once");
    world.outbox.disconnected(world.now, "refused");
    world.advance(TIMEOUT);
    let cause = "no answer before the deadline: refused".to_owned();
    assert_eq!(world.outcome("sent"), Some(Outcome::Unanswered { cause }));
    assert_eq!(world.outbox.next_deadline(), None);
}

#[test]
fn an_unknown_outcome_is_retried_until_it_is_known_or_the_deadline() {
    let mut world = World::new();
    world.submit(1, "a");
    world.submit(2, "b");
    world.frame();
    world.answer(1, Some(failure::Failure::Unknown("poisoned".into())));
    world.answer(2, Some(failure::Failure::NotStored("down".into())));
    assert!(matches!(world.outcome("b"), Some(Outcome::Answered { tried_before: false, .. })), "a first try");
    assert_eq!(world.outbox.next_deadline(), Some(world.now + Duration::from_millis(50)));
    world.advance(Duration::from_millis(50));
    assert_eq!(world.frame(), ["a"]);
    world.answer(1, Some(failure::Failure::NotStored("down".into())));
    assert!(world.done.is_empty(), "this try is not stored, the first may be");
    world.advance(Duration::from_millis(50));
    assert_eq!(world.frame(), ["a"]);
    world.now += TIMEOUT;
    world.answer(1, Some(failure::Failure::NotStored("down".into())));
    assert!(matches!(world.outcome("a"), Some(Outcome::Answered { tried_before: true, .. })));
}
