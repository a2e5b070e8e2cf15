//! A register that keeps all concurrent writes.

use std::collections::BTreeSet;
use std::fmt;

use crate::causality::context::Context;
use crate::causality::cx::UpdateCx;
use crate::data::ReplicatedData;
use crate::encoding::codec::{DecodeError, Decoder, Encoder};
use crate::encoding::element::Element;
use crate::encoding::tag::TypeTag;
use crate::stores::causal::{Causal, causal_data};
use crate::stores::store::{DotFun, DotSet, Edit, Leaf, StoreMut, edited_by_store_mut};

/// One write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MvCell<T>(T);

impl<T: Element> Leaf for MvCell<T> {
    const TAG: TypeTag = TypeTag::with("mv", &[&T::TAG]);

    edited_by_store_mut!(DotFun<Self>);

    fn join(&mut self, other: &Self) {
        if self.0 < other.0 {
            self.clone_from(other);
        }
    }

    fn encode(&self, out: &mut Encoder) {
        self.0.encode(out);
    }

    fn decode(inp: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        T::decode(inp).map(Self)
    }

    fn read_alike(one: &DotFun<Self>, other: &DotFun<Self>) -> bool {
        let values = |store: &DotFun<Self>| store.values().map(|cell| cell.0.clone()).collect::<BTreeSet<T>>();
        values(one) == values(other)
    }
}

impl<T: Element> StoreMut<'_, DotFun<MvCell<T>>> {
    /// Sets the value in the place of all values seen here.
    pub fn set(&mut self, cx: &mut UpdateCx<'_>, value: T) {
        let dot = cx.draw_dot();
        self.0.apply(cx, Edit { patch: DotFun::single(dot, MvCell(value)), drawn: DotSet::single(dot) });
    }
}

/// A register that shows every value that no later write has seen and replaced: one value normally, several after
/// concurrent writes.
///
/// ```
/// use greylag_crdt::{DotSource, MvRegister, ReplicaId, ReplicatedData, UpdateCx, WriterKey};
///
/// let (numbers, others, writer) = (DotSource::new(), DotSource::new(), WriterKey::new(*b""));
/// let mut cx = UpdateCx::new(&numbers, ReplicaId(1), &writer, 0);
/// let mut cx_of_other = UpdateCx::new(&others, ReplicaId(2), &writer, 0);
/// let (mut here, mut there) = (MvRegister::new(), MvRegister::new());
/// here.set(&mut cx, 1);
/// there.set(&mut cx_of_other, 2);
/// here.merge(&there)?;
/// assert!(here.values().eq([&1, &2]), "neither write saw the other");
/// here.set(&mut cx, 3);
/// assert!(here.values().eq([&3]));
/// # Ok::<(), greylag_crdt::MergeError>(())
/// ```
#[derive(Clone, PartialEq)]
pub struct MvRegister<T: Element> {
    pub(crate) causal: Causal<DotFun<MvCell<T>>>,
}

impl<T: Element> MvRegister<T> {
    /// The register that was never set.
    pub fn new() -> Self {
        Self { causal: Causal::default() }
    }

    /// Sets the value in the place of all values seen here.
    pub fn set(&mut self, cx: &mut UpdateCx<'_>, value: T) {
        StoreMut(&mut self.causal).set(cx, value);
    }

    /// All concurrent values, ascending, each once; none if the register was never set.
    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.causal.store().values().map(|cell| &cell.0).collect::<BTreeSet<_>>().into_iter()
    }

    /// The dots that this state has seen, for diagnosis.
    pub fn context(&self) -> &Context {
        self.causal.context()
    }
}

impl<T: Element> Default for MvRegister<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Element> fmt::Debug for MvRegister<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.values()).finish()
    }
}

impl<T: Element> ReplicatedData for MvRegister<T> {
    causal_data!(TypeTag::with("gl.mvreg/1", &[&T::TAG]), DotFun<MvCell<T>>);
}
