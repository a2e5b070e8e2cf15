//! A store per key.

use std::borrow::{Borrow, Cow};
use std::cmp::Ordering;
use std::collections::BTreeMap;

use super::{Changes, DotSet, Host, Join, Store, StoreMut, edited_by_store_mut, push_element};
use crate::causality::cx::UpdateCx;
use crate::causality::replica::Dot;
use crate::encoding::codec::{DecodeError, Decoder, Encoder, ascending};
use crate::encoding::element::Element;
use crate::encoding::hash::Digest;
use crate::encoding::tag::TypeTag;
use crate::pruning::rename::Moves;
use crate::stores::map::PersistentMap;
use crate::stores::store::Edit;

/// A store per key; a key whose store is empty is absent.
#[derive(Debug, Clone, PartialEq)]
pub struct DotMap<K: Element, S: Store> {
    entries: PersistentMap<K, S>,
}

/// The keys of a [`DotMap`] that a fragment speaks of.
#[derive(Debug, Clone, PartialEq)]
pub enum MapScope<K: Ord, C> {
    /// All keys: a leaf that the fragment's context has seen and its store lacks is removed.
    All,
    /// One key, as far as its own scope reaches; other keys are left alone.
    One(K, C),
    /// Several keys or none; other keys are left alone.
    Touched(BTreeMap<K, C>),
}

/// What an operation puts in the place of what it sees in a [`DotMap`].
pub enum MapPatch<K: Element, S: Store> {
    /// This map replaces everything.
    Whole(DotMap<K, S>),
    /// A patch under one key.
    Key(K, S::Patch),
    /// Patches under several keys, ascending.
    Keys(Vec<(K, S::Patch)>),
}

impl<K: Ord, C> MapScope<K, C> {
    /// The scope of `keys` in its only form: one key is always `One`.
    fn of(mut keys: BTreeMap<K, C>) -> Self {
        match keys.pop_first() {
            Some((key, scope)) if keys.is_empty() => Self::One(key, scope),
            Some((key, scope)) => {
                keys.insert(key, scope);
                Self::Touched(keys)
            }
            None => Self::Touched(keys),
        }
    }

    /// How many keys are touched; `None` if all.
    fn len(&self) -> Option<usize> {
        match self {
            Self::All => None,
            Self::One(..) => Some(1),
            Self::Touched(keys) => Some(keys.len()),
        }
    }

    /// The touched keys; none if all are.
    fn iter(&self) -> impl Iterator<Item = (&K, &C)> {
        let (one, several) = match self {
            Self::All => (None, None),
            Self::One(key, scope) => (Some((key, scope)), None),
            Self::Touched(keys) => (None, Some(keys)),
        };
        one.into_iter().chain(several.into_iter().flatten())
    }
}

impl<K: Element, S: Store> Default for DotMap<K, S> {
    fn default() -> Self {
        Self { entries: PersistentMap::new() }
    }
}

impl<K: Element, S: Store> DotMap<K, S> {
    /// The stores by key.
    pub fn entries(&self) -> &PersistentMap<K, S> {
        &self.entries
    }

    /// The store of a key; `None` if the key is absent.
    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&S>
    where
        K: Borrow<Q>,
    {
        self.entries.get(key)
    }

    /// Whether a key, or an element of a set, is present.
    pub fn contains<Q: Ord + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.get(key).is_some()
    }

    /// The keys, or the elements of a set, ascending.
    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.entries.keys()
    }

    /// How many keys there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Puts a store under a key while a map is being built; leaves an empty store out.
    pub(crate) fn with(mut self, key: K, store: S) -> Self {
        if !store.is_empty() {
            self.entries.insert(key, store);
        }
        self
    }

    /// Joins the store of one key.
    pub(crate) fn join_key(&mut self, key: Cow<'_, K>, other: &Self, scope: &S::Scope, join: &mut Join<'_>) -> bool {
        let absent = S::default();
        let theirs = other.entries.get(&*key).unwrap_or(&absent);
        let length = join.changes.enter(&*key);
        let mut changed = false;
        self.entries.alter(key, |own| {
            changed = own.join(theirs, scope, join);
            !own.is_empty()
        });
        join.changes.leave(length);
        changed
    }

    fn patch_key(&mut self, key: K, patch: S::Patch, changes: &mut Changes) {
        let length = changes.enter(&key);
        self.entries.alter(Cow::Owned(key), |own| {
            own.patch(patch, changes);
            !own.is_empty()
        });
        changes.leave(length);
    }

    /// The keys at or above `from` and below `to` that a join of everything in this range could change: keys whose
    /// stores differ, own keys with a dot that the other side has seen, and keys of the other side with a dot not seen
    /// here. `other` has no keys outside of the range.
    pub(crate) fn differing(&self, other: &Self, (from, to): (Option<&K>, Option<&K>), join: &Join<'_>) -> Vec<K> {
        let any_dot = |store: &S, holds: &dyn Fn(Dot) -> bool| {
            let mut found = false;
            store.visit_dots(&mut |dot| found |= holds(dot));
            found
        };
        let mut differing = Vec::new();
        if self.entries.is_shared_with(&other.entries) {
            return differing;
        }
        let within = self.entries.iter_from(from).take_while(|(key, _)| to.is_none_or(|to| *key < to));
        let (mut own, mut theirs) = (within.peekable(), other.entries.iter().peekable());
        loop {
            let order = match (own.peek(), theirs.peek()) {
                (None, None) => return differing,
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some((a, _)), Some((b, _))) => a.cmp(b),
            };
            let differs = match order {
                Ordering::Less => own.next().filter(|(_, s)| any_dot(s, &|dot| join.theirs.contains(dot))),
                Ordering::Greater => theirs.next().filter(|(_, s)| any_dot(s, &|dot| !join.own.contains(dot))),
                Ordering::Equal => own.next().zip(theirs.next()).filter(|((_, a), (_, b))| a != b).map(|(own, _)| own),
            };
            differing.extend(differs.map(|(key, _)| key.clone()));
        }
    }
}

/// The place of a store under a key of another store.
struct Child<'a, K: Element, S: Store> {
    parent: &'a mut dyn Host<DotMap<K, S>>,
    key: K,
}

impl<K: Element, S: Store> Host<S> for Child<'_, K, S> {
    fn store(&self) -> Option<&S> {
        self.parent.store()?.get(&self.key)
    }

    fn apply(&mut self, cx: &UpdateCx<'_>, edit: Edit<S>) {
        self.parent.apply(cx, Edit { patch: MapPatch::Key(self.key.clone(), edit.patch), drawn: edit.drawn });
    }

    fn slot_floor(&mut self, cx: &UpdateCx<'_>) -> u64 {
        self.parent.slot_floor(cx)
    }
}

/// The operations of a map whose values are stores, in an entry or under a key. Sets have `add` and more, see
/// [`crate::OrSetStore`].
impl<K: Element, S: Store> StoreMut<'_, DotMap<K, S>> {
    /// Edits the store of a key in place, an empty store if the key is absent.
    pub fn update<R>(
        &mut self,
        cx: &mut UpdateCx<'_>,
        key: K,
        f: impl FnOnce(&mut S::Editor<'_>, &mut UpdateCx<'_>) -> R,
    ) -> R {
        S::edit(&mut Child { parent: &mut *self.0, key }, cx, f)
    }

    /// Puts a copy of `store` in the place of what is seen under a key; an empty store removes the key.
    pub fn put(&mut self, cx: &mut UpdateCx<'_>, key: K, store: &S) {
        let mut drawn = Vec::new();
        let store = store.with_fresh_dots(cx, &mut drawn);
        if !drawn.is_empty() || self.contains(&key) {
            self.0.apply(cx, Edit { patch: MapPatch::Key(key, store.whole()), drawn: DotSet::of(drawn) });
        }
    }

    /// Removes a key, or an element of a set, as far as this replica sees it. Returns whether it was present.
    pub fn remove<Q: Ord + ?Sized>(&mut self, cx: &mut UpdateCx<'_>, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        let Some((key, _)) = self.store().and_then(|own| own.entries.get_key_value(key)) else { return false };
        let patch = MapPatch::Key(key.clone(), S::default().whole());
        self.0.apply(cx, Edit::removal(patch));
        true
    }

    /// Removes everything that this replica sees.
    pub fn clear(&mut self, cx: &mut UpdateCx<'_>) {
        if self.store().is_some() {
            self.0.apply(cx, Edit::removal(MapPatch::Whole(DotMap::default())));
        }
    }

    /// The store of a key; `None` if the key is absent.
    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&S>
    where
        K: Borrow<Q>,
    {
        self.store()?.get(key)
    }

    /// Whether a key, or an element of a set, is present.
    pub fn contains<Q: Ord + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.get(key).is_some()
    }

    /// How many keys, or elements of a set, there are.
    pub fn len(&self) -> usize {
        self.store().map_or(0, DotMap::len)
    }

    /// Whether there is no key and no element.
    pub fn is_empty(&self) -> bool {
        self.store().is_none()
    }
}

impl<K: Element, S: Store> Store for DotMap<K, S> {
    type Scope = MapScope<K, S::Scope>;
    const TAG: TypeTag = TypeTag::with("dotmap", &[&K::TAG, &S::TAG]);

    edited_by_store_mut!(Self);

    fn everything() -> Self::Scope {
        MapScope::All
    }

    type Patch = MapPatch<K, S>;

    fn whole(self) -> Self::Patch {
        MapPatch::Whole(self)
    }

    fn content(patch: &Self::Patch) -> (Self, Self::Scope) {
        let keys = match patch {
            MapPatch::Whole(store) => return (store.clone(), MapScope::All),
            MapPatch::Key(key, patch) => {
                let (store, scope) = S::content(patch);
                return (Self::default().with(key.clone(), store), MapScope::One(key.clone(), scope));
            }
            MapPatch::Keys(keys) => keys,
        };
        let (mut stores, mut scopes) = (Vec::new(), BTreeMap::new());
        for (key, patch) in keys {
            let (store, scope) = S::content(patch);
            scopes.insert(key.clone(), scope);
            if !store.is_empty() {
                stores.push((key.clone(), store));
            }
        }
        (Self { entries: PersistentMap::from_ascending(stores) }, MapScope::of(scopes))
    }

    fn patch(&mut self, patch: Self::Patch, changes: &mut Changes) {
        match patch {
            MapPatch::Key(key, patch) => self.patch_key(key, patch, changes),
            MapPatch::Keys(keys) => keys.into_iter().for_each(|(key, patch)| self.patch_key(key, patch, changes)),
            MapPatch::Whole(store) => {
                let former = std::mem::replace(self, store);
                let vanishing = former.entries.iter().map(|(key, store)| (key, store.clone(), S::default()));
                let new = self.entries.iter().map(|(key, store)| (key, S::default(), store.clone()));
                for (key, mut before, after) in vanishing.chain(new) {
                    let length = changes.enter(key);
                    before.patch(after.whole(), changes);
                    changes.leave(length);
                }
            }
        }
    }

    fn join_scopes(into: &mut Self::Scope, other: &Self::Scope) {
        if matches!(other, MapScope::All) {
            *into = MapScope::All;
        }
        let mut own = match std::mem::replace(into, MapScope::All) {
            MapScope::All => return,
            MapScope::One(key, scope) => BTreeMap::from([(key, scope)]),
            MapScope::Touched(keys) => keys,
        };
        for (key, scope) in other.iter() {
            match own.get_mut(key) {
                Some(twin) => S::join_scopes(twin, scope),
                None => drop(own.insert(key.clone(), scope.clone())),
            }
        }
        *into = MapScope::of(own);
    }

    fn join(&mut self, other: &Self, scope: &Self::Scope, join: &mut Join<'_>) -> bool {
        let mut changed = false;
        match scope {
            MapScope::One(..) | MapScope::Touched(_) => {
                for (key, scope) in scope.iter() {
                    changed |= self.join_key(Cow::Borrowed(key), other, scope, join);
                }
            }
            MapScope::All => {
                for key in self.differing(other, (None, None), join) {
                    changed |= self.join_key(Cow::Owned(key), other, &S::everything(), join);
                }
            }
        }
        changed
    }

    fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn leaves(&self) -> usize {
        self.entries.len()
    }

    fn visit_dots(&self, visit: &mut dyn FnMut(Dot)) {
        self.entries.iter().for_each(|(_, store)| store.visit_dots(visit));
    }

    fn visit_slots(&self, visit: &mut dyn FnMut(Dot)) {
        self.entries.iter().for_each(|(_, store)| store.visit_slots(visit));
    }

    fn digest(&self, path: &mut Vec<u8>) -> Digest {
        let length = path.len();
        let mut sum = Digest::default();
        for (key, store) in self.entries.iter() {
            push_element(path, key);
            sum = sum.plus(store.digest(path));
            path.truncate(length);
        }
        sum
    }

    fn reads_like(&self, other: &Self) -> bool {
        let is_alike = |((key, store), (twin, other)): ((&K, &S), (&K, &S))| key == twin && store.reads_like(other);
        self.entries.len() == other.entries.len() && self.entries.iter().zip(other.entries.iter()).all(is_alike)
    }

    fn rename(&mut self, moves: &Moves) -> bool {
        let mut renamed = Vec::new();
        for (key, store) in self.entries.iter() {
            let mut store = store.clone();
            if store.rename(moves) {
                renamed.push((key.clone(), store));
            }
        }
        let changed = !renamed.is_empty();
        for (key, store) in renamed {
            self.entries.insert(key, store);
        }
        changed
    }

    fn with_fresh_dots(&self, cx: &mut UpdateCx<'_>, drawn: &mut Vec<Dot>) -> Self {
        let stores = self.entries.iter();
        stores.fold(Self::default(), |copy, (key, store)| copy.with(key.clone(), store.with_fresh_dots(cx, drawn)))
    }

    fn encode(&self, out: &mut Encoder) {
        out.u64(self.entries.len() as u64);
        for (key, store) in self.entries.iter() {
            key.encode(out);
            store.encode(out);
        }
    }

    fn decode(inp: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let mut entries = Vec::new();
        ascending(inp, |inp| {
            let key = K::decode(inp)?;
            let store = S::decode(inp)?;
            if store.is_empty() {
                return Err(DecodeError::NotCanonical("a key without a leaf"));
            }
            entries.push((key.clone(), store));
            Ok(key)
        })?;
        Ok(Self { entries: PersistentMap::from_ascending(entries) })
    }

    fn encode_scope(scope: &Self::Scope, out: &mut Encoder) {
        let Some(count) = scope.len() else { return out.u8(0) };
        out.u8(1);
        out.u64(count as u64);
        for (key, scope) in scope.iter() {
            key.encode(out);
            S::encode_scope(scope, out);
        }
    }

    fn decode_scope(inp: &mut Decoder<'_>) -> Result<Self::Scope, DecodeError> {
        match inp.u8()? {
            0 => Ok(MapScope::All),
            1 => {
                let mut keys = BTreeMap::new();
                ascending(inp, |inp| {
                    let key = K::decode(inp)?;
                    keys.insert(key.clone(), S::decode_scope(inp)?);
                    Ok(key)
                })?;
                Ok(MapScope::of(keys))
            }
            _ => Err(DecodeError::Invalid("an unknown scope")),
        }
    }
}
