//! Checks whether a history of concurrent calls can be put into one order that keeps real time and that a model
//! accepts.
//!
//! ```
//! use greylag_testkit::linearizability::register::{Call, Register, Reply};
//! use greylag_testkit::linearizability::{Operation, Refusal, check};
//!
//! let write = Operation::answered(Call::Write(7), 0, Reply::Written { version: 1 }, 10);
//! let late = Operation::answered(Call::Read, 11, Reply::Read { version: 1, value: 7 }, 12);
//! let stale = Operation::answered(Call::Read, 13, Reply::Read { version: 0, value: 0 }, 14);
//! let history = [("till", write), ("till", late), ("till", stale)];
//!
//! assert!(check(&Register, history[..2].iter().cloned(), 1_000).is_ok());
//! let refusal = check(&Register, history, 1_000).expect_err("a read of what was overwritten before it was asked");
//! assert!(matches!(refusal, Refusal::NotLinearizable { key: "till", .. }));
//! ```
//!
//! A history is linearizable if each operation can be given one moment between its call and its answer so that a single
//! copy that ran the operations in the order of these moments would have given the same answers. The check is exact.
//! Histories of different keys are independent, so each key is checked by itself.
//!
//! An operation without an answer may have taken effect at any moment after its call, or never. Every such operation
//! may double the work unless the model sees early that an order leads nowhere ([`Model::can_still_answer`]). A caller
//! that can find out its outcome should therefore do so: an operation that is known not to have run is left out, and
//! one that is known to have run gets its answer (with a late moment, if its time is unknown).
//!
//! Source: Wing and Gong, *Testing and Verifying Concurrent Objects* (1993); Lowe, *Testing for Linearizability* (2016);
//! the order of the search is Porcupine's.

mod model;
pub mod register;
mod search;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;

pub use model::{Answer, Model, Operation, OperationOf};
use search::{Orders, Outcome, Timeline};

/// A refusal of a history of a model.
pub type RefusalOf<K, M> = Refusal<K, <M as Model>::Input, <M as Model>::Output, <M as Model>::State>;

/// Counts of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Checked {
    /// Count of keys.
    pub keys: usize,
    /// Count of operations, over all keys.
    pub operations: usize,
    /// Count of operations without an answer.
    pub open: usize,
    /// Count of search steps, over all keys.
    pub steps: u64,
}

/// Why a history was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal<K, I, O, S> {
    /// No order explains the operations of this key.
    NotLinearizable {
        /// The key of the operations.
        key: K,
        /// The part of the history that has no order.
        window: Window<I, O, S>,
    },
    /// The search ended early. That is no verdict, and counts as a failure: raise the bound of steps, make fewer
    /// operations on one key overlap, or find out the outcome of operations without an answer.
    Undecided {
        /// The key of the operations.
        key: K,
        /// Count of operations.
        operations: usize,
        /// Count of operations without an answer.
        open: usize,
        /// The bound of steps.
        steps: u64,
    },
    /// An operation was answered before it was called: the times are not of one clock.
    Backwards {
        /// The key of the operation.
        key: K,
        /// The operation.
        operation: Operation<I, O>,
    },
}

/// The part of a history that has no order. The history up to the answer before its last one has an order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Window<I, O, S> {
    /// The state after the longest order that was found.
    pub state: S,
    /// The end of that order: its last operation, and earlier ones that overlap with a stuck operation.
    pub ordered: Vec<Operation<I, O>>,
    /// The operations that were called before the end of the window and can be appended to the order in no way.
    pub stuck: Vec<Operation<I, O>>,
    /// Time of the first call in the window.
    pub from: u64,
    /// Time of the first answer that no order explains.
    pub to: u64,
}

/// Checks a history, each key by itself; `most_steps` bounds the search for one key.
///
/// # Errors
/// [`Refusal`], of the smallest key that is refused.
pub fn check<M, K>(
    model: &M,
    history: impl IntoIterator<Item = (K, OperationOf<M>)>,
    most_steps: u64,
) -> Result<Checked, RefusalOf<K, M>>
where
    M: Model,
    K: Ord,
{
    let mut by_key: BTreeMap<K, Vec<OperationOf<M>>> = BTreeMap::new();
    for (key, operation) in history {
        by_key.entry(key).or_default().push(operation);
    }
    let mut checked = Checked::default();
    for (key, operations) in by_key {
        checked.keys += 1;
        checked.operations += operations.len();
        checked.open += open(&operations);
        checked.steps += check_key(model, key, &operations, most_steps)?;
    }
    Ok(checked)
}

fn open<I, O>(operations: &[Operation<I, O>]) -> usize {
    operations.iter().filter(|operation| operation.answer.is_none()).count()
}

/// Checks one key; answers the steps it took.
fn check_key<M: Model, K>(
    model: &M,
    key: K,
    operations: &[OperationOf<M>],
    most_steps: u64,
) -> Result<u64, RefusalOf<K, M>> {
    let is_backwards =
        |operation: &&OperationOf<M>| operation.answer.as_ref().is_some_and(|answer| answer.at < operation.called_at);
    if let Some(operation) = operations.iter().find(is_backwards) {
        return Err(Refusal::Backwards { key, operation: operation.clone() });
    }
    let timeline = Timeline::of(operations);
    match search::search(model, operations, &timeline.whole(), Orders::Promising, most_steps) {
        Outcome::Ordered { steps } => Ok(steps),
        Outcome::StepLimit(_) => {
            let (operations, open) = (operations.len(), open(operations));
            Err(Refusal::Undecided { key, operations, open, steps: most_steps })
        }
        Outcome::Stuck(_) => {
            Err(Refusal::NotLinearizable { key, window: smallest_window(model, operations, &timeline, most_steps) })
        }
    }
}

/// Bound of the search for the order that goes farthest, which is shown in the window.
const STEPS_FOR_WINDOW: u64 = 200_000;

/// The history up to the first answer that no order explains. Every prefix of a linearizable history is linearizable,
/// so a binary search finds that answer.
fn smallest_window<M: Model>(
    model: &M,
    operations: &[OperationOf<M>],
    timeline: &Timeline,
    most_steps: u64,
) -> Window<M::Input, M::Output, M::State> {
    let (mut fits, mut fails) = (0, timeline.answers());
    while fits + 1 < fails {
        let middle = fits + (fails - fits) / 2;
        match search::search(model, operations, &timeline.until_answer(middle), Orders::Promising, most_steps) {
            Outcome::Stuck(_) => fails = middle,
            // A prefix that is not decided only makes the window larger than necessary.
            Outcome::Ordered { .. } | Outcome::StepLimit(_) => fits = middle,
        }
    }
    let prefix = timeline.until_answer(fails);
    let longest = match search::search(model, operations, &prefix, Orders::All, most_steps.min(STEPS_FOR_WINDOW)) {
        Outcome::Stuck(longest) | Outcome::StepLimit(longest) => longest,
        Outcome::Ordered { .. } => Vec::new(),
    };
    window(model, operations, &longest, &prefix.called(), prefix.end())
}

fn window<M: Model>(
    model: &M,
    operations: &[OperationOf<M>],
    longest: &[usize],
    called: &[usize],
    to: u64,
) -> Window<M::Input, M::Output, M::State> {
    let state = longest.iter().fold(model.start(), |state, &at| {
        let operation = &operations[at];
        let output = operation.answer.as_ref().map(|answer| &answer.output);
        model.step(&state, &operation.input, output).unwrap_or(state)
    });
    let stuck: Vec<_> = called.iter().copied().filter(|at| !longest.contains(at)).collect();
    let first = stuck.iter().map(|&at| operations[at].called_at).min().unwrap_or(to);
    let overlaps = |at: usize| operations[at].answer.as_ref().is_none_or(|answer| answer.at >= first);
    let last = longest.last().copied();
    let ordered: Vec<_> = longest.iter().copied().filter(|&at| Some(at) == last || overlaps(at)).collect();
    let from = ordered.iter().chain(&stuck).map(|&at| operations[at].called_at).min().unwrap_or(to);
    let copy = |list: Vec<usize>| list.into_iter().map(|at| operations[at].clone()).collect();
    Window { state, ordered: copy(ordered), stuck: copy(stuck), from, to }
}

impl<K: fmt::Debug, I: fmt::Debug, O: fmt::Debug, S: fmt::Debug> fmt::Display for Refusal<K, I, O, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotLinearizable { key, window } => write!(f, "the history of {key:?} has no order: {window}"),
            Self::Undecided { key, operations, open, steps } => write!(
                f,
                "whether the {operations} operations of {key:?} ({open} without an answer) have an order is not decided \
                 after {steps} steps; raise the bound, or make fewer of them overlap"
            ),
            Self::Backwards { key, operation } => {
                write!(f, "an operation of {key:?} was answered before it was called: {operation}")
            }
        }
    }
}

impl<K: fmt::Debug, I: fmt::Debug, O: fmt::Debug, S: fmt::Debug> std::error::Error for Refusal<K, I, O, S> {}

impl<I: fmt::Debug, O: fmt::Debug, S: fmt::Debug> fmt::Display for Window<I, O, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { state, ordered, stuck, from, to } = self;
        write!(f, "from {from} to {to}, after ")?;
        list(f, ordered)?;
        write!(f, " it holds {state:?}, and next can be none of ")?;
        list(f, stuck)
    }
}

fn list<I: fmt::Debug, O: fmt::Debug>(f: &mut fmt::Formatter<'_>, operations: &[Operation<I, O>]) -> fmt::Result {
    write!(f, "[")?;
    for (at, operation) in operations.iter().enumerate() {
        write!(f, "{}{operation}", if at == 0 { "" } else { "; " })?;
    }
    write!(f, "]")
}
