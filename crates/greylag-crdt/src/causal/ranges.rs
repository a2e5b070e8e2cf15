//! Causal states whose top-level store is a map, range by range. Source: ddata G12.

use std::cmp::Ordering;
use std::sync::Arc;

use super::Causal;
use crate::codec::{DecodeError, Decoder, Encoder, FORMAT};
use crate::context::Context;
use crate::element::Element;
use crate::hash::Digest;
use crate::ranges::{KeyRange, Part, RangeSum, Ranged, check_bounds, context_to_bytes, cuts, to_bytes};
use crate::replica::{Dot, ReplicaId};
use crate::store::{DotMap, Join, Store, push_element};

fn digest_of<K: Element, S: Store>(key: &K, store: &S) -> Digest {
    let mut path = Vec::with_capacity(48);
    push_element(&mut path, key);
    store.digest(&mut path)
}

impl<K: Element, S: Store> Causal<DotMap<K, S>> {
    fn sum_between(&self, from: Option<&K>, to: Option<&K>) -> RangeSum {
        self.store.entries().sum(from, to, &digest_of)
    }
}

/// Replicas that the stores name.
fn named<'a, S: Store>(stores: impl Iterator<Item = &'a S>) -> Vec<ReplicaId> {
    let mut replicas: Vec<ReplicaId> = Vec::new();
    let mut note = |dot: Dot| {
        if replicas.last() != Some(&dot.replica) {
            replicas.push(dot.replica);
        }
    };
    for store in stores {
        store.visit_dots(&mut note);
        store.visit_slots(&mut note);
    }
    replicas.sort_unstable();
    replicas.dedup();
    replicas
}

fn decode_part<K: Element, S: Store>(
    bytes: &[u8],
    theirs: &Context,
    from: Option<&K>,
    to: Option<&K>,
) -> Result<DotMap<K, S>, DecodeError> {
    let mut inp = Decoder::new(bytes);
    inp.format()?;
    let table = inp.begin_replicas()?;
    let store = DotMap::<K, S>::decode(&mut inp)?;
    inp.finish()?;
    if named(store.entries().iter().map(|(_, store)| store)) != table {
        return Err(DecodeError::NotCanonical("a replica that nothing names"));
    }
    let mut is_seen = true;
    store.visit_dots(&mut |dot| is_seen &= theirs.contains(dot));
    if !is_seen {
        return Err(DecodeError::Invalid("a leaf's dot is not in the context"));
    }
    let keys: Vec<&K> = store.keys().collect();
    check_bounds(keys.iter().copied(), from, to)?;
    Ok(store)
}

/// The keys of a range that a join with all that a peer holds of it could change.
fn differing<K: Element, S: Store>(
    own: &DotMap<K, S>,
    theirs: &DotMap<K, S>,
    from: Option<&K>,
    to: Option<&K>,
    join: &Join<'_>,
) -> Vec<K> {
    let any_dot = |store: &S, holds: &dyn Fn(Dot) -> bool| {
        let mut found = false;
        store.visit_dots(&mut |dot| found |= holds(dot));
        found
    };
    let within = own.entries().iter_from(from).take_while(|(key, _)| to.is_none_or(|to| *key < to));
    let (mut own, mut theirs) = (within.peekable(), theirs.entries().iter().peekable());
    let mut keys = Vec::new();
    loop {
        let order = match (own.peek(), theirs.peek()) {
            (None, None) => return keys,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some((a, _)), Some((b, _))) => a.cmp(b),
        };
        let differs = match order {
            Ordering::Less => own.next().filter(|(_, store)| any_dot(store, &|dot| join.theirs.contains(dot))),
            Ordering::Greater => theirs.next().filter(|(_, store)| any_dot(store, &|dot| !join.own.contains(dot))),
            Ordering::Equal => own.next().zip(theirs.next()).filter(|((_, a), (_, b))| a != b).map(|(own, _)| own),
        };
        keys.extend(differs.map(|(key, _)| key.clone()));
    }
}

impl<K: Element, S: Store> Ranged for Causal<DotMap<K, S>> {
    fn keys(&self) -> usize {
        self.store.len()
    }

    fn whole(&self) -> RangeSum {
        RangeSum { count: self.store.len() as u64, total: self.sum }
    }

    fn warm(&self, most: usize) -> bool {
        self.store.entries().warm(most, &digest_of)
    }

    fn sum(&self, range: &KeyRange) -> Result<RangeSum, DecodeError> {
        let (from, to) = range.decode::<K>()?;
        Ok(self.sum_between(from.as_ref(), to.as_ref()))
    }

    fn split(&self, range: &KeyRange, most: usize) -> Result<Vec<(KeyRange, RangeSum)>, DecodeError> {
        let (from, to) = range.decode::<K>()?;
        let before = from.as_ref().map_or(0, |from| self.sum_between(None, Some(from)).count);
        let count = self.sum_between(from.as_ref(), to.as_ref()).count;
        let cuts = cuts(range, (before, count), most, |rank| self.store.entries().key_at(rank, &digest_of).cloned());
        cuts.into_iter().map(|cut| Ok((cut.clone(), self.sum(&cut)?))).collect()
    }

    fn context_bytes(&self) -> Vec<u8> {
        context_to_bytes(&self.context)
    }

    fn part(&self, range: &KeyRange, max_bytes: usize) -> Result<Part, DecodeError> {
        let (from, to) = range.decode::<K>()?;
        // Measured without a table, in which replicas take more room.
        let mut measured = Encoder::new();
        let mut taken: Vec<(&K, &S)> = Vec::new();
        let mut next = None;
        for (key, store) in self.store.entries().iter_from(from.as_ref()) {
            if to.as_ref().is_some_and(|to| to <= key) {
                break;
            }
            key.encode(&mut measured);
            store.encode(&mut measured);
            if measured.len() > max_bytes && !taken.is_empty() {
                next = Some(to_bytes(key));
                break;
            }
            taken.push((key, store));
        }
        let mut out = Encoder::new();
        out.u8(FORMAT);
        out.begin_replicas(named(taken.iter().map(|(_, store)| *store)));
        out.u64(taken.len() as u64);
        for (key, store) in taken {
            key.encode(&mut out);
            store.encode(&mut out);
        }
        let range = KeyRange { from: range.from.clone(), to: next.or_else(|| range.to.clone()) };
        Ok(Part { range, bytes: out.finish() })
    }

    fn join_part(&mut self, theirs: &Context, part: &Part) -> Result<(), DecodeError> {
        let (from, to) = part.range.decode::<K>()?;
        let store: DotMap<K, S> = decode_part(&part.bytes, theirs, from.as_ref(), to.as_ref())?;
        self.tracker.merged();
        let mut join = Join::new(&self.context, theirs, self.own);
        for key in differing(&self.store, &store, from.as_ref(), to.as_ref(), &join) {
            self.store.join_key(&key, &store, &S::everything(), &mut join);
        }
        let Join { sum, slots, shrunk, .. } = join;
        self.sum = self.sum.plus(sum);
        self.count_slots(slots);
        if let Some(own) = self.own.filter(|_| shrunk) {
            self.slot_floor = self.slot_floor.max(self.context.highest(own)).max(theirs.highest(own));
        }
        Ok(())
    }

    fn finish_parts(&mut self, theirs: &Context) {
        self.tracker.merged();
        Arc::make_mut(&mut self.context).union(theirs);
    }
}
