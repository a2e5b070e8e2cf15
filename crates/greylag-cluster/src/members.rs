//! The members of one state, by address.
//!
//! A sorted list that its holders share: cloning costs a reference, comparing a list with itself
//! nothing, and what follows from it (the ring, how many are settled) is computed once for all
//! holders. Changes are rare, and copy the list. Source: cluster M1, C5.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use greylag_core::UniqueAddress;

use crate::member::{Member, MemberStatus};
use crate::places::Places;
use crate::ring::Ring;
use crate::side_by_side::side_by_side;

/// Members, sorted by address; each address occurs once.
#[derive(Clone, Default)]
pub struct Members(Arc<Inner>);

#[derive(Default)]
struct Inner {
    list: Vec<Member>,
    places: OnceLock<Arc<Places>>,
    summary: OnceLock<Summary>,
}

impl Clone for Inner {
    /// Copied in order to be changed: what depends on the addresses alone is kept until one comes
    /// or goes.
    fn clone(&self) -> Self {
        Self { list: self.list.clone(), places: self.places.clone(), summary: OnceLock::new() }
    }
}

/// What is asked of all members at every step.
#[derive(Debug)]
pub(crate) struct Summary {
    /// Those whose agreement convergence needs (cluster M17).
    pub(crate) settled: usize,
    /// Somebody is Down.
    pub(crate) any_down: bool,
    /// Somebody's death is proven.
    pub(crate) any_dead: bool,
    /// Every role that somebody has.
    pub(crate) roles: BTreeSet<String>,
}

impl Members {
    fn place(&self, address: &UniqueAddress) -> Result<usize, usize> {
        self.0.list.binary_search_by(|member| member.address.cmp(address))
    }

    fn find(&self, address: &UniqueAddress) -> Option<usize> {
        match self.0.places.get() {
            Some(places) => places.find(address),
            None => self.place(address).ok(),
        }
    }

    /// The member with this unique address.
    pub fn get(&self, address: &UniqueAddress) -> Option<&Member> {
        self.find(address).map(|place| &self.0.list[place])
    }

    /// The same, to be changed. Its address must stay as it is.
    pub fn get_mut(&mut self, address: &UniqueAddress) -> Option<&mut Member> {
        let place = self.find(address)?;
        Some(&mut self.change()[place])
    }

    /// Whether it is a member.
    pub fn contains_key(&self, address: &UniqueAddress) -> bool {
        self.find(address).is_some()
    }

    /// The addresses, in order.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = &UniqueAddress> + Clone {
        self.0.list.iter().map(|member| &member.address)
    }

    /// The members, in order of their addresses.
    pub fn values(&self) -> std::slice::Iter<'_, Member> {
        self.0.list.iter()
    }

    /// The same, to be changed. Their addresses must stay as they are.
    pub fn values_mut(&mut self) -> std::slice::IterMut<'_, Member> {
        self.change().iter_mut()
    }

    /// Adds a member, or replaces the one with its address.
    pub fn insert(&mut self, member: Member) {
        match self.place(&member.address) {
            Ok(place) => self.change()[place] = member,
            Err(place) => self.resize().insert(place, member),
        }
    }

    /// Takes a member out.
    pub fn remove(&mut self, address: &UniqueAddress) -> Option<Member> {
        let place = self.find(address)?;
        Some(self.resize().remove(place))
    }

    /// Keeps the members that `keep` wants.
    pub fn retain(&mut self, keep: impl Fn(&Member) -> bool) {
        if !self.0.list.iter().all(&keep) {
            self.resize().retain(keep);
        }
    }

    /// Both lists side by side, by address: a member that only one of them has stands alone.
    pub fn zip<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = (Option<&'a Member>, Option<&'a Member>)> {
        let entries = |members: &'a Self| members.values().map(|member| (&member.address, member));
        side_by_side(entries(self), entries(other)).map(|(_, left, right)| (left, right))
    }

    /// Both lists made into one, without a word on who was removed. If it is one of the two, it is
    /// that one also in memory. Source: cluster M9.
    #[must_use]
    pub(crate) fn merged(&self, other: &Self) -> Self {
        if self == other {
            return self.clone();
        }
        let (mut is_left, mut is_right) = (true, true);
        let both = |(left, right): (Option<&Member>, Option<&Member>)| {
            let merged = match (left, right) {
                (Some(left), Some(right)) if left == right => return Some(left.clone()),
                (Some(left), Some(right)) => left.merged(right),
                (left, right) => left.or(right)?.clone(),
            };
            is_left &= left == Some(&merged);
            is_right &= right == Some(&merged);
            Some(merged)
        };
        let list = self.zip(other).filter_map(both).collect();
        match (is_left, is_right) {
            (true, _) => self.clone(),
            (_, true) => other.clone(),
            _ => Self(Arc::new(Inner { list, ..Inner::default() })),
        }
    }

    /// Whether both are the same list in memory; equal lists may still be apart.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The members on the ring of heartbeats.
    pub(crate) fn ring(&self) -> Ring {
        Ring::of(self.places())
    }

    /// Where each address stands, for sets of members.
    pub(crate) fn places(&self) -> &Arc<Places> {
        self.0.places.get_or_init(|| Arc::new(Places::of_sorted(self.keys().cloned().collect())))
    }

    pub(crate) fn summary(&self) -> &Summary {
        self.0.summary.get_or_init(|| {
            let mut roles = BTreeSet::new();
            // Most members of a cluster have the roles of their neighbour in the list.
            let mut known: Option<&Member> = None;
            for member in self.values() {
                if known.is_none_or(|known| known.roles != member.roles) {
                    roles.extend(member.roles.iter().cloned());
                    known = Some(member);
                }
            }
            Summary {
                settled: self.values().filter(|member| member.status.is_settled()).count(),
                any_down: self.values().any(|member| member.status == MemberStatus::Down),
                any_dead: self.values().any(|member| member.dead),
                roles,
            }
        })
    }

    /// The list, to change members in place.
    fn change(&mut self) -> &mut Vec<Member> {
        let inner = Arc::make_mut(&mut self.0);
        inner.summary = OnceLock::new();
        &mut inner.list
    }

    /// The list, to add or take out.
    fn resize(&mut self) -> &mut Vec<Member> {
        let inner = Arc::make_mut(&mut self.0);
        *inner = Inner { list: std::mem::take(&mut inner.list), ..Inner::default() };
        &mut inner.list
    }
}

impl Deref for Members {
    type Target = [Member];

    fn deref(&self) -> &[Member] {
        &self.0.list
    }
}

impl<'a> IntoIterator for &'a Members {
    type Item = &'a Member;
    type IntoIter = std::slice::Iter<'a, Member>;

    fn into_iter(self) -> Self::IntoIter {
        self.values()
    }
}

impl FromIterator<Member> for Members {
    /// Of several members with one address the last is kept.
    fn from_iter<I: IntoIterator<Item = Member>>(members: I) -> Self {
        let by_address: std::collections::BTreeMap<_, _> =
            members.into_iter().map(|member| (member.address.clone(), member)).collect();
        Self(Arc::new(Inner { list: by_address.into_values().collect(), ..Inner::default() }))
    }
}

impl From<Vec<Member>> for Members {
    fn from(members: Vec<Member>) -> Self {
        members.into_iter().collect()
    }
}

impl PartialEq for Members {
    fn eq(&self, other: &Self) -> bool {
        self.is(other) || self.0.list == other.0.list
    }
}

impl Eq for Members {}

impl fmt::Debug for Members {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.list.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(name: &str) -> Member {
        Member::joining(format!("{name}:1#1").parse().unwrap(), Arc::default(), Default::default())
    }

    fn hosts<'a>(members: impl IntoIterator<Item = &'a Member>) -> Vec<&'a str> {
        members.into_iter().map(|member| member.address.address().host()).collect()
    }

    #[test]
    fn members_stay_sorted_and_other_holders_keep_theirs() {
        let mut members: Members = vec![member("c"), member("a")].into();
        let before = members.clone();
        members.insert(member("b"));
        members.get_mut(&member("a").address).unwrap().status = MemberStatus::Down;
        assert_eq!((hosts(&members), hosts(&before)), (vec!["a", "b", "c"], vec!["a", "c"]));
        assert!(members.summary().any_down && !before.summary().any_down);
        assert_eq!(members.remove(&member("c").address).map(|m| m.address), Some(member("c").address));
        assert_eq!((members.ring().len(), before.ring().len()), (2, 2));
    }

    #[test]
    fn two_lists_side_by_side() {
        let (left, right): (Members, Members) =
            (vec![member("a"), member("b")].into(), vec![member("b"), member("c")].into());
        let sides: Vec<_> = left.zip(&right).map(|(left, right)| (left.is_some(), right.is_some())).collect();
        assert_eq!(sides, [(true, false), (true, true), (false, true)]);
    }
}
