//! The properties of an entity type on which all nodes must agree, and how a disagreement is found.
//!
//! The fingerprint is compared when a region registers; every message between regions carries a 32-bit digest of its
//! routing part. Source: sharding §1.5.

use std::fmt;

use twox_hash::XxHash3_64;

/// The store of the coordinator's homes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum StateStoreMode {
    /// Replicated in memory by `greylag-ddata`.
    #[default]
    Ddata,
    /// In a shared journal.
    Persistence,
}

impl fmt::Display for StateStoreMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ddata => "ddata",
            Self::Persistence => "persistence",
        })
    }
}

/// The properties to agree on. Fields up to `number_of_shards` form the routing part.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Fingerprint {
    /// Major version of the sharding protocol.
    pub protocol_major: u32,
    /// The entity type's name.
    pub type_name: String,
    /// Name and version of the extractor.
    pub extractor: (String, u32),
    /// Number of shards of a built-in extractor; 0 for a custom one.
    pub number_of_shards: u32,
    /// Whether active entities restart with their shard.
    pub remember_entities: bool,
    /// The store of remembered entities.
    pub remember_entities_store: String,
    /// The store of the coordinator's homes.
    pub state_store_mode: StateStoreMode,
    /// The hosting role; empty for all nodes.
    pub role: String,
    /// The names that the messages' codec reads, as `codec id:manifest`, sorted; empty for a type without a codec.
    pub codec: Vec<String>,
}

impl Fingerprint {
    /// The protocol's major version of this release.
    pub const PROTOCOL_MAJOR: u32 = 1;

    /// Digest of the routing part, carried by every message between regions.
    pub fn digest(&self) -> u32 {
        let mut bytes = Vec::with_capacity(64);
        let mut text = |text: &str| {
            bytes.extend_from_slice(&u32::try_from(text.len()).unwrap_or(u32::MAX).to_be_bytes());
            bytes.extend_from_slice(text.as_bytes());
        };
        text(&self.type_name);
        text(&self.extractor.0);
        for number in [self.protocol_major, self.extractor.1, self.number_of_shards] {
            bytes.extend_from_slice(&number.to_be_bytes());
        }
        let hash = XxHash3_64::oneshot(&bytes);
        (hash >> 32) as u32 ^ hash as u32
    }

    /// The first field in which `got` differs; a proxy has to match the routing part only.
    pub fn mismatch(&self, got: &Self, proxy: bool) -> Option<Mismatch> {
        let extractor = |f: &Self| format!("{} v{}", f.extractor.0, f.extractor.1);
        let mut fields = vec![
            ("protocol_major", self.protocol_major.to_string(), got.protocol_major.to_string()),
            ("type_name", self.type_name.clone(), got.type_name.clone()),
            ("extractor", extractor(self), extractor(got)),
            ("number_of_shards", self.number_of_shards.to_string(), got.number_of_shards.to_string()),
        ];
        // One common name is enough: a codec that reads old and new names lets nodes change over one by one; without a
        // common name no message of one node is read on the other.
        let speaks = |one: &Self, other: &Self| one.codec.iter().any(|name| other.codec.contains(name));
        if !self.codec.is_empty() && !got.codec.is_empty() && !speaks(self, got) {
            fields.push(("codec", self.codec.join(", "), got.codec.join(", ")));
        }
        if !proxy {
            fields.extend([
                ("remember_entities", self.remember_entities.to_string(), got.remember_entities.to_string()),
                ("remember_entities_store", self.remember_entities_store.clone(), got.remember_entities_store.clone()),
                ("state_store_mode", self.state_store_mode.to_string(), got.state_store_mode.to_string()),
                ("role", self.role.clone(), got.role.clone()),
            ]);
        }
        let (field, expected, got) = fields.into_iter().find(|(_, expected, got)| expected != got)?;
        Some(Mismatch { field: field.to_owned(), expected, got })
    }
}

/// The first difference between two fingerprints.
#[derive(Debug, Clone, PartialEq, Eq, Hash, thiserror::Error)]
#[error("{field} is {got:?} here and {expected:?} in the cluster")]
pub struct Mismatch {
    /// The field.
    pub field: String,
    /// The coordinator's value.
    pub expected: String,
    /// The region's value.
    pub got: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fingerprint() -> Fingerprint {
        Fingerprint {
            protocol_major: 1,
            type_name: "Customer".into(),
            extractor: ("HashV1".into(), 1),
            number_of_shards: 1000,
            remember_entities: false,
            remember_entities_store: "ddata".into(),
            state_store_mode: StateStoreMode::Ddata,
            role: String::new(),
            codec: vec!["2:customer".into()],
        }
    }

    /// Sharding scenario 109: two codecs without a common name differ; during a change of names both names are read.
    #[test]
    fn scenario_109_codecs_without_a_common_name_differ() {
        let of =
            |names: &[&str]| Fingerprint { codec: names.iter().map(ToString::to_string).collect(), ..fingerprint() };
        for proxy in [false, true] {
            let differ = |one: &[&str], other: &[&str]| of(one).mismatch(&of(other), proxy);
            let expected = Some(("codec".to_owned(), "2:customer".to_owned(), "2:client".to_owned()));
            let found = differ(&["2:customer"], &["2:client"]);
            assert_eq!(found.map(|found| (found.field, found.expected, found.got)), expected);
            assert!(differ(&["2:customer"], &["3:customer"]).is_some(), "JSON and CBOR");
            assert_eq!(differ(&["2:customer"], &["2:client", "2:customer"]), None);
            assert_eq!(differ(&["2:customer"], &[]), None, "a type without a codec sends nothing between nodes");
        }
    }

    #[test]
    fn the_digest_covers_the_routing_part_alone() {
        let own = fingerprint();
        assert_eq!(own.digest(), Fingerprint { role: "shop".into(), ..own.clone() }.digest());
        assert_ne!(own.digest(), Fingerprint { number_of_shards: 1001, ..own.clone() }.digest());
        assert_ne!(own.digest(), Fingerprint { extractor: ("HashV1".into(), 2), ..own.clone() }.digest());
    }

    #[test]
    fn a_proxy_matches_the_routing_part_only() {
        let own = fingerprint();
        let other = Fingerprint { role: "shop".into(), ..own.clone() };
        assert_eq!(own.mismatch(&other, true), None);
        assert_eq!(own.mismatch(&other, false).unwrap().field, "role");
    }
}
