//! The shards of a type, and the numbers under which this node keeps their routes.
//!
//! Shards of most extractors are numbered, and these numbers are used. If an extractor names shards freely, each node
//! numbers the names in the order in which it first uses them: such a number is private to this node, and other nodes
//! get the name. Numbers are never freed, so there is a bound.
//!
//! Source: sharding §1.1, §1.3.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::{Arc, PoisonError, RwLock};

use greylag_core::DeadLetterReason;

use crate::ids::ShardId;

/// Most names of one type: as many as there may be numbered shards.
const MAX_NAMES: usize = 1_000_000;

/// See the module's description.
pub(crate) enum ShardNames {
    /// Numbered from 0 on by the extractor.
    Numbered(Box<[ShardId]>),
    /// Numbered in the order of their first use.
    Free(RwLock<KnownNames>),
}

/// Names come from programs and peers, so each process draws the seed of the map.
#[derive(Default)]
pub(crate) struct KnownNames {
    numbers: HashMap<Arc<str>, u32>,
    names: Vec<ShardId>,
}

impl ShardNames {
    /// For a type with `count` shards, or with free names.
    pub(crate) fn new(count: Option<NonZeroU32>) -> Self {
        match count {
            Some(count) => Self::Numbered((0..count.get()).map(ShardId::from_index).collect()),
            None => Self::Free(RwLock::default()),
        }
    }

    /// The number of a shard that is known here, by its name.
    pub(crate) fn number(&self, shard: &str) -> Option<u32> {
        match self {
            Self::Numbered(all) => ShardId::index_of(shard).filter(|index| (*index as usize) < all.len()),
            Self::Free(names) => names.read().unwrap_or_else(PoisonError::into_inner).numbers.get(shard).copied(),
        }
    }

    /// The number of a shard, assigned now if it is new.
    ///
    /// # Errors
    /// [`DeadLetterReason::InvalidShardId`] if the type has no such shard, or too many names.
    pub(crate) fn intern(&self, shard: &ShardId) -> Result<u32, DeadLetterReason> {
        if let Some(known) = self.number(shard.as_str()) {
            return Ok(known);
        }
        let Self::Free(names) = self else { return Err(DeadLetterReason::InvalidShardId) };
        let mut known = names.write().unwrap_or_else(PoisonError::into_inner);
        // Another task may have added the name meanwhile.
        if let Some(number) = known.numbers.get(shard.as_str()) {
            return Ok(*number);
        }
        if known.names.len() >= MAX_NAMES {
            return Err(DeadLetterReason::InvalidShardId);
        }
        let number = u32::try_from(known.names.len()).expect("fewer than the bound");
        known.names.push(shard.clone());
        known.numbers.insert(shard.shared().clone(), number);
        Ok(number)
    }

    /// The shard with a number.
    pub(crate) fn name(&self, number: u32) -> Option<ShardId> {
        match self {
            Self::Numbered(all) => all.get(number as usize).cloned(),
            Self::Free(names) => {
                names.read().unwrap_or_else(PoisonError::into_inner).names.get(number as usize).cloned()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shard(name: &str) -> ShardId {
        ShardId::new(name).unwrap()
    }

    #[test]
    fn numbered_shards_are_known_and_no_other_is_taken() {
        let names = ShardNames::new(NonZeroU32::new(3));
        assert_eq!((names.number("2"), names.intern(&shard("0"))), (Some(2), Ok(0)));
        for other in ["3", "02", "berlin"] {
            assert_eq!(names.number(other), None);
            assert_eq!(names.intern(&shard(other)), Err(DeadLetterReason::InvalidShardId));
        }
        assert_eq!((names.name(2), names.name(3)), (Some(shard("2")), None));
    }

    #[test]
    fn free_names_are_numbered_in_the_order_of_their_first_use() {
        let names = ShardNames::new(None);
        assert_eq!(names.number("berlin"), None);
        assert_eq!(
            ["berlin", "lagos", "berlin", "7"].map(|name| names.intern(&shard(name))),
            [Ok(0), Ok(1), Ok(0), Ok(2)]
        );
        assert_eq!((names.number("7"), names.name(1)), (Some(2), Some(shard("lagos"))));
        assert_eq!(names.name(3), None);
    }

    #[test]
    fn there_are_no_more_free_names_than_numbered_shards_may_be() {
        let names = ShardNames::new(None);
        for index in 0..MAX_NAMES as u32 {
            names.intern(&ShardId::from_index(index)).unwrap();
        }
        assert_eq!(names.intern(&shard("one more")), Err(DeadLetterReason::InvalidShardId));
        assert_eq!(names.intern(&ShardId::from_index(5)), Ok(5), "what is known stays");
    }
}
