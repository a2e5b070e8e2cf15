//! Which members of those that are unreachable are declared dead: the resolver, and what takes its place.

pub(crate) mod decision;
pub(crate) mod provider;
pub(crate) mod sbr;

pub use decision::{DowningDecision, Verdict};
pub use provider::{CustomDowning, DownCommand, DowningContext, DowningInput, DowningProvider};
