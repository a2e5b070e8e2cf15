//! Chooses the side that survives: pure functions of one side's picture of a partition.
//!
//! Each side decides alone, on its own picture, and the two verdicts must fit each other. So members whose status the
//! other side may know one step further are counted for the worse (the pessimistic re-check). Indirectly connected
//! nodes are sorted out first.
//!
//! Source: cluster S5 to S10, S12.

use std::collections::BTreeSet;
use std::time::Duration;

use greylag_core::UniqueAddress;

use super::picture::Picture;
use super::why::Why;
use crate::downing::Verdict;
use crate::membership::member::{Member, MemberStatus};
use crate::settings::Strategy;
use crate::testing::omissions::Clause;

/// A verdict, and its reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ruling {
    /// The members to down.
    pub verdict: Verdict,
    /// The reason.
    pub why: Why,
}

impl Ruling {
    fn new(verdict: Verdict, why: Why) -> Self {
        Self { verdict, why }
    }
}

/// The ruling of a strategy on a picture.
pub fn decide(picture: &Picture, strategy: &Strategy) -> Ruling {
    let tally = Tally::of(picture, strategy.role());
    match strategy {
        Strategy::DownAll => return Ruling::new(Verdict::DownAll, Why::EveryPartition),
        Strategy::StaticQuorum { quorum_size, .. } if tally.all() >= 2 * (*quorum_size).max(1) => {
            let why = Why::TooManyMembers { counted: tally.all(), quorum_size: *quorum_size };
            return Ruling::new(Verdict::DownAll, why);
        }
        _ => {}
    }
    let is_lease = matches!(strategy, Strategy::LeaseMajority { .. });
    if !picture.indirectly_connected().is_empty() {
        let lease = Verdict::AcquireLeaseAndDownIndirectlyConnected;
        let verdict = if is_lease { lease } else { Verdict::DownIndirectlyConnected };
        return Ruling::new(verdict, Why::IndirectlyConnected);
    }
    match strategy {
        Strategy::KeepMajority { role } => keep_majority(picture, role.as_deref(), &tally),
        Strategy::StaticQuorum { quorum_size, .. } => static_quorum(*quorum_size, &tally),
        Strategy::KeepOldest { role, down_if_alone } => keep_oldest(picture, role.as_deref(), *down_if_alone, &tally),
        Strategy::LeaseMajority { acquire_lease_delay_for_minority, .. } => {
            lease_majority(picture, *acquire_lease_delay_for_minority, &tally)
        }
        Strategy::DownAll => Ruling::new(Verdict::DownAll, Why::EveryPartition),
    }
}

/// The counted members of both sides, by address.
struct Tally<'a> {
    ours: BTreeSet<&'a UniqueAddress>,
    theirs: BTreeSet<&'a UniqueAddress>,
}

impl<'a> Tally<'a> {
    fn of(picture: &'a Picture, role: Option<&'a str>) -> Self {
        let counted = picture.counted(role).map(|member| &member.address);
        let (theirs, ours) = counted.partition(|address| picture.unreachable.contains(*address));
        Self { ours, theirs }
    }

    fn all(&self) -> usize {
        self.ours.len() + self.theirs.len()
    }

    /// Whether the lowest address of both sides is ours. The sets are sorted, so the lowest is the first.
    fn lowest_is_ours(&self) -> bool {
        match (self.ours.first(), self.theirs.first()) {
            (Some(ours), Some(theirs)) => ours < theirs,
            (ours, _) => ours.is_some(),
        }
    }
}

/// The bigger side survives; of equal sides the one with the lowest address. Source: cluster S6.
fn keep_majority(picture: &Picture, role: Option<&str>, tally: &Tally<'_>) -> Ruling {
    let (ours, theirs) = (tally.ours.len(), tally.theirs.len());
    let tie = ours == theirs;
    if tally.all() == 0 {
        Ruling::new(Verdict::DownAll, Why::NobodyCounts)
    } else if ours < theirs || (tie && !tally.lowest_is_ours()) {
        Ruling::new(Verdict::DownReachable, Why::Minority { ours, theirs })
    } else {
        let doubt = if picture.omissions.has(Clause::Recheck) { None } else { majority_in_doubt(picture, role) };
        match doubt {
            None => Ruling::new(Verdict::DownUnreachable, Why::Majority { ours, theirs }),
            Some((least, most)) => Ruling::new(
                Verdict::DownAll,
                Why::MajorityInDoubt { ours, theirs, least_ours: least, most_theirs: most },
            ),
        }
    }
}

/// Returns the numbers by which the own side might not win if the other side knew more: our Leaving members may be
/// Exiting there, its Joining ones Up, and its Leaving ones Exiting. (Without its Leaving ones the lowest address of
/// the other side can only be higher, so the second check of a tie finds nothing that the first did not; cluster S6
/// asks for both.)
fn majority_in_doubt(picture: &Picture, role: Option<&str>) -> Option<(usize, usize)> {
    let ours = || own_without_leaving(picture, role);
    let pessimistic = |with_leaving: bool| {
        let theirs = others(picture, role).filter(|m| with_leaving || m.status != MemberStatus::Leaving);
        Tally { ours: ours().map(|m| &m.address).collect(), theirs: theirs.map(|m| &m.address).collect() }
    };
    let (all, without_leaving) = (pessimistic(true), pessimistic(false));
    let (least, most) = (all.ours.len(), all.theirs.len());
    let lowest = all.lowest_is_ours() && without_leaving.lowest_is_ours();
    let wins = least > 0 && (least > most || (least == most && lowest));
    (!wins).then_some((least, most))
}

/// Members of the own side that count for certain, whatever the other side knows.
fn own_without_leaving<'a>(picture: &'a Picture, role: Option<&'a str>) -> impl Iterator<Item = &'a Member> {
    picture
        .counted(role)
        .filter(|member| !picture.unreachable.contains(&member.address) && member.status != MemberStatus::Leaving)
}

/// Members of the other side that may count there: its Joining members may be Up.
fn others<'a>(picture: &'a Picture, role: Option<&'a str>) -> impl Iterator<Item = &'a Member> {
    picture
        .members
        .values()
        .filter(|member| member.status < MemberStatus::Exiting && !picture.exits.contains(&member.address))
        .filter(move |member| member.has_role_or_any(role) && picture.unreachable.contains(&member.address))
}

/// The side with a quorum survives. Source: cluster S7.
fn static_quorum(quorum_size: usize, tally: &Tally<'_>) -> Ruling {
    let ours = tally.ours.len();
    if ours >= quorum_size.max(1) {
        Ruling::new(Verdict::DownUnreachable, Why::Quorum { ours, quorum_size })
    } else {
        Ruling::new(Verdict::DownReachable, Why::NoQuorum { ours, quorum_size })
    }
}

/// The side with the oldest member survives. Source: cluster S8.
fn keep_oldest(picture: &Picture, role: Option<&str>, down_if_alone: bool, tally: &Tally<'_>) -> Ruling {
    let (ours, theirs) = (tally.ours.len(), tally.theirs.len());
    let counted: Vec<&Member> = picture.counted(role).collect();
    let Some(oldest) = counted.iter().min_by(|a, b| a.age_order(b)) else {
        return Ruling::new(Verdict::DownAll, Why::NobodyCounts);
    };
    let here = !picture.unreachable.contains(&oldest.address);
    let oldest = oldest.address.clone();
    if !oldest_survives(here, down_if_alone, ours, theirs) {
        return Ruling::new(Verdict::DownReachable, Why::OldestLost { oldest, here, ours, theirs });
    }
    if !picture.omissions.has(Clause::Recheck) && oldest_in_doubt(picture, role, down_if_alone) {
        return Ruling::new(Verdict::DownAll, Why::OldestInDoubt { oldest, here, ours, theirs });
    }
    Ruling::new(Verdict::DownUnreachable, Why::OldestKept { oldest, here, ours, theirs })
}

/// Whether this side survives, with the oldest member on it or not. Of two nodes the oldest stays: its end would gain
/// nothing, since the other one is alone too.
fn oldest_survives(here: bool, down_if_alone: bool, ours: usize, theirs: usize) -> bool {
    if here { !(down_if_alone && ours == 1 && theirs >= 2) } else { down_if_alone && theirs == 1 && ours >= 2 }
}

/// Whether the other side may reach another verdict because it knows more: our Leaving members may be Exiting there;
/// its own Leaving ones may be Exiting, and its Joining ones Up, or not. (A side that survives with all of those
/// counted also survives without some: either the oldest is here, and the other side only shrinks, or the oldest is
/// alone there and this side has two. Cluster S8 asks for all four.)
fn oldest_in_doubt(picture: &Picture, role: Option<&str>, down_if_alone: bool) -> bool {
    let ours: Vec<&Member> = own_without_leaving(picture, role).collect();
    let survives = |with_leaving: bool, with_joining: bool| {
        let theirs: Vec<&Member> = others(picture, role)
            .filter(|member| with_leaving || member.status != MemberStatus::Leaving)
            .filter(|member| with_joining || member.status.is_settled())
            .collect();
        let Some(oldest) = ours.iter().chain(&theirs).min_by(|a, b| a.age_order(b)) else { return false };
        let here = !picture.unreachable.contains(&oldest.address);
        oldest_survives(here, down_if_alone, ours.len(), theirs.len())
    };
    let joining: &[bool] = if down_if_alone { &[false, true] } else { &[false] };
    !joining.iter().all(|with_joining| survives(true, *with_joining) && survives(false, *with_joining))
}

/// The side that gets the lease survives; the bigger side asks first. Source: cluster S10.
fn lease_majority(picture: &Picture, minority_delay: Duration, tally: &Tally<'_>) -> Ruling {
    let (ours, theirs) = (tally.ours.len(), tally.theirs.len());
    let (away, here): (Vec<_>, Vec<_>) =
        picture.counted(None).partition(|member| picture.unreachable.contains(&member.address));
    if here.iter().all(|member| member.status == MemberStatus::Leaving) && !away.is_empty() {
        // Members that join or leave do not take the cluster from those that stay: a staying member may live on, alone
        // by its own view, without requesting the lease, since it need not know the joining members and may have
        // removed the leaving ones.
        return Ruling::new(Verdict::DownReachable, Why::Minority { ours: here.len(), theirs: away.len() });
    }
    let tie = 2 * theirs == tally.all();
    let minority = 2 * theirs > tally.all() || (tie && !tally.theirs.is_empty() && !tally.lowest_is_ours());
    let delay = if minority { minority_delay } else { Duration::ZERO };
    Ruling::new(Verdict::AcquireLeaseAndDownUnreachable { delay }, Why::LeaseFirst { ours, theirs, minority })
}

/// The members that a verdict downs.
#[derive(Debug, Clone, PartialEq)]
pub struct Resolution {
    /// The final verdict: an indirect connection that cannot be sorted out results in [`Verdict::DownAll`].
    pub verdict: Verdict,
    /// The members that the final verdict downs.
    pub downed: BTreeSet<UniqueAddress>,
    /// The reason of the strategy's second ruling, made without the indirectly connected members.
    pub rest: Option<Why>,
    /// Why the verdict became [`Verdict::DownAll`], if it did.
    pub all: Option<AllBecause>,
}

/// Why indirectly connected members make the verdict down all members. Source: cluster S12.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum AllBecause {
    /// The picture without the indirectly connected members is no clean cut either.
    NotSortedOut,
    /// The indirectly connected members, and those downed with them, exceed this fraction of all members.
    MoreThan(f64),
}

/// Computes the members that a verdict downs, and the final verdict. `limit` is `down_all_when_indirectly_connected`.
/// Source: cluster S5, S10, S12.
pub fn resolve(picture: &Picture, strategy: &Strategy, verdict: Verdict, limit: Option<f64>) -> Resolution {
    let simple = |downed| Resolution { verdict, downed, rest: None, all: None };
    match verdict {
        Verdict::DownIndirectlyConnected | Verdict::AcquireLeaseAndDownIndirectlyConnected => {}
        Verdict::ReverseDownIndirectlyConnected => {
            // Members that only a sick node accuses belong to the own side, too.
            let rest = picture.without_indirect_records();
            let mut downed = rest.nodes_to_down(Verdict::DownReachable);
            let indirect = picture.indirectly_connected();
            downed.extend(picture.downable().filter(|address| indirect.contains(*address)).cloned());
            return simple(downed);
        }
        _ => return simple(picture.nodes_to_down(verdict)),
    }
    let indirect = picture.indirectly_connected();
    let downable: BTreeSet<UniqueAddress> = picture.downable().cloned().collect();
    let mut resolution = simple(indirect.intersection(&downable).cloned().collect());
    let others_are_gone =
        picture.unreachable.iter().any(|address| downable.contains(address) && !indirect.contains(address));
    if others_are_gone {
        let rest = picture.without_indirect_records();
        let again = decide(&rest, strategy);
        let verdict = again.verdict.granted();
        if verdict == Verdict::DownIndirectlyConnected {
            let all = Some(AllBecause::NotSortedOut);
            return Resolution { verdict: Verdict::DownAll, downed: downable, rest: None, all };
        }
        resolution.downed.extend(rest.nodes_to_down(verdict));
        resolution.rest = Some(again.why);
    }
    if let Some(limit) = limit.filter(|limit| resolution.downed.len() as f64 > limit * downable.len() as f64) {
        let all = Some(AllBecause::MoreThan(limit));
        return Resolution { verdict: Verdict::DownAll, downed: downable, rest: resolution.rest, all };
    }
    resolution
}

/// The reason of a decision in words.
pub fn explain(picture: &Picture, why: &Why, resolution: &Resolution) -> String {
    if *why != Why::IndirectlyConnected {
        return why.to_string();
    }
    let indirect = list(&picture.indirectly_connected());
    let mut text = format!("some members reach {indirect}, and others do not");
    if let Some(rest) = &resolution.rest {
        text.push_str(&format!("; beyond that, {rest}"));
    }
    match resolution.all {
        Some(AllBecause::NotSortedOut) => {
            text.push_str("; what remains without them is no clean cut either, so no member can be spared");
        }
        Some(AllBecause::MoreThan(limit)) => {
            text.push_str(&format!("; that would end more than a fraction of {limit} of the members, so all end"));
        }
        None => {}
    }
    text
}

/// Addresses for the log, with commas between them.
fn list<'a>(addresses: impl IntoIterator<Item = &'a UniqueAddress>) -> String {
    addresses.into_iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
