//! Conflict-free replicated data types over one causal kernel, with deltas that are joins.
//!
//! ```
//! use greylag_crdt::{Change, DotSource, Lineage, LwwMap, ReplicaId, ReplicatedData, UpdateCx, WriterKey};
//!
//! // Two replicas, each with its own numbers.
//! let (numbers_a, writer_a) = (DotSource::new(), WriterKey::new(*b"a"));
//! let (numbers_b, writer_b) = (DotSource::new(), WriterKey::new(*b"b"));
//! let mut cx_a = UpdateCx::new(&numbers_a, ReplicaId(1), &writer_a, 1_000);
//! let mut cx_b = UpdateCx::new(&numbers_b, ReplicaId(2), &writer_b, 1_001);
//!
//! let mut a = LwwMap::<String, u64>::new();
//! a.put(&mut cx_a, "stock".into(), 10)?;
//! let mut b = a.clone();
//!
//! // Concurrently, one removes the key and the other puts it again. The put wins.
//! a.remove(&mut cx_a, "stock");
//! b.begin_change(Lineage(1));
//! b.put(&mut cx_b, "stock".into(), 7)?;
//! let Change::Delta(delta) = b.take_change(Lineage(1)) else { unreachable!() };
//!
//! a.merge_delta(&delta)?;
//! assert_eq!(a.get("stock"), Some(&7));
//! b.merge(&a)?;
//! assert_eq!(a, b);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The types promise: replicas that received the same updates, as states or as deltas, in any order and any number of
//! times, are equal, and so are their bytes and digests. The crate knows no addresses, time or tasks; every merge is a
//! pure function.
//!
//! | for | types |
//! |---|---|
//! | a fact, a number | [`Flag`], [`GCounter`], [`PNCounter`] |
//! | one value | [`LwwRegister`] (default, first-write-wins and custom clocks), [`MvRegister`] (all concurrent ones) |
//! | sets | [`GSet`], [`OrSet`] |
//! | maps | [`OrMap`] of [stores](Store), [`OrMultiMap`], [`LwwMap`], [`PnCounterMap`] |
//! | your own | a struct of these (`derive(ReplicatedData)`), or anything with a merge ([`StateData`]) |
//!
//! A program that replicates by itself, without a replicator, draws a [`ReplicaId::random`] for each of its processes and
//! shares one [`DotSource`] within it. It keeps values as [`ReplicatedData::to_bytes`], which name their type.
//!
//! Elements, keys and values implement [`Element`]; derive it for your own. With the feature `crdts` the types of that
//! crate replicate as they are. `examples/two_phase_set.rs` shows a custom type in both forms. [`RemovedNodePruning`]
//! puts the data of removed replicas under the names of others.
//!
//! Anomalies that remain: a removal takes what its caller saw, so it loses to a concurrent add or put, and a [`Plain`]
//! value in a map comes back with its history. Last-writer-wins types discard one of two concurrent writes and trust
//! the clocks that decided. An entry that expired at one replica and was created there again retires that replica's
//! former elements and no others; counters lose nothing by it, and keep one slot for each life of the entry and replica
//! in which the replica counted, until that replica is pruned. Slots that pruning renamed are never folded, so a
//! counter in a map keeps one for each removed writer, and a [`Plain`] counter all its slots. The writes of a removed
//! replica count once as long as the markers of its pruning are kept: a copy that comes back later counts again, and
//! writes that had reached no other replica are lost. Two sides of a partition that removed each other and both went on
//! look like one history afterwards: where the sides meet again, data that one side has forgotten come back from the
//! other. Entries are replicated one by one, so related entries may be seen out of step: put data that belong together
//! into one entry. Source: ddata §0, §1, Y11.

#[cfg(feature = "crdts")]
mod adapter;
mod causality;
mod data;
mod encoding;
mod error;
pub mod parts;
mod pruning;
mod ranges;
mod stores;
mod types;

#[cfg(feature = "crdts")]
pub use adapter::{Adapted, AdapterTag, DigestMode, Foreign, NoClock};
pub use causality::context::Context;
pub use causality::cx::UpdateCx;
#[cfg(feature = "sabotage")]
#[doc(hidden)]
pub use causality::omissions::Clause;
#[doc(hidden)]
pub use causality::omissions::Omissions;
pub use causality::replica::{Dot, DotSource, MAX_NUMBER, ReplicaId, SlotId, WriterKey};
pub use data::{Change, EntryMark, Grew, Home, Lineage, ReplicatedData, Tracker};
pub use encoding::cached_digest::CachedDigest;
pub use encoding::codec::{DecodeError, Decoder, Encoder, FORMAT};
pub use encoding::element::Element;
pub use encoding::hash::{Digest, hash64};
pub use encoding::tag::TypeTag;
pub use error::{ClockExhausted, CounterOverflow, MergeError};
pub use pruning::prune::{Markers, Moved, Performed, Range, RemovedNodePruning};
pub use ranges::{KeyRange, Part, RangeSum, Ranged, context_from_bytes};
pub use stores::causal::Causal;
pub use stores::fragment::Fragment;
pub use stores::lww::{LwwCell, LwwStore};
pub use stores::map::PersistentMap;
pub use stores::slot_counter::{CounterStore, SlotCounter};
pub use stores::slots::Slots;
pub use stores::store::{DotFun, DotMap, DotSet, Leaf, MapScope, Store, StoreMut, Whole};
pub use types::counter::{GCounter, PNCounter, SlotPair};
pub use types::flag::{Flag, On};
pub use types::gset::{Added, GSet};
pub use types::lww_register::LwwRegister;
pub use types::maps::lww_map::LwwMap;
pub use types::maps::ormap::{FlagStore, OrMap, OrMapStore};
pub use types::maps::ormultimap::OrMultiMap;
pub use types::maps::pncountermap::PnCounterMap;
pub use types::mvregister::{MvCell, MvRegister};
pub use types::orset::{OrSet, OrSetStore};
pub use types::plain::{Plain, PlainValue};
pub use types::state::{State, StateData};

#[cfg(feature = "derive")]
pub use greylag_crdt_derive::{Element, ReplicatedData};
