//! The faults of the world.

use std::time::Duration;

use greylag_sharding::ids::{RegionId, ShardId};
use greylag_sharding::machine::coordinator::{self, StoredState};
use greylag_sharding::machine::membership::{MemberPhase, Members, Removal};
use greylag_sharding::machine::message::{CoordinatorMessage, FromCoordinator};
use greylag_sharding::machine::region::{self, RegionState};
use greylag_transport::Lane;
use rand::RngExt;

use super::{Application, MARGIN, MS, Timer, World};

impl<A: Application> World<A> {
    pub(super) fn on_fault(&mut self) {
        if !self.faulty {
            return;
        }
        let living = self.living();
        let settled: Vec<_> =
            living.iter().copied().filter(|n| self.nodes[*n].resumes.is_none() && !self.nodes[*n].leaving).collect();
        let pick = self.net.rng().random_range(0..settled.len().max(1));
        let Some(&node) = settled.get(pick) else { return self.after(500 * MS, Timer::Fault) };
        let faults = self.faults;
        let enough = settled.len() > 2;
        self.tally.faults += 1;
        if faults.full_stop && self.chance(0.08) {
            return self.prepare_to_end();
        }
        if faults.stop_shards && self.chance(0.15) {
            self.stop_shards(node);
        }
        match self.net.rng().random_range(0..12) {
            0 if faults.crash && enough => self.crash(node),
            1 if faults.pause && enough => self.pause(node),
            2 | 3 if faults.cut => self.cut_links(node),
            4 if faults.leave && enough => self.leave(node),
            5 if faults.failover => self.fail_coordinator(),
            6 if faults.shard_failure => A::fail_shard(self, node),
            7 if faults.lost_state && self.chance(0.5) => {
                self.note(|| "store: everything is lost".into());
                self.store.state = StoredState::default();
                self.store.clock_back = 5000;
                self.tally.losses += 1;
                self.fail_coordinator();
            }
            8 if faults.moved && enough => self.move_name(node),
            9 if faults.stall => {
                let lane = self.net.rng().random_range(1..=2);
                let time = self.random(200, 5000);
                self.stall_lane(node, lane, time);
            }
            11 if faults.slow_control => {
                let time = self.random(100, 600);
                self.stall_lane(node, 0, time);
            }
            10 if faults.restart => self.stop_region(node),
            _ => {}
        }
        if self.living().len() < 4 && self.chance(0.5) && (faults.crash || faults.leave) {
            self.add_node();
        }
        let next = self.random(200, 1200);
        self.after(next, Timer::Fault);
    }

    pub(super) fn crash(&mut self, node: usize) {
        self.note(|| format!("n{node}: crash"));
        self.end_process(node);
        let delay = self.random(500, 1500);
        let clean = self.chance(0.3);
        self.after(delay, Timer::Remove { node, clean });
    }

    /// Notes an order of the coordinator on `node`. If it is a step of a handoff, the owner and that node may die
    /// within a second of each other, the first of them before the handoff can be over.
    pub(super) fn draw_twin_deaths(&mut self, node: usize, order: &FromCoordinator) {
        let (shard, owner) = match &order.message {
            CoordinatorMessage::BeginHandOff { shard, owner, .. } => (shard, Some(owner)),
            CoordinatorMessage::HandOff { shard, .. } => (shard, order.to.as_ref()),
            _ => return,
        };
        let owner = owner.and_then(|owner| self.living().into_iter().find(|n| self.nodes[*n].address == owner.node));
        let Some(owner) = owner.filter(|owner| *owner != node) else { return };
        let survives = |n: &usize| *n != owner && *n != node && !self.nodes[*n].proxy;
        let is_drawn = self.faults.twin_deaths && self.faulty && self.tally.twin_deaths == 0;
        if !is_drawn || !self.living().iter().any(survives) || !self.chance(0.2) {
            return;
        }
        self.tally.twin_deaths += 1;
        let (first, second) = if self.chance(0.5) { (owner, node) } else { (node, owner) };
        let (soon, later) = (self.random(0, 100), self.random(0, 999));
        self.after(soon, Timer::Dies { node: first, twin: second, shard: shard.clone() });
        self.after(later, Timer::Dies { node: second, twin: first, shard: shard.clone() });
    }

    pub(super) fn on_death(&mut self, node: usize, twin: usize, shard: &ShardId) {
        self.crash(node);
        if !self.nodes[twin].alive {
            A::on_twin_deaths(self, shard);
        }
    }

    pub(super) fn end_process(&mut self, node: usize) {
        self.net.crash(self.nodes[node].net);
        let state = &mut self.nodes[node];
        state.alive = false;
        state.coordinator = None;
        state.shards.clear();
        A::on_end(self, node);
        for other in self.living() {
            self.lose_link(other, node);
        }
    }

    pub(super) fn lose_link(&mut self, at: usize, peer: usize) {
        let address = self.nodes[peer].address.clone();
        for lane in [Lane::CONTROL, Lane::ordinary(0), Lane::ordinary(1)] {
            self.tell(at, region::Input::LinkLost { node: address.clone(), lane });
        }
    }

    /// Pauses a process. If the pause is longer than others tolerate, the process is removed meanwhile.
    pub(super) fn pause(&mut self, node: usize) {
        let pause = self.random(100, 4000);
        self.note(|| format!("n{node}: pause {pause:?}"));
        self.net.pause(self.nodes[node].net, pause);
        self.nodes[node].resumes = Some(self.net.now() + pause);
        self.after(pause, Timer::Resume { node });
        if pause > 2000 * MS {
            let delay = self.random(1000, 1900);
            self.after(delay, Timer::Remove { node, clean: false });
        }
    }

    pub(super) fn on_resume(&mut self, node: usize) {
        self.nodes[node].resumes = None;
        if !self.nodes[node].alive {
            return;
        }
        let removed = !self.views.last().expect("there is one").contains(&self.nodes[node].address);
        let long = removed || self.chance(0.5);
        if long {
            // After a long pause a process first distrusts its own view.
            self.suspect(node);
            let delay = self.random(50, 400);
            self.after(delay, if removed { Timer::Downed { node } } else { Timer::Trust { node } });
        }
    }

    pub(super) fn suspect(&mut self, node: usize) {
        self.nodes[node].suspect = true;
        self.tell(node, region::Input::SelfSuspect);
        if let Some((incarnation, _)) = &self.nodes[node].coordinator {
            self.coordinate(node, *incarnation, coordinator::Input::SelfSuspect);
        }
    }

    pub(super) fn trust(&mut self, node: usize) {
        if !self.nodes[node].alive {
            return;
        }
        // Trust requires messages from the other members, which may have removed this node since.
        if !self.views.last().is_some_and(|view| view.contains(&self.nodes[node].address)) {
            return self.downed(node);
        }
        self.nodes[node].suspect = false;
        self.tell(node, region::Input::SelfTrusted);
        if let Some((incarnation, _)) = &self.nodes[node].coordinator {
            self.coordinate(node, *incarnation, coordinator::Input::SelfTrusted);
        }
    }

    pub(super) fn downed(&mut self, node: usize) {
        if self.nodes[node].alive {
            self.note(|| format!("n{node}: downed"));
            self.tell(node, region::Input::SelfDowned);
            self.end_process(node);
        }
    }

    /// Breaks the links of one node: for a moment, or so long that the node is downed.
    pub(super) fn cut_links(&mut self, node: usize) {
        let others: Vec<_> = self.living().into_iter().filter(|n| *n != node).collect();
        let long = self.chance(0.25) && others.len() > 2;
        let some = self.net.rng().random_range(1..=others.len().max(1));
        let cut: Vec<_> = if long { others } else { others.into_iter().take(some).collect() };
        let duration = if long { Duration::from_secs(60) } else { self.random(5, 900) };
        self.note(|| format!("n{node}: cut from {cut:?} for {duration:?}"));
        for peer in cut {
            let (a, b) = (self.nodes[node].net, self.nodes[peer].net);
            self.net.cut(a, b);
            self.net.cut(b, a);
            self.after(duration, Timer::Mend { a: node, b: peer });
        }
        if long {
            // Both sides decide at about the same time; the margin covers the rest.
            let down = self.random(900, 1400);
            let remove = self.random(900, 1400);
            self.nodes[node].leaving = true;
            self.after(down, Timer::Downed { node });
            self.after(remove, Timer::Remove { node, clean: false });
        }
    }

    /// Stalls a lane from the node to another one, without losing anything.
    pub(super) fn stall_lane(&mut self, from: usize, lane: u32, time: Duration) {
        let others: Vec<_> = self.living().into_iter().filter(|n| *n != from).collect();
        let Some(&to) = others.get(self.net.rng().random_range(0..others.len().max(1))) else { return };
        self.note(|| format!("n{from}: lane {lane} to n{to} stands still for {time:?}"));
        self.stalled.entry((from, to, lane)).or_default();
        self.after(time, Timer::Flow { from, to, lane });
    }

    pub(super) fn on_flow(&mut self, from: usize, to: usize, lane: u32) {
        let (a, b) = (self.nodes[from].net, self.nodes[to].net);
        for wire in self.stalled.remove(&(from, to, lane)).unwrap_or_default() {
            if self.nodes[from].alive {
                self.net.send(a, b, lane, wire);
            }
        }
    }

    /// Ends the region of the node at once; another one begins later.
    pub(super) fn stop_region(&mut self, node: usize) {
        self.note(|| format!("n{node}: the region stops"));
        self.tell(node, region::Input::Stop);
        self.restart_region(node);
    }

    /// Begins a new region once nothing of the former one lives any more.
    pub(super) fn restart_region(&mut self, node: usize) {
        if !self.nodes[node].alive || self.nodes[node].leaving {
            return;
        }
        if self.nodes[node].region.state() != RegionState::Stopped || self.nodes[node].suspect {
            return self.after(50 * MS, Timer::Reopen { node });
        }
        let RegionId { node: address, incarnation } = self.nodes[node].region.id().clone();
        let incarnation = if self.sabotage.incarnation { incarnation } else { incarnation + 1 };
        self.note(|| format!("n{node}: region {incarnation} begins"));
        let region = self.new_region(node, RegionId { node: address, incarnation }, self.nodes[node].proxy);
        let state = &mut self.nodes[node];
        state.region = region;
        state.routes.clear();
        state.admitted.clear();
        let coordinator = state.coordinator.as_ref().map(|(incarnation, _)| *incarnation);
        let members = self.members_of(node);
        self.tell(node, region::Input::Membership(members));
        self.tell(node, region::Input::Coordinator(coordinator));
    }

    /// Cuts a node off for good, and makes its name lead to a process on another host. Both sides decide later than the
    /// margin lasts, as with default settings; or no resolver decides (`none`), and the old process goes on until its
    /// host is gone and an operator reports that. Source: cluster 76, M25, S20 (a).
    pub(super) fn move_name(&mut self, node: usize) {
        self.note(|| format!("n{node}: cut off, and its name moves"));
        for peer in self.living().into_iter().filter(|peer| *peer != node) {
            let (a, b) = (self.nodes[node].net, self.nodes[peer].net);
            self.net.cut(a, b);
            self.net.cut(b, a);
        }
        self.nodes[node].leaving = true;
        self.nodes[node].moved = true;
        if self.chance(0.5) {
            let down = self.verdict_after();
            let remove = self.verdict_after();
            self.after(down, Timer::Downed { node });
            self.after(remove, Timer::Remove { node, clean: false });
        } else {
            let end = self.margin + self.random(3_000, 5_000);
            self.after(end, Timer::End { node });
        }
        let moves = self.random(0, 1_000);
        self.after(moves, Timer::Join { old: node });
    }

    pub(super) fn verdict_after(&mut self) -> Duration {
        MARGIN + self.random(500, 1_000)
    }

    /// Source: cluster M25: the new process waits until the old one is removed.
    pub(super) fn on_join_elsewhere(&mut self, old: usize) {
        let is_held = self.views.last().is_some_and(|view| view.contains(&self.nodes[old].address));
        if is_held && self.sabotage.moved_name {
            self.remove(old, false);
        } else if is_held {
            return self.after(100 * MS, Timer::Join { old });
        }
        self.add_node_named(Some(old));
    }

    pub(super) fn mend(&mut self, a: usize, b: usize) {
        // A node whose name leads elsewhere stays unreachable.
        if self.nodes[a].moved || self.nodes[b].moved {
            return;
        }
        let (na, nb) = (self.nodes[a].net, self.nodes[b].net);
        self.net.mend(na, nb);
        self.net.mend(nb, na);
        if self.nodes[a].alive && self.nodes[b].alive {
            self.lose_link(a, b);
            self.lose_link(b, a);
        }
    }

    pub(super) fn leave(&mut self, node: usize) {
        self.note(|| format!("n{node}: leaves"));
        self.nodes[node].leaving = true;
        let address = self.nodes[node].address.clone();
        self.change_view(|members| {
            if let Some(member) = members.members.get_mut(&address) {
                member.phase = MemberPhase::Leaving;
            }
        });
        self.tell(node, region::Input::GracefulShutdown);
        self.after(300 * MS, Timer::Left { node });
    }

    /// Waits for the region, then hands the coordinator over, then goes.
    pub(super) fn on_left(&mut self, node: usize) {
        if !self.nodes[node].alive {
            return;
        }
        if self.nodes[node].region.state() != RegionState::Stopped {
            return self.after(300 * MS, Timer::Left { node });
        }
        if let Some((incarnation, _)) = &self.nodes[node].coordinator {
            self.coordinate(node, *incarnation, coordinator::Input::Terminate);
            return self.after(200 * MS, Timer::Left { node });
        }
        self.note(|| format!("n{node}: has left"));
        self.end_process(node);
        self.after(100 * MS, Timer::Remove { node, clean: true });
    }

    pub(super) fn remove(&mut self, node: usize, clean: bool) {
        let address = self.nodes[node].address.clone();
        if !self.views.last().expect("there is one").contains(&address) {
            return;
        }
        let now = self.now();
        self.note(|| format!("n{node}: removed, clean={clean}"));
        self.change_view(|members| {
            members.members.remove(&address);
            members.removed.insert(address, Removal { at: now, clean });
        });
        // A node that was removed while it was cut off, or paused, notices when it can receive again.
        let hears = !self.nodes[node].moved && self.nodes[node].resumes.is_none();
        if self.nodes[node].alive && hears {
            self.after(300 * MS, Timer::Downed { node });
        }
    }

    /// Ends a coordinator; or lets it go on while another node begins one beside it, as no singleton would.
    pub(super) fn fail_coordinator(&mut self) {
        let usurper = self.living().into_iter().rev().find(|n| self.runs(*n) && self.nodes[*n].coordinator.is_none());
        if let Some(node) = usurper.filter(|_| self.chance(0.3)) {
            return self.begin_coordinator(node);
        }
        let with: Vec<_> = self.living().into_iter().filter(|n| self.nodes[*n].coordinator.is_some()).collect();
        if let Some(&node) = with.first() {
            self.note(|| format!("n{node}: the coordinator fails"));
            self.nodes[node].coordinator = None;
            self.tell(node, region::Input::Coordinator(None));
            let delay = self.random(50, 500);
            self.after(delay, Timer::StartCoordinator { node });
        }
    }

    pub(super) fn heal(&mut self) {
        self.note(|| "healing".into());
        self.faulty = false;
        // Make sure that there are nodes that can host, whatever the faults have left.
        if self.faults.breaks_links() || self.faults.leave {
            self.add_node();
            self.add_node();
        }
    }

    /// Ends the cluster: at once, or some time after its members have been told.
    fn prepare_to_end(&mut self) {
        if self.chance(0.5) {
            return self.full_stop();
        }
        self.note(|| "the cluster prepares to end".into());
        self.change_view(|members| {
            for member in members.members.values_mut().filter(|member| member.phase == MemberPhase::Up) {
                member.phase = MemberPhase::Preparing;
            }
        });
        let delay = self.random(100, 1500);
        self.after(delay, Timer::FullStop);
    }

    /// Ends every process, and begins a new cluster with the stored data. Replicated data that are not durable are
    /// lost.
    pub(super) fn full_stop(&mut self) {
        self.note(|| "every process ends".into());
        for node in self.living() {
            self.end_process(node);
        }
        if self.chance(0.5) {
            self.store.state = StoredState::default();
        }
        self.views.push(Members::default());
        for _ in 0..3 {
            self.add_node();
        }
        let next = self.random(1000, 3000);
        self.after(next, Timer::Fault);
    }
}
