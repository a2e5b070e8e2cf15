//! The Hello that begins every stream, and the decision whether it is accepted.
//!
//! A Hello names the caller, the node that the caller believes to call, and the lane; nothing else may precede its
//! answer. [`Hello::judge`] makes all of the decision that needs no knowledge of the peer's past; the peer's
//! association makes the rest. Source: cluster T4, T12, T13.

use std::time::Duration;

use greylag_core::{NodeAddress, Uid, UniqueAddress};

use crate::lanes::lane::Lane;
use crate::remoting::{QuarantineReason, RejectCode};

/// The newest protocol that this version speaks.
pub(crate) const PROTOCOL_VERSION: u32 = 1;
/// The oldest protocol that this version speaks.
pub(crate) const MIN_SUPPORTED: u32 = 1;

/// Abilities of a side beyond its protocol version. An ability of one side alone is not used; unknown names, of newer
/// versions, are ignored. Source: cluster T12, T13.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Features {
    /// Reads compressed frames.
    pub(crate) zstd: bool,
}

impl Features {
    /// All features of this version.
    pub(crate) const OURS: Self = Self { zstd: true };

    const ZSTD: &'static str = "zstd";

    /// The features of both sides.
    pub(crate) fn and(self, other: Self) -> Self {
        Self { zstd: self.zstd && other.zstd }
    }

    pub(crate) fn to_names(self) -> Vec<String> {
        self.zstd.then(|| Self::ZSTD.to_owned()).into_iter().collect()
    }

    pub(crate) fn from_names(names: &[String]) -> Self {
        Self { zstd: names.iter().any(|name| name == Self::ZSTD) }
    }
}

/// The first frame of the calling side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) protocol_version: u32,
    pub(crate) min_supported: u32,
    pub(crate) cluster_name: String,
    pub(crate) from: UniqueAddress,
    pub(crate) to: NodeAddress,
    pub(crate) expected_uid: Option<Uid>,
    pub(crate) lane: Lane,
    pub(crate) lane_count: u16,
    pub(crate) stream_seq: u64,
    pub(crate) features: Features,
    pub(crate) cluster_id: Option<u128>,
    pub(crate) host_id: Option<String>,
}

/// The called side's answer to a Hello.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum HelloReply {
    Accepted(Accepted),
    Rejected(Rejected),
}

/// A Hello that was accepted, and the process that accepted it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Accepted {
    pub(crate) from: UniqueAddress,
    pub(crate) version: u32,
    /// The features of both sides.
    pub(crate) features: Features,
    pub(crate) max_frame_bytes: u64,
    /// How many names may be given numbers on this stream (cluster T37).
    pub(crate) max_names: u32,
    pub(crate) cluster_id: Option<u128>,
    pub(crate) host_id: Option<String>,
}

/// A Hello that was not accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rejected {
    pub(crate) code: RejectCode,
    pub(crate) detail: String,
    pub(crate) from: Option<UniqueAddress>,
    /// With [`RejectCode::Quarantined`]; absent when the quarantine is harmless.
    pub(crate) reason: Option<QuarantineReason>,
    /// With [`RejectCode::NotReady`]: the member that holds the caller's address (cluster T15).
    pub(crate) holder: Option<UniqueAddress>,
    /// When the caller may try again, where that is known.
    pub(crate) retry_after: Option<Duration>,
}

impl Rejected {
    pub(crate) fn new(code: RejectCode, detail: impl Into<String>) -> Self {
        Self { code, detail: detail.into(), from: None, reason: None, holder: None, retry_after: None }
    }
}

impl Hello {
    /// Returns the version to speak, or why this caller is refused.
    pub(crate) fn judge(&self, own: &UniqueAddress, cluster_name: &str) -> Result<u32, Rejected> {
        if self.cluster_name != cluster_name {
            let detail = format!("the caller's cluster is {:?}, ours is {cluster_name:?}", self.cluster_name);
            return Err(Rejected::new(RejectCode::WrongCluster, detail));
        }
        if self.to != *own.address() {
            let detail = format!("the caller dialled {}, this node is {}", self.to, own.address());
            return Err(Rejected::new(RejectCode::UnknownAddress, detail));
        }
        if self.from.address() == own.address() {
            return Err(Rejected::new(RejectCode::SelfConnect, format!("{} called {own}", self.from)));
        }
        if self.from.uid() == own.uid() {
            return Err(Rejected::new(RejectCode::UidCollision, format!("{} and {own} drew the same uid", self.from)));
        }
        let version = self.protocol_version.min(PROTOCOL_VERSION);
        if version < self.min_supported || version < MIN_SUPPORTED {
            let detail = format!(
                "the caller speaks versions {} to {}, this node {MIN_SUPPORTED} to {PROTOCOL_VERSION}",
                self.min_supported, self.protocol_version
            );
            return Err(Rejected::new(RejectCode::VersionUnsupported, detail));
        }
        Ok(version)
    }
}

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn hello(from: &str, to: &str) -> Hello {
        Hello {
            protocol_version: PROTOCOL_VERSION,
            min_supported: MIN_SUPPORTED,
            cluster_name: "shop".to_owned(),
            from: from.parse().unwrap(),
            to: to.parse().unwrap(),
            expected_uid: None,
            lane: Lane::ordinary(2),
            lane_count: 3,
            stream_seq: 9,
            features: Features::default(),
            cluster_id: Some(u128::MAX - 1),
            host_id: Some("boot/net".to_owned()),
        }
    }

    /// Cluster T12, T13: a feature of one side alone is not used, and an unknown one does no harm.
    #[test]
    fn features_are_what_both_sides_know() {
        let newer = Features::from_names(&["holograms".to_owned(), "zstd".to_owned()]);
        assert_eq!(newer.and(Features::OURS), Features::OURS);
        assert_eq!(Features::from_names(&["holograms".to_owned()]).and(Features::OURS), Features::default());
        assert_eq!(Features::from_names(&Features::OURS.to_names()), Features::OURS);
    }

    /// Cluster T13: the version is the lower of the two newest, if both sides still understand it.
    #[test]
    fn the_version_is_the_lower_of_the_newest_two() {
        let own: UniqueAddress = "b1:1#7".parse().unwrap();
        let judge = |newest, oldest| {
            let hello = Hello { protocol_version: newest, min_supported: oldest, ..hello("a:1#1", "b1:1") };
            hello.judge(&own, "shop").map_err(|rejected| rejected.code)
        };
        assert_eq!(judge(PROTOCOL_VERSION, MIN_SUPPORTED), Ok(PROTOCOL_VERSION));
        assert_eq!(judge(PROTOCOL_VERSION + 5, MIN_SUPPORTED), Ok(PROTOCOL_VERSION));
        assert_eq!(judge(PROTOCOL_VERSION + 5, PROTOCOL_VERSION + 1), Err(RejectCode::VersionUnsupported));
        assert_eq!(judge(MIN_SUPPORTED - 1, 0), Err(RejectCode::VersionUnsupported));
    }

    #[cfg(test)]
    #[test]
    fn each_rejection_names_both_sides() {
        let own: UniqueAddress = "b1:1#7".parse().unwrap();
        let judge = |hello: Hello| hello.judge(&own, "shop").map_err(|rejected| (rejected.code, rejected.detail));
        assert_eq!(judge(hello("a:1#1", "b1:1")), Ok(1));
        let newer = Hello { protocol_version: 4, ..hello("a:1#1", "b1:1") };
        assert_eq!(judge(newer), Ok(1));
        let (code, detail) = judge(hello("a:1#1", "b1-alias:1")).unwrap_err();
        assert_eq!(code, RejectCode::UnknownAddress);
        assert!(detail.contains("b1-alias:1") && detail.contains("b1:1"));
        let foreign = Hello { cluster_name: "other".to_owned(), ..hello("a:1#1", "b1:1") };
        let (code, detail) = judge(foreign).unwrap_err();
        assert_eq!(code, RejectCode::WrongCluster);
        assert!(detail.contains("shop") && detail.contains("other"));
        let code = |hello| judge(hello).unwrap_err().0;
        assert_eq!(code(hello("b1:1#2", "b1:1")), RejectCode::SelfConnect);
        assert_eq!(code(hello("a:1#7", "b1:1")), RejectCode::UidCollision);
        let future = Hello { protocol_version: 9, min_supported: 2, ..hello("a:1#1", "b1:1") };
        assert_eq!(code(future), RejectCode::VersionUnsupported);
    }
}
