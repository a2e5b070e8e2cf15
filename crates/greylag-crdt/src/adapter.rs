//! Connects the types here with the crate `crdts`, in both directions.
//!
//! [`Adapted`] makes any of the state-based types of `crdts` a replicated type. In the other direction the types here
//! implement `CvRDT` and `CmRDT`, with deltas as operations (deltas are idempotent and free of order, so the contract
//! holds), and causal types `ResetRemove`.
//!
//! Limits of adapted types: the full state travels with each update, removed replicas are never pruned, an `LWWReg`
//! whose markers are equal does not converge (use [`crate::LwwRegister`]), `GCounter::inc_many` may overflow. Their
//! mutators number writes by the container's own clock, so name writers by [`crate::UpdateCx::actor`]: an entry that is
//! dropped and created again has another actor. Source: ddata A7–A10.

mod crdts_traits;
mod hashing;

pub use crdts_traits::NoClock;

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use crdts::CvRDT;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::encoding::codec::{DecodeError, Decoder, Encoder, FORMAT};
use crate::encoding::hash::Digest;
use crate::encoding::tag::TypeTag;
use crate::error::MergeError;
use crate::types::state::{State, StateData};

/// How an adapted type's digest is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DigestMode {
    /// From its bytes: for types that are made of ordered maps and sets.
    Ordered,
    /// From sums over maps and sequences, so that their order does not count: for types that hold hash maps or vectors in
    /// the order of arrival (`Orswot`, `Map`, `MVReg`). Sequences inside of elements are summed too, so elements that
    /// differ in nothing but the order of a sequence are taken for equal; texts are no sequences.
    Unordered,
}

/// Names an adapted type. Source: ddata A7, A8, A9.
pub trait AdapterTag: Send + Sync + 'static {
    /// The type's stable name, with version and parameters.
    const TAG: TypeTag;
    /// How its digest is made.
    const DIGEST: DigestMode = DigestMode::Unordered;
    /// Whether `validate_merge` is asked before merging. Quadratic in `Orswot` and `Map`, which also refuse legal adds
    /// of several members.
    const VALIDATE: bool = false;
}

/// A type of the crate `crdts` as a state-only replicated type; derefs to it.
///
/// ```
/// use crdts::CmRDT as _;
/// use greylag_crdt::{Adapted, AdapterTag, DotSource, ReplicaId, ReplicatedData, TypeTag, UpdateCx, WriterKey};
///
/// type Actor = (u64, u64);
/// struct Words;
/// impl AdapterTag for Words {
///     const TAG: TypeTag = TypeTag::new("doc.words/1");
/// }
///
/// let (numbers, writer) = (DotSource::new(), WriterKey::new(*b"a"));
/// let cx = UpdateCx::new(&numbers, ReplicaId(1), &writer, 0);
/// let actor = (cx.actor().0.0, cx.actor().1);
/// let mut words: Adapted<crdts::Orswot<String, Actor>, Words> = Adapted::zero();
/// let add = words.add("goose".to_owned(), words.read_ctx().derive_add_ctx(actor));
/// words.apply(add);
/// assert!(words.read().val.contains("goose"));
/// ```
pub type Adapted<C, M> = State<Foreign<C, M>>;

/// A type of the crate `crdts` with its name.
pub struct Foreign<C, M> {
    value: C,
    tag: PhantomData<fn() -> M>,
}

impl<C, M> Foreign<C, M> {
    /// Names a value.
    pub fn new(value: C) -> Self {
        Self { value, tag: PhantomData }
    }
}

impl<C: Serialize, M: AdapterTag> Foreign<C, M> {
    /// Bytes that decode to this value; not canonical if the type is not.
    fn bytes(&self) -> Vec<u8> {
        // A type that cannot be written is empty bytes, which every peer refuses and counts.
        postcard::to_stdvec(&self.value).unwrap_or_default()
    }

    fn summed(&self) -> Digest {
        match M::DIGEST {
            DigestMode::Ordered => Digest::of(&self.bytes()),
            DigestMode::Unordered => hashing::digest(&self.value),
        }
    }
}

impl<C, M> Deref for Foreign<C, M> {
    type Target = C;

    fn deref(&self) -> &C {
        &self.value
    }
}

impl<C, M> DerefMut for Foreign<C, M> {
    fn deref_mut(&mut self) -> &mut C {
        &mut self.value
    }
}

impl<C: Clone, M> Clone for Foreign<C, M> {
    fn clone(&self) -> Self {
        Self::new(self.value.clone())
    }
}

/// Equal if the digests are: the types themselves need no equality, and some of them compare the order of arrival.
impl<C: Serialize, M: AdapterTag> PartialEq for Foreign<C, M> {
    fn eq(&self, other: &Self) -> bool {
        self.summed() == other.summed()
    }
}

impl<C: Serialize, M: AdapterTag> fmt::Debug for Foreign<C, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", M::TAG, self.summed())
    }
}

impl<C, M> StateData for Foreign<C, M>
where
    C: CvRDT + Clone + Serialize + DeserializeOwned + Default + Send + Sync + 'static,
    M: AdapterTag,
{
    const TAG: TypeTag = M::TAG;

    fn zero() -> Self {
        Self::new(C::default())
    }

    fn merge(&mut self, other: &Self) -> Result<(), MergeError> {
        if M::VALIDATE {
            let valid = self.value.validate_merge(&other.value);
            valid.map_err(|error| MergeError::Invariant(error.to_string()))?;
        }
        self.value.merge(other.value.clone());
        Ok(())
    }

    fn encode(&self, out: &mut Encoder) {
        out.u8(FORMAT);
        out.bytes(&self.bytes());
    }

    fn decode(inp: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        inp.format()?;
        let unreadable = |_| DecodeError::Invalid("not a value of the adapted type");
        postcard::from_bytes(inp.bytes()?).map(Self::new).map_err(unreadable)
    }

    fn digest(&self) -> Digest {
        self.summed()
    }
}
