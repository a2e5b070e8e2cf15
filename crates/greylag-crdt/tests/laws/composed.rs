//! A composed struct of replicated types under the laws.

use std::collections::BTreeSet;

use greylag_crdt::{OrSet, PNCounter, ReplicatedData, UpdateCx};

use crate::model::{Live, Model, Path, Place, Plan};
use crate::step::Op;

#[derive(Clone, Debug, PartialEq, ReplicatedData)]
#[crdt(tag = "test.pair/1")]
pub(crate) struct Pair {
    set: OrSet<u8>,
    counter: PNCounter,
}

/// The model's key for increments of the counter; no element of the set.
const COUNTER: u8 = 100;

fn is_count(op: Op) -> bool {
    op.kind.is_multiple_of(2)
}

impl Model for Pair {
    type Write = i128;
    type View = (BTreeSet<u8>, i128);
    const MOVES: bool = true;

    fn apply(&mut self, cx: &mut UpdateCx<'_>, op: Op) {
        if is_count(op) {
            self.counter.increment(cx, op.amount.into()).unwrap();
        } else if op.kind < 170 {
            self.set.add(cx, op.key);
        } else {
            self.set.remove(cx, &op.key);
        }
    }

    fn view(&self) -> Self::View {
        (self.set.iter().copied().collect(), self.counter.value())
    }

    fn plan(op: Op, place: &Place<'_, i128>) -> Plan<i128> {
        match op.kind {
            _ if is_count(op) => Plan::one((COUNTER, 0), op.amount.into(), vec![]),
            0..170 => Plan::one((op.key, 0), 0, place.under(op.key)),
            _ => Plan::remove(place.under(op.key)),
        }
    }

    fn model(live: &[Live<'_, i128>]) -> Self::View {
        let (counts, keys): (Vec<_>, Vec<_>) = live.iter().partition(|live| live.path.0 == COUNTER);
        (keys.iter().map(|live| live.path.0).collect(), counts.iter().map(|live| *live.write).sum())
    }

    fn has_dot(path: Path) -> bool {
        path.0 != COUNTER
    }

    fn implies(later: Op, earlier: Op) -> bool {
        let both_count = is_count(later) && is_count(earlier);
        both_count && later.amount != 0 && (later.amount < 0) == (earlier.amount < 0)
    }
}
