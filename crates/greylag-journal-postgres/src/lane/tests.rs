use std::time::{Duration, Instant};

use greylag_persistence::{Head, SeqNr, WriterEpoch, WriterUuid};

use super::*;

const TRY: Duration = Duration::from_secs(5);
const APPEND: Duration = Duration::from_secs(10);

/// A lane, its clock, and its effects that no test has looked at.
struct Bench {
    lane: Lane,
    now: Instant,
    effects: Vec<Effect>,
}

fn text_id(text: &str) -> PersistenceId {
    text.parse().unwrap()
}

/// An append of one event: number `first` of `id`, by writer 7 under epoch 3.
fn request(no: u64, id: &str, first: u32) -> Request {
    Request {
        no: AppendNo(no),
        id: text_id(id),
        epoch: WriterEpoch::from_u64(3),
        writer_uuid: WriterUuid::from_u128(7),
        first: SeqNr::from(first),
        last: SeqNr::from(first),
        crc32c: 1000 + u32::try_from(no).unwrap(),
        bytes: 100,
    }
}

fn head(epoch: u64, highest: u32, deleted_to: u32) -> Head {
    let (highest, deleted_to) = (SeqNr::from(highest), SeqNr::from(deleted_to));
    let epoch = WriterEpoch::from_u64(epoch);
    Head { epoch, writer_uuid: WriterUuid::from_u128(9), generation: None, highest, deleted_to }
}

fn at(micros: u64) -> Timestamp {
    Timestamp::from_micros(micros)
}

fn words() -> DatabaseError {
    "as planned".into()
}

impl Bench {
    fn new() -> Self {
        Self::with(|_| {})
    }

    fn with(change: impl FnOnce(&mut LaneSettings)) -> Self {
        let mut settings = LaneSettings {
            name: "store".into(),
            pipeline: 2,
            max_batch_appends: 3,
            max_batch_bytes: 1000,
            append_timeout: APPEND,
            try_timeout: TRY,
            max_clock_lag: Duration::from_secs(600),
        };
        change(&mut settings);
        let mut effects = Vec::new();
        let lane = Lane::start(settings, &mut effects);
        assert_eq!(std::mem::take(&mut effects), [Effect::Connect]);
        let mut bench = Self { lane, now: Instant::now(), effects };
        assert_eq!(bench.input(Input::Connected), []);
        bench
    }

    fn input(&mut self, input: Input) -> Vec<Effect> {
        self.lane.handle(self.now, input, &mut self.effects);
        std::mem::take(&mut self.effects)
    }

    fn submit(&mut self, requests: impl IntoIterator<Item = Request>) -> Vec<Effect> {
        self.input(Input::Submit(requests.into_iter().collect()))
    }

    /// Answers a statement: of its appends, those of these ids were stored, at these times.
    fn executed(&mut self, statement: u64, stored: &[(&str, u64)]) -> Vec<Effect> {
        let statement = StatementNo(statement);
        let carried = self.lane.statements.get(&statement).map_or_else(Vec::new, |sent| sent.appends.clone());
        let times = carried.iter().map(|append| {
            let id = &self.lane.pending.get(append)?.request.id;
            stored.iter().find(|(stored, _)| text_id(stored) == *id).map(|(_, micros)| at(*micros))
        });
        let outcome = Ok(times.collect());
        self.input(Input::Executed { statement, outcome })
    }

    fn failed(&mut self, statement: u64, failure: Failure) -> Vec<Effect> {
        self.input(Input::Executed { statement: StatementNo(statement), outcome: Err(failure) })
    }

    fn found(&mut self, statement: u64, id: &str, found: Found) -> Vec<Effect> {
        let outcome = Ok([(text_id(id), found)].into());
        self.input(Input::LookedUp { statement: StatementNo(statement), outcome })
    }

    /// Submits an append, loses the answer to its first try, and sends it again as statement 2.
    fn unanswered(&mut self) {
        assert_eq!(self.submit([request(1, "a", 5)]), [execute(1, &[1])]);
        let lost = self.failed(1, Failure::Unanswered(words()));
        assert_eq!(lost, [Effect::Disconnect, Effect::Connect]);
        assert_eq!(self.input(Input::Connected), [execute(2, &[1])]);
    }
}

fn execute(statement: u64, appends: &[u64]) -> Effect {
    let appends = appends.iter().copied().map(AppendNo).collect();
    Effect::Execute { statement: StatementNo(statement), appends }
}

fn look_up(statement: u64, appends: &[u64]) -> Effect {
    let appends = appends.iter().copied().map(AppendNo).collect();
    Effect::LookUp { statement: StatementNo(statement), appends }
}

fn stored(append: u64, micros: u64) -> Effect {
    Effect::Answer { append: AppendNo(append), outcome: Ok(Appended { timestamp: at(micros) }) }
}

fn refused(append: u64, error: AppendError) -> Effect {
    Effect::Answer { append: AppendNo(append), outcome: Err(error) }
}

fn is_unknown(effects: &[Effect]) -> bool {
    matches!(effects, [Effect::Answer { outcome: Err(AppendError::Unknown(_)), .. }])
}

fn is_not_stored(effects: &[Effect]) -> bool {
    matches!(effects, [Effect::Answer { outcome: Err(AppendError::NotStored(_)), .. }])
}

#[test]
fn appends_that_arrive_while_statements_run_share_the_next_one() {
    let mut bench = Bench::new();
    assert_eq!(bench.submit([request(1, "a", 1)]), [execute(1, &[1])]);
    assert_eq!(bench.submit([request(2, "b", 1), request(3, "c", 1)]), [execute(2, &[2, 3])]);
    for no in 4..=8 {
        assert_eq!(bench.submit([request(no, &no.to_string(), 1)]), [], "the pipeline is full");
    }
    assert_eq!(bench.executed(1, &[("a", 10)]), [stored(1, 10), execute(3, &[4, 5, 6])]);
    // Two appends behind three under way would gain nothing; once as many are ready, or nothing is under way, they go.
    assert_eq!(bench.executed(2, &[("b", 11), ("c", 12)]), [stored(2, 11), stored(3, 12)]);
    assert_eq!(bench.submit([request(9, "9", 1)]), [execute(4, &[7, 8, 9])]);
    assert_eq!(bench.submit([request(10, "10", 1)]), []);
    let done = |ids: [&'static str; 3]| ids.map(|id| (id, 13));
    assert_eq!(bench.executed(3, &done(["4", "5", "6"])), [4, 5, 6].map(|no| stored(no, 13)));
    let last = [stored(7, 13), stored(8, 13), stored(9, 13), execute(5, &[10])];
    assert_eq!(bench.executed(4, &done(["7", "8", "9"])), last);
}

/// Statements that lock the same rows in one order never deadlock.
#[test]
fn a_statement_takes_the_oldest_in_the_order_of_their_ids() {
    let mut bench = Bench::with(|settings| settings.pipeline = 1);
    bench.submit([request(1, "x", 1)]);
    bench.submit([request(2, "c", 1), request(3, "a", 1), request(4, "d", 1), request(5, "b", 1)]);
    assert_eq!(bench.executed(1, &[("x", 1)]), [stored(1, 1), execute(2, &[3, 2, 4])]);
    let answers = [stored(3, 2), stored(4, 4), look_up(2, &[2])];
    assert_eq!(bench.executed(2, &[("a", 2), ("d", 4)]), answers, "each by its place");
}

#[test]
fn a_batch_ends_at_its_bytes_and_a_larger_append_goes_alone() {
    let mut bench = Bench::with(|settings| settings.pipeline = 1);
    bench.submit([request(1, "a", 1)]);
    let sizes = [600, 600, 5000, 10].into_iter().zip(2..);
    let waiting = sizes.map(|(bytes, no)| Request { bytes, ..request(no, &no.to_string(), 1) });
    bench.submit(waiting);
    assert_eq!(bench.executed(1, &[("a", 1)])[1..], [execute(2, &[2])]);
    assert_eq!(bench.executed(2, &[("2", 1)])[1..], [execute(3, &[3])]);
    assert_eq!(bench.executed(3, &[("3", 1)])[1..], [execute(4, &[4])]);
    assert_eq!(bench.executed(4, &[("4", 1)])[1..], [execute(5, &[5])]);
}

/// Persistence J4: a claim sees every earlier append of its id; J11: other ids do not wait.
#[test]
fn an_id_has_one_append_under_way_and_claims_wait_for_theirs() {
    let mut bench = Bench::new();
    let turn = |turn| Effect::Turn(TurnNo(turn));
    let await_turn = |no, id| Input::AwaitTurn { turn: TurnNo(no), id: text_id(id) };
    assert_eq!(bench.submit([request(1, "a", 1), request(2, "a", 2)]), [execute(1, &[1])]);
    assert_eq!(bench.input(await_turn(3, "a")), []);
    assert_eq!(bench.input(await_turn(4, "b")), [turn(4)]);
    assert_eq!(bench.submit([request(5, "a", 3)]), []);
    assert_eq!(bench.executed(1, &[("a", 1)]), [stored(1, 1), execute(2, &[2])]);
    assert_eq!(bench.executed(2, &[("a", 2)]), [stored(2, 2), turn(3), execute(3, &[5])]);
    assert!(!bench.lane.is_idle());
    assert_eq!(bench.executed(3, &[("a", 3)]), [stored(5, 3)]);
    assert!(bench.lane.is_idle());
}

/// Persistence §4.4: the fate of an append missing from the result is told by its last event, then by its head.
#[test]
fn the_event_and_the_head_explain_an_unstored_append() {
    let ours = StoredLast { writer_uuid: WriterUuid::from_u128(7), crc32c: 1001, timestamp: at(44) };
    let fenced = |head| refused(1, AppendError::Fenced { current: head });
    let conflict = |highest| refused(1, AppendError::Conflict { highest: SeqNr::from(highest) });
    for (what, found, answer) in [
        (
            "stored by an earlier try",
            Found { head: head(3, 5, 0), last: Some(ours), ..Found::default() },
            stored(1, 44),
        ),
        (
            "stored, and claimed since",
            Found { head: head(4, 6, 0), last: Some(ours), ..Found::default() },
            stored(1, 44),
        ),
        ("claimed", Found { head: head(4, 4, 0), last: None, ..Found::default() }, fenced(head(4, 4, 0))),
        ("never claimed", Found::default(), fenced(Head::default())),
        (
            "another writer's event",
            Found {
                head: head(4, 5, 0),
                last: Some(StoredLast { writer_uuid: WriterUuid::NONE, ..ours }),
                ..Found::default()
            },
            fenced(head(4, 5, 0)),
        ),
        (
            "other content",
            Found { head: head(3, 5, 0), last: Some(StoredLast { crc32c: 7, ..ours }), ..Found::default() },
            conflict(5),
        ),
        ("a hole", Found { head: head(3, 2, 0), last: None, ..Found::default() }, conflict(2)),
        ("a deleted number", Found { head: head(3, 9, 9), last: None, ..Found::default() }, conflict(9)),
    ] {
        let mut bench = Bench::new();
        bench.submit([request(1, "a", 5)]);
        assert_eq!(bench.executed(1, &[]), [look_up(1, &[1])], "{what}");
        assert_eq!(bench.found(1, "a", found), [answer], "{what}");
    }
}

/// Scenario persistence 70: an append that fits is refused with the clock as the reason while the clock is too far
/// behind, and never after an unanswered try (J10).
#[test]
fn scenario_70_a_clock_too_far_behind_is_why_an_append_is_not_stored() {
    let found = |seconds| Found { head: head(3, 4, 0), last: None, clock_behind: Duration::from_secs(seconds) };
    let mut bench = Bench::new();
    bench.submit([request(1, "a", 5)]);
    bench.executed(1, &[]);
    assert_eq!(bench.found(1, "a", found(600)), [execute(2, &[1])], "as far as it may be");
    bench.executed(2, &[]);
    let effects = bench.found(2, "a", found(601));
    let [Effect::Answer { outcome: Err(AppendError::NotStored(failure)), .. }] = &effects[..] else {
        panic!("{effects:?}")
    };
    assert!(failure.text().contains("max_clock_lag"), "{failure}");
    let mut bench = Bench::new();
    bench.unanswered();
    bench.executed(2, &[]);
    assert!(is_unknown(&bench.found(2, "a", found(601))));
}

/// Scenarios persistence 61, 62; J10: after an unanswered try only Ok, Fenced and Unknown are true.
#[test]
fn scenario_61_62_after_an_unanswered_try_only_ok_fenced_and_unknown_remain() {
    for failure in [Failure::StorageLow(words()), Failure::Taken(words()), Failure::Refused(words())] {
        let mut bench = Bench::new();
        bench.unanswered();
        assert!(is_unknown(&bench.failed(2, failure.clone())), "{failure:?}");
    }
    let mut bench = Bench::new();
    bench.unanswered();
    bench.executed(2, &[]);
    // Also Unknown if another writer has claimed since: Fenced would say that the append was not stored.
    let deleted = Found { head: head(4, 5, 5), last: None, ..Found::default() };
    assert!(is_unknown(&bench.found(2, "a", deleted)), "stored, and deleted since, perhaps");
    let mut bench = Bench::new();
    bench.unanswered();
    bench.executed(2, &[]);
    let passed = Found { head: head(3, 7, 0), last: None, ..Found::default() };
    assert!(is_unknown(&bench.found(2, "a", passed)), "no Conflict");
    let mut bench = Bench::new();
    bench.unanswered();
    bench.executed(2, &[]);
    let claimed = Found { head: head(4, 4, 0), last: None, ..Found::default() };
    let fenced = refused(1, AppendError::Fenced { current: head(4, 4, 0) });
    assert_eq!(bench.found(2, "a", claimed), [fenced], "the head proves it");
}

/// After a first try the same refusals say for certain that the append is not stored.
#[test]
fn scenario_61_a_first_try_that_is_refused_is_certainly_not_stored() {
    let mut bench = Bench::new();
    bench.submit([request(1, "a", 5)]);
    let low = AppendError::Rejected(RejectReason::StorageLow(words().to_string()));
    assert_eq!(bench.failed(1, Failure::StorageLow(words())), [refused(1, low)]);
    bench.submit([request(2, "a", 5)]);
    assert!(is_not_stored(&bench.failed(2, Failure::Refused(words()))));
    bench.submit([request(3, "a", 5)]);
    let taken = bench.failed(3, Failure::Taken(words()));
    assert!(is_not_stored(&taken));
    assert!(format!("{taken:?}").contains("stored data of a is corrupt"), "{taken:?}");
}

#[test]
fn a_rollback_is_tried_again_and_after_three_each_goes_alone() {
    let mut bench = Bench::with(|settings| settings.pipeline = 1);
    assert_eq!(bench.submit([request(1, "a", 1), request(2, "b", 1)]), [execute(1, &[1, 2])]);
    for statement in 1..=2 {
        let again = bench.failed(statement, Failure::RolledBack(words()));
        assert_eq!(again, [execute(statement + 1, &[1, 2])], "the same, in the same order");
    }
    assert_eq!(bench.failed(3, Failure::RolledBack(words())), [execute(4, &[1])]);
    // An append that fails alone goes behind those that wait.
    assert_eq!(bench.failed(4, Failure::RolledBack(words())), [execute(5, &[2])]);
    assert_eq!(bench.executed(5, &[("b", 1)]), [stored(2, 1), execute(6, &[1])]);
    // A rollback is an answer, so a later refusal is certain.
    let low = AppendError::Rejected(RejectReason::StorageLow(words().to_string()));
    assert_eq!(bench.failed(6, Failure::StorageLow(words())), [refused(1, low)]);
}

/// Persistence J11: an append that is not the cause of a refusal does not suffer from it.
#[test]
fn appends_of_a_refused_batch_are_retried_alone() {
    let mut bench = Bench::with(|settings| settings.pipeline = 1);
    bench.submit([request(1, "a", 1), request(2, "b", 1)]);
    assert_eq!(bench.failed(1, Failure::Refused(words())), [execute(2, &[1])]);
    let effects = bench.failed(2, Failure::Refused(words()));
    assert!(is_not_stored(&effects[..1]), "{effects:?}");
    assert_eq!(effects[1..], [execute(3, &[2])]);
    assert_eq!(bench.executed(3, &[("b", 1)]), [stored(2, 1)]);
}

#[test]
fn a_lost_connection_sends_everything_again_in_its_order() {
    let mut bench = Bench::new();
    bench.submit([request(1, "a", 1)]);
    bench.submit([request(2, "b", 1)]);
    bench.submit([request(3, "c", 1)]);
    assert_eq!(bench.failed(2, Failure::Unanswered(words())), [Effect::Disconnect, Effect::Connect]);
    assert_eq!(bench.executed(1, &[("a", 1)]), [], "a statement that was given up is not listened to");
    assert_eq!(bench.input(Input::NotConnected(words())), [Effect::Connect]);
    assert_eq!(bench.input(Input::Connected), [execute(3, &[1, 2, 3])]);
    // Appends 1 and 2 were sent before, append 3 was not.
    let effects = bench.failed(3, Failure::StorageLow(words()));
    assert!(is_unknown(&effects[..1]) && is_unknown(&effects[1..2]), "{effects:?}");
    assert_eq!(effects[2..], [refused(3, AppendError::Rejected(RejectReason::StorageLow(words().to_string())))]);
}

#[test]
fn unsent_appends_are_certainly_not_stored() {
    for failure in [Failure::NotSent(words()), Failure::Elsewhere(words())] {
        let mut bench = Bench::new();
        bench.submit([request(1, "a", 1)]);
        bench.failed(1, failure);
        bench.now += APPEND;
        assert!(is_not_stored(&bench.input(Input::Tick)));
        assert!(bench.lane.is_idle());
    }
}

#[test]
fn a_try_without_an_answer_times_out_and_ends_at_the_deadline() {
    let mut bench = Bench::new();
    bench.submit([request(1, "a", 1)]);
    assert_eq!(bench.lane.next_deadline(), Some(bench.now + TRY));
    bench.now += TRY;
    assert_eq!(bench.input(Input::Tick), [Effect::Disconnect, Effect::Connect]);
    assert_eq!(bench.input(Input::Connected), [execute(2, &[1])]);
    bench.now += APPEND - TRY;
    let effects = bench.input(Input::Tick);
    assert!(is_unknown(&effects[..1]), "{effects:?}");
    assert!(format!("{effects:?}").contains("not answered within 10s"), "{effects:?}");
}

#[test]
fn a_head_that_cannot_be_read_leaves_its_append_unknown_and_others_alone() {
    let mut bench = Bench::new();
    bench.submit([request(1, "a", 5), request(2, "b", 5)]);
    assert_eq!(bench.executed(1, &[]), [look_up(1, &[1, 2])]);
    let effects = bench.found(1, "b", Found { head: head(4, 4, 0), last: None, ..Found::default() });
    assert!(is_unknown(&effects[..1]), "{effects:?}");
    assert_eq!(effects[1..], [refused(2, AppendError::Fenced { current: head(4, 4, 0) })]);
}

#[test]
fn an_append_whose_obstacle_is_gone_is_retried() {
    let mut bench = Bench::new();
    bench.submit([request(1, "a", 5)]);
    bench.executed(1, &[]);
    assert_eq!(bench.found(1, "a", Found { head: head(3, 4, 0), last: None, ..Found::default() }), [execute(2, &[1])]);
    // The connection breaks during the look-up; the statement itself was answered, so the outcome is known.
    bench.executed(2, &[]);
    bench.failed(2, Failure::NotSent(words()));
    assert_eq!(bench.input(Input::Connected), [execute(3, &[1])]);
    assert!(is_not_stored(&bench.failed(3, Failure::Refused(words()))));
}

#[test]
fn a_closed_lane_refuses_new_appends_and_finishes_pending_ones() {
    let mut bench = Bench::new();
    bench.submit([request(1, "a", 1)]);
    bench.input(Input::Close);
    assert!(is_not_stored(&bench.submit([request(2, "b", 1)])));
    assert_eq!(bench.executed(1, &[("a", 1)]), [stored(1, 1)]);
    assert!(bench.lane.is_idle());
}
