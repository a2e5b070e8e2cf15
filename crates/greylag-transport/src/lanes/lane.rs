//! The lanes to a peer.
//!
//! Each peer is reached over a control lane, one or more ordinary lanes and a large lane, each with a queue, a stream
//! and a TCP connection of its own, so that a saturated lane cannot stall heartbeats. The lane is a pure function of
//! the recipient, never of the message, which keeps the order per recipient. Source: cluster T5, T6.

use std::fmt;

use twox_hash::XxHash3_64;

/// The kind of a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LaneKind {
    /// Membership, heartbeats, the protocols of singleton and sharding's coordinator.
    Control,
    /// User messages.
    Ordinary,
    /// Bulk recipients of our own protocols, and recipients that the user named as large.
    Large,
}

/// One lane to a peer. Ordinary lanes are numbered; the others are always number 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lane {
    kind: LaneKind,
    index: u16,
}

impl Lane {
    /// The control lane.
    pub const CONTROL: Self = Self { kind: LaneKind::Control, index: 0 };
    /// The large lane.
    pub const LARGE: Self = Self { kind: LaneKind::Large, index: 0 };

    /// The ordinary lane with this number.
    pub const fn ordinary(index: u16) -> Self {
        Self { kind: LaneKind::Ordinary, index }
    }

    /// The lane's kind.
    pub const fn kind(self) -> LaneKind {
        self.kind
    }

    /// The lane's number within its kind.
    pub const fn index(self) -> u16 {
        self.index
    }
}

/// XXH3 of a lane key: the path, and below it the sub-path. Part of the protocol, since both ends choose by this hash.
/// Source: cluster T6.
pub fn lane_key_hash(path: &str, sub_path: &str) -> u64 {
    if sub_path.is_empty() {
        return XxHash3_64::oneshot(path.as_bytes());
    }
    let len = path.len() + 1 + sub_path.len();
    let mut short = [0; 128];
    let mut long = Vec::new();
    let key = if len <= short.len() {
        &mut short[..len]
    } else {
        long.resize(len, 0);
        &mut long[..]
    };
    key[..path.len()].copy_from_slice(path.as_bytes());
    key[path.len()] = b'/';
    key[path.len() + 1..].copy_from_slice(sub_path.as_bytes());
    XxHash3_64::oneshot(key)
}

impl fmt::Display for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            LaneKind::Control => f.write_str("control"),
            LaneKind::Ordinary => write!(f, "ordinary-{}", self.index),
            LaneKind::Large => f.write_str("large"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lane_key_is_path_and_sub_path_joined() {
        assert_eq!(lane_key_hash("sharding/Customer", "17"), lane_key_hash("sharding/Customer/17", ""));
        let long = "x".repeat(200);
        assert_eq!(lane_key_hash(&long, "17"), XxHash3_64::oneshot(format!("{long}/17").as_bytes()));
    }
}
