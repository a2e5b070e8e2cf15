//! Compares and joins causal states whose top-level store is a map, range by range. Source: ddata G12.

use std::borrow::Cow;

use triomphe::Arc;

use super::Causal;
use crate::causality::context::Context;
use crate::causality::replica::{Dot, ReplicaId};
use crate::encoding::codec::{DecodeError, Decoder, Encoder, FORMAT};
use crate::encoding::element::Element;
use crate::encoding::hash::Digest;
use crate::ranges::{KeyRange, Part, RangeSum, Ranged, check_bounds, context_to_bytes, cuts, to_bytes};
use crate::stores::store::{DotMap, Join, Store, push_element, with_path};

fn digest_of<K: Element, S: Store>(key: &K, store: &S) -> Digest {
    with_path(|path| {
        push_element(path, key);
        store.digest(path)
    })
}

impl<K: Element, S: Store> Causal<DotMap<K, S>> {
    fn sum_between(&self, from: Option<&K>, to: Option<&K>) -> RangeSum {
        self.store.entries().sum(from, to, &digest_of)
    }
}

/// The replicas that the stores name.
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

impl<K: Element, S: Store> Ranged for Causal<DotMap<K, S>> {
    fn keys(&self) -> usize {
        self.store.len()
    }

    fn whole(&self) -> RangeSum {
        RangeSum { count: self.store.len() as u64, total: self.leaf_sum() }
    }

    fn compute_sums(&self, most: usize) -> bool {
        self.store.entries().compute_sums(most, &digest_of)
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
        // Measure without a replica table, with ids in full: the part is then no larger than measured.
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
        let mut join = Join::new(&self.context, theirs, self.changes());
        for key in self.store.differing(&store, (from.as_ref(), to.as_ref()), &join) {
            self.store.join_key(Cow::Owned(key), &store, &S::everything(), &mut join);
        }
        let changes = join.changes;
        let highest = self.own.map_or(0, |own| self.context.highest(own).max(theirs.highest(own)));
        self.settle(changes, highest);
        Ok(())
    }

    fn finish_parts(&mut self, theirs: &Context) {
        self.tracker.merged();
        Arc::make_mut(&mut self.context).union(theirs);
    }
}
