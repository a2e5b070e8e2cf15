//! The search for an order of one key's operations.
//!
//! The calls and answers of the history are a list in the order of time. Any operation called before the first answer
//! of the list may come next; one that fits the state is taken out of the list, call and answer, and the search
//! continues from the front. If the walk reaches the first answer, that answer's operation should have been taken
//! earlier, so the last choice was wrong: the last operation is put back, and the next one is tried in its place,
//! unless the last was a read. A set of operations that was taken before with the same state after it is not tried
//! again, whatever its order (Lowe's memo).

use std::collections::HashSet;

use super::model::{Model, Operation, OperationOf};

/// Result of a search.
pub(super) enum Outcome {
    /// An order exists.
    Ordered {
        /// Steps that the search took.
        steps: u64,
    },
    /// No order exists; the longest one found.
    Stuck(Vec<usize>),
    /// The bound of steps was reached; the longest order so far.
    StepLimit(Vec<usize>),
}

/// The orders to try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Orders {
    /// Orders after which the called operations can still get their answers.
    Promising,
    /// All orders, so that the longest one is found.
    All,
}

/// One end of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Event {
    at: u64,
    /// Sorts calls before answers of the same moment, since the two operations are concurrent.
    is_answer: bool,
    operation: usize,
}

/// The calls and answers of a history, in the order of time.
pub(super) struct Timeline {
    events: Vec<Event>,
    answers: usize,
}

/// A prefix of a timeline.
pub(super) struct Prefix<'a>(&'a [Event]);

impl Timeline {
    pub(super) fn of<I, O>(operations: &[Operation<I, O>]) -> Self {
        let mut events = Vec::with_capacity(2 * operations.len());
        for (index, operation) in operations.iter().enumerate() {
            events.push(Event { at: operation.called_at, is_answer: false, operation: index });
            events.extend(operation.answer.as_ref().map(|answer| Event {
                at: answer.at,
                is_answer: true,
                operation: index,
            }));
        }
        events.sort_unstable();
        let answers = events.iter().filter(|event| event.is_answer).count();
        Self { events, answers }
    }

    /// Count of answers.
    pub(super) fn answers(&self) -> usize {
        self.answers
    }

    pub(super) fn whole(&self) -> Prefix<'_> {
        Prefix(&self.events)
    }

    /// The prefix that ends with answer number `count`.
    pub(super) fn until_answer(&self, count: usize) -> Prefix<'_> {
        let mut ends = self.events.iter().enumerate().filter(|(_, event)| event.is_answer).map(|(at, _)| at + 1);
        let end = count.checked_sub(1).and_then(|before| ends.nth(before)).unwrap_or(0);
        Prefix(&self.events[..end])
    }
}

impl Prefix<'_> {
    /// The operations called in the prefix.
    pub(super) fn called(&self) -> Vec<usize> {
        self.0.iter().filter(|event| !event.is_answer).map(|event| event.operation).collect()
    }

    /// Time of the last event.
    pub(super) fn end(&self) -> u64 {
        self.0.last().map_or(0, |event| event.at)
    }
}

/// Looks for an order of operations called in the prefix that has all those answered in it. An operation that is
/// answered after the prefix may have taken effect already, with that answer.
pub(super) fn search<M: Model>(
    model: &M,
    operations: &[OperationOf<M>],
    prefix: &Prefix<'_>,
    which: Orders,
    most_steps: u64,
) -> Outcome {
    let mut list = List::of(prefix.0, operations.len());
    let mut tried: HashSet<(OperationSet, M::State)> = HashSet::new();
    let mut taken = OperationSet::none(operations.len());
    let mut order: Vec<(usize, M::State)> = Vec::new();
    let mut longest = Longest::default();
    let (mut state, mut at, mut steps) = (model.start(), list.first(), 0);
    while list.answers > 0 {
        steps += 1;
        if steps > most_steps {
            return Outcome::StepLimit(longest.order);
        }
        let Event { is_answer, operation, .. } = list.event(at);
        if is_answer {
            // The operation of this answer did not fit anywhere before it.
            longest.note(&order, list.answers);
            loop {
                let Some((last, before)) = order.pop() else { return Outcome::Stuck(longest.order) };
                taken.remove(last);
                let call = list.put_back(last);
                state = before;
                // Taking a read as soon as it fits loses no order, so nothing else needs to be tried in its place.
                if !model.is_read(&operations[last].input) {
                    at = list.next(call);
                    break;
                }
            }
            continue;
        }
        if let Some(after) = step(model, &state, &operations[operation])
            && (which == Orders::All || is_promising(model, &after, operations, list.under_way(operation)))
        {
            taken.insert(operation);
            if tried.insert((taken.clone(), after.clone())) {
                order.push((operation, std::mem::replace(&mut state, after)));
                list.take_out(operation);
                at = list.first();
                continue;
            }
            taken.remove(operation);
        }
        at = list.next(at);
    }
    Outcome::Ordered { steps }
}

fn step<M: Model>(model: &M, state: &M::State, operation: &OperationOf<M>) -> Option<M::State> {
    model.step(state, &operation.input, operation.answer.as_ref().map(|answer| &answer.output))
}

/// Whether the operations under way can still get their answers.
fn is_promising<M: Model>(
    model: &M,
    state: &M::State,
    operations: &[OperationOf<M>],
    mut under_way: impl Iterator<Item = usize>,
) -> bool {
    under_way.all(|at| {
        let Operation { input, answer, .. } = &operations[at];
        answer.as_ref().is_none_or(|answer| model.can_still_answer(state, input, &answer.output))
    })
}

/// The order that left the fewest answers unexplained.
#[derive(Default)]
struct Longest {
    order: Vec<usize>,
    left: Option<usize>,
}

impl Longest {
    fn note<S>(&mut self, order: &[(usize, S)], left: usize) {
        if self.left.is_none_or(|least| left < least) {
            self.left = Some(left);
            self.order = order.iter().map(|(operation, _)| *operation).collect();
        }
    }
}

/// A set of operations.
#[derive(Clone, PartialEq, Eq, Hash)]
struct OperationSet(Vec<u64>);

impl OperationSet {
    fn none(count: usize) -> Self {
        Self(vec![0; count.div_ceil(64)])
    }

    fn insert(&mut self, operation: usize) {
        self.0[operation / 64] |= 1 << (operation % 64);
    }

    fn remove(&mut self, operation: usize) {
        self.0[operation / 64] &= !(1 << (operation % 64));
    }
}

/// Events in the order of time as a doubly linked list, from which operations are taken out and put back. Place 0 is
/// both before the first event and after the last.
struct List<'a> {
    events: &'a [Event],
    before: Vec<usize>,
    after: Vec<usize>,
    /// Places of the call and the answer of each operation; 0 if the list never had it.
    places: Vec<(usize, usize)>,
    /// Count of answers in the list.
    answers: usize,
}

impl<'a> List<'a> {
    fn of(events: &'a [Event], operations: usize) -> Self {
        let count = events.len() + 1;
        let mut list = Self {
            events,
            before: (0..count).map(|place| (place + count - 1) % count).collect(),
            after: (0..count).map(|place| (place + 1) % count).collect(),
            places: vec![(0, 0); operations],
            answers: 0,
        };
        for (index, event) in events.iter().enumerate() {
            let (call, answer) = &mut list.places[event.operation];
            *(if event.is_answer { answer } else { call }) = index + 1;
            list.answers += usize::from(event.is_answer);
        }
        list
    }

    fn first(&self) -> usize {
        self.after[0]
    }

    fn next(&self, place: usize) -> usize {
        self.after[place]
    }

    /// The event at a place. While the list has an answer, a walk from the front reaches it before the end.
    fn event(&self, place: usize) -> Event {
        self.events[place - 1]
    }

    /// The operations that are called before the first answer and have an answer, without `besides`.
    fn under_way(&self, besides: usize) -> impl Iterator<Item = usize> {
        let places = std::iter::successors(Some(self.first()), |&place| Some(self.next(place)));
        let events = places.take_while(|&place| place != 0).map(|place| self.event(place));
        let others = events.filter(move |event| event.operation != besides).take_while(|event| !event.is_answer);
        others.map(|event| event.operation).filter(|&operation| self.places[operation].1 != 0)
    }

    fn take_out(&mut self, operation: usize) {
        let (call, answer) = self.places[operation];
        self.unlink(call);
        if answer != 0 {
            self.unlink(answer);
            self.answers -= 1;
        }
    }

    /// Puts an operation back; returns the place of its call. Only the operation taken out last is put back, so its
    /// neighbours are the same as before.
    fn put_back(&mut self, operation: usize) -> usize {
        let (call, answer) = self.places[operation];
        if answer != 0 {
            self.link(answer);
            self.answers += 1;
        }
        self.link(call);
        call
    }

    fn unlink(&mut self, place: usize) {
        let (before, after) = (self.before[place], self.after[place]);
        self.after[before] = after;
        self.before[after] = before;
    }

    fn link(&mut self, place: usize) {
        let (before, after) = (self.before[place], self.after[place]);
        self.after[before] = place;
        self.before[after] = place;
    }
}
