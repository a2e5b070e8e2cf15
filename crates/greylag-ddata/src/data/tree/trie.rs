//! The trie: entries by the hash of their ids, with the sum of every part.
//!
//! One walk down the hash finds an entry, so the trie is also the map of entries, and a million keys need no second map
//! that compares ids. A leaf keeps hash and entry of at most 64 keys in one sorted vector; each leaf splits and fuses
//! by itself, so there is never a moment at which all keys are moved. Source: ddata G9, H1.

use greylag_crdt::{Digest, hash64};

use super::{LEAF_KEYS, MAX_DEPTH, Prefix, Sixteenths, Sum};
use crate::api::key::KeyId;

/// The least room that a full leaf gets.
const SPARE: usize = 4;

/// An item of the trie.
pub(crate) trait Placed {
    fn id(&self) -> &KeyId;
    fn digest(&self) -> Digest;
}

/// An entry in the answers of the trie: the hash of its id, its id, and its digest.
pub(crate) type Item = (u64, KeyId, Digest);

/// The trie.
#[derive(Debug)]
pub(crate) struct SyncTree<E> {
    root: Node<E>,
}

#[derive(Debug)]
enum Node<E> {
    Leaf(Sum, Leaf<E>),
    Inner(Sum, Box<[Self; 16]>),
}

/// Entries by hash and id, ascending.
#[derive(Debug)]
struct Leaf<E>(Vec<LeafEntry<E>>);

/// The entry is boxed: places are moved when neighbours come and go.
#[derive(Debug)]
struct LeafEntry<E> {
    hash: u64,
    entry: Box<E>,
}

impl<E> Default for SyncTree<E> {
    fn default() -> Self {
        Self { root: Node::default() }
    }
}

impl<E> Default for Node<E> {
    fn default() -> Self {
        Self::Leaf(Sum::default(), Leaf(Vec::new()))
    }
}

/// The digest that a sum counts, of id and entry together, so that equal values under two ids differ.
fn counted<E: Placed>(entry: &E) -> Digest {
    let (id, digest) = (entry.id().as_bytes(), entry.digest().0.to_be_bytes());
    let mut short = [0; 128];
    match short.get_mut(..id.len() + 17) {
        Some(bytes) => {
            bytes[..id.len()].copy_from_slice(id);
            bytes[id.len() + 1..].copy_from_slice(&digest);
            Digest::of(bytes)
        }
        None => Digest::of(&[id, &[0], &digest].concat()),
    }
}

impl<E: Placed> SyncTree<E> {
    pub(crate) fn find(&self, id: &str) -> Option<&E> {
        let hash = hash64(id.as_bytes());
        let (mut node, mut depth) = (&self.root, 0);
        loop {
            match node {
                Node::Inner(_, children) => node = &children[nibble(hash, depth)],
                Node::Leaf(_, leaf) => return leaf.at(hash, id).ok().map(|at| &*leaf.0[at].entry),
            }
            depth += 1;
        }
    }

    /// An entry to change; its digest must stay the same.
    pub(crate) fn find_mut(&mut self, id: &str) -> Option<&mut E> {
        self.find_place(hash64(id.as_bytes()), id)
    }

    fn find_place(&mut self, hash: u64, id: &str) -> Option<&mut E> {
        let (mut node, mut depth) = (&mut self.root, 0);
        loop {
            match node {
                Node::Inner(_, children) => node = &mut children[nibble(hash, depth)],
                Node::Leaf(_, leaf) => {
                    let at = leaf.at(hash, id).ok()?;
                    return Some(&mut *leaf.0[at].entry);
                }
            }
            depth += 1;
        }
    }

    /// Changes an entry; `None` if it is absent.
    pub(crate) fn change<R>(&mut self, id: &str, how: impl FnOnce(&mut E) -> R) -> Option<R> {
        let hash = hash64(id.as_bytes());
        let entry = self.find_place(hash, id)?;
        let before = entry.digest();
        let counted_before = counted(entry);
        let told = how(entry);
        if entry.digest() != before {
            let more = counted(entry).minus(counted_before);
            self.walk(hash, |sum| sum.total = sum.total.plus(more));
        }
        Some(told)
    }

    /// Inserts an entry whose id is absent.
    pub(crate) fn insert(&mut self, entry: E) {
        let (hash, more) = (hash64(entry.id().as_bytes()), counted(&entry));
        let count = |sum: &mut Sum| *sum = Sum { count: sum.count + 1, total: sum.total.plus(more) };
        let (node, depth) = self.walk(hash, count);
        if let Node::Leaf(_, leaf) = node {
            leaf.insert(hash, entry);
        }
        node.split_if_full(depth);
    }

    /// Removes an entry.
    pub(crate) fn remove(&mut self, id: &str) -> Option<Box<E>> {
        let hash = hash64(id.as_bytes());
        let less = counted(self.find(id)?);
        let (mut node, mut depth) = (&mut self.root, 0);
        loop {
            let sum = node.sum_mut();
            *sum = Sum { count: sum.count - 1, total: sum.total.minus(less) };
            if sum.count <= LEAF_KEYS as u64 {
                node.fuse();
            }
            match node {
                Node::Inner(_, children) => node = &mut children[nibble(hash, depth)],
                Node::Leaf(_, leaf) => return leaf.at(hash, id).ok().map(|at| leaf.0.remove(at).entry),
            }
            depth += 1;
        }
    }

    /// Changes the sum of every part that contains a hash. Returns the leaf and its depth.
    fn walk(&mut self, hash: u64, mut how: impl FnMut(&mut Sum)) -> (&mut Node<E>, u8) {
        let (mut node, mut depth) = (&mut self.root, 0);
        loop {
            how(node.sum_mut());
            match node {
                Node::Inner(_, children) => node = &mut children[nibble(hash, depth)],
                leaf => return (leaf, depth),
            }
            depth += 1;
        }
    }

    /// All entries, in the order of their hashes.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &E> {
        let mut waiting = vec![&self.root];
        std::iter::from_fn(move || {
            loop {
                match waiting.pop()? {
                    Node::Inner(_, children) => waiting.extend(children.iter().rev()),
                    Node::Leaf(_, leaf) => return Some(leaf.entries()),
                }
            }
        })
        .flatten()
    }

    /// The sum over all entries, computed anew.
    pub(crate) fn recounted(&self) -> Sum {
        let digests = self.iter().map(counted);
        digests.fold(Sum::default(), |sum, more| Sum { count: sum.count + 1, total: sum.total.plus(more) })
    }

    /// The sum over a part.
    pub(crate) fn sum(&self, prefix: Prefix) -> Sum {
        match self.down_to(prefix) {
            (Node::Leaf(_, leaf), false) => leaf
                .inside(prefix)
                .map(|place| counted(&*place.entry))
                .fold(Sum::default(), |sum, more| Sum { count: sum.count + 1, total: sum.total.plus(more) }),
            (Node::Leaf(sum, _) | Node::Inner(sum, _), _) => *sum,
        }
    }

    /// The sum over several parts.
    pub(crate) fn sum_of(&self, parts: Sixteenths) -> Sum {
        if parts == Sixteenths::ALL {
            return self.sum(Prefix::ROOT);
        }
        parts
            .prefixes()
            .map(|part| self.sum(part))
            .fold(Sum::default(), |all, part| Sum { count: all.count + part.count, total: all.total.plus(part.total) })
    }

    /// The entries of a part, in the order of their hashes.
    pub(crate) fn items(&self, prefix: Prefix) -> Vec<Item> {
        let mut found = Vec::new();
        self.down_to(prefix).0.collect(prefix, &mut found);
        found
    }

    /// The node of a part, or the leaf that contains the part; `true` for the former.
    fn down_to(&self, prefix: Prefix) -> (&Node<E>, bool) {
        let mut node = &self.root;
        for depth in 0..prefix.depth {
            match node {
                Node::Leaf(..) => return (node, false),
                Node::Inner(_, children) => node = &children[nibble(prefix.bits, depth)],
            }
        }
        (node, true)
    }
}

fn nibble(hash: u64, depth: u8) -> usize {
    (hash >> (60 - 4 * u32::from(depth)) & 0xf) as usize
}

impl<E> Node<E> {
    fn sum_mut(&mut self) -> &mut Sum {
        match self {
            Self::Leaf(sum, _) | Self::Inner(sum, _) => sum,
        }
    }
}

impl<E: Placed> Node<E> {
    fn split_if_full(&mut self, depth: u8) {
        if let Self::Leaf(sum, Leaf(places)) = self
            && places.len() > LEAF_KEYS
            && depth < MAX_DEPTH
        {
            let mut parts: [Vec<LeafEntry<E>>; 16] = Default::default();
            let mut rest = places.drain(..).peekable();
            for (at, part) in parts.iter_mut().enumerate() {
                part.extend(std::iter::from_fn(|| rest.next_if(|place| nibble(place.hash, depth) == at)));
                part.shrink_to_fit();
            }
            drop(rest);
            let mut children = Box::new(parts.map(|part| Self::of(Leaf(part))));
            // Split further if needed: the keys may share many nibbles with the one inserted last.
            children.iter_mut().for_each(|child| child.split_if_full(depth + 1));
            *self = Self::Inner(*sum, children);
        }
    }

    fn of(leaf: Leaf<E>) -> Self {
        let digests = leaf.entries().map(counted);
        let total = digests.fold(Digest::default(), Digest::plus);
        Self::Leaf(Sum { count: leaf.0.len() as u64, total }, leaf)
    }

    /// Makes one leaf of everything below, and leaves the sum as it is.
    fn fuse(&mut self) {
        if let Self::Inner(sum, _) = self {
            let sum = *sum;
            let mut places = Vec::new();
            std::mem::take(self).drain_into(&mut places);
            *self = Self::Leaf(sum, Leaf(places));
        }
    }

    fn drain_into(self, places: &mut Vec<LeafEntry<E>>) {
        match self {
            Self::Leaf(_, leaf) => places.extend(leaf.0),
            Self::Inner(_, children) => children.into_iter().for_each(|child| child.drain_into(places)),
        }
    }

    fn collect(&self, prefix: Prefix, found: &mut Vec<Item>) {
        match self {
            Self::Leaf(_, leaf) => {
                found.extend(
                    leaf.inside(prefix).map(|place| (place.hash, place.entry.id().clone(), place.entry.digest())),
                );
            }
            Self::Inner(_, children) => children.iter().for_each(|child| child.collect(prefix, found)),
        }
    }
}

impl<E: Placed> Leaf<E> {
    /// The index of an entry, or the index that it would have.
    fn at(&self, hash: u64, id: &str) -> Result<usize, usize> {
        touch(1);
        self.0.binary_search_by(|place| place.hash.cmp(&hash).then_with(|| (**place.entry.id()).cmp(id)))
    }

    fn insert(&mut self, hash: u64, entry: E) {
        let at = self.at(hash, entry.id()).unwrap_or_else(|at| at);
        if self.0.len() == self.0.capacity() {
            // Reserve little: doubling would keep room for as many again.
            self.0.reserve_exact(SPARE.max(self.0.len() / 4));
        }
        self.0.insert(at, LeafEntry { hash, entry: Box::new(entry) });
    }

    fn entries(&self) -> impl Iterator<Item = &E> {
        touch(self.0.len());
        self.0.iter().map(|place| &*place.entry)
    }

    fn inside(&self, prefix: Prefix) -> impl Iterator<Item = &LeafEntry<E>> {
        touch(self.0.len());
        self.0.iter().filter(move |place| prefix.contains(place.hash))
    }
}

#[cfg(test)]
thread_local! {
    static TOUCHED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// How many entries this thread has examined in any trie.
#[cfg(test)]
pub(crate) fn touched() -> usize {
    TOUCHED.get()
}

/// Counts examined entries, for tests.
#[inline]
fn touch(entries: usize) {
    #[cfg(test)]
    TOUCHED.set(TOUCHED.get() + entries);
    #[cfg(not(test))]
    let _ = entries;
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    type Entry = (KeyId, Digest);

    impl Placed for Entry {
        fn id(&self) -> &KeyId {
            &self.0
        }

        fn digest(&self) -> Digest {
            self.1
        }
    }

    fn set(tree: &mut SyncTree<Entry>, id: &KeyId, digest: Digest) {
        if tree.change(id, |entry| entry.1 = digest).is_none() {
            tree.insert((id.clone(), digest));
        }
    }

    proptest! {
        #[test]
        fn sums_depend_only_on_the_held_entries(ops in prop::collection::vec((0..400_u32, 0..4_u8), 0..900)) {
            let mut tree = SyncTree::<Entry>::default();
            let mut model = BTreeMap::new();
            for (key, op) in ops {
                let id: KeyId = format!("key-{key}").into();
                if op == 0 {
                    let gone = model.remove(&id);
                    prop_assert_eq!(tree.remove(&id).map(|entry| entry.1), gone);
                } else {
                    model.insert(id.clone(), Digest(op.into()));
                    set(&mut tree, &id, Digest(op.into()));
                }
            }
            let mut fresh = SyncTree::<Entry>::default();
            model.iter().for_each(|(id, digest)| fresh.insert((id.clone(), *digest)));
            let mut parts = vec![Prefix::ROOT];
            while let Some(part) = parts.pop() {
                let sum = tree.sum(part);
                prop_assert_eq!(sum, fresh.sum(part));
                prop_assert_eq!(sum.count as usize, tree.items(part).len());
                if sum.count > 1 && !part.is_deepest() {
                    let whole = part.children().map(|child| tree.sum(child)).fold(Sum::default(), |a, b| Sum {
                        count: a.count + b.count,
                        total: a.total.plus(b.total),
                    });
                    prop_assert_eq!(sum, whole);
                    parts.extend(part.children());
                }
            }
            prop_assert_eq!(tree.sum(Prefix::ROOT).count as usize, model.len());
            prop_assert_eq!(tree.iter().cloned().collect::<BTreeMap<_, _>>(), model.clone());
            for (id, digest) in &model {
                prop_assert_eq!(tree.find(id).map(|entry| entry.1), Some(*digest));
                prop_assert_eq!(tree.find_mut(id).map(|entry| entry.1), Some(*digest));
            }
            prop_assert!(tree.find("absent").is_none());
        }
    }

    /// ddata G9: two ids with one hash stand side by side, at the greatest depth, and are told apart.
    #[test]
    fn ids_with_one_hash_are_told_apart() {
        let mut leaf = Leaf(Vec::new());
        let ids = ["b", "c", "a"];
        ids.iter().for_each(|id| leaf.insert(7, (KeyId::from(*id), Digest(1))));
        assert_eq!(ids.map(|id| leaf.at(7, id)), [Ok(1), Ok(2), Ok(0)]);
        assert_eq!((leaf.at(7, "aa"), leaf.at(8, "a"), leaf.at(6, "a")), (Err(1), Err(3), Err(0)));
        let mut node = Node::of(Leaf((0..=LEAF_KEYS as u32).map(|n| place(7, n)).collect()));
        node.split_if_full(0);
        let mut found = Vec::new();
        node.collect(Prefix::ROOT, &mut found);
        assert_eq!(found.len(), LEAF_KEYS + 1);
    }

    /// ddata G9, H1: a trie that grew shrinks again.
    #[test]
    fn few_entries_stand_in_one_leaf() {
        let mut tree = SyncTree::<Entry>::default();
        let id = |number: usize| KeyId::from(format!("key-{number}"));
        (0..1_000).for_each(|number| tree.insert((id(number), Digest(1))));
        assert!(matches!(tree.root, Node::Inner(..)));
        (LEAF_KEYS..1_000).for_each(|number| drop(tree.remove(&id(number))));
        assert!(matches!(&tree.root, Node::Leaf(sum, leaf) if (sum.count, leaf.0.len()) == (64, LEAF_KEYS)));
        assert_eq!(tree.sum(Prefix::ROOT), tree.recounted());
        assert!((0..LEAF_KEYS).all(|number| tree.find(&id(number)).is_some()));
    }

    fn place(hash: u64, number: u32) -> LeafEntry<Entry> {
        LeafEntry { hash, entry: Box::new((format!("key-{number:03}").into(), Digest(1))) }
    }

    /// ddata G13: shares are disjoint and leave nothing out.
    #[test]
    fn shares_make_up_the_whole() {
        let mut tree = SyncTree::<Entry>::default();
        (0..500_u32).for_each(|key| tree.insert((format!("key-{key}").into(), Digest(key.into()))));
        for of in 1..=16 {
            let shares: Vec<Sixteenths> = (0..of).map(|index| Sixteenths::share(index, of)).collect();
            assert_eq!(shares.iter().fold(0, |all, share| all ^ share.bits()), u16::MAX);
            assert_eq!(shares.iter().map(|share| tree.sum_of(*share).count).sum::<u64>(), 500);
        }
    }
}
