//! The stream of cluster events, one bounded buffer per subscriber.
//!
//! A subscription starts with a snapshot, and no event between the snapshot and the stream is lost or sent twice: both
//! are made under one lock. A subscriber that falls behind learns how many events it missed and starts over from a new
//! snapshot. Source: cluster M32.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use tokio::sync::Notify;

use crate::membership::event::{ClusterEvent, EventKind, InitialState, diff};
use crate::membership::view::MembershipView;

/// Publishes events to subscribers.
#[derive(Debug)]
pub(crate) struct EventHub {
    buffer: usize,
    state: Mutex<HubState>,
}

#[derive(Debug)]
struct HubState {
    view: Arc<MembershipView>,
    subscribers: Vec<Weak<Queue>>,
    closed: bool,
}

#[derive(Debug)]
struct Queue {
    kinds: BTreeSet<EventKind>,
    events: Mutex<Events>,
    arrived: Notify,
}

#[derive(Debug, Default)]
struct Events {
    items: VecDeque<ClusterEvent>,
    /// Events missed: not 0 once the buffer overflowed; then `items` is empty.
    missed: u64,
    closed: bool,
}

/// Locks, also after a subscriber panicked while it held the lock: the data is a queue of values, valid at every step.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl EventHub {
    pub(crate) fn new(buffer: usize, view: Arc<MembershipView>) -> Self {
        Self { buffer, state: Mutex::new(HubState { view, subscribers: Vec::new(), closed: false }) }
    }

    /// The newest view.
    pub(crate) fn view(&self) -> Arc<MembershipView> {
        lock(&self.state).view.clone()
    }

    /// Replaces the view and sends the events to every subscriber.
    pub(crate) fn publish(&self, view: Option<Arc<MembershipView>>, events: &[ClusterEvent]) {
        let mut state = lock(&self.state);
        if let Some(view) = view {
            state.view = view;
        }
        state.subscribers.retain(|subscriber| {
            let Some(queue) = subscriber.upgrade() else { return false };
            queue.push(events, self.buffer);
            true
        });
    }

    /// Ends publishing: streams end once they are read.
    pub(crate) fn close(&self) {
        let mut state = lock(&self.state);
        state.closed = true;
        for queue in state.subscribers.drain(..).filter_map(|subscriber| subscriber.upgrade()) {
            lock(&queue.events).closed = true;
            queue.arrived.notify_one();
        }
    }

    pub(crate) fn subscribe(self: &Arc<Self>, kinds: BTreeSet<EventKind>, initial: InitialState) -> ClusterEvents {
        let mut state = lock(&self.state);
        let items = match initial {
            InitialState::Snapshot => VecDeque::from([ClusterEvent::Snapshot(state.view.clone())]),
            InitialState::Events => {
                let from_nothing = diff(&MembershipView::empty(state.view.self_address.clone()), &state.view);
                from_nothing.into_iter().filter(|event| wanted(&kinds, event)).collect()
            }
        };
        let events = Events { items, missed: 0, closed: state.closed };
        let queue = Arc::new(Queue { kinds, events: Mutex::new(events), arrived: Notify::new() });
        state.subscribers.push(Arc::downgrade(&queue));
        ClusterEvents { hub: self.clone(), queue }
    }
}

impl Queue {
    fn push(&self, new: &[ClusterEvent], buffer: usize) {
        let new: Vec<&ClusterEvent> = new.iter().filter(|event| wanted(&self.kinds, event)).collect();
        if new.is_empty() {
            return;
        }
        let mut events = lock(&self.events);
        if events.missed > 0 {
            events.missed += new.len() as u64;
        } else if events.items.len() + new.len() > buffer {
            events.missed = (events.items.len() + new.len()) as u64;
            events.items.clear();
        } else {
            events.items.extend(new.into_iter().cloned());
        }
        self.arrived.notify_one();
    }
}

fn wanted(kinds: &BTreeSet<EventKind>, event: &ClusterEvent) -> bool {
    event.kind().is_none_or(|kind| kinds.contains(&kind))
}

/// A subscription to cluster events, ended by dropping it.
#[derive(Debug)]
pub struct ClusterEvents {
    hub: Arc<EventHub>,
    queue: Arc<Queue>,
}

impl ClusterEvents {
    /// The next event; the first is a [`ClusterEvent::Snapshot`]. `None` once the node has ended.
    ///
    /// Safe to use in `select!`: an event is taken only when it is returned.
    pub async fn next(&mut self) -> Option<ClusterEvent> {
        loop {
            match self.try_next() {
                Taken::Event(event) => return Some(event),
                Taken::Closed => return None,
                Taken::Nothing => self.queue.arrived.notified().await,
            }
        }
    }

    /// The newest view; not older than the events that were returned.
    pub(crate) fn view(&self) -> Arc<MembershipView> {
        self.hub.view()
    }

    fn try_next(&mut self) -> Taken {
        // Lock the hub first, so that no event falls between a new snapshot and the stream after it.
        let state = lock(&self.hub.state);
        let mut events = lock(&self.queue.events);
        if events.missed > 0 {
            let missed = std::mem::take(&mut events.missed);
            events.items.push_back(ClusterEvent::Snapshot(state.view.clone()));
            return Taken::Event(ClusterEvent::Lagged { missed });
        }
        match events.items.pop_front() {
            Some(event) => Taken::Event(event),
            None if events.closed => Taken::Closed,
            None => Taken::Nothing,
        }
    }
}

enum Taken {
    Event(ClusterEvent),
    Closed,
    Nothing,
}

#[cfg(test)]
mod tests {
    use greylag_core::UniqueAddress;

    use super::*;
    use crate::membership::app_version::AppVersion;
    use crate::membership::member::{Member, MemberStatus};

    fn hub(buffer: usize) -> Arc<EventHub> {
        let view = MembershipView::empty("a:1#1".parse().unwrap());
        Arc::new(EventHub::new(buffer, Arc::new(view)))
    }

    #[tokio::test]
    async fn scenario_35_a_late_subscriber_starts_with_a_snapshot_and_ends_with_the_hub() {
        let hub = hub(10);
        hub.publish(None, &[ClusterEvent::SelfSuspect]);
        let mut events = hub.subscribe(EventKind::ALL.into(), InitialState::Snapshot);
        hub.publish(None, &[ClusterEvent::SelfTrusted]);
        hub.close();
        assert!(matches!(events.next().await, Some(ClusterEvent::Snapshot(_))));
        assert_eq!(events.next().await, Some(ClusterEvent::SelfTrusted));
        assert_eq!(events.next().await, None);
    }

    /// cluster M32.
    #[tokio::test]
    async fn a_slow_subscriber_is_told_and_starts_over() {
        let hub = hub(2);
        let mut events = hub.subscribe(EventKind::ALL.into(), InitialState::Snapshot);
        for _ in 0..3 {
            hub.publish(None, &[ClusterEvent::SelfSuspect]);
        }
        assert_eq!(events.next().await, Some(ClusterEvent::Lagged { missed: 4 }), "the snapshot and three events");
        assert!(matches!(events.next().await, Some(ClusterEvent::Snapshot(_))));
        hub.publish(None, &[ClusterEvent::SelfTrusted]);
        assert_eq!(events.next().await, Some(ClusterEvent::SelfTrusted));
    }

    /// cluster M32.
    #[tokio::test]
    async fn scenario_35_a_late_subscriber_may_ask_for_events_and_for_some_kinds_only() {
        let hub = hub(10);
        let own: UniqueAddress = "a:1#1".parse().unwrap();
        let member = Member::joining(own.clone(), Arc::default(), AppVersion::default());
        let view = MembershipView {
            members: vec![Member { status: MemberStatus::Up, ..member.clone() }].into(),
            leader: Some(own.clone()),
            ..MembershipView::empty(own)
        };
        hub.publish(Some(Arc::new(view)), &[]);
        let mut all = hub.subscribe(EventKind::ALL.into(), InitialState::Events);
        assert!(matches!(all.next().await, Some(ClusterEvent::MemberUp(_))));
        assert!(matches!(all.next().await, Some(ClusterEvent::LeaderChanged(Some(_)))));
        let mut members = hub.subscribe([EventKind::Members].into(), InitialState::Events);
        hub.publish(None, &[ClusterEvent::SelfSuspect, ClusterEvent::MemberLeft(member)]);
        hub.publish(None, &[ClusterEvent::ClusterShuttingDown]);
        assert!(matches!(members.next().await, Some(ClusterEvent::MemberUp(_))));
        assert!(matches!(members.next().await, Some(ClusterEvent::MemberLeft(_))), "nothing of other kinds between");
        assert_eq!(members.next().await, Some(ClusterEvent::ClusterShuttingDown), "which every subscriber gets");
    }
    /// cluster M32, M33: a late subscriber that wants events gets those that lead from nothing to the present view.
    #[tokio::test]
    async fn scenario_35_a_late_subscriber_gets_all_that_leads_to_the_present_view() {
        use crate::membership::view::Tombstone;

        let hub = hub(100);
        let own: UniqueAddress = "a:1#1".parse().unwrap();
        let member = |text: &str, status| {
            let roles = Arc::new(["worker".to_owned()].into());
            Member { status, ..Member::joining(text.parse().unwrap(), roles, AppVersion::default()) }
        };
        let members = vec![
            member("a:1#1", MemberStatus::Up),
            member("b:1#1", MemberStatus::Leaving),
            member("c:1#1", MemberStatus::Joining),
        ];
        let mut view = MembershipView::empty(own.clone());
        view.unreachable.insert(members[1].address.clone());
        view.tombstones.insert("z:1#1".parse().unwrap(), Tombstone::default());
        view.leader = Some(own.clone());
        view.role_leaders.insert("worker".to_owned(), own.clone());
        view.seen_by.insert(own.clone());
        view.members = members.into();
        let expected = diff(&MembershipView::empty(own), &view);
        let named = |name: &str| expected.iter().filter(|event| format!("{event:?}").starts_with(name)).count();
        let names = [
            "TombstoneAdded",
            "MemberUp",
            "MemberLeft",
            "MemberJoined",
            "UnreachableMember",
            "LeaderChanged",
            "RoleLeaderChanged",
            "SeenChanged",
        ];
        assert_eq!(names.map(named), [1; 8], "{expected:?}");
        hub.publish(Some(Arc::new(view)), &[]);
        let mut late = hub.subscribe(EventKind::ALL.into(), InitialState::Events);
        hub.close();
        let mut told = Vec::new();
        while let Some(event) = late.next().await {
            told.push(event);
        }
        assert_eq!(told, expected);
    }
}
