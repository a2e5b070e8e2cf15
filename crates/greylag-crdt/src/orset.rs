//! A set in which an add wins over the removes that did not see it.

use std::fmt;

use crate::causal::{Causal, Edit, Fragment};
use crate::codec::{DecodeError, Decoder, Encoder};
use crate::context::Context;
use crate::cx::UpdateCx;
use crate::data::{Change, Grew, Home, Lineage, ReplicatedData};
use crate::element::Element;
use crate::error::MergeError;
use crate::hash::Digest;
use crate::replica::Dot;
use crate::store::{DotMap, DotSet, MapScope, Store, Whole};
use crate::tag::TypeTag;

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
    causal: Causal<DotMap<T, DotSet>>,
}

impl<T: Element> OrSet<T> {
    /// The empty set.
    pub fn new() -> Self {
        Self { causal: Causal::default() }
    }

    /// Adds an element. Adding one that is present is a change too: it makes the element survive
    /// removals that have not seen this add.
    pub fn add(&mut self, cx: &mut UpdateCx<'_>, element: T) {
        self.add_all(cx, [element]);
    }

    /// Adds several elements in one change.
    pub fn add_all(&mut self, cx: &mut UpdateCx<'_>, elements: impl IntoIterator<Item = T>) {
        let (mut store, mut touched) = (DotMap::default(), std::collections::BTreeMap::new());
        let (mut drawn, mut superseded) = (Vec::new(), Vec::new());
        for element in elements {
            if touched.insert(element.clone(), Whole).is_some() {
                continue;
            }
            superseded.extend_from_slice(self.dots(&element));
            let dot = cx.draw_dot();
            drawn.push(dot);
            store.put(element, DotSet::single(dot));
        }
        if !drawn.is_empty() {
            self.causal.apply(cx, Edit { store, drawn, superseded, scope: MapScope::Touched(touched) });
        }
    }

    /// Removes the element as far as it is seen here. Returns whether it was present.
    pub fn remove<Q: Ord + ?Sized>(&mut self, cx: &mut UpdateCx<'_>, element: &Q) -> bool
    where
        T: std::borrow::Borrow<Q>,
    {
        let entries = self.causal.store().entries();
        let Some((element, dots)) = entries.get_key_value(element) else { return false };
        let touched = [(element.clone(), Whole)].into();
        let superseded = dots.dots().to_vec();
        let scope = MapScope::Touched(touched);
        self.causal.apply(cx, Edit { store: DotMap::default(), drawn: Vec::new(), superseded, scope });
        true
    }

    /// Removes everything that is seen here.
    pub fn clear(&mut self, cx: &mut UpdateCx<'_>) {
        let mut superseded = Vec::new();
        self.causal.store().visit_dots(&mut |dot| superseded.push(dot));
        if !superseded.is_empty() {
            self.causal
                .apply(cx, Edit { store: DotMap::default(), drawn: Vec::new(), superseded, scope: MapScope::All });
        }
    }

    /// Whether the element is present.
    pub fn contains<Q: Ord + ?Sized>(&self, element: &Q) -> bool
    where
        T: std::borrow::Borrow<Q>,
    {
        self.causal.store().entries().get(element).is_some()
    }

    /// The elements, ascending.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.causal.store().entries().keys()
    }

    /// How many elements there are.
    pub fn len(&self) -> usize {
        self.causal.store().entries().len()
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
        self.causal.store().entries().get(element).map_or(&[], DotSet::dots)
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
    const TAG: TypeTag = TypeTag::with("gl.orset/1", &[&T::TAG]);
    const CAUSAL: bool = true;
    type Delta = Fragment<DotMap<T, DotSet>>;

    crate::causal::causal_data!();
}
