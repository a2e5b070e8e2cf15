//! Reports the end of recipients on other nodes to their watchers: exactly once.
//!
//! One [`Watcher`] per node is both sides of the protocol. It keeps the recipients that this node's users watch, and
//! the nodes that watch recipients registered here. A watch ends when the recipient has stopped, when its node has been
//! removed or quarantined, or at once if the recipient is gone already; an unreachable node ends no watch. The messages
//! travel reliably ([`crate::reliable`]). The notice that a recipient has stopped leaves only once everything that was
//! sent before the notice has been taken at the other end, so a watcher never hears of an end before the last messages.
//!
//! ```text
//! a: Watch{path} -----------------------> b: is it registered? then it is noted
//!                                         b: it stops: Flush through every lane ...
//!    ... all of it was taken <----------- b: Terminated{path}
//! ```
//!
//! Membership gives the watcher the members, as whole views. Source: cluster T30.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use greylag_core::UniqueAddress;

/// A recipient registered at a node. Its sub-paths end with it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Watched {
    /// The node.
    pub node: UniqueAddress,
    /// The registered path.
    pub path: Arc<str>,
    /// The instance meant; 0 for the one that is registered when the watch arrives.
    pub instance: u64,
}

/// Why a watch ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhyTerminated {
    /// The recipient is not registered any more, or never was.
    Stopped,
    /// Its node was removed from the cluster.
    MemberRemoved,
    /// Its node is quarantined here.
    Quarantined,
    /// Its node had been removed before the watch began.
    Tombstoned,
    /// Its node, which was no member, has been replaced by a newer process.
    PeerRestarted,
}

/// The end of a watched recipient.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Terminated {
    /// The watched recipient.
    pub recipient: Watched,
    /// Why the recipient counts as gone.
    pub why: WhyTerminated,
}

/// Why a watch was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WatchError {
    /// The node is no member, so membership would not say when it is gone. Wait until it has joined.
    #[error("{0} is no member of the cluster")]
    NotAMember(UniqueAddress),
}

/// A message between two watchers, sent reliably.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WatchMessage {
    /// Asks for a notice when this recipient ends.
    Watch {
        /// The registered path.
        path: Arc<str>,
        /// The instance, or 0.
        instance: u64,
    },
    /// Ends the sender's watch.
    Unwatch {
        /// As in the watch.
        path: Arc<str>,
        /// As in the watch.
        instance: u64,
    },
    /// The recipient has ended, and everything that it sent has been taken.
    Terminated {
        /// As in the watch.
        path: Arc<str>,
        /// As in the watch.
        instance: u64,
    },
    /// Notices to the receiver of this message were given up: the receiver has to repeat its watches at the sender.
    Rewatch,
}

/// An input to a [`Watcher`]: watches that this node's users begin and end, messages of other watchers, and events of
/// nodes and recipients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WatchInput {
    /// A user of this node begins a watch.
    Watch {
        /// The id of the watch; never used twice.
        id: u64,
        /// The recipient to watch.
        recipient: Watched,
        /// Whether to watch even if the node is no member.
        non_members: bool,
    },
    /// A user ends a watch.
    Unwatch {
        /// The watch.
        id: u64,
    },
    /// Another node's watcher, or this one, sent a message.
    Message {
        /// The node that sent it.
        from: UniqueAddress,
        /// The message.
        message: WatchMessage,
        /// For a watch: the instance that is registered here under its path.
        current: Option<u64>,
    },
    /// A receiver that was registered here was removed or replaced.
    Stopped {
        /// Its path.
        path: Arc<str>,
        /// Its instance.
        instance: u64,
    },
    /// Everything sent before this flush has been taken at the other end.
    Flushed {
        /// The number of the flush.
        flush: u64,
    },
    /// The processes that are members now, and those that never will be again.
    Members {
        /// The members.
        members: BTreeSet<UniqueAddress>,
        /// The removed processes.
        tombstones: BTreeSet<UniqueAddress>,
    },
    /// This process was quarantined here.
    PeerQuarantined(UniqueAddress),
    /// This process runs at its address.
    PeerHandshake(UniqueAddress),
    /// Reliable messages to this process were given up, and the association goes on.
    GaveUp(UniqueAddress),
    /// Time has passed: handle the deadlines that are due.
    Tick,
}

/// An effect that the driver carries out, in the order of the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WatchEffect {
    /// Send this message reliably. If the node turns out to be quarantined, answer by [`WatchInput::PeerQuarantined`].
    Send {
        /// The node to send to.
        to: UniqueAddress,
        /// The message.
        message: WatchMessage,
    },
    /// Flush: answer by [`WatchInput::Flushed`] when everything sent to this node so far has been taken there.
    Flush {
        /// The node to flush to.
        to: UniqueAddress,
        /// The number for the answer.
        flush: u64,
    },
    /// The watch has ended; no more effects name it.
    Terminated {
        /// The watch.
        id: u64,
        /// The recipient that ended, and why.
        terminated: Terminated,
    },
    /// The watch was refused.
    Refused {
        /// The watch.
        id: u64,
        /// Why it was refused.
        error: WatchError,
    },
}

/// Both sides of watching. See the [module](self).
#[derive(Debug)]
pub struct Watcher {
    own: UniqueAddress,
    flush_timeout: Duration,
    members: BTreeSet<UniqueAddress>,
    tombstones: BTreeSet<UniqueAddress>,
    /// The recipients that this node watches.
    watching: BTreeMap<Watched, Watch>,
    /// The recipient of each watch.
    by_id: BTreeMap<u64, Watched>,
    /// The watchers of recipients here: by path and instance, each watching node and the instance that the node named.
    watchers: BTreeMap<(Arc<str>, u64), BTreeSet<(UniqueAddress, u64)>>,
    /// Notices that wait for their flush.
    endings: BTreeMap<u64, Ending>,
    next_flush: u64,
}

#[derive(Debug)]
struct Watch {
    ids: BTreeSet<u64>,
    /// Whether its node was no member when the watch began.
    outside: bool,
}

#[derive(Debug)]
struct Ending {
    to: UniqueAddress,
    path: Arc<str>,
    instances: BTreeSet<u64>,
    deadline: Instant,
}

impl Watcher {
    /// A watcher without watches. `flush_timeout`: how long a notice waits for messages sent before it
    /// (`transport.termination_flush_timeout`).
    pub fn new(own: UniqueAddress, flush_timeout: Duration) -> Self {
        Self {
            own,
            flush_timeout,
            members: BTreeSet::new(),
            tombstones: BTreeSet::new(),
            watching: BTreeMap::new(),
            by_id: BTreeMap::new(),
            watchers: BTreeMap::new(),
            endings: BTreeMap::new(),
            next_flush: 1,
        }
    }

    /// Handles one input. Infallible: an input that makes no sense in the present state is ignored.
    pub fn handle(&mut self, now: Instant, input: WatchInput, out: &mut Vec<WatchEffect>) {
        match input {
            WatchInput::Watch { id, recipient, non_members } => self.on_watch(id, recipient, non_members, out),
            WatchInput::Unwatch { id } => self.on_unwatch(id, out),
            WatchInput::Message { from, message, current } => self.on_message(now, from, message, current, out),
            WatchInput::Stopped { path, instance } => self.on_stopped(now, path, instance, out),
            WatchInput::Flushed { flush } => self.finish_ending(flush, out),
            WatchInput::Members { members, tombstones } => self.on_members(members, tombstones, out),
            WatchInput::PeerQuarantined(peer) => {
                self.end_node(|node| *node == peer, WhyTerminated::Quarantined, out);
                self.forget_watcher(|node| *node == peer);
            }
            WatchInput::PeerHandshake(peer) => self.on_handshake(&peer, out),
            WatchInput::GaveUp(peer) => {
                self.watch_again(&peer, out);
                out.push(WatchEffect::Send { to: peer, message: WatchMessage::Rewatch });
            }
            WatchInput::Tick => self.on_tick(now, out),
        }
        self.check_invariants();
    }

    fn check_invariants(&self) {
        if !cfg!(debug_assertions) {
            return;
        }
        let ids: usize = self.watching.values().map(|watch| watch.ids.len()).sum();
        assert_eq!(self.by_id.len(), ids, "each watch is one of a recipient");
        if self.watching.len() + self.watchers.len() > 32 {
            return;
        }
        for (recipient, watch) in &self.watching {
            assert!(!watch.ids.is_empty(), "a recipient is watched while a user watches it");
            assert!(watch.ids.iter().all(|id| self.by_id.get(id) == Some(recipient)), "each watch knows its recipient");
            let is_removed = recipient.node != self.own && self.tombstones.contains(&recipient.node);
            assert!(!is_removed, "the removal of a member ends the watches of its recipients");
        }
        assert!(self.watchers.values().all(|nodes| !nodes.is_empty()), "a recipient here is kept while it is watched");
    }

    /// When a `Tick` next has work to do.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.endings.values().map(|ending| ending.deadline).min()
    }

    // --- watches of this node's users --------------------------------------------------------------

    fn on_watch(&mut self, id: u64, recipient: Watched, non_members: bool, out: &mut Vec<WatchEffect>) {
        let node = &recipient.node;
        if self.tombstones.contains(node) {
            let terminated = Terminated { recipient, why: WhyTerminated::Tombstoned };
            out.push(WatchEffect::Terminated { id, terminated });
            return;
        }
        let outside = *node != self.own && !self.members.contains(node);
        if outside && !non_members {
            out.push(WatchEffect::Refused { id, error: WatchError::NotAMember(node.clone()) });
            return;
        }
        let watch = self.watching.entry(recipient.clone()).or_insert(Watch { ids: BTreeSet::new(), outside });
        watch.ids.insert(id);
        if watch.ids.len() == 1 {
            out.push(send_watch(&recipient));
        }
        self.by_id.insert(id, recipient);
    }

    fn on_unwatch(&mut self, id: u64, out: &mut Vec<WatchEffect>) {
        let Some(recipient) = self.by_id.remove(&id) else { return };
        let Some(watch) = self.watching.get_mut(&recipient) else { return };
        watch.ids.remove(&id);
        if watch.ids.is_empty() {
            self.watching.remove(&recipient);
            let Watched { node, path, instance } = recipient;
            out.push(WatchEffect::Send { to: node, message: WatchMessage::Unwatch { path, instance } });
        }
    }

    /// Ends every watch of one recipient; watches that have ended before get no second notice.
    fn end(&mut self, recipient: &Watched, why: WhyTerminated, out: &mut Vec<WatchEffect>) {
        for id in self.watching.remove(recipient).into_iter().flat_map(|watch| watch.ids) {
            self.by_id.remove(&id);
            let terminated = Terminated { recipient: recipient.clone(), why };
            out.push(WatchEffect::Terminated { id, terminated });
        }
    }

    fn end_node(&mut self, ends: impl Fn(&UniqueAddress) -> bool, why: WhyTerminated, out: &mut Vec<WatchEffect>) {
        let ended: Vec<Watched> = self.watching.keys().filter(|watched| ends(&watched.node)).cloned().collect();
        for recipient in ended {
            self.end(&recipient, why, out);
        }
    }

    fn on_members(
        &mut self,
        members: BTreeSet<UniqueAddress>,
        tombstones: BTreeSet<UniqueAddress>,
        out: &mut Vec<WatchEffect>,
    ) {
        let before = std::mem::replace(&mut self.members, members);
        self.tombstones = tombstones;
        let removed: BTreeSet<_> = before
            .difference(&self.members)
            .chain(&self.tombstones)
            .filter(|node| **node != self.own)
            .cloned()
            .collect();
        self.end_node(|node| removed.contains(node), WhyTerminated::MemberRemoved, out);
        self.forget_watcher(|node| removed.contains(node));
        for (watched, watch) in &mut self.watching {
            watch.outside &= !self.members.contains(&watched.node);
        }
    }

    /// Ends the watches of processes that the peer replaced. Membership never removes a process that is no member, so
    /// only its successor at the address proves its end.
    fn on_handshake(&mut self, peer: &UniqueAddress, out: &mut Vec<WatchEffect>) {
        let is_replaced = |node: &UniqueAddress| node.address() == peer.address() && node != peer;
        let ended: Vec<Watched> = self
            .watching
            .iter()
            .filter(|(watched, watch)| watch.outside && is_replaced(&watched.node))
            .map(|(watched, _)| watched.clone())
            .collect();
        for recipient in ended {
            self.end(&recipient, WhyTerminated::PeerRestarted, out);
        }
        self.forget_watcher(is_replaced);
    }

    fn watch_again(&self, peer: &UniqueAddress, out: &mut Vec<WatchEffect>) {
        out.extend(self.watching.keys().filter(|watched| watched.node == *peer).map(send_watch));
    }

    // --- recipients of this node -------------------------------------------------------------------

    fn on_message(
        &mut self,
        now: Instant,
        from: UniqueAddress,
        message: WatchMessage,
        current: Option<u64>,
        out: &mut Vec<WatchEffect>,
    ) {
        match message {
            WatchMessage::Watch { path, instance } => match current {
                Some(current) if instance == 0 || instance == current => {
                    self.watchers.entry((path, current)).or_default().insert((from, instance));
                }
                // Send the notice at once: the recipient ended before the watch could be noted; its messages may still
                // be on their way.
                _ => self.begin_ending(now, from, path, BTreeSet::from([instance]), out),
            },
            WatchMessage::Unwatch { path, instance } => {
                self.watchers.retain(|(watched, _), watchers| {
                    if *watched == path {
                        watchers.remove(&(from.clone(), instance));
                    }
                    !watchers.is_empty()
                });
            }
            WatchMessage::Terminated { path, instance } => {
                self.end(&Watched { node: from, path, instance }, WhyTerminated::Stopped, out);
            }
            WatchMessage::Rewatch => self.watch_again(&from, out),
        }
    }

    fn on_stopped(&mut self, now: Instant, path: Arc<str>, instance: u64, out: &mut Vec<WatchEffect>) {
        let mut nodes: BTreeMap<UniqueAddress, BTreeSet<u64>> = BTreeMap::new();
        for (node, named) in self.watchers.remove(&(path.clone(), instance)).unwrap_or_default() {
            nodes.entry(node).or_default().insert(named);
        }
        for (node, instances) in nodes {
            self.begin_ending(now, node, path.clone(), instances, out);
        }
    }

    fn begin_ending(
        &mut self,
        now: Instant,
        to: UniqueAddress,
        path: Arc<str>,
        instances: BTreeSet<u64>,
        out: &mut Vec<WatchEffect>,
    ) {
        let flush = self.next_flush;
        self.next_flush += 1;
        let deadline = now + self.flush_timeout;
        self.endings.insert(flush, Ending { to: to.clone(), path, instances, deadline });
        out.push(WatchEffect::Flush { to, flush });
    }

    fn finish_ending(&mut self, flush: u64, out: &mut Vec<WatchEffect>) {
        let Some(Ending { to, path, instances, .. }) = self.endings.remove(&flush) else { return };
        out.extend(instances.into_iter().map(|instance| {
            let message = WatchMessage::Terminated { path: path.clone(), instance };
            WatchEffect::Send { to: to.clone(), message }
        }));
    }

    fn on_tick(&mut self, now: Instant, out: &mut Vec<WatchEffect>) {
        let due: Vec<u64> =
            self.endings.iter().filter(|(_, ending)| ending.deadline <= now).map(|(flush, _)| *flush).collect();
        for flush in due {
            self.finish_ending(flush, out);
        }
    }

    fn forget_watcher(&mut self, gone: impl Fn(&UniqueAddress) -> bool) {
        self.endings.retain(|_, ending| !gone(&ending.to));
        self.watchers.retain(|_, watchers| {
            watchers.retain(|(node, _)| !gone(node));
            !watchers.is_empty()
        });
    }
}

fn send_watch(recipient: &Watched) -> WatchEffect {
    let Watched { node, path, instance } = recipient.clone();
    WatchEffect::Send { to: node, message: WatchMessage::Watch { path, instance } }
}
