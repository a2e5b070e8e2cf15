//! Clauses of the protocol that simulations can omit on purpose.
//!
//! A simulation that never failed proves nothing, so each clause that this crate's guarantees need can be omitted, and
//! the simulation must then find a violation. Only simulations do so: no configuration file has such a setting.
//!
//! Source: delivery scenario 82.

/// The omitted clause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Sabotage {
    /// Producers do not repeat frames by timer (P8, P9).
    Repeats,
    /// Consumers do not request missing frames (C6, C11).
    Resend,
    /// Neither repeats by timer nor resend requests.
    RepeatsAndResend,
    /// Duplicates of processed messages are delivered again (C8).
    Dedupe,
    /// An entity forgets how far it has processed each stream (§7).
    Marks,
    /// A producer with an old epoch is not told that it is fenced (C2a).
    FencedAnswer,
    /// Jobs of a worker that is gone do not become pending (W5).
    HandBack,
    /// Work pulling stores confirmations as "up to a number" (W8).
    ExactConfirmations,
    /// A new window is granted only at exactly half of the last one (C9).
    HalfWindow,
}

impl Sabotage {
    /// Whether producers repeat frames by timer.
    pub(crate) fn leaves_repeats(without: Option<Self>) -> bool {
        !matches!(without, Some(Self::Repeats | Self::RepeatsAndResend))
    }

    /// Whether consumers request missing frames.
    pub(crate) fn leaves_resend(without: Option<Self>) -> bool {
        !matches!(without, Some(Self::Resend | Self::RepeatsAndResend))
    }
}
