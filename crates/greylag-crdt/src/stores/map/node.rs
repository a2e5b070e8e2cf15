//! The shared nodes of the tree.
//!
//! Nodes are wide, because a change should touch few of them. `triomphe` counts the references: it has no weak ones, so
//! one plain load tells that no other tree holds a node, where the standard library needs a locked instruction per
//! level.

use std::borrow::Borrow;
use std::sync::OnceLock;

use arrayvec::ArrayVec;
use triomphe::Arc;

use crate::ranges::RangeSum;

/// A node with more entries than this is split in two.
pub(super) const MAX: usize = 31;
/// A node with fewer entries is joined with a neighbour, unless it is the root.
pub(super) const MIN: usize = 8;

/// Room for one entry too many, after which the node is split.
const ROOM: usize = MAX + 1;

/// The child taken on each level, from the root: five bits each, the root's lowest. Twelve levels of [`MIN`] children
/// are more than fits into memory.
#[derive(Clone, Copy)]
pub(super) struct Path(u64);

impl Path {
    const BITS: u32 = ROOM.ilog2();

    fn push(&mut self, level: u32, child: usize) {
        self.0 |= (child as u64) << (level * Self::BITS);
    }

    /// The child on this level, and the path below it.
    fn split(self) -> (usize, Self) {
        (self.0 as usize % ROOM, Self(self.0 >> Self::BITS))
    }
}

/// A subtree; all leaves lie equally deep.
pub(super) enum Node<K, V> {
    Leaf(Arc<Leaf<K, V>>),
    Inner(Arc<Inner<K, V>>),
}

/// Entries, ascending, stored in the node itself, which saves one of the cache misses that a large map costs.
pub(super) struct Leaf<K, V> {
    entries: ArrayVec<(K, V), ROOM>,
    sum: KnownSum,
}

/// The sum over everything in a node, once a caller has asked for it; see [`super::ranges`].
pub(super) type KnownSum = OnceLock<RangeSum>;

/// Children, ascending, and not empty.
pub(super) struct Inner<K, V> {
    /// A bound for each child: at most the first key below the child, and above every key below its left neighbour. The
    /// first bound is never compared.
    from: ArrayVec<K, ROOM>,
    nodes: ArrayVec<Node<K, V>, ROOM>,
    sum: KnownSum,
}

impl<K, V> Clone for Node<K, V> {
    fn clone(&self) -> Self {
        match self {
            Self::Leaf(leaf) => Self::Leaf(Arc::clone(leaf)),
            Self::Inner(inner) => Self::Inner(Arc::clone(inner)),
        }
    }
}

/// The copy does not take the sum over: a node is copied to be changed.
impl<K: Clone, V: Clone> Clone for Leaf<K, V> {
    fn clone(&self) -> Self {
        Self::new(self.entries.clone())
    }
}

impl<K: Clone, V> Clone for Inner<K, V> {
    fn clone(&self) -> Self {
        Self::new(self.from.clone(), self.nodes.clone())
    }
}

impl<K, V> Leaf<K, V> {
    fn new(entries: ArrayVec<(K, V), ROOM>) -> Self {
        Self { entries, sum: KnownSum::new() }
    }

    pub(super) fn entries(&self) -> &[(K, V)] {
        &self.entries
    }

    /// Whether one more entry fits without a split.
    pub(super) fn has_room(&self) -> bool {
        self.entries.len() < MAX
    }

    pub(super) fn value_mut(&mut self, at: usize) -> &mut V {
        &mut self.entries[at].1
    }

    pub(super) fn insert(&mut self, at: usize, key: K, value: V) {
        self.entries.insert(at, (key, value));
    }
}

impl<K, V> Inner<K, V> {
    fn new(from: ArrayVec<K, ROOM>, nodes: ArrayVec<Node<K, V>, ROOM>) -> Self {
        Self { from, nodes, sum: KnownSum::new() }
    }

    /// A node of `children`, each with its bound.
    fn of(children: impl IntoIterator<Item = (K, Node<K, V>)>) -> Self {
        let (from, nodes) = children.into_iter().unzip();
        Self::new(from, nodes)
    }

    /// The children.
    pub(super) fn nodes(&self) -> &[Node<K, V>] {
        &self.nodes
    }

    /// The bounds of the children; the first one means nothing.
    pub(super) fn bounds(&self) -> &[K] {
        &self.from
    }

    /// The child below which a key is or would be.
    pub(super) fn place<Q: Ord + ?Sized>(&self, key: &Q) -> usize
    where
        K: Borrow<Q>,
    {
        ranked(&self.from[1..], |from| from.borrow() <= key, is_cheap::<K>())
    }
}

/// The place of a key among ascending entries, or the place that it would have.
pub(super) fn find<K: Borrow<Q>, V, Q: Ord + ?Sized>(entries: &[(K, V)], key: &Q) -> Result<usize, usize> {
    let at = ranked(entries, |(own, _)| own.borrow() < key, is_cheap::<K>());
    match entries.get(at) {
        Some((own, _)) if own.borrow() == key => Ok(at),
        _ => Err(at),
    }
}

/// How many items of a node `comes_before` selects. A binary search waits for memory at each step; where comparing is
/// cheap, all items are compared instead, and their cache lines are loaded at the same time.
#[inline]
fn ranked<T>(items: &[T], comes_before: impl Fn(&T) -> bool, is_cheap: bool) -> usize {
    if is_cheap {
        items.iter().map(|item| usize::from(comes_before(item))).sum()
    } else {
        items.partition_point(comes_before)
    }
}

/// Whether keys are compared in a register.
pub(super) const fn is_cheap<K>() -> bool {
    size_of::<K>() <= 8 && !std::mem::needs_drop::<K>()
}

/// Where to split a node that is too long: in the middle; near its end if it grew at its end, so that ascending keys
/// leave full nodes behind.
fn middle(len: usize, at: usize) -> usize {
    if at + 1 == len { len - MIN } else { len / 2 }
}

impl<K, V> Node<K, V> {
    /// Whether both are the same node.
    pub(super) fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Leaf(own), Self::Leaf(theirs)) => Arc::ptr_eq(own, theirs),
            (Self::Inner(own), Self::Inner(theirs)) => Arc::ptr_eq(own, theirs),
            _ => false,
        }
    }

    /// How many entries or children the node has.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Leaf(leaf) => leaf.entries.len(),
            Self::Inner(inner) => inner.nodes.len(),
        }
    }

    fn leaf(entries: ArrayVec<(K, V), ROOM>) -> Self {
        Self::Leaf(Arc::new(Leaf::new(entries)))
    }

    fn inner(inner: Inner<K, V>) -> Self {
        Self::Inner(Arc::new(inner))
    }

    /// The sum over everything below, if it was computed.
    pub(super) fn known_sum(&self) -> &KnownSum {
        match self {
            Self::Leaf(leaf) => &leaf.sum,
            Self::Inner(inner) => &inner.sum,
        }
    }
}

/// The leaf to change; copied first if another tree holds it too. Its sum is forgotten.
fn leaf_mut<K: Clone, V: Clone>(leaf: &mut Arc<Leaf<K, V>>) -> &mut Leaf<K, V> {
    let leaf = Arc::make_mut(leaf);
    forget(&mut leaf.sum);
    leaf
}

/// Forgets a sum. Looks before taking: mostly no sum was computed.
#[inline]
fn forget(sum: &mut KnownSum) {
    if sum.get().is_some() {
        sum.take();
    }
}

/// As [`leaf_mut`].
fn inner_mut<K: Clone, V>(inner: &mut Arc<Inner<K, V>>) -> &mut Inner<K, V> {
    let inner = Arc::make_mut(inner);
    forget(&mut inner.sum);
    inner
}

impl<K: Ord + Clone, V: Clone> Node<K, V> {
    /// The tree of `entries`, whose keys ascend.
    pub(super) fn from_ascending(entries: Vec<(K, V)>) -> Self {
        let mut nodes = chunks(entries, |entries| bounded(Self::leaf(entries)));
        while nodes.len() > 1 {
            nodes = chunks(nodes, |children| bounded(Self::inner(Inner::of(children))));
        }
        nodes.pop().map_or_else(|| Self::leaf(ArrayVec::new()), |(_, root)| root)
    }

    /// The entries of the leaf where a key is or would be.
    pub(super) fn leaf_of<Q: Ord + ?Sized>(&self, key: &Q) -> &[(K, V)]
    where
        K: Borrow<Q>,
    {
        let mut node = self;
        loop {
            match node {
                Self::Inner(inner) => node = &inner.nodes[inner.place(key)],
                Self::Leaf(leaf) => return &leaf.entries,
            }
        }
    }

    /// The path to the leaf of a key, and the key's place in the leaf, or the place that it would have.
    pub(super) fn locate<Q: Ord + ?Sized>(&self, key: &Q) -> (Path, Result<usize, usize>)
    where
        K: Borrow<Q>,
    {
        let (mut path, mut node, mut level) = (Path(0), self, 0);
        loop {
            match node {
                Self::Inner(inner) => {
                    let at = inner.place(key);
                    path.push(level, at);
                    level += 1;
                    node = &inner.nodes[at];
                }
                Self::Leaf(leaf) => return (path, find(&leaf.entries, key)),
            }
        }
    }

    /// The leaf of a key, to change it, and the key's place in it, or the place that it would have: in one descent, if
    /// no other tree holds a node on the path; `None` if one does.
    pub(super) fn unshared<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<(&mut Leaf<K, V>, Result<usize, usize>)>
    where
        K: Borrow<Q>,
    {
        let mut node = self;
        loop {
            match node {
                Self::Inner(inner) => {
                    let inner = Arc::get_mut(inner)?;
                    forget(&mut inner.sum);
                    let at = inner.place(key);
                    node = &mut inner.nodes[at];
                }
                Self::Leaf(leaf) => {
                    let leaf = Arc::get_mut(leaf)?;
                    forget(&mut leaf.sum);
                    let place = find(&leaf.entries, key);
                    return Some((leaf, place));
                }
            }
        }
    }

    /// The located value, to change it.
    pub(super) fn value_mut(&mut self, path: Path, at: usize) -> &mut V {
        match self {
            Self::Leaf(leaf) => &mut leaf_mut(leaf).entries[at].1,
            Self::Inner(inner) => {
                let (first, path) = path.split();
                inner_mut(inner).nodes[first].value_mut(path, at)
            }
        }
    }

    /// Inserts at a located place; to be called at the root.
    pub(super) fn insert(&mut self, path: Path, at: usize, key: K, value: V) {
        if let Some((from, right)) = self.insert_below(path, at, key, value) {
            let left = self.clone();
            // The first child needs no bound of its own: it is never compared.
            *self = Self::inner(Inner::of([(from.clone(), left), (from, right)]));
        }
    }

    /// Inserts below this node. Returns the greater part with its bound if the node was split.
    fn insert_below(&mut self, path: Path, at: usize, key: K, value: V) -> Option<(K, Self)> {
        match self {
            Self::Leaf(leaf) => {
                let leaf = leaf_mut(leaf);
                leaf.insert(at, key, value);
                let len = leaf.entries.len();
                (len > MAX).then(|| bounded(Self::leaf(split_off(&mut leaf.entries, middle(len, at)))))
            }
            Self::Inner(inner) => {
                let (inner, (first, path)) = (inner_mut(inner), path.split());
                let (from, right) = inner.nodes[first].insert_below(path, at, key, value)?;
                inner.from.insert(first + 1, from);
                inner.nodes.insert(first + 1, right);
                let len = inner.nodes.len();
                (len > MAX).then(|| bounded(Self::inner(inner.split_off(middle(len, first + 1)))))
            }
        }
    }

    /// Removes what was located; to be called at the root.
    pub(super) fn remove(&mut self, path: Path, at: usize) -> V {
        let removed = self.remove_below(path, at);
        if let Self::Inner(inner) = self
            && let [only] = inner.nodes()
        {
            *self = only.clone();
        }
        removed
    }

    fn remove_below(&mut self, path: Path, at: usize) -> V {
        match self {
            Self::Leaf(leaf) => leaf_mut(leaf).entries.remove(at).1,
            Self::Inner(inner) => {
                let (inner, (first, path)) = (inner_mut(inner), path.split());
                let removed = inner.nodes[first].remove_below(path, at);
                if inner.nodes[first].len() < MIN && inner.nodes.len() > 1 {
                    inner.join_neighbours(first.min(inner.nodes.len() - 2));
                }
                removed
            }
        }
    }
}

/// A node with its bound.
fn bounded<K: Clone, V>(node: Node<K, V>) -> (K, Node<K, V>) {
    let from = match &node {
        Node::Leaf(leaf) => leaf.entries[0].0.clone(),
        Node::Inner(inner) => inner.from[0].clone(),
    };
    (from, node)
}

impl<K: Ord + Clone, V: Clone> Inner<K, V> {
    fn split_off(&mut self, at: usize) -> Self {
        Self::new(self.from.drain(at..).collect(), self.nodes.drain(at..).collect())
    }

    /// Moves everything of the child after `at` into the child at it; moves half back if that is too much.
    fn join_neighbours(&mut self, at: usize) {
        let (bound, right) = (self.from.remove(at + 1), self.nodes.remove(at + 1));
        let new = match (&mut self.nodes[at], right) {
            (Node::Leaf(left), Node::Leaf(right)) => {
                let entries = &mut leaf_mut(left).entries;
                let mut right = Arc::unwrap_or_clone(right).entries;
                let half = (entries.len() + right.len()) / 2;
                if entries.len() + right.len() <= MAX {
                    entries.extend(right);
                    None
                } else if entries.len() < half {
                    entries.extend(right.drain(..half - entries.len()));
                    Some(Node::leaf(right))
                } else {
                    Some(Node::leaf(entries.drain(half..).chain(right).collect()))
                }
            }
            (Node::Inner(left), Node::Inner(right)) => {
                let mut right = Arc::unwrap_or_clone(right);
                // The right node's first bound was never compared; now it stands between two children.
                right.from[0] = bound;
                inner_mut(left).append(right)
            }
            _ => unreachable!("neighbours stand on one level"),
        };
        if let Some(new) = new {
            let (from, node) = bounded(new);
            self.from.insert(at + 1, from);
            self.nodes.insert(at + 1, node);
        }
    }

    /// Takes all children of `other`; returns half of all if they are too many.
    fn append(&mut self, other: Self) -> Option<Node<K, V>> {
        let both = self.nodes.len() + other.nodes.len();
        let mut children: Vec<(K, Node<K, V>)> = self.from.drain(..).zip(self.nodes.drain(..)).collect();
        children.extend(other.from.into_iter().zip(other.nodes));
        let rest = if both > MAX { children.split_off(both / 2) } else { Vec::new() };
        (self.from, self.nodes) = children.into_iter().unzip();
        (!rest.is_empty()).then(|| Node::inner(Self::of(rest)))
    }
}

/// Splits off the greater part, for a leaf of its own.
fn split_off<T>(entries: &mut ArrayVec<T, ROOM>, at: usize) -> ArrayVec<T, ROOM> {
    entries.drain(at..).collect()
}

/// Makes nodes of pieces of about the same length: none is too long and, if there are several, none too short.
fn chunks<T, R>(items: Vec<T>, mut make: impl FnMut(ArrayVec<T, ROOM>) -> R) -> Vec<R> {
    let (len, count) = (items.len(), items.len().div_ceil(MAX * 3 / 4));
    let mut items = items.into_iter();
    let lengths = (0..count).map(|chunk| len * (chunk + 1) / count - len * chunk / count);
    lengths.map(|length| make(items.by_ref().take(length).collect())).collect()
}
