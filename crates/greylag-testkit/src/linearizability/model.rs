//! The operations of a history, and the model of a single copy that explains them.

use std::fmt;
use std::hash::Hash;

/// A single copy, which runs one operation after the other.
pub trait Model {
    /// A call.
    type Input: Clone + fmt::Debug;
    /// An answer.
    type Output: Clone + fmt::Debug;
    /// The state of the copy.
    type State: Clone + Eq + Hash + fmt::Debug;

    /// The state before the first operation.
    fn start(&self) -> Self::State;

    /// The state after the operation, or `None` if a copy in this state would give another answer. `output` is `None`
    /// if the answer is unknown; then any answer fits.
    fn step(&self, state: &Self::State, input: &Self::Input, output: Option<&Self::Output>) -> Option<Self::State>;

    /// Whether the operation never changes the state. A read may be ordered as soon as it fits, and no other choice
    /// needs to be tried in its place. Default: it may change the state.
    fn is_read(&self, _input: &Self::Input) -> bool {
        false
    }

    /// Whether a copy in this state can give this answer, now or after other operations. Default: it can. A better
    /// answer (of a count that only grows, for example) keeps the search from orders that lead nowhere, which many
    /// operations without an answer need. A wrong `false` makes the check refuse linearizable histories.
    fn can_still_answer(&self, _state: &Self::State, _input: &Self::Input, _output: &Self::Output) -> bool {
        true
    }
}

/// One call and its answer. Times are of a clock that all callers share; the unit is the caller's choice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operation<I, O> {
    /// The call.
    pub input: I,
    /// Time of the call: not later than the moment at which anything was sent.
    pub called_at: u64,
    /// The answer; `None` if it is unknown, and the operation may have taken effect or not.
    pub answer: Option<Answer<O>>,
}

/// An answer and its time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer<O> {
    /// The answer.
    pub output: O,
    /// Time at which the caller had the answer: not earlier than it arrived. An answer at the moment of another call
    /// counts as concurrent with that call.
    pub at: u64,
}

impl<I, O> Operation<I, O> {
    /// An operation with an answer.
    pub fn answered(input: I, called_at: u64, output: O, at: u64) -> Self {
        Self { input, called_at, answer: Some(Answer { output, at }) }
    }

    /// An operation without an answer; it may have taken effect.
    pub fn open(input: I, called_at: u64) -> Self {
        Self { input, called_at, answer: None }
    }
}

/// An operation of a model.
pub type OperationOf<M> = Operation<<M as Model>::Input, <M as Model>::Output>;

impl<I: fmt::Debug, O: fmt::Debug> fmt::Display for Operation<I, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} at {}", self.input, self.called_at)?;
        match &self.answer {
            Some(answer) => write!(f, " -> {:?} at {}", answer.output, answer.at),
            None => write!(f, " -> no answer"),
        }
    }
}
