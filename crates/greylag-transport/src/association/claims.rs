//! Decides which processes are believed at an address that members hold.
//!
//! Source: cluster T15, M25.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use greylag_core::Uid;

use crate::holder::Holder;

/// Least time between two dials that ask which process runs at the address, and between two events about claimants.
const PAUSE: Duration = Duration::from_secs(1);

/// The members that hold the address of an association, and the times of the last measures against other processes
/// there.
#[derive(Debug, Default)]
pub(super) struct Claims {
    holders: Vec<Holder>,
    /// Members that held the address before, until they are quarantined.
    former: BTreeSet<Uid>,
    asked_at: Option<Instant>,
    told_at: Option<Instant>,
}

/// The standing of a process at an address towards the members that hold the address.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Claim<'a> {
    /// The process is one of the holders, or no member holds the address.
    Rightful,
    /// The process can have replaced all of them; its answer to a dial decides.
    Heir,
    /// The process cannot have replaced this holder.
    Held(&'a Holder),
}

impl Claims {
    pub(super) fn of(holders: Vec<Holder>) -> Self {
        Self { holders, ..Self::default() }
    }

    pub(super) fn set_holders(&mut self, holders: Vec<Holder>) {
        let before = std::mem::replace(&mut self.holders, holders);
        self.former.extend(before.iter().map(|holder| holder.member.uid()));
    }

    /// Whether this process holds the address, or held it and was not quarantined since.
    pub(super) fn held(&self, uid: Uid) -> bool {
        self.is_holder(uid) || self.former.contains(&uid)
    }

    /// Forgets the former holders that `chosen` selects.
    pub(super) fn forget_former(&mut self, chosen: impl Fn(&Uid) -> bool) {
        self.former.retain(|uid| !chosen(uid));
    }

    pub(super) fn is_holder(&self, uid: Uid) -> bool {
        self.holders.iter().any(|holder| holder.member.uid() == uid)
    }

    pub(super) fn judge(&self, uid: Uid, host_id: Option<&str>) -> Claim<'_> {
        if self.holders.is_empty() || self.is_holder(uid) {
            return Claim::Rightful;
        }
        let irreplaceable = self.holders.iter().find(|holder| !holder.replacers.include(host_id));
        irreplaceable.map_or(Claim::Heir, Claim::Held)
    }

    /// Whether the address may be dialled now to learn which process runs there.
    pub(super) fn may_ask(&mut self, now: Instant) -> bool {
        is_due(&mut self.asked_at, now)
    }

    /// Whether listeners may be told of a claimant now.
    pub(super) fn may_tell(&mut self, now: Instant) -> bool {
        is_due(&mut self.told_at, now)
    }
}

fn is_due(last: &mut Option<Instant>, now: Instant) -> bool {
    let is_due = last.is_none_or(|at| now.saturating_duration_since(at) >= PAUSE);
    if is_due {
        *last = Some(now);
    }
    is_due
}
