//! The faults: hosts start and end, disks fill, breakers open, snapshots are damaged.

use std::time::Duration;

use rand::RngExt;

use super::action_log::OrderKind;
use super::machine::HostInput;
use super::permits::Permits;
use super::world::{Due, World};

impl World {
    pub(super) fn inject_fault(&mut self) {
        if !self.is_faulty {
            return;
        }
        let delay = Duration::from_millis(self.rng.random_range(20..300));
        self.later(delay, Due::Fault);
        self.faults += 1;
        let (node, entity) = (self.rng.random_range(0..self.setup.nodes), self.rng.random_range(0..self.entities()));
        let until = self.now + Duration::from_millis(self.rng.random_range(50..1_000));
        match self.rng.random_range(0..100) {
            0..35 => {
                let hosts = self.hosted.values().filter(|hosted| hosted.entity == entity);
                if hosts.count() < 3 {
                    let is_late = self.chance(0.3);
                    self.start(node, entity, is_late);
                }
            }
            35..42 => self.crash(node),
            42..60 => {
                let hosts: Vec<u64> = self.hosted.keys().copied().collect();
                if !hosts.is_empty() {
                    let key = hosts[self.rng.random_range(0..hosts.len())];
                    let host_input = if self.chance(0.7) { HostInput::Stop } else { HostInput::StopNow };
                    self.tell(key, host_input);
                }
            }
            60..70 => self.disk_full_until = until,
            70..80 => self.breaker_until = until,
            80..90 if self.setup.damages && entity < self.setup.books => {
                let id = self.id(entity);
                let consistent = self.chance(0.5);
                if let Some(newest) = self.store.snapshots(&id).last() {
                    self.store.damage(&id, *newest, consistent);
                }
            }
            _ => self.faults -= 1,
        }
    }

    /// Ends a process at once: calls of its machines still reach the stores, and the answers are lost.
    fn crash(&mut self, node: usize) {
        let keys: Vec<u64> =
            self.hosted.iter().filter(|(_, hosted)| hosted.node == node).map(|(key, _)| *key).collect();
        keys.into_iter().for_each(|key| self.kill(key));
        self.permits[node] = Permits::new(self.setup.permits);
    }

    /// Draws the next request of a user.
    pub(super) fn draw_order_kind(&mut self) -> OrderKind {
        match self.rng.random_range(0..100) {
            0..30 => OrderKind::Write(self.rng.random_range(1..=3)),
            30..45 => OrderKind::Gated,
            45..55 => OrderKind::Send,
            55..62 => OrderKind::Open,
            62..68 => OrderKind::Close,
            68..76 => OrderKind::Read,
            76..84 => OrderKind::ReadOwned,
            84..86 => OrderKind::Last,
            86..90 if self.setup.clears => OrderKind::Clear,
            90..92 => OrderKind::Panic,
            92..95 => OrderKind::Unencodable,
            95..97 => OrderKind::Overtagged,
            _ => OrderKind::Write(1),
        }
    }
}
