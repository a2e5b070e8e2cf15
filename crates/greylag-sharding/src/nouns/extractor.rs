//! From entity id to shard: a pure function of bytes, the same on every node, build and version.
//!
//! The built-in extractors hash the id and take the remainder by the number of shards; they differ in the hash only.
//! [`HashV1`] is the default; the other two place entities as other systems do. No extractor may read a seed, a pointer
//! width or the byte order of the machine.
//!
//! Source: sharding §1.3, §1.4, I5.

use std::num::NonZeroU32;

use greylag_core::DeadLetterReason;
use twox_hash::XxHash3_64;

use crate::ids::{EntityId, ShardId};

/// Places entities: chooses the shard of an id.
///
/// The result may depend on the id's bytes alone; every node of a cluster must give the same result, which the
/// coordinator checks by [`Extractor::identity`] when a region registers. A shard takes no message for an entity that
/// an extractor of the program places elsewhere: the message is the dead letter `WrongShard`.
///
/// Shards are numbered, if [`Extractor::number_of_shards`] returns their number, or named freely. Every name that was
/// ever met takes some memory on every node, and a type has at most a million of them.
///
/// ```
/// use greylag_core::DeadLetterReason;
/// use greylag_sharding::Extractor;
/// use greylag_sharding::ids::{EntityId, ShardId};
///
/// /// All that belongs to a tenant lives on one node: ids are as `tenant/thing`.
/// struct ByTenant;
///
/// impl Extractor for ByTenant {
///     fn shard_id(&self, id: &EntityId) -> Result<ShardId, DeadLetterReason> {
///         ShardId::new(id.as_str().split('/').next().unwrap_or_default())
///     }
///
///     fn identity(&self) -> (&'static str, u32) {
///         ("by-tenant", 1)
///     }
/// }
/// # let id = EntityId::new("acme/7").unwrap();
/// # assert_eq!(ByTenant.shard_id(&id), ShardId::new("acme"));
/// ```
///
/// Source: sharding §1.3, §8.
pub trait Extractor: Send + Sync + 'static {
    /// The shard of an entity.
    ///
    /// # Errors
    /// The reason with which a message for this entity is dropped: [`DeadLetterReason::InvalidShardId`], as
    /// [`ShardId::new`] returns it.
    fn shard_id(&self, id: &EntityId) -> Result<ShardId, DeadLetterReason>;

    /// The shard's number, for extractors whose shards are the numbers below
    /// [`Extractor::number_of_shards`]. Must agree with [`Extractor::shard_id`]. `None`: the message is dropped as
    /// `InvalidShardId`.
    fn shard_index(&self, id: &EntityId) -> Option<u32> {
        self.shard_id(id).ok()?.index()
    }

    /// How many shards there are, if they are numbered from 0. Default: they are named freely.
    fn number_of_shards(&self) -> Option<NonZeroU32> {
        None
    }

    /// Name and version of the extractor; part of the fingerprint that all nodes must share.
    fn identity(&self) -> (&'static str, u32);
}

/// `XXH3_64(id, seed 0) mod number_of_shards`: the default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HashV1(pub NonZeroU32);

/// `(murmur2(id) & 0x7fffffff) mod number_of_shards`: as Kafka's default partitioner, so that entities and partitions
/// of the same keys can be placed alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Murmur2(pub NonZeroU32);

/// `|31-polynomial over UTF-16 units| mod number_of_shards`: as cluster sharding on the JVM, for
/// systems that move from there.
///
/// Differs: an id that hashes to the least integer gets a shard like any other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JavaHash(pub NonZeroU32);

impl HashV1 {
    fn hash(self, id: &str) -> u32 {
        let shards = u64::from(self.0.get());
        u32::try_from(XxHash3_64::oneshot(id.as_bytes()) % shards).expect("a remainder is below its divisor")
    }
}

impl Murmur2 {
    fn hash(self, id: &str) -> u32 {
        (murmur2(id.as_bytes()) & 0x7fff_ffff) % self.0.get()
    }
}

impl JavaHash {
    fn hash(self, id: &str) -> u32 {
        java_hash(id).unsigned_abs() % self.0.get()
    }
}

macro_rules! numbered {
    ($($extractor:ident $name:literal),*) => {$(
        impl Extractor for $extractor {
            fn shard_id(&self, id: &EntityId) -> Result<ShardId, DeadLetterReason> {
                Ok(ShardId::from_index(self.hash(id.as_str())))
            }
            fn shard_index(&self, id: &EntityId) -> Option<u32> {
                Some(self.hash(id.as_str()))
            }
            fn number_of_shards(&self) -> Option<NonZeroU32> {
                Some(self.0)
            }
            fn identity(&self) -> (&'static str, u32) {
                ($name, 1)
            }
        }
    )*};
}
numbered!(HashV1 "hash-v1", Murmur2 "murmur2", JavaHash "java-hash");

/// Whether an extractor is built in, and thus known always to give one answer for one id.
pub(crate) fn is_built_in(extractor: &dyn Extractor) -> bool {
    ["hash-v1", "murmur2", "java-hash"].contains(&extractor.identity().0)
}

/// Murmur2 in its 32-bit form, with the seed of Kafka's partitioner.
fn murmur2(bytes: &[u8]) -> u32 {
    const M: u32 = 0x5bd1_e995;
    const SEED: u32 = 0x9747_b28c;
    let length = u32::try_from(bytes.len()).expect("entity ids have at most 1024 bytes");
    let mut hash = SEED ^ length;
    let mut words = bytes.chunks_exact(4);
    for word in &mut words {
        let mut k = u32::from_le_bytes(word.try_into().expect("chunks of four")).wrapping_mul(M);
        k ^= k >> 24;
        hash = hash.wrapping_mul(M) ^ k.wrapping_mul(M);
    }
    let rest = words.remainder();
    if !rest.is_empty() {
        for (at, byte) in rest.iter().enumerate() {
            hash ^= u32::from(*byte) << (8 * at);
        }
        hash = hash.wrapping_mul(M);
    }
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(M);
    hash ^ (hash >> 15)
}

fn java_hash(text: &str) -> i32 {
    text.encode_utf16().fold(0_i32, |hash, unit| hash.wrapping_mul(31).wrapping_add(i32::from(unit)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shards(count: u32) -> NonZeroU32 {
        NonZeroU32::new(count).unwrap()
    }

    /// The vectors of sharding §1.4.
    #[test]
    fn ids_hash_to_the_shards_of_the_specification() {
        assert_eq!(XxHash3_64::oneshot(b"a"), 0xe6c6_32b6_1e96_4e1f);
        assert_eq!(XxHash3_64::oneshot(b"abc"), 0x78af_5f94_892f_3950);
        assert_eq!(XxHash3_64::oneshot("x".repeat(300).as_bytes()), 0xa5d1_b460_7dc8_3554);
        let x300 = "x".repeat(300);
        for (id, shard) in [
            ("a", 719),
            ("1", 464),
            ("21", 835),
            ("abc", 104),
            ("counter-1", 957),
            ("customer-42", 433),
            ("3f2b8c1e-7d4a-4e0b-9c55-0a1b2c3d4e5f", 831),
            ("日本語-7", 303),
            (&x300, 492),
        ] {
            let id = EntityId::new(id).unwrap();
            assert_eq!(HashV1(shards(1000)).shard_index(&id), Some(shard), "{id}");
            assert_eq!(HashV1(shards(1000)).shard_id(&id), Ok(ShardId::from_index(shard)), "{id}");
        }
        assert_eq!(HashV1(shards(12)).hash("counter-1"), 5);
    }

    #[test]
    fn the_compatible_extractors_agree_with_their_models() {
        for (id, shard) in [("a", 524), ("counter-1", 878), ("日本語-7", 829)] {
            assert_eq!(Murmur2(shards(1000)).hash(id), shard, "{id}");
        }
        assert_eq!(JavaHash(shards(1000)).hash("customer-42"), 155);
        assert_eq!(java_hash("polygenelubricants"), i32::MIN, "the id that once got a negative shard");
        assert_eq!(JavaHash(shards(1000)).hash("polygenelubricants"), 648);
    }
}
