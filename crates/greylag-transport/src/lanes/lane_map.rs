//! Chooses the lane that a message takes, as a node is configured.

use crate::lanes::lane::{Lane, LaneKind, lane_key_hash};
use crate::messages::envelope::Recipient;

/// Selects recipients by the segments of their lane key: `a/b` selects that key only, `*` stands for any one segment,
/// `**` at the end for one or more. Source: cluster T6.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PathPattern {
    /// `None` stands for any segment.
    segments: Vec<Option<Box<str>>>,
    has_rest: bool,
}

impl PathPattern {
    /// Parses a pattern; the error names the rule that it breaks.
    pub(crate) fn parse(text: &str) -> Result<Self, &'static str> {
        let (head, has_rest) = match text.strip_suffix("**") {
            Some("") => return Ok(Self { segments: Vec::new(), has_rest: true }),
            Some(head) => (head.strip_suffix('/').ok_or("`**` must be a segment of its own")?, true),
            None => (text, false),
        };
        let segment = |segment: &str| match segment {
            "" => Err("a segment is empty"),
            "*" => Ok(None),
            _ if segment.contains('*') => Err("`*` stands for a whole segment, `**` only at the end"),
            _ => Ok(Some(segment.into())),
        };
        Ok(Self { segments: head.split('/').map(segment).collect::<Result<_, _>>()?, has_rest })
    }

    fn matches<'a>(&self, mut key: impl Iterator<Item = &'a str>) -> bool {
        let head = self.segments.iter().all(|wanted| match (wanted, key.next()) {
            (Some(wanted), Some(found)) => **wanted == *found,
            (None, Some(_)) => true,
            (_, None) => false,
        });
        head && key.next().is_some() == self.has_rest
    }
}

/// Maps recipients to lanes as a node is configured: a pure function of the recipient.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LaneMap {
    ordinary: u16,
    large: Vec<PathPattern>,
}

impl LaneMap {
    pub(crate) fn new(ordinary: u16, large: Vec<PathPattern>) -> Self {
        Self { ordinary, large }
    }

    /// The lane of a recipient: the fixed control set and bulk recipients come first, then the configured
    /// patterns, then the hash of the lane key.
    pub(crate) fn lane(&self, recipient: &Recipient) -> Lane {
        match recipient.lane_kind() {
            LaneKind::Control => Lane::CONTROL,
            LaneKind::Large => Lane::LARGE,
            LaneKind::Ordinary => self.configured(&recipient.path, recipient.below()),
        }
    }

    /// The lane of a key that is neither control nor bulk.
    pub(crate) fn configured(&self, path: &str, sub_path: &str) -> Lane {
        let below = || sub_path.split('/').filter(|segment| !segment.is_empty());
        if self.large.iter().any(|pattern| pattern.matches(path.split('/').chain(below()))) {
            return Lane::LARGE;
        }
        if self.ordinary == 1 {
            return Lane::ordinary(0);
        }
        let index = lane_key_hash(path, sub_path) % u64::from(self.ordinary);
        Lane::ordinary(u16::try_from(index).unwrap_or(0))
    }

    /// Whether all recipients that are neither control nor bulk share one ordinary lane.
    pub(crate) fn is_plain(&self) -> bool {
        self.ordinary == 1 && self.large.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(ordinary: u16, large: &[&str]) -> LaneMap {
        LaneMap::new(ordinary, large.iter().map(|text| PathPattern::parse(text).unwrap()).collect())
    }

    /// Cluster T6: a pattern is a full path, with `*` for one segment and `**` as the suffix.
    #[test]
    fn patterns_name_whole_paths() {
        for (pattern, key, is_large) in [
            ("video", "video", true),
            ("video", "video/1", false),
            ("video", "videos", false),
            ("sharding/*/7", "sharding/Video/7", true),
            ("sharding/*/7", "sharding/Video/8", false),
            ("sharding/*/7", "sharding/7", false),
            ("sharding/Video/*", "sharding/Video/7", true),
            ("sharding/Video/*", "sharding/Video", false),
            ("sharding/**", "sharding/Video/7", true),
            ("sharding/**", "sharding", false),
            ("**", "anything/at/all", true),
        ] {
            let found = map(1, &[pattern]).lane(&Recipient::new(key));
            assert_eq!(found == Lane::LARGE, is_large, "{pattern} {key}");
        }
        let shard = Recipient::new("sharding/Video").with_sub_path("7");
        assert_eq!(map(1, &["sharding/Video/*"]).lane(&shard), Lane::LARGE);
        for wrong in ["", "a//b", "a/", "a/**/b", "a*", "x**", "/a"] {
            assert!(PathPattern::parse(wrong).is_err(), "{wrong:?}");
        }
    }

    /// Cluster T6: control and bulk recipients are fixed, whatever a pattern says.
    #[test]
    fn patterns_have_no_say_in_what_is_fixed() {
        let all = map(4, &["**"]);
        assert_eq!(all.lane(&Recipient::new("control/cluster")), Lane::CONTROL);
        assert_eq!(map(4, &[]).lane(&Recipient::new("bulk/cluster")), Lane::LARGE);
    }

    /// Cluster T5, T6: among several ordinary lanes the lane key alone decides, never the instance.
    #[test]
    fn the_lane_is_a_function_of_the_lane_key() {
        let map = map(4, &[]);
        let mut used = std::collections::BTreeSet::new();
        for shard in 0..100 {
            let recipient = Recipient::new("sharding/Customer").with_sub_path(shard.to_string());
            let lane = map.lane(&recipient);
            assert_eq!(lane, map.lane(&recipient.clone().with_instance(9)));
            assert_eq!(lane, map.lane(&Recipient::new(format!("sharding/Customer/{shard}"))));
            used.insert(lane);
        }
        assert_eq!(used.len(), 4);
    }
}
