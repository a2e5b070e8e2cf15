//! The report on a seed node, for the person who wrote its address.

use std::fmt;

use greylag_core::NodeAddress;
use greylag_transport::DialFailure;

/// The last outcome of asking a seed node.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum SeedAnswer {
    /// No answer came yet, and no dial has ended.
    Nothing,
    /// No dial reached a node; holds the failure of the last one.
    Unreached(DialFailure),
    /// The seed node refused this node: another cluster's name, or another version of the protocol, with both values.
    Refused(String),
    /// The seed node answers, and is no member of a cluster itself.
    NoMember,
    /// The seed node is a member, and was asked to let this node in.
    Asked,
}

impl SeedAnswer {
    /// Whether the person who wrote the address should look at it: it led to no node, or to one that will not let this
    /// node in.
    pub fn is_amiss(&self) -> bool {
        matches!(self, Self::Nothing | Self::Unreached(_) | Self::Refused(_))
    }
}

impl fmt::Display for SeedAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => f.write_str("nothing came back yet"),
            Self::Unreached(failure) => failure.fmt(f),
            Self::Refused(detail) => write!(f, "it refused: {detail}"),
            Self::NoMember => f.write_str("it answers, and is no member of a cluster itself"),
            Self::Asked => f.write_str("it is a member, and was asked to let this node in"),
        }
    }
}

/// The report on one seed node by a node that is no member yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeedReport {
    /// Its address, as it was given.
    pub seed: NodeAddress,
    /// How many dials have reached no node there.
    pub failed_dials: u32,
    /// The last outcome.
    pub answer: SeedAnswer,
}

impl fmt::Display for SeedReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, failed_dials, answer } = self;
        match (answer, failed_dials) {
            (SeedAnswer::Unreached(_), 1) => write!(f, "{seed}: 1 dial failed, {answer}"),
            (SeedAnswer::Unreached(_), dials) => write!(f, "{seed}: {dials} dials failed, the last one: {answer}"),
            _ => write!(f, "{seed}: {answer}"),
        }
    }
}
