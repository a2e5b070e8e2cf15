//! Whether a history of concurrent calls can be put into one order that keeps real time and that a model accepts.
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
//! A history is linearizable if each operation can be given one moment between its call and its answer so that the
//! operations, taken in the order of these moments, are what a single copy would have done one after the other. The check is
//! exact. Histories of different keys are independent, so each key is checked by itself.
//!
//! An operation without an answer may have taken effect at any moment after its call, or never. Every such operation may double
//! the work unless the model sees early that it leads nowhere ([`Model::can_still_answer`]), so a caller that can find out what became of it should: an operation that is known not to have run is left out,
//! one that is known to have run gets its answer (with a late moment, if that is all that is known of it).
//!
//! Source: Wing and Gong, *Testing and Verifying Concurrent Objects* (1993); Lowe, *Testing for Linearizability* (2016);
//! the order of the search is Porcupine's.

pub mod register;
mod search;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::hash::Hash;

use search::{Outcome, Timeline, Try};

/// What a single copy does, one operation after the other.
pub trait Model {
    /// What is asked.
    type Input: Clone + fmt::Debug;
    /// What is answered.
    type Output: Clone + fmt::Debug;
    /// What the copy holds.
    type State: Clone + Eq + Hash + fmt::Debug;

    /// What the copy holds before the first operation.
    fn start(&self) -> Self::State;

    /// What the copy holds after the operation, or `None` if a copy in this state does not answer so. Without `output` the
    /// answer is not known, and any answer fits.
    fn step(&self, state: &Self::State, input: &Self::Input, output: Option<&Self::Output>) -> Option<Self::State>;

    /// Whether such an operation leaves every state as it is. It may then be taken as soon as it fits, and need not be tried
    /// later in its stead. Default: it may change something.
    fn is_read(&self, _input: &Self::Input) -> bool {
        false
    }

    /// Whether a copy in this state can still come to answer so, now or after other operations. Default: it can. A model that
    /// knows better (of a count that only grows, say) keeps the search from trying what leads nowhere; many operations
    /// without an answer need that. A `false` that is wrong makes the check refuse what has an order.
    fn can_still_answer(&self, _state: &Self::State, _input: &Self::Input, _output: &Self::Output) -> bool {
        true
    }
}

/// One call and its answer, on a clock that all callers share. The unit is the caller's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operation<I, O> {
    /// What was asked.
    pub input: I,
    /// When it was asked: not later than anything was sent.
    pub called_at: u64,
    /// What came back; `None` if that is not known, and the operation may have taken effect or not.
    pub answer: Option<Answer<O>>,
}

/// What came back, and when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer<O> {
    /// What was answered.
    pub output: O,
    /// When it was known to the caller: not earlier than it came. An answer at the moment of another call counts as
    /// concurrent with it.
    pub at: u64,
}

impl<I, O> Operation<I, O> {
    /// One whose answer came.
    pub fn answered(input: I, called_at: u64, output: O, at: u64) -> Self {
        Self { input, called_at, answer: Some(Answer { output, at }) }
    }

    /// One of which no answer came; it may have taken effect.
    pub fn open(input: I, called_at: u64) -> Self {
        Self { input, called_at, answer: None }
    }
}

/// An operation of a model.
pub type OperationOf<M> = Operation<<M as Model>::Input, <M as Model>::Output>;

/// A refusal of a history of a model.
pub type RefusalOf<K, M> = Refusal<K, <M as Model>::Input, <M as Model>::Output, <M as Model>::State>;

/// What was checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Checked {
    /// How many keys there were.
    pub keys: usize,
    /// How many operations, over all keys.
    pub operations: usize,
    /// How many operations of them had no answer.
    pub open: usize,
    /// How many steps the search took, over all keys.
    pub steps: u64,
}

/// Why a history was not accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal<K, I, O, S> {
    /// No order explains the operations of this key.
    NotLinearizable {
        /// Whose operations.
        key: K,
        /// Where it goes wrong.
        window: Window<I, O, S>,
    },
    /// The search ended before it was through. That is no verdict, and counts as a failure: raise the bound of steps, make
    /// fewer operations on one key overlap, or find out what became of the operations without an answer.
    Undecided {
        /// Whose operations.
        key: K,
        /// How many operations.
        operations: usize,
        /// How many operations of them had no answer.
        open: usize,
        /// The bound that was reached.
        steps: u64,
    },
    /// An operation was answered before it was called: the clocks of the history are not one clock.
    Backwards {
        /// Whose operation.
        key: K,
        /// Which.
        operation: Operation<I, O>,
    },
}

/// The part of a history that cannot be ordered. Everything up to the answer before the last one in it can be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Window<I, O, S> {
    /// What the copy holds after the longest order that was found.
    pub state: S,
    /// The end of that order: its last operation, and those before that overlap with what is stuck.
    pub ordered: Vec<Operation<I, O>>,
    /// What should come next, and cannot: the operations called before the end of the window that are in no order.
    pub stuck: Vec<Operation<I, O>>,
    /// When the first operation of the window was called.
    pub from: u64,
    /// The first answer that no order explains.
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

/// Yields how many steps it took.
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
    match search::search(model, operations, &timeline.whole(), Try::Promising, most_steps) {
        Outcome::Ordered { steps } => Ok(steps),
        Outcome::GivenUp(_) => {
            let (operations, open) = (operations.len(), open(operations));
            Err(Refusal::Undecided { key, operations, open, steps: most_steps })
        }
        Outcome::Stuck(_) => {
            Err(Refusal::NotLinearizable { key, window: smallest_window(model, operations, &timeline, most_steps) })
        }
    }
}

/// How long the order is looked for that goes farthest towards what cannot be explained.
const STEPS_FOR_WINDOW: u64 = 200_000;

/// The history up to the first answer that no order explains. Every beginning of a linearizable history is linearizable, so
/// halving finds that answer.
fn smallest_window<M: Model>(
    model: &M,
    operations: &[OperationOf<M>],
    timeline: &Timeline,
    most_steps: u64,
) -> Window<M::Input, M::Output, M::State> {
    let (mut fits, mut fails) = (0, timeline.answers());
    while fits + 1 < fails {
        let middle = fits + (fails - fits) / 2;
        match search::search(model, operations, &timeline.until_answer(middle), Try::Promising, most_steps) {
            Outcome::Stuck(_) => fails = middle,
            // A beginning that is not decided only makes the window larger than it could be.
            Outcome::Ordered { .. } | Outcome::GivenUp(_) => fits = middle,
        }
    }
    let beginning = timeline.until_answer(fails);
    let longest = match search::search(model, operations, &beginning, Try::All, most_steps.min(STEPS_FOR_WINDOW)) {
        Outcome::Stuck(longest) | Outcome::GivenUp(longest) => longest,
        Outcome::Ordered { .. } => Vec::new(),
    };
    window(model, operations, &longest, &beginning.called(), beginning.end())
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

impl<I: fmt::Debug, O: fmt::Debug> fmt::Display for Operation<I, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} at {}", self.input, self.called_at)?;
        match &self.answer {
            Some(answer) => write!(f, " -> {:?} at {}", answer.output, answer.at),
            None => write!(f, " -> no answer"),
        }
    }
}
