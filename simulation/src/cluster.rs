//! Whole clusters under faults, on the world of `greylag-cluster`'s own tests.
//!
//! The world checks after every step: never two singletons, no removed member back, no status going
//! backwards. This draws the faults, and checks at the end that all who live agree, that nobody is
//! suspected any more, that there is a singleton, and that a fresh process is let in.

use std::time::Duration;

use greylag_testkit::network::{Link, NodeId};
use rand::RngExt;

use crate::{Omission, Outcome, Violation, guarded};

#[path = "../../crates/greylag-cluster/tests/simulation/world.rs"]
#[allow(dead_code, reason = "the crate's own tests use the rest")]
mod world;

use world::{MS, SECOND, World};

const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];

pub(crate) fn run(seed: u64, _without: Option<Omission>) -> Result<Outcome, Violation> {
    guarded("one view, one singleton, no resurrection", || {
        let mut cluster = Cluster::start(seed);
        cluster.suffer();
        cluster.heal()
    })
}

struct Cluster {
    world: World,
    /// The latest process at each address.
    ids: Vec<NodeId>,
    faults: u64,
}

impl Cluster {
    /// Three to five nodes; on one host, where kills can be proven, in half of the runs.
    fn start(seed: u64) -> Self {
        let mut world = World::resolver(seed);
        world.one_host = world.net.rng().random_bool(0.5);
        let count = world.net.rng().random_range(3..=NAMES.len());
        world.stop_delay = MS * world.net.rng().random_range(1..2_000);
        let ids = world.cluster(&NAMES[..count]);
        let link = Link {
            delay: (MS, MS * world.net.rng().random_range(2..80)),
            loss: world.net.rng().random_range(0.0..0.05),
            duplication: world.net.rng().random_range(0.0..0.05),
            reorder: false,
        };
        world.net.set_default_link(link);
        Self { world, ids, faults: 0 }
    }

    fn suffer(&mut self) {
        for _ in 0..self.world.net.rng().random_range(2..7) {
            self.fault();
            let pause = MS * self.world.net.rng().random_range(50..15_000);
            self.world.run_for(pause);
        }
    }

    fn fault(&mut self) {
        self.faults += 1;
        let index = self.world.net.rng().random_range(0..self.ids.len());
        let id = self.ids[index];
        let lives = self.world.alive().contains(&id);
        match self.world.net.rng().random_range(0..9) {
            0 => {
                let (left, right) = self.ids.split_at(index.max(1));
                self.world.isolate(left, right);
            }
            1 => {
                let other = self.ids[(index + 1) % self.ids.len()];
                self.world.net.cut(id, other);
            }
            // What P7 excepts, an instance on a node that stood still for longer than everybody's
            // patience, is not drawn.
            2 => {
                let pause = MS * self.world.net.rng().random_range(100..12_000);
                self.world.net.pause(id, pause);
            }
            3 | 4 if lives => self.world.kill(id),
            5 if lives => self.world.leave(id, id),
            6 => self.world.net.heal(),
            _ if !lives => self.restart(index),
            _ => self.faults -= 1,
        }
    }

    /// A new process at the address of one that has ended.
    fn restart(&mut self, index: usize) {
        let name = NAMES[index];
        self.ids[index] = self.world.start(name);
        self.world.join(self.ids[index], &NAMES[..self.ids.len()]);
    }

    fn heal(mut self) -> Result<Outcome, Violation> {
        self.world.net.heal();
        self.world.net.set_default_link(Link::reliable(2 * MS));
        self.settle(120 * SECOND);
        let members = self.members();
        if members.is_empty() {
            // Everybody left, died or was downed: all that is left to promise was checked on the way.
            return Ok(self.outcome(0));
        }
        let agreed = self.world.agreed_by(&members);
        let suspected = members.iter().any(|id| !self.world.view(*id).unreachable.is_empty());
        if !agreed || suspected {
            return self.broken("all who live agree after healing");
        }
        if self.world.host_of_singleton().is_none() {
            return self.broken("there is a singleton after healing");
        }
        self.admit(members)
    }

    /// Everything answers: a process that comes now becomes a member like the others.
    fn admit(mut self, mut members: Vec<NodeId>) -> Result<Outcome, Violation> {
        let Some(index) = (0..self.ids.len()).find(|index| !members.contains(&self.ids[*index])) else {
            let checked = members.len();
            return Ok(self.outcome(checked));
        };
        self.restart(index);
        members.push(self.ids[index]);
        self.settle(40 * SECOND);
        if !self.world.agreed_by(&members) {
            return self.broken("a fresh process is let in after healing");
        }
        Ok(self.outcome(members.len()))
    }

    fn settle(&mut self, time: Duration) {
        self.world.run_for(time);
    }

    /// Who lives and is in a cluster.
    fn members(&self) -> Vec<NodeId> {
        self.world.alive().into_iter().filter(|id| !self.world.view(*id).members.is_empty()).collect()
    }

    fn outcome(self, checked: usize) -> Outcome {
        Outcome { steps: self.world.net.counts().delivered, faults: self.faults, checked: checked as u64 }
    }

    fn broken(&self, promise: &'static str) -> Result<Outcome, Violation> {
        Err(Violation { promise, what: self.world.describe() })
    }
}
