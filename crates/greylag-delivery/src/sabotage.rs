//! Clauses that can be left out on purpose.
//!
//! A simulation that never failed proves nothing, so each clause that the promises of this crate rest on can be switched
//! off, and the simulation must then find a violation. Nothing but a simulation sets one: no configuration file reaches it.
//!
//! Source: delivery scenario 82.

/// The clause that is left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Sabotage {
    /// A producer repeats nothing by itself (P8, P9).
    Repeats,
    /// A consumer does not ask for the frames that it misses (C6, C11).
    Resend,
    /// Nothing is repeated, and nothing asked for.
    RepeatsAndResend,
    /// Messages that were processed before are delivered again (C8).
    Dedupe,
    /// An entity forgets how far it has processed each stream (§7).
    Marks,
    /// A producer that was left behind is not told so (C2a).
    FencedAnswer,
    /// A worker that is gone gives nothing back (W5).
    HandBack,
    /// Work pulling stores confirmations up to a number (W8).
    ExactConfirmations,
    /// A new window is granted at exactly half of the last one (C9).
    HalfWindow,
}

impl Sabotage {
    /// Whether a producer repeats something by itself.
    pub(crate) fn leaves_repeats(without: Option<Self>) -> bool {
        !matches!(without, Some(Self::Repeats | Self::RepeatsAndResend))
    }

    /// Whether a consumer asks for the frames that it misses.
    pub(crate) fn leaves_resend(without: Option<Self>) -> bool {
        !matches!(without, Some(Self::Resend | Self::RepeatsAndResend))
    }
}
