//! The versions of origins up to which an entry includes their updates. Source: ddata G5, G6.

use std::collections::BTreeMap;

use greylag_crdt::ReplicaId;

use super::small_list::SmallList;

/// Versions by origin, ascending. Each of a million entries of causal types has one such list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Versions(SmallList<(ReplicaId, u64)>);

impl Versions {
    /// The version of one origin.
    pub(crate) fn of(&self, origin: ReplicaId) -> Option<u64> {
        let at = self.0.binary_search_by_key(&origin, |(own, _)| *own).ok()?;
        Some(self.0[at].1)
    }

    /// All versions as a map.
    pub(crate) fn to_map(&self) -> BTreeMap<ReplicaId, u64> {
        self.0.iter().copied().collect()
    }

    /// Replaces the versions.
    pub(super) fn set(&mut self, versions: &BTreeMap<ReplicaId, u64>) {
        let all = versions.iter().map(|(origin, version)| (*origin, *version));
        if versions.len() == self.0.len() {
            self.0.iter_mut().zip(all).for_each(|(own, new)| *own = new);
        } else {
            self.0 = all.collect();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_versions_are_found() {
        let mut versions = Versions::default();
        for wanted in [vec![(3, 1), (1, 2)], vec![(3, 4), (1, 5)], vec![(2, 6)], vec![]] {
            let wanted: BTreeMap<_, _> = wanted.into_iter().map(|(origin, n)| (ReplicaId(origin), n)).collect();
            versions.set(&wanted);
            assert_eq!(versions.to_map(), wanted);
            for origin in (0..5).map(ReplicaId) {
                assert_eq!(versions.of(origin), wanted.get(&origin).copied());
            }
        }
    }
}
