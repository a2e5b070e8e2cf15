//! The members of one state, by address.
//!
//! A sorted list that its holders share: cloning costs a reference, comparing a list with itself nothing, and derived
//! data (the ring, the number of settled members) is computed once for all holders. Changes are rare, and copy the
//! list, but not the members: an unchanged member is one value in all lists derived from each other, and is compared by
//! reference. Source: cluster M1, C5.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Index;
use std::sync::{Arc, OnceLock};

use greylag_core::UniqueAddress;

use crate::detector::ring::Ring;
use crate::membership::member::{Member, MemberStatus};
use crate::membership::places::Places;
use crate::testing::side_by_side::shared_side_by_side;

/// Members, sorted by address; each address occurs once.
#[derive(Clone, Default)]
pub struct Members(Arc<Inner>);

#[derive(Default)]
struct Inner {
    list: Vec<Arc<Member>>,
    places: OnceLock<Arc<Places>>,
    summary: OnceLock<Summary>,
}

impl Clone for Inner {
    /// Copies the list to change it: data that depends on the addresses alone is kept until an address comes or goes.
    fn clone(&self) -> Self {
        Self { list: self.list.clone(), places: self.places.clone(), summary: OnceLock::new() }
    }
}

/// Facts about all members that the machine needs at every step.
#[derive(Debug, Default)]
pub(crate) struct Summary {
    /// The number of members whose agreement convergence needs (cluster M17).
    pub(crate) settled: usize,
    /// Whether some member is Down.
    pub(crate) any_down: bool,
    /// Whether some member's death is proven.
    pub(crate) any_dead: bool,
    /// Whether some member prepares for the shutdown of the whole cluster, or is ready for it.
    pub(crate) any_preparing: bool,
    /// Every role that some member has.
    pub(crate) roles: BTreeSet<String>,
}

impl Summary {
    fn of(members: &Members) -> Self {
        let mut summary = Self::default();
        // Skip equal roles: most members have the roles of their neighbour in the list.
        let mut known: Option<&Member> = None;
        for member in members {
            if known.is_none_or(|known| !Arc::ptr_eq(&known.roles, &member.roles) && known.roles != member.roles) {
                summary.roles.extend(member.roles.iter().cloned());
                known = Some(member);
            }
            let preparing = [MemberStatus::PreparingForShutdown, MemberStatus::ReadyForShutdown];
            summary.settled += usize::from(member.status.is_settled());
            summary.any_down |= member.status == MemberStatus::Down;
            summary.any_dead |= member.dead;
            summary.any_preparing |= preparing.contains(&member.status);
        }
        summary
    }
}

/// Members in the order of their addresses.
pub(crate) type Iter<'a> = std::iter::Map<std::slice::Iter<'a, Arc<Member>>, fn(&'a Arc<Member>) -> &'a Member>;

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

    /// How many members there are.
    pub fn len(&self) -> usize {
        self.0.list.len()
    }

    /// Whether there are no members.
    pub fn is_empty(&self) -> bool {
        self.0.list.is_empty()
    }

    /// The member with this unique address.
    pub fn get(&self, address: &UniqueAddress) -> Option<&Member> {
        self.find(address).map(|place| &self[place])
    }

    /// The member with this unique address, for changes. Its address must stay as it is.
    pub fn get_mut(&mut self, address: &UniqueAddress) -> Option<&mut Member> {
        let place = self.find(address)?;
        Some(Arc::make_mut(&mut self.change()[place]))
    }

    /// Whether this unique address is a member's.
    pub fn contains_key(&self, address: &UniqueAddress) -> bool {
        self.find(address).is_some()
    }

    /// The addresses, in order.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = &UniqueAddress> + Clone {
        self.iter().map(|member| &member.address)
    }

    /// The members, in order of their addresses.
    pub fn iter(&self) -> Iter<'_> {
        self.0.list.iter().map(|member| member)
    }

    /// The same as [`Members::iter`].
    pub fn values(&self) -> Iter<'_> {
        self.iter()
    }

    /// Replaces each member for which `step` returns a new one. The address must stay as it is. True if any was
    /// replaced.
    pub fn update(&mut self, mut step: impl FnMut(&Member) -> Option<Member>) -> bool {
        let steps = self.iter().enumerate().filter_map(|(place, member)| Some((place, Arc::new(step(member)?))));
        let steps: Vec<(usize, Arc<Member>)> = steps.collect();
        let any = !steps.is_empty();
        if any {
            let list = self.change();
            steps.into_iter().for_each(|(place, member)| list[place] = member);
        }
        any
    }

    /// Adds a member, or replaces the member with the same address.
    pub fn insert(&mut self, mut member: Member) {
        // Share equal roles between members.
        if let Some(like) = self.iter().find(|other| other.roles == member.roles) {
            member.roles = like.roles.clone();
        }
        match self.place(&member.address) {
            Ok(place) => self.change()[place] = Arc::new(member),
            Err(place) => {
                let places = self.0.places.get().map(|places| places.with(place, &member.address));
                self.resize(places).insert(place, Arc::new(member));
            }
        }
    }

    /// Removes a member.
    pub fn remove(&mut self, address: &UniqueAddress) -> Option<Member> {
        let place = self.find(address)?;
        let places = self.0.places.get().map(|places| places.retained(|other| other != place));
        Some(Arc::unwrap_or_clone(self.resize(places).remove(place)))
    }

    /// Keeps the members that `keep` accepts.
    pub fn retain(&mut self, keep: impl Fn(&Member) -> bool) {
        if !self.iter().all(&keep) {
            let places = self.0.places.get().map(|places| places.retained(|place| keep(&self[place])));
            self.resize(places).retain(|member| keep(member));
        }
    }

    fn side_by_side<'a>(
        &'a self,
        other: &'a Self,
    ) -> impl Iterator<Item = (Option<&'a Arc<Member>>, Option<&'a Arc<Member>>)> {
        shared_side_by_side(&self.0.list, &other.0.list, |left, right| left.address.cmp(&right.address))
    }

    /// Walks both lists side by side, by address: a member that only one list has comes without a partner. Members that
    /// are the same value in memory on both sides, as most are, are skipped; equal ones in separate memory are not.
    pub(crate) fn differences<'a>(
        &'a self,
        other: &'a Self,
    ) -> impl Iterator<Item = (Option<&'a Member>, Option<&'a Member>)> {
        let others = (!self.is(other)).then(|| self.side_by_side(other));
        let others = others.into_iter().flatten().filter(|(left, right)| !is_one(*left, *right));
        others.map(|(left, right)| (left.map(Arc::as_ref), right.map(Arc::as_ref)))
    }

    /// Merges both lists, without regard to removals. Returns one of the two lists itself if the result equals it.
    /// Source: cluster M9.
    #[must_use]
    pub(crate) fn merged(&self, other: &Self) -> Self {
        let (mut is_left, mut is_right) = (true, true);
        for (left, right) in self.differences(other) {
            if let (Some(left), Some(right)) = (left, right)
                && left != right
            {
                let merged = left.merged(right);
                is_left &= *left == merged;
                is_right &= *right == merged;
            }
            is_left &= left.is_some();
            is_right &= right.is_some();
        }
        match (is_left, is_right) {
            (true, _) => self.clone(),
            (_, true) => other.clone(),
            _ => {
                let places = Places::merged(self.places(), other.places());
                let mut list = Vec::with_capacity(places.len());
                list.extend(self.side_by_side(other).filter_map(|(left, right)| match (left, right) {
                    (Some(left), Some(right)) if Arc::ptr_eq(left, right) || left == right => Some(left.clone()),
                    (Some(left), Some(right)) => Some(Arc::new(left.merged(right))),
                    (left, right) => left.or(right).cloned(),
                }));
                Self(Arc::new(Inner { list, places: places.into(), summary: OnceLock::new() }))
            }
        }
    }

    /// Whether both are the same list in memory; equal lists may be separate.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The members on the ring of heartbeats.
    pub(crate) fn ring(&self) -> Ring {
        Ring::of(self.places())
    }

    /// The place of each address, for sets of members.
    pub(crate) fn places(&self) -> &Arc<Places> {
        self.0.places.get_or_init(|| Arc::new(Places::of_sorted(self.keys())))
    }

    pub(crate) fn summary(&self) -> &Summary {
        self.0.summary.get_or_init(|| Summary::of(self))
    }

    /// The list for changing members in place.
    fn change(&mut self) -> &mut Vec<Arc<Member>> {
        let inner = Arc::make_mut(&mut self.0);
        inner.summary = OnceLock::new();
        &mut inner.list
    }

    /// The list for adding or removing members. `places`: the new places, if known.
    fn resize(&mut self, places: Option<Places>) -> &mut Vec<Arc<Member>> {
        let inner = Arc::make_mut(&mut self.0);
        let places = places.map(|places| OnceLock::from(Arc::new(places))).unwrap_or_default();
        *inner = Inner { list: std::mem::take(&mut inner.list), places, summary: OnceLock::new() };
        &mut inner.list
    }
}

fn is_one(left: Option<&Arc<Member>>, right: Option<&Arc<Member>>) -> bool {
    left.zip(right).is_some_and(|(left, right)| Arc::ptr_eq(left, right))
}

impl Index<usize> for Members {
    type Output = Member;

    /// The member at this place in the order of addresses.
    fn index(&self, place: usize) -> &Member {
        &self.0.list[place]
    }
}

impl<'a> IntoIterator for &'a Members {
    type Item = &'a Member;
    type IntoIter = Iter<'a>;

    fn into_iter(self) -> Iter<'a> {
        self.iter()
    }
}

impl FromIterator<Member> for Members {
    /// Keeps the last of several members with one address.
    fn from_iter<I: IntoIterator<Item = Member>>(members: I) -> Self {
        let mut list: Vec<Arc<Member>> = members.into_iter().map(Arc::new).collect();
        // Sort only if needed: members from the wire come sorted.
        if !list.is_sorted_by(|left, right| left.address < right.address) {
            let by_address = list.into_iter().map(|member| (member.address.clone(), member));
            list = by_address.collect::<BTreeMap<_, _>>().into_values().collect();
        }
        Self(Arc::new(Inner { list, ..Inner::default() }))
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
        let sides = |left: &Members, right: &Members| -> Vec<_> {
            left.differences(right).map(|(left, right)| (left.is_some(), right.is_some())).collect()
        };
        assert_eq!(sides(&left, &right), [(true, false), (true, true), (false, true)]);
        let both = left.merged(&right);
        assert_eq!(hosts(&both), ["a", "b", "c"]);
        assert_eq!(sides(&left, &both), [(false, true)], "who is not changed is one value in all lists");
    }
}
