//! The checker against planted histories, against histories of a single copy, and against a search of all orders.

use proptest::prelude::*;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::register::{Call, Held, Register, Reply};
use super::*;

type Op = Operation<Call, Reply>;

const STEPS: u64 = 10_000_000;

fn write(value: u64, called_at: u64, version: u64, at: u64) -> Op {
    Operation::answered(Call::Write(value), called_at, Reply::Written { version }, at)
}

fn read(called_at: u64, (version, value): (u64, u64), at: u64) -> Op {
    Operation::answered(Call::Read, called_at, Reply::Read { version, value }, at)
}

fn lost(value: u64, called_at: u64) -> Op {
    Operation::open(Call::Write(value), called_at)
}

fn judge(history: &[Op]) -> Result<Checked, RefusalOf<&'static str, Register>> {
    check(&Register, history.iter().map(|operation| ("x", operation.clone())), STEPS)
}

#[track_caller]
fn window_of(history: &[Op]) -> Window<Call, Reply, Held> {
    match judge(history) {
        Err(Refusal::NotLinearizable { window, .. }) => window,
        other => panic!("it must have no order: {other:?}"),
    }
}

#[test]
fn concurrent_operations_take_the_order_that_their_answers_show() {
    let history = [
        write(1, 0, 2, 10),
        write(2, 0, 1, 10),
        read(1, (0, 0), 9),
        read(2, (1, 2), 9),
        read(3, (2, 1), 9),
        read(11, (2, 1), 12),
    ];
    let checked = judge(&history).expect("0, then 2, then 1");
    assert_eq!((checked.keys, checked.operations, checked.open), (1, 6, 0));
}

#[test]
fn an_answer_at_the_moment_of_a_call_is_concurrent_with_it() {
    judge(&[write(1, 0, 1, 5), read(5, (0, 0), 6)]).expect("the read may come first");
    window_of(&[write(1, 0, 1, 5), read(6, (0, 0), 7)]);
}

#[test]
fn a_stale_read_is_found_and_named() {
    let history = [write(1, 0, 1, 1), write(2, 2, 2, 3), read(4, (1, 1), 5), read(6, (2, 2), 7)];
    let window = window_of(&history);
    assert_eq!(window.stuck, [read(4, (1, 1), 5)]);
    assert_eq!(window.ordered, [write(2, 2, 2, 3)]);
    assert_eq!((window.state, window.from, window.to), (Held { version: 2, value: 2 }, 2, 5));
}

#[test]
fn a_read_of_what_is_written_later_is_found() {
    let history = [write(1, 0, 1, 1), read(2, (2, 2), 3), write(2, 4, 2, 5), read(6, (2, 2), 7)];
    assert_eq!(window_of(&history).stuck, [read(2, (2, 2), 3)]);
}

#[test]
fn a_write_that_was_answered_and_is_lost_is_found() {
    let history = [write(1, 0, 1, 1), write(2, 2, 2, 3), write(3, 4, 2, 5), read(6, (2, 3), 7)];
    assert_eq!(window_of(&history).stuck, [write(3, 4, 2, 5)]);
}

#[test]
fn a_write_that_took_effect_twice_is_found() {
    let history = [write(1, 0, 1, 1), read(2, (2, 1), 3)];
    assert_eq!(window_of(&history).stuck, [read(2, (2, 1), 3)]);
}

#[test]
fn a_split_brain_of_two_copies_is_found() {
    let history = [write(1, 0, 1, 1), write(2, 2, 2, 3), write(3, 2, 2, 3), read(4, (2, 3), 5)];
    window_of(&history);
}

#[test]
fn a_write_without_an_answer_may_take_effect_late_or_never() {
    judge(&[lost(1, 0), read(5, (0, 0), 6), read(7, (1, 1), 8)]).expect("it takes effect between the reads");
    judge(&[lost(1, 0), write(2, 3, 1, 4), read(5, (1, 2), 6)]).expect("it takes no effect");
    judge(&[lost(1, 0), write(2, 3, 2, 4), read(5, (2, 2), 6)]).expect("it takes effect before the second");
    window_of(&[read(0, (1, 1), 1), lost(1, 2)]);
    window_of(&[lost(1, 0), read(1, (1, 1), 2), read(3, (0, 0), 4)]);
}

#[test]
fn keys_are_checked_apart_and_the_refused_one_is_named() {
    let history = [("a", write(1, 0, 1, 1)), ("b", read(2, (0, 0), 3)), ("a", read(2, (0, 0), 3))];
    assert_eq!(check(&Register, history[..2].iter().cloned(), STEPS).expect("two registers").keys, 2);
    let refusal = check(&Register, history, STEPS).expect_err("a stale read of a");
    assert!(matches!(&refusal, Refusal::NotLinearizable { key: "a", .. }), "{refusal}");
    assert_eq!(
        refusal.to_string(),
        "the history of \"a\" has no order: from 0 to 3, after [Write(1) at 0 -> Written { version: 1 } at 1] it holds \
         Held { version: 1, value: 1 }, and next can be none of [Read at 2 -> Read { version: 0, value: 0 } at 3]"
    );
}

#[test]
fn an_answer_before_its_call_is_refused() {
    let refusal = judge(&[read(5, (0, 0), 4)]).expect_err("not one clock");
    assert!(matches!(refusal, Refusal::Backwards { .. }), "{refusal}");
}

#[test]
fn a_write_of_the_value_that_is_held_is_no_read() {
    let written = |value, at| Operation::answered(Call::Write(value), at, value, at + 9);
    let seen = |value, at| Operation::answered(Call::Read, at, value, at);
    // The second write of 1 must come after that of 2; before it, it also fits but changes nothing.
    let history = [written(1, 0), written(1, 10), written(2, 10), seen(2, 18), seen(1, 19)];
    check(&Plain, history.map(|operation| ("x", operation)), STEPS).expect("1, 2, a read of 2, 1, a read of 1");
}

/// A register whose answers have no count, so that the model gives the search no hint.
struct Plain;

impl Model for Plain {
    type Input = Call;
    type Output = u64;
    type State = u64;

    fn is_read(&self, call: &Call) -> bool {
        matches!(call, Call::Read)
    }

    fn start(&self) -> u64 {
        0
    }

    fn step(&self, state: &u64, input: &Call, output: Option<&u64>) -> Option<u64> {
        let after = if let Call::Write(value) = *input { value } else { *state };
        output.is_none_or(|output| *output == after).then_some(after)
    }
}

#[test]
fn a_search_that_takes_too_long_is_undecided_and_says_what_to_do() {
    let many = (1..=40).map(|value| Operation::open(Call::Write(value), 0));
    let never = [Operation::answered(Call::Read, 1, 41, 2)];
    let history = many.chain(never).map(|operation| ("x", operation));
    let refusal = check(&Plain, history, 10_000).expect_err("2^40 sets of lost writes");
    assert_eq!(refusal, Refusal::Undecided { key: "x", operations: 41, open: 40, steps: 10_000 });
    assert!(refusal.to_string().contains("raise the bound"), "{refusal}");
}

#[test]
fn a_long_history_takes_few_steps_for_each_operation() {
    let history = run_of_one_copy(7, 8, 4_000, Lost::FoundOut);
    let checked = judge(&history).expect("one copy");
    assert!(checked.open == 0 && checked.steps < 100 * 4_000, "{checked:?}");
    let mut planted = history;
    let at = plant_stale(&mut planted, 3_000).expect("something was overwritten by then");
    assert_eq!(window_of(&planted).stuck.last(), Some(&planted[at]));
}

#[test]
fn writes_that_never_took_effect_cost_little_where_the_model_sees_it() {
    let never = (1..=100).map(|value| lost(1_000 + value, 0));
    let others = (1..=100).map(|version| write(version, 10 * version, version, 10 * version + 1));
    let checked = judge(&never.chain(others).collect::<Vec<_>>()).expect("one copy");
    assert!(checked.open == 100 && checked.steps < 100_000, "{checked:?}");
}

/// How operations without an answer enter the history.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lost {
    /// Their outcome is unknown.
    Open,
    /// Their outcome is found out at the end.
    FoundOut,
}

/// The history of `clients` of a single copy: each operation takes effect at one moment between call and answer. About
/// one in sixteen answers is lost, half of them of operations that took no effect.
fn run_of_one_copy(seed: u64, clients: usize, operations: usize, lost: Lost) -> Vec<Op> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut free_at = vec![0u64; clients];
    let mut asked: Vec<(u64, u64, u64, Call)> = Vec::new();
    for number in 0..operations {
        let client = rng.random_range(0..clients);
        let called_at = free_at[client] + rng.random_range(0..20);
        let takes_effect_at = called_at + rng.random_range(0..20);
        let at = takes_effect_at + rng.random_range(0..20);
        free_at[client] = at + 1;
        let call = if rng.random_bool(0.4) { Call::Write(number as u64 + 1) } else { Call::Read };
        asked.push((takes_effect_at, called_at, at, call));
    }
    asked.sort_by_key(|(takes_effect_at, ..)| *takes_effect_at);
    let mut held = Held::default();
    let answered = asked.into_iter().filter_map(|(_, called_at, at, call)| {
        if rng.random_bool(1.0 / 32.0) {
            return (lost == Lost::Open).then(|| Operation::open(call, called_at));
        }
        let output = match call {
            Call::Write(value) => {
                held = Held { version: held.version + 1, value };
                Reply::Written { version: held.version }
            }
            Call::Read => Reply::Read { version: held.version, value: held.value },
        };
        let answer = match (rng.random_bool(1.0 / 32.0), lost) {
            (true, Lost::Open) => None,
            (true, Lost::FoundOut) => Some(Answer { output, at: u64::MAX }),
            (false, _) => Some(Answer { output, at }),
        };
        Some(Operation { input: call, called_at, answer })
    });
    answered.collect()
}

/// Makes a read at or after index `from` answer the state before a write that was answered before the read was called.
fn plant_stale(history: &mut [Op], from: usize) -> Option<usize> {
    let (index, version) = (from..history.len()).find_map(|index| {
        let read = &history[index];
        let is_read = matches!(read.input, Call::Read) && read.answer.is_some();
        let overwritten = history.iter().filter_map(|operation| match &operation.answer {
            Some(Answer { output: Reply::Written { version }, at }) if *at < read.called_at => Some(*version),
            _ => None,
        });
        is_read.then(|| overwritten.max()).flatten().map(|version| (index, version - 1))
    })?;
    let value = history.iter().find_map(|operation| match (&operation.input, &operation.answer) {
        (Call::Write(value), Some(Answer { output: Reply::Written { version: at }, .. })) if *at == version => {
            Some(*value)
        }
        _ => None,
    });
    let answer = history[index].answer.as_mut()?;
    answer.output = Reply::Read { version, value: value.unwrap_or(0) };
    Some(index)
}

/// Whether any order of the operations fits, those without an answer included or not. Tries all orders.
fn has_an_order<M: Model>(model: &M, state: &M::State, left: &[OperationOf<M>]) -> bool {
    let first_answer = left.iter().filter_map(|operation| operation.answer.as_ref()).map(|answer| answer.at).min();
    let Some(first_answer) = first_answer else { return true };
    (0..left.len()).filter(|&next| left[next].called_at <= first_answer).any(|next| {
        let output = left[next].answer.as_ref().map(|answer| &answer.output);
        model.step(state, &left[next].input, output).is_some_and(|after| {
            let rest = [&left[..next], &left[next + 1..]].concat();
            has_an_order(model, &after, &rest)
        })
    })
}

/// Arbitrary histories of few operations, most of which have no order.
fn few_operations() -> impl Strategy<Value = Vec<Operation<Call, u64>>> {
    let operation = (any::<bool>(), 1u64..4, 0u64..12, 0u64..6, 0u64..4, 0u8..8).prop_map(
        |(is_write, value, called_at, takes, seen, lost)| {
            let (input, output) = if is_write { (Call::Write(value), value) } else { (Call::Read, seen) };
            let answer = (lost > 0).then_some(Answer { output, at: called_at + takes });
            Operation { input, called_at, answer }
        },
    );
    proptest::collection::vec(operation, 0..7)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_search_finds_an_order_exactly_where_one_exists(history in few_operations()) {
        let verdict = check(&Plain, history.iter().map(|operation| ((), operation.clone())), STEPS);
        prop_assert_eq!(verdict.is_ok(), has_an_order(&Plain, &0, &history), "{:?}", verdict);
    }

    #[test]
    fn a_window_has_no_order_and_what_precedes_its_end_has_one(history in few_operations()) {
        let verdict = check(&Plain, history.iter().map(|operation| ((), operation.clone())), STEPS);
        if let Err(Refusal::NotLinearizable { window, .. }) = verdict {
            // An operation that is answered later may have taken effect already.
            let before: Vec<_> = history.iter().filter(|operation| operation.called_at <= window.to).map(|operation| {
                let answer = operation.answer.clone().filter(|answer| answer.at < window.to);
                Operation { answer, ..operation.clone() }
            }).collect();
            prop_assert!(has_an_order(&Plain, &0, &before), "{} is not the first", window);
            prop_assert!(window.from <= window.to && !window.stuck.is_empty(), "{}", window);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn runs_of_a_single_copy_are_accepted(seed in any::<u64>(), clients in 1usize..6, operations in 0usize..120) {
        let history = run_of_one_copy(seed, clients, operations, Lost::Open);
        let verdict = judge(&history);
        prop_assert!(verdict.is_ok(), "{}", verdict.expect_err("refused"));
    }

    #[test]
    fn a_stale_read_in_a_long_run_is_refused(seed in any::<u64>(), clients in 1usize..6) {
        let mut history = run_of_one_copy(seed, clients, 120, Lost::Open);
        if let Some(planted) = plant_stale(&mut history, 60) {
            let planted = history[planted].clone();
            let window = window_of(&history);
            prop_assert!(window.to >= planted.called_at, "{} ends before {}", window, planted);
        }
    }

    #[test]
    fn a_read_of_a_value_never_written_is_refused(seed in any::<u64>(), clients in 1usize..6) {
        let mut history = run_of_one_copy(seed, clients, 120, Lost::Open);
        let last = history.iter().filter_map(|operation| operation.answer.as_ref()).map(|answer| answer.at).max();
        let at = last.unwrap_or(0) + 1;
        let version = |operation: &Op| match operation.answer {
            Some(Answer { output: Reply::Written { version } | Reply::Read { version, .. }, .. }) => version,
            None => 0,
        };
        let version = history.iter().map(version).max().unwrap_or(0) + 1 + history.len() as u64;
        history.push(write(u64::MAX, at, version, at + 1));
        let window = window_of(&history);
        prop_assert_eq!(window.to, at + 1);
    }
}
