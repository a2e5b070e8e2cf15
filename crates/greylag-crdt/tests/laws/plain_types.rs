//! Models of the types without dots.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use greylag_crdt::{Flag, GCounter, GSet, LwwRegister, PNCounter, UpdateCx};

use crate::model::{Live, Model, Path, Place, Plan};
use crate::step::Op;

impl Model for Flag {
    type Write = ();
    type View = bool;

    fn apply(&mut self, _: &mut UpdateCx<'_>, op: Op) {
        if op.kind.is_multiple_of(2) {
            self.switch_on();
        }
    }

    fn view(&self) -> bool {
        self.enabled()
    }

    fn plan(op: Op, place: &Place<'_, ()>) -> Plan<()> {
        let is_news = op.kind.is_multiple_of(2) && place.live.is_empty();
        if is_news { Plan::one((0, 0), (), vec![]) } else { Plan::nothing() }
    }

    fn model(live: &[Live<'_, ()>]) -> bool {
        !live.is_empty()
    }
}

impl Model for GSet<u8> {
    type Write = ();
    type View = BTreeSet<u8>;

    fn apply(&mut self, _: &mut UpdateCx<'_>, op: Op) {
        self.add(op.key);
    }

    fn view(&self) -> BTreeSet<u8> {
        self.iter().copied().collect()
    }

    fn plan(op: Op, place: &Place<'_, ()>) -> Plan<()> {
        let is_news = place.under(op.key).is_empty();
        if is_news { Plan::one((op.key, 0), (), vec![]) } else { Plan::nothing() }
    }

    fn model(live: &[Live<'_, ()>]) -> BTreeSet<u8> {
        live.iter().map(|live| live.path.0).collect()
    }
}

macro_rules! counter {
    ($type:ty, $value:ty, $implies:expr, $amount:expr) => {
        impl Model for $type {
            type Write = $value;
            type View = $value;

            fn apply(&mut self, cx: &mut UpdateCx<'_>, op: Op) {
                self.increment(cx, $amount(op).try_into().unwrap()).unwrap();
            }

            fn view(&self) -> $value {
                assert_eq!(self.checked_value(), Some(self.value()));
                self.value()
            }

            fn plan(op: Op, _: &Place<'_, $value>) -> Plan<$value> {
                Plan::one((0, 0), $amount(op), vec![])
            }

            fn model(live: &[Live<'_, $value>]) -> $value {
                live.iter().map(|live| *live.write).sum()
            }

            fn implies(later: Op, earlier: Op) -> bool {
                $implies($amount(later), $amount(earlier))
            }
        }
    };
}
// A slot's delta is its new total, so it implies the earlier increments of its replica in the same life of the entry.
counter!(GCounter, u128, |_, _| true, |op: Op| u128::from(op.key));
counter!(
    PNCounter,
    i128,
    |later: i128, earlier: i128| later != 0 && (later < 0) == (earlier < 0),
    |op: Op| i128::from(op.amount)
);

/// Timestamp, writer (the smaller wins), operation (the later wins), and value.
pub(crate) type Cell = (i64, Reverse<usize>, usize, i8);

pub(crate) fn winner(live: &[Live<'_, Cell>], wanted: impl Fn(Path) -> bool) -> Option<Cell> {
    live.iter().filter(|live| wanted(live.path)).map(|live| *live.write).max()
}

/// The cell that one of the three clocks writes over the winner it sees.
pub(crate) fn cell(op: Op, place: &Place<'_, Cell>, observed: Option<Cell>) -> Cell {
    let current = observed.map_or(0, |cell| cell.0);
    let timestamp = match op.kind % 3 {
        0 => (current + 1).max(0),
        1 => (current - 1).min(0),
        _ => op.amount.into(),
    };
    (timestamp, Reverse(place.replica), place.id, op.amount)
}

impl Model for LwwRegister<i8> {
    type Write = Cell;
    type View = Option<(i64, i8)>;

    fn apply(&mut self, cx: &mut UpdateCx<'_>, op: Op) {
        match op.kind % 3 {
            0 => self.set(cx, op.amount).unwrap(),
            1 => drop(self.set_first(cx, op.amount)),
            _ => _ = self.set_with(cx, op.amount, |_, value| i64::from(*value)),
        }
    }

    fn view(&self) -> Option<(i64, i8)> {
        self.value().map(|value| (self.timestamp(), *value))
    }

    fn plan(op: Op, place: &Place<'_, Cell>) -> Plan<Cell> {
        let observed = winner(place.live, |_| true);
        Plan::one((0, 0), cell(op, place, observed), vec![])
    }

    fn model(live: &[Live<'_, Cell>]) -> Option<(i64, i8)> {
        winner(live, |_| true).map(|cell| (cell.0, cell.3))
    }
}
