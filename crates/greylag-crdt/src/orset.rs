//! A set in which an add wins over the removes that did not see it.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;

use crate::causal::{Causal, causal_data, ranged_data};
use crate::context::Context;
use crate::cx::UpdateCx;
use crate::data::ReplicatedData;
use crate::element::Element;
use crate::fragment::Edit;
use crate::replica::Dot;
use crate::store::{DotMap, DotSet, MapPatch, StoreMut};
use crate::tag::TypeTag;

/// A set inside a map, with the semantics of [`OrSet`].
pub type OrSetStore<T> = DotMap<T, DotSet>;

impl<T: Element> DotMap<T, DotSet> {
    /// A set to be put into a map.
    pub fn of_elements(elements: impl IntoIterator<Item = T>) -> Self {
        elements.into_iter().fold(Self::default(), |set, element| set.with(element, DotSet::single(Dot::NOWHERE)))
    }

    /// The elements, ascending.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.keys()
    }
}

/// What can be done to a set wherever it stands; more in the general map below.
impl<T: Element> StoreMut<'_, OrSetStore<T>> {
    /// Adds an element; also if it is present, which makes it survive removals that have not seen this add.
    pub fn add(&mut self, cx: &mut UpdateCx<'_>, element: T) {
        let drawn = DotSet::single(cx.draw_dot());
        self.0.apply(cx, Edit { patch: MapPatch::Key(element, drawn.clone()), drawn });
    }

    /// Adds several elements in one change.
    pub fn add_all(&mut self, cx: &mut UpdateCx<'_>, elements: impl IntoIterator<Item = T>) {
        let (mut added, mut drawn) = (BTreeMap::new(), Vec::new());
        for element in elements {
            if let Entry::Vacant(place) = added.entry(element) {
                let dot = cx.draw_dot();
                place.insert(DotSet::single(dot));
                drawn.push(dot);
            }
        }
        if !drawn.is_empty() {
            let patch = MapPatch::Keys(added.into_iter().collect());
            self.0.apply(cx, Edit { patch, drawn: DotSet::of(drawn) });
        }
    }
}

/// An observed-remove set: a removal removes what its caller saw, and nothing else.
///
/// Source: ddata §1, Y2, Y3.
///
/// ```
/// use greylag_crdt::{DotSource, OrSet, ReplicaId, ReplicatedData, UpdateCx, WriterKey};
///
/// let (source, writer) = (DotSource::new(), WriterKey::new(*b"a"));
/// let mut cx = UpdateCx::new(&source, ReplicaId(1), &writer, 0);
/// let mut birds = OrSet::new();
/// birds.add(&mut cx, "greylag".to_owned());
/// let mut copy = birds.clone();
/// birds.remove(&mut cx, "greylag");
/// copy.add(&mut cx, "greylag".to_owned());
/// birds.merge(&copy)?;
/// assert!(birds.contains("greylag"), "the concurrent add was not seen by the remove");
/// # Ok::<(), greylag_crdt::MergeError>(())
/// ```
#[derive(Clone, PartialEq)]
pub struct OrSet<T: Element> {
    pub(crate) causal: Causal<OrSetStore<T>>,
}

impl<T: Element> OrSet<T> {
    /// The empty set.
    pub fn new() -> Self {
        Self { causal: Causal::default() }
    }

    /// Adds an element. Adding one that is present is a change too: it makes the element survive
    /// removals that have not seen this add.
    pub fn add(&mut self, cx: &mut UpdateCx<'_>, element: T) {
        StoreMut(&mut self.causal).add(cx, element);
    }

    /// Adds several elements in one change.
    pub fn add_all(&mut self, cx: &mut UpdateCx<'_>, elements: impl IntoIterator<Item = T>) {
        StoreMut(&mut self.causal).add_all(cx, elements);
    }

    /// Adds everything that another set holds, under dots of this entry: how content is copied between entries.
    /// Source: ddata K12.
    pub fn extend_from(&mut self, cx: &mut UpdateCx<'_>, other: &Self) {
        self.add_all(cx, other.iter().cloned());
    }

    /// Removes the element as far as it is seen here. Returns whether it was present.
    pub fn remove<Q: Ord + ?Sized>(&mut self, cx: &mut UpdateCx<'_>, element: &Q) -> bool
    where
        T: Borrow<Q>,
    {
        StoreMut(&mut self.causal).remove(cx, element)
    }

    /// Removes everything that is seen here.
    pub fn clear(&mut self, cx: &mut UpdateCx<'_>) {
        StoreMut(&mut self.causal).clear(cx);
    }

    /// Whether the element is present.
    pub fn contains<Q: Ord + ?Sized>(&self, element: &Q) -> bool
    where
        T: Borrow<Q>,
    {
        self.causal.store().contains(element)
    }

    /// The elements, ascending.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.causal.store().keys()
    }

    /// How many elements there are.
    pub fn len(&self) -> usize {
        self.causal.store().len()
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The dots that this state has seen, for diagnosis.
    pub fn context(&self) -> &Context {
        self.causal.context()
    }

    /// The dots under which an element is present; none if it is absent.
    pub fn dots(&self, element: &T) -> &[Dot] {
        self.causal.store().get(element).map_or(&[], DotSet::dots)
    }
}

impl<T: Element> Default for OrSet<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Element> fmt::Debug for OrSet<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

impl<T: Element> ReplicatedData for OrSet<T> {
    causal_data!(TypeTag::with("gl.orset/1", &[&T::TAG]), OrSetStore<T>);
    ranged_data!();
}
