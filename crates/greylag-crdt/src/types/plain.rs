//! Any replicated type as the value of a map.
//!
//! Such a value cannot be split: the whole value lies under one dot. If it is updated concurrently with a removal of
//! its key, it survives with its history (update wins); concurrent updates lie side by side until the next update joins
//! them. Slots and dots inside it are never pruned. Sets, maps and counters have stores of their own, which do better.
//!
//! Source: ddata Y7, Y11.

use std::fmt;

use crate::causality::cx::UpdateCx;
use crate::causality::replica::Dot;
use crate::data::ReplicatedData;
use crate::encoding::codec::{DecodeError, Decoder, Encoder};
use crate::encoding::tag::TypeTag;
use crate::stores::store::{DotFun, DotSet, Edit, Host, Leaf};

/// Any replicated type as the value of an [`crate::OrMap`].
pub type Plain<C> = DotFun<PlainValue<C>>;

/// One sibling of a [`Plain`].
#[derive(Clone, PartialEq)]
pub struct PlainValue<C>(C);

impl<C: fmt::Debug> fmt::Debug for PlainValue<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<C: ReplicatedData> DotFun<PlainValue<C>> {
    /// A value to put into a map.
    pub fn of_value(value: C) -> Self {
        Self::single(Dot::UNPLACED, PlainValue(value))
    }

    /// All siblings joined; zero if the store is empty.
    pub fn value(&self) -> C {
        self.joined().map_or_else(C::zero, |value| value.0)
    }

    /// The siblings: values that were written without knowing of each other.
    pub fn siblings(&self) -> impl Iterator<Item = &C> {
        self.values().map(|value| &value.0)
    }
}

impl<C: ReplicatedData> Leaf for PlainValue<C> {
    type Editor<'a> = C;
    const TAG: TypeTag = TypeTag::with("plain", &[&C::TAG]);

    /// Keeps the greater bytes if the two values refuse to merge, so that all replicas still agree.
    fn join(&mut self, other: &Self) {
        let mut joined = self.0.clone();
        match joined.merge(&other.0) {
            Ok(_) => self.0 = joined,
            Err(_) if other.0.to_untagged_bytes() > self.0.to_untagged_bytes() => self.clone_from(other),
            Err(_) => {}
        }
    }

    fn encode(&self, out: &mut Encoder) {
        out.bytes(&self.0.to_untagged_bytes());
    }

    fn decode(inp: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        C::from_untagged_bytes(inp.bytes()?).map(Self)
    }

    fn read_alike(one: &Plain<C>, other: &Plain<C>) -> bool {
        one.value().reads_like(&other.value())
    }

    fn extend_path(&self, path: &mut Vec<u8>) {
        path.extend_from_slice(&self.0.digest().0.to_be_bytes());
    }

    /// Lets the closure change the join of the siblings; the result supersedes the siblings, unless nothing changed.
    fn edit<R>(
        host: &mut dyn Host<Plain<C>>,
        cx: &mut UpdateCx<'_>,
        f: impl FnOnce(&mut C, &mut UpdateCx<'_>) -> R,
    ) -> R {
        let before = host.store().map_or_else(C::zero, Plain::value);
        let mut value = before.clone();
        let output = f(&mut value, cx);
        if value != before {
            let dot = cx.draw_dot();
            host.apply(cx, Edit { patch: DotFun::single(dot, Self(value)), drawn: DotSet::single(dot) });
        }
        output
    }
}
