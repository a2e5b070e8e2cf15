//! Dots with values.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt::Debug;

use super::{Changes, Host, Join, Store, Whole, decode_dot, encode_dot, push_dot, whole_scope};
use crate::causality::cx::UpdateCx;
use crate::causality::replica::{Dot, ReplicaId};
use crate::encoding::codec::{DecodeError, Decoder, Encoder, ascending};
use crate::encoding::hash::Digest;
use crate::encoding::tag::TypeTag;
use crate::pruning::rename::Moves;
use crate::stores::small_list::SmallList;

/// A value under a dot. Two values meet under one dot if two owners renamed the same leaf, or if two processes used one
/// replica id; the two are then joined. Source: ddata K5.
pub trait Leaf: Clone + PartialEq + Debug + Send + Sync + 'static {
    /// The editor that the closure of [`crate::OrMap::update`] receives.
    type Editor<'a>;
    /// The leaf's name as a parameter of a type tag.
    const TAG: TypeTag;

    /// Joins `other` into this value.
    fn join(&mut self, other: &Self);

    /// Appends the canonical bytes.
    fn encode(&self, out: &mut Encoder);

    /// Reads what `encode` wrote.
    ///
    /// # Errors
    /// [`DecodeError`].
    fn decode(inp: &mut Decoder<'_>) -> Result<Self, DecodeError>;

    /// Runs a closure with the editor of the values in `host`.
    fn edit<R>(
        host: &mut dyn Host<DotFun<Self>>,
        cx: &mut UpdateCx<'_>,
        f: impl FnOnce(&mut Self::Editor<'_>, &mut UpdateCx<'_>) -> R,
    ) -> R;

    /// Appends what distinguishes the value to a path: its bytes, unless equal values could have different bytes.
    fn extend_path(&self, path: &mut Vec<u8>) {
        let mut out = Encoder::continuing(std::mem::take(path));
        self.encode(&mut out);
        *path = out.finish();
    }

    /// The same content under another dot.
    #[must_use]
    fn copied_to(&self, dot: Dot) -> Self {
        let _ = dot;
        self.clone()
    }

    /// Whether users read the same in two stores; the default compares the joins of the siblings.
    fn read_alike(one: &DotFun<Self>, other: &DotFun<Self>) -> bool {
        one.joined() == other.joined()
    }

    /// Renames slot ids. Returns whether anything changed.
    fn rename(&mut self, moves: &Moves) -> bool {
        let _ = moves;
        false
    }

    /// Calls `visit` with every slot id and its two amounts.
    fn visit_slots(&self, visit: &mut dyn FnMut(Dot, u128, u128)) {
        let _ = visit;
    }
}

/// Dots with values; concurrent values, siblings, coexist.
#[derive(Debug, Clone, PartialEq)]
pub struct DotFun<V> {
    /// Ascending by dot.
    values: SmallList<(Dot, V)>,
}

impl<V> Default for DotFun<V> {
    fn default() -> Self {
        Self { values: SmallList::None }
    }
}

impl<V> DotFun<V> {
    /// One value under one dot.
    pub fn single(dot: Dot, value: V) -> Self {
        Self { values: SmallList::One((dot, value)) }
    }

    /// The values, by dot.
    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.values.iter().map(|(_, value)| value)
    }

    /// The dots, ascending.
    pub fn dots(&self) -> impl Iterator<Item = Dot> + '_ {
        self.values.iter().map(|(dot, _)| *dot)
    }
}

impl<V: Leaf> DotFun<V> {
    /// All siblings joined; `None` if there is none.
    pub fn joined(&self) -> Option<V> {
        let mut values = self.values();
        let first = values.next()?.clone();
        Some(values.fold(first, |mut joined, value| {
            joined.join(value);
            joined
        }))
    }

    /// A store of `values`, in which values under one dot are joined.
    fn of(values: impl IntoIterator<Item = (Dot, V)>) -> Self {
        let mut map: BTreeMap<Dot, V> = BTreeMap::new();
        for (dot, value) in values {
            match map.get_mut(&dot) {
                Some(twin) => twin.join(&value),
                None => drop(map.insert(dot, value)),
            }
        }
        Self { values: map.into_iter().collect() }
    }

    /// The two amounts of each slot of one replica, the greatest over all siblings.
    fn amounts(&self, replica: ReplicaId) -> BTreeMap<Dot, (u128, u128)> {
        let mut amounts: BTreeMap<Dot, (u128, u128)> = BTreeMap::new();
        let mut visit = |slot: Dot, added: u128, taken: u128| {
            if slot.replica == replica {
                let own = amounts.entry(slot).or_default();
                *own = (own.0.max(added), own.1.max(taken));
            }
        };
        self.values().for_each(|value| value.visit_slots(&mut visit));
        amounts
    }

    /// Notes the changes of slots when `self` becomes `next`.
    fn note_slots(&self, next: &Self, changes: &mut Changes) {
        let slots = &mut changes.slots;
        self.visit_slots(&mut |slot| *slots.entry(slot.replica).or_default() -= 1);
        next.visit_slots(&mut |slot| *slots.entry(slot.replica).or_default() += 1);
        if let Some(watched) = changes.watched.filter(|own| slots.contains_key(own)) {
            let after = next.amounts(watched);
            let is_less = |(slot, before): (&Dot, &(u128, u128))| {
                after.get(slot).is_none_or(|now| now.0 < before.0 || now.1 < before.1)
            };
            changes.shrunk |= self.amounts(watched).iter().any(is_less);
        }
    }
}

impl<V: Leaf> Store for DotFun<V> {
    type Editor<'a> = V::Editor<'a>;
    const TAG: TypeTag = TypeTag::with("dotfun", &[&V::TAG]);

    whole_scope!();

    fn patch(&mut self, patch: Self, changes: &mut Changes) {
        self.note_slots(&patch, changes);
        changes.note(self, &patch);
        *self = patch;
    }

    fn join(&mut self, other: &Self, _: &Whole, join: &mut Join<'_>) -> bool {
        if self == other {
            return false;
        }
        if let ([], [(dot, _)]) = (&*self.values, &*other.values) {
            let is_new = !join.own.contains(*dot);
            if is_new {
                self.patch(other.clone(), &mut join.changes);
            }
            return is_new;
        }
        let (mut own, mut theirs) = (self.values.iter().peekable(), other.values.iter().peekable());
        let (mut values, mut changed) = (Vec::new(), false);
        loop {
            let order = match (own.peek(), theirs.peek()) {
                (None, None) => break,
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some((a, _)), Some((b, _))) => a.cmp(b),
            };
            // A value of one side: own ones stay unless the other side has seen their dot; theirs are taken unless seen
            // here.
            let kept = match order {
                Ordering::Less => own.next().filter(|(dot, _)| !join.theirs.contains(*dot)).cloned(),
                Ordering::Greater => theirs.next().filter(|(dot, _)| !join.own.contains(*dot)).cloned(),
                Ordering::Equal => own.next().zip(theirs.next()).map(|((dot, value), (_, twin))| {
                    let mut joined = value.clone();
                    joined.join(twin);
                    changed |= joined != *value;
                    (*dot, joined)
                }),
            };
            changed |= match order {
                Ordering::Less => kept.is_none(),
                Ordering::Greater => kept.is_some(),
                Ordering::Equal => false,
            };
            values.extend(kept);
        }
        if !changed {
            return false;
        }
        let next = Self { values: values.into() };
        self.patch(next, &mut join.changes);
        true
    }

    fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    fn leaves(&self) -> usize {
        self.values.len()
    }

    fn visit_dots(&self, visit: &mut dyn FnMut(Dot)) {
        self.dots().for_each(visit);
    }

    fn visit_slots(&self, visit: &mut dyn FnMut(Dot)) {
        self.values().for_each(|value| value.visit_slots(&mut |slot, _, _| visit(slot)));
    }

    fn digest(&self, path: &mut Vec<u8>) -> Digest {
        let length = path.len();
        let mut sum = Digest::default();
        for (dot, value) in self.values.iter() {
            push_dot(path, *dot);
            value.extend_path(path);
            sum = sum.plus(Digest::of(path));
            path.truncate(length);
        }
        sum
    }

    fn reads_like(&self, other: &Self) -> bool {
        V::read_alike(self, other)
    }

    fn rename(&mut self, moves: &Moves) -> bool {
        let mut changed = false;
        for (dot, value) in self.values.iter_mut() {
            changed |= value.rename(moves);
            if let Some(target) = moves.target(*dot) {
                *dot = target;
                changed = true;
            }
        }
        if changed {
            *self = Self::of(std::mem::take(&mut self.values));
        }
        changed
    }

    fn with_fresh_dots(&self, cx: &mut UpdateCx<'_>, drawn: &mut Vec<Dot>) -> Self {
        let Some(joined) = self.joined() else { return Self::default() };
        let dot = cx.draw_dot();
        drawn.push(dot);
        Self::single(dot, joined.copied_to(dot))
    }

    fn edit<R>(
        host: &mut dyn Host<Self>,
        cx: &mut UpdateCx<'_>,
        f: impl FnOnce(&mut V::Editor<'_>, &mut UpdateCx<'_>) -> R,
    ) -> R {
        V::edit(host, cx, f)
    }

    fn encode(&self, out: &mut Encoder) {
        out.u64(self.values.len() as u64);
        for (dot, value) in self.values.iter() {
            encode_dot(*dot, out);
            value.encode(out);
        }
    }

    fn decode(inp: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let mut values = Vec::new();
        ascending(inp, |inp| {
            let dot = decode_dot(inp)?;
            values.push((dot, V::decode(inp)?));
            Ok(dot)
        })?;
        Ok(Self { values: values.into() })
    }
}
