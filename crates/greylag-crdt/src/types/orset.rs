//! A set in which an add wins over the removes that did not see it.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;

use crate::causality::cx::UpdateCx;
use crate::causality::replica::Dot;
use crate::encoding::element::Element;
use crate::stores::causal::{Causal, keyed};
use crate::stores::store::{DotMap, DotSet, Edit, MapPatch, StoreMut};

/// A set inside a map, with the semantics of [`OrSet`].
pub type OrSetStore<T> = DotMap<T, DotSet>;

impl<T: Element> DotMap<T, DotSet> {
    /// A set to put into a map.
    pub fn of_elements(elements: impl IntoIterator<Item = T>) -> Self {
        elements.into_iter().fold(Self::default(), |set, element| set.with(element, DotSet::single(Dot::UNPLACED)))
    }

    /// The elements, ascending.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.keys()
    }
}

/// The operations of a set, in an entry or under a key; more are in the general map below.
impl<T: Element> StoreMut<'_, OrSetStore<T>> {
    /// Adds an element. Also a change if the element is present: it then survives removals that have not seen this add.
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
    /// Adds an element. Adding a present element is a change too: the element then survives removals that have not seen
    /// this add.
    pub fn add(&mut self, cx: &mut UpdateCx<'_>, element: T) {
        self.edit().add(cx, element);
    }

    /// Adds several elements in one change.
    pub fn add_all(&mut self, cx: &mut UpdateCx<'_>, elements: impl IntoIterator<Item = T>) {
        self.edit().add_all(cx, elements);
    }

    /// Adds everything that another set holds, under dots of this entry: the way to copy content between entries.
    /// Source: ddata K12.
    pub fn extend_from(&mut self, cx: &mut UpdateCx<'_>, other: &Self) {
        self.add_all(cx, other.iter().cloned());
    }

    /// The elements, ascending.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.store().keys()
    }

    /// The dots under which an element is present; none if the element is absent.
    pub fn dots(&self, element: &T) -> &[Dot] {
        self.store().get(element).map_or(&[], DotSet::dots)
    }
}

impl<T: Element> fmt::Debug for OrSet<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

keyed!("gl.orset/1", OrSet<T: Element>, "set", element: T, OrSetStore<T>);
