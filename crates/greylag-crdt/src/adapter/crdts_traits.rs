//! The traits of the crate `crdts` for the types here.

use crdts::{CmRDT, CvRDT, ResetRemove, VClock};

use crate::causality::context::Context;
use crate::causality::replica::ReplicaId;
use crate::data::ReplicatedData;
use crate::encoding::element::Element;
use crate::error::MergeError;
use crate::stores::store::Store;
use crate::types::counter::{GCounter, PNCounter};
use crate::types::flag::Flag;
use crate::types::gset::GSet;
use crate::types::lww_register::LwwRegister;
use crate::types::maps::lww_map::LwwMap;
use crate::types::maps::ormap::OrMap;
use crate::types::maps::ormultimap::OrMultiMap;
use crate::types::maps::pncountermap::PnCounterMap;
use crate::types::mvregister::MvRegister;
use crate::types::orset::OrSet;

macro_rules! implement {
    ($([$($parameters:tt)*] $type:ty;)*) => {$(
        impl<$($parameters)*> CvRDT for $type {
            type Validation = MergeError;

            fn validate_merge(&self, other: &Self) -> Result<(), MergeError> {
                ReplicatedData::merge(&mut self.clone(), other).map(|_| ())
            }

            /// Leaves this value as it is if the two cannot be joined.
            fn merge(&mut self, other: Self) {
                let _ = ReplicatedData::merge(self, &other);
            }
        }

        impl<$($parameters)*> CmRDT for $type {
            type Op = <Self as ReplicatedData>::Delta;
            type Validation = MergeError;

            fn validate_op(&self, op: &Self::Op) -> Result<(), MergeError> {
                self.clone().merge_delta(op).map(|_| ())
            }

            /// Joins a delta; order and repetition do not matter.
            fn apply(&mut self, op: Self::Op) {
                let _ = self.merge_delta(&op);
            }
        }
    )*};
}
macro_rules! reset {
    ($([$($parameters:tt)*] $type:ty;)*) => {$(
        impl<$($parameters)*> ResetRemove<ReplicaId> for $type {
            /// Removes every leaf whose number the clock has reached, present ones and such that arrive later.
            fn reset_remove(&mut self, clock: &VClock<ReplicaId>) {
                self.causal.retire(&Context::from(clock));
            }
        }
    )*};
}
implement! { [] Flag; [] GCounter; [] PNCounter; [T: Element] GSet<T>; [T: Element] LwwRegister<T>; }

macro_rules! implement_and_reset {
    ($($types:tt)*) => {
        implement! { $($types)* }
        reset! { $($types)* }
    };
}
implement_and_reset! {
    [T: Element] OrSet<T>;
    [T: Element] MvRegister<T>;
    [K: Element, V: Element] LwwMap<K, V>;
    [K: Element, V: Element] OrMultiMap<K, V>;
    [K: Element] PnCounterMap<K>;
    [K: Element, S: Store] OrMap<K, S>;
}

impl From<&VClock<ReplicaId>> for Context {
    fn from(clock: &VClock<ReplicaId>) -> Self {
        let mut context = Self::new();
        clock.iter().for_each(|dot| context.insert_range(*dot.actor, 1, dot.counter));
        context
    }
}

/// The error of a context that has no clock: the numbers of one replica are not one interval from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the numbers of {0} are not one interval from 1")]
pub struct NoClock(pub ReplicaId);

impl TryFrom<&Context> for VClock<ReplicaId> {
    type Error = NoClock;

    fn try_from(context: &Context) -> Result<Self, NoClock> {
        let of = |replica| {
            let mut intervals = context.intervals(replica);
            match (intervals.next(), intervals.next()) {
                (Some((1, high)), None) => Ok(crdts::Dot::new(replica, high)),
                _ => Err(NoClock(replica)),
            }
        };
        context.replicas().map(of).collect()
    }
}
