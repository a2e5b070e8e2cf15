//! The reason of a strategy's ruling, with the numbers, for the operator.

use std::fmt;

use greylag_core::UniqueAddress;

/// The reason of a ruling. Its text is one clause of a sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the text of each says what it means")]
pub enum Why {
    NobodyCounts,
    IndirectlyConnected,
    EveryPartition,
    Majority { ours: usize, theirs: usize },
    Minority { ours: usize, theirs: usize },
    MajorityInDoubt { ours: usize, theirs: usize, least_ours: usize, most_theirs: usize },
    TooManyMembers { counted: usize, quorum_size: usize },
    Quorum { ours: usize, quorum_size: usize },
    NoQuorum { ours: usize, quorum_size: usize },
    OldestKept { oldest: UniqueAddress, here: bool, ours: usize, theirs: usize },
    OldestLost { oldest: UniqueAddress, here: bool, ours: usize, theirs: usize },
    OldestInDoubt { oldest: UniqueAddress, here: bool, ours: usize, theirs: usize },
    LeaseFirst { ours: usize, theirs: usize, minority: bool },
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NobodyCounts => f.write_str("no member counts, so no side can prove that it should live"),
            Self::IndirectlyConnected => f.write_str("some reach these members and others do not"),
            Self::EveryPartition => f.write_str("the strategy ends the cluster at every partition"),
            Self::Majority { ours, theirs } if ours == theirs => {
                write!(f, "{ours} members here and {theirs} out of reach, and the lowest address is here")
            }
            Self::Majority { ours, theirs } => write!(f, "{ours} members here outnumber {theirs} out of reach"),
            Self::Minority { ours, theirs } if ours == theirs => {
                write!(f, "{ours} members here and {theirs} out of reach, and the lowest address is there")
            }
            Self::Minority { ours, theirs } => write!(f, "{theirs} members out of reach outnumber {ours} here"),
            Self::MajorityInDoubt { ours, theirs, least_ours, most_theirs } => write!(
                f,
                "{ours} members here against {theirs} out of reach, but while members join or leave the other side \
                 may count {most_theirs} of its own against {least_ours} of ours, and then both would live"
            ),
            Self::TooManyMembers { counted, quorum_size } => write!(
                f,
                "{counted} members count, and from {} on both sides could have a quorum of {quorum_size}",
                2 * quorum_size
            ),
            Self::Quorum { ours, quorum_size } => write!(f, "{ours} members here are a quorum of {quorum_size}"),
            Self::NoQuorum { ours, quorum_size } => {
                write!(f, "{ours} members here are no quorum, which takes {quorum_size}")
            }
            Self::OldestKept { oldest, here, ours, theirs } if *here => {
                write!(f, "the oldest member, {oldest}, is here with {ours} counted, {theirs} are out of reach")
            }
            Self::OldestKept { oldest, ours, .. } => {
                write!(f, "the oldest member, {oldest}, is out of reach and all alone there, {ours} are here")
            }
            Self::OldestLost { oldest, here, theirs, .. } if *here => {
                write!(f, "the oldest member, {oldest}, is all alone here, {theirs} are out of reach")
            }
            Self::OldestLost { oldest, ours, theirs, .. } => {
                write!(f, "the oldest member, {oldest}, is out of reach with {theirs} counted there, {ours} are here")
            }
            Self::OldestInDoubt { oldest, here, ours, theirs } => {
                let side = if *here { "here" } else { "out of reach" };
                write!(
                    f,
                    "the oldest member, {oldest}, is {side}, with {ours} members here and {theirs} out of reach, but \
                     while members join or leave the other side may judge otherwise, and then both would live"
                )
            }
            Self::LeaseFirst { ours, theirs, minority } => {
                let turn = if *minority { "so this side lets the other ask first" } else { "so this side asks first" };
                write!(f, "{ours} members here and {theirs} out of reach, {turn}")
            }
        }
    }
}
