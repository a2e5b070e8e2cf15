//! The members as the processes see them: each process hears of changes in its own time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use greylag_core::UniqueAddress;
use greylag_ddata::{Input, Replica, ReplicaStatus, Replicas};
use rand::RngExt;

use super::world::{Due, World};

/// The view of one process.
#[derive(Debug, Clone, Default)]
pub(super) struct View {
    pub(super) own: Option<ReplicaStatus>,
    pub(super) others: BTreeMap<usize, ReplicaStatus>,
    pub(super) removed: BTreeSet<UniqueAddress>,
    pub(super) unreachable: BTreeSet<usize>,
    /// Arrival time of the last news on its way to the process.
    last: Duration,
}

impl View {
    /// Count of voting members with this one, and how many of them stay.
    pub(super) fn voters(&self) -> (usize, usize) {
        let all = || self.others.values().copied().chain(self.own);
        let staying = all().filter(|status| status.is_staying_voter()).count();
        (all().filter(|status| status.is_voter()).count(), staying)
    }
}

/// A change of membership.
#[derive(Debug, Clone, Copy)]
pub(super) enum News {
    Status(usize, ReplicaStatus),
    Removed(usize),
    Unreachable(usize),
    AllReachable,
}

impl World {
    /// Tells a process all members at once.
    pub(super) fn introduce(&mut self, index: usize) {
        let others = self.members.iter().filter(|(other, _)| **other != index);
        let others = others.map(|(other, status)| (*other, *status)).collect();
        let (own, removed) = (self.members.get(&index).copied(), self.removed.clone());
        let view = &mut self.processes[index].view;
        *view = View { own, others, removed, ..View::default() };
        self.say_members(index);
    }

    /// Tells a process's replicator the members in the process's view.
    pub(super) fn say_members(&mut self, index: usize) {
        let view = &self.processes[index].view;
        let others = view.others.iter().map(|(other, status)| Replica {
            address: self.processes[*other].address.clone(),
            status: *status,
            reachable: !view.unreachable.contains(other),
            age: *other as u64,
        });
        let replicas = Replicas {
            own_status: view.own,
            own_age: index as u64,
            others: others.collect(),
            unmet: BTreeSet::new(),
            removed: view.removed.clone(),
        };
        self.input(index, Input::Replicas(Arc::new(replicas)));
    }

    /// Gives a process its news.
    pub(super) fn hear(&mut self, index: usize, news: News) {
        self.tell(|| format!("{index} hears {news:?}"));
        let address = |other: usize| self.processes[other].address.clone();
        let gone = match news {
            News::Removed(other) => Some(address(other)),
            _ => None,
        };
        let view = &mut self.processes[index].view;
        match news {
            News::Status(other, status) if other == index => view.own = Some(status),
            News::Status(other, status) => drop(view.others.insert(other, status)),
            News::Removed(other) => {
                view.others.remove(&other);
                view.unreachable.remove(&other);
                view.removed.extend(gone);
            }
            News::Unreachable(other) if view.others.contains_key(&other) => drop(view.unreachable.insert(other)),
            News::Unreachable(_) => {}
            News::AllReachable => view.unreachable.clear(),
        }
        self.say_members(index);
    }

    /// Sends news to a process; it arrives soon, after all other news on its way to the process.
    pub(super) fn send_news(&mut self, to: usize, news: News) {
        let lag = self.arrangement.lag;
        let lag = if lag.is_zero() { lag } else { self.net.rng().random_range(Duration::ZERO..=lag) };
        let view = &mut self.processes[to].view;
        let at = view.last.max(self.net.now() + lag);
        view.last = at;
        self.next += 1;
        self.news.insert((at, self.next), (to, Due::Heard(news)));
    }

    /// Sends news to all members.
    fn spread(&mut self, news: News) {
        for index in self.members.keys().copied().collect::<Vec<_>>() {
            self.send_news(index, news);
        }
    }

    /// Starts a process as a member.
    pub(super) fn join(&mut self, place: usize, status: ReplicaStatus) -> usize {
        let index = self.start(place);
        self.tell(|| format!("{index} joins at place {place} as {status:?}"));
        self.members.insert(index, status);
        self.introduce(index);
        for other in self.members.keys().copied().filter(|other| *other != index).collect::<Vec<_>>() {
            self.send_news(other, News::Status(index, status));
        }
        index
    }

    /// Changes the status of a member.
    pub(super) fn promote(&mut self, index: usize, status: ReplicaStatus) {
        self.members.insert(index, status);
        self.spread(News::Status(index, status));
    }

    /// Removes a member, whether it runs or not; the member does not hear of it.
    pub(super) fn remove(&mut self, index: usize) {
        self.tell(|| format!("{index} is removed"));
        self.members.remove(&index);
        self.removed.insert(self.processes[index].address.clone());
        self.spread(News::Removed(index));
    }

    /// Kills a process and removes it.
    pub(super) fn kill(&mut self, index: usize) {
        self.crash(index);
        self.remove(index);
    }

    /// Cuts one direction of a link; with `is_noticed` both ends hear of it, and perhaps others.
    pub(super) fn cut(&mut self, from: usize, to: usize, is_noticed: bool) {
        self.tell(|| format!("cut {from} -> {to}, noticed: {is_noticed}"));
        self.net.cut(self.processes[from].node, self.processes[to].node);
        if is_noticed {
            self.send_news(from, News::Unreachable(to));
            self.send_news(to, News::Unreachable(from));
        }
    }

    /// Cuts both directions of a link.
    pub(super) fn part(&mut self, one: usize, other: usize, is_noticed: bool) {
        self.cut(one, other, is_noticed);
        self.cut(other, one, false);
    }

    /// Ends all cuts; every process hears of it.
    pub(super) fn mend(&mut self) {
        self.tell(|| "all cuts end".to_owned());
        self.net.heal();
        self.spread(News::AllReachable);
    }
}
