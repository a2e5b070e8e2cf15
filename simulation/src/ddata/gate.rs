//! Histories in which a whole cluster stops and is started again from stores of different ages; random schedules hardly
//! reach them.
//!
//! Some stores are set aside early; then a replica is removed and pruned, elements are removed, and all that is
//! forgotten. Everything stops. Old and new stores, stores set aside and empty places return in a random order, while
//! messages are lost and some members cannot be reached; in some histories everything stops again half-way. In the end
//! no replica's gate is closed, all replicas that are not refused hold the same, and nothing that was forgotten has
//! come back. Source: ddata Z9, Z11, scenario 90.

use std::time::Duration;

use greylag_ddata::{
    Clause, DurableSettings, Lifecycle, Omissions, ReplicaStatus, ReplicatorSettings, StopReason, WriteLevel,
};
use greylag_testkit::network::Link;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::disks::{Disk, Found};
use super::world::{Arrangement, World};

const MS: Duration = Duration::from_millis(1);
const GOSSIP: Duration = Duration::from_millis(100);
const SPREAD: Duration = Duration::from_millis(250);
const LIFE: Duration = Duration::from_millis(1_500);
/// The error of a wrong wall clock: a year.
const YEAR_MS: i64 = 365 * 86_400_000;

/// Traits of a history, drawn before it begins.
#[derive(Debug, Clone, Copy)]
struct Plan {
    /// Some stores are set aside before the other members forget.
    has_old_stores: bool,
    /// A member's clock is a year ahead during pruning and forgetting.
    has_wrong_clock: bool,
    /// The member with the wrong clock is the one that prunes, and its clock is wrong before it begins.
    prunes_by_wrong_clock: bool,
    /// Everything stops a second time before all is settled.
    stops_twice: bool,
    /// Members join before any of them has loaded its store; otherwise one joins after the other.
    joins_at_once: bool,
}

fn arrangement(rng: &mut ChaCha8Rng, without: Option<Clause>) -> Arrangement {
    let durable = DurableSettings { pruning_marker_time_to_live: LIFE, ..DurableSettings::of(["*"]) };
    let settings = ReplicatorSettings {
        gossip_interval: GOSSIP,
        delta_propagation_interval: 20 * MS,
        notify_subscribers_interval: 200 * MS,
        delta_resend_timeout: 60 * MS,
        sync_timeout: Duration::from_secs(600),
        pruning_interval: Some(80 * MS),
        max_pruning_dissemination: SPREAD,
        pruning_marker_time_to_live: LIFE,
        durable,
        omissions: Omissions::of(without),
        ..ReplicatorSettings::default()
    };
    let lag = if rng.random_bool(0.5) { Duration::ZERO } else { rng.random_range(0..60) * MS };
    let (ledgers, tallies) = (1, 1);
    Arrangement {
        settings,
        lag,
        skew: 0,
        ledgers,
        tallies,
        without_deltas: None,
        disks_fail: false,
        refused_stay: true,
    }
}

/// Plays one history.
pub(super) fn history(seed: u64, without: Option<Clause>, story: bool) -> World {
    let mut rng = ChaCha8Rng::seed_from_u64(seed ^ 0x9a7e);
    let plan = Plan {
        has_old_stores: !seed.is_multiple_of(5),
        has_wrong_clock: seed.is_multiple_of(5) || seed % 7 == 3,
        // Only where nothing was pruned before, since a member whose clock is ahead at once forgets what others
        // performed.
        prunes_by_wrong_clock: seed.is_multiple_of(10),
        stops_twice: rng.random_bool(0.4),
        joins_at_once: rng.random_bool(0.5),
    };
    let members = rng.random_range(3..=4);
    let mut world = World::new(seed, arrangement(&mut rng, without), members);
    if story {
        world.story = Some(vec![format!("{members} members, {plan:?}")]);
    }
    world.play_gate(&mut rng, plan, members);
    world
}

impl World {
    fn play_gate(&mut self, rng: &mut ChaCha8Rng, plan: Plan, members: usize) {
        self.run_for(GOSSIP * 5);
        for index in self.living() {
            self.act_some(rng, index, 2);
        }
        self.run_for(GOSSIP * 3);
        let aside = self.set_aside(rng, plan, members);
        self.prune_and_forget(rng, plan);
        self.check_nobody_is_refused("while it runs", !plan.has_old_stores);
        self.stop_all();
        self.start_some(rng, plan, &aside, members);
        if plan.stops_twice && self.broken.is_none() {
            self.run_for(rng.random_range(0..600) * MS);
            self.stop_all();
            self.start_some(rng, plan, &aside, members);
        }
        self.settle_gates(!plan.has_old_stores && !plan.stops_twice);
    }

    fn act_some(&mut self, rng: &mut ChaCha8Rng, index: usize, most: usize) {
        for _ in 0..rng.random_range(1..=most) {
            if !self.is_loaded(index) {
                return;
            }
            if rng.random_bool(0.4) {
                self.count(index, 0, WriteLevel::Local);
            } else {
                let act = self.draw_act(index, 0);
                self.change(index, 0, act, WriteLevel::Local);
            }
        }
    }

    /// Copies the stores of some members, some of which leave before; answers the copies by place.
    fn set_aside(&mut self, rng: &mut ChaCha8Rng, plan: Plan, members: usize) -> Vec<(usize, Disk)> {
        if !plan.has_old_stores {
            return Vec::new();
        }
        let mut aside = Vec::new();
        for index in self.living() {
            let place = self.processes[index].place;
            if place > 0 && aside.len() + 1 < members && rng.random_bool(0.7) {
                let goes = rng.random_bool(0.6) && self.living().len() > 2;
                if goes && rng.random_bool(0.3) {
                    // The process runs alone for a while, cut off from the others.
                    for other in self.living().into_iter().filter(|other| *other != index) {
                        self.part(index, other, true);
                    }
                    self.act_some(rng, index, 1);
                    self.run_for(rng.random_range(0..200) * MS);
                }
                if goes {
                    self.kill(index);
                }
                let disk = self.disks.entry(place).or_default().copy();
                self.tell(|| format!("the store of place {place} is set aside"));
                aside.push((place, disk));
            }
        }
        self.mend();
        aside
    }

    /// A member writes, leaves, is pruned and forgotten; the others go on writing and removing.
    fn prune_and_forget(&mut self, rng: &mut ChaCha8Rng, plan: Plan) {
        for index in self.living() {
            self.act_some(rng, index, 2);
        }
        self.run_for(GOSSIP * 2);
        let living = self.living();
        if living.len() > 1
            && let Some(leaver) = living.last().copied()
        {
            self.kill(leaver);
            if !plan.has_old_stores {
                let place = self.processes[leaver].place;
                self.leave_on_disk(place, Found::Nothing);
            }
        }
        let wrong = self.go_wrong(plan);
        // Waits until the markers are forgotten, or in some histories not quite.
        let time = if rng.random_bool(0.8) { LIFE * 2 + SPREAD * 6 } else { rng.random_range(0..2_500) * MS };
        self.run_for(time);
        if let Some(wrong) = wrong {
            self.set_clock(wrong, 0);
            self.run_for(GOSSIP * 5);
        }
        for index in self.living() {
            self.act_some(rng, index, 1);
        }
        self.run_for(GOSSIP * 3);
    }

    /// Makes a member's clock wrong, if the plan says so: the leader's before it prunes, or another member's after
    /// everything was performed and has spread, since a member whose clock is ahead at once forgets what others
    /// performed.
    fn go_wrong(&mut self, plan: Plan) -> Option<usize> {
        let living = self.living();
        if plan.prunes_by_wrong_clock {
            let leader = living.iter().copied().min_by_key(|index| self.processes[*index].address.clone());
            leader.into_iter().for_each(|leader| self.set_clock(leader, YEAR_MS));
            self.run_for(SPREAD * 6);
            return leader;
        }
        self.run_for(SPREAD * 6);
        let wrong = self.choose(&living).filter(|_| plan.has_wrong_clock);
        wrong.into_iter().for_each(|wrong| self.set_clock(wrong, YEAR_MS));
        wrong
    }

    fn set_clock(&mut self, index: usize, ahead_ms: i64) {
        self.tell(|| format!("the clock of {index} is {ahead_ms} ms ahead"));
        self.processes[index].set_skew(ahead_ms);
        self.tell_wall(index);
    }

    /// Kills every process, and forgets the membership.
    fn stop_all(&mut self) {
        self.tell(|| "everything stops".to_owned());
        for index in self.living() {
            self.crash(index);
        }
        self.members.clear();
        self.removed.clear();
        self.mend();
    }

    /// Starts processes at all places in random order, on the stores that are there or were set aside.
    fn start_some(&mut self, rng: &mut ChaCha8Rng, plan: Plan, aside: &[(usize, Disk)], places: usize) {
        let lossy = Link { delay: (MS, 20 * MS), loss: 0.1, duplication: 0.1, reorder: true };
        if rng.random_bool(0.4) {
            self.net.set_default_link(lossy);
        }
        let mut order: Vec<usize> = (0..=places).collect();
        for at in (1..order.len()).rev() {
            order.swap(at, rng.random_range(0..=at));
        }
        for place in order {
            if let Some((_, disk)) = aside.iter().find(|(of, _)| *of == place).filter(|_| rng.random_bool(0.8)) {
                self.tell(|| format!("place {place} has its old store again"));
                self.disks.insert(place, disk.copy());
            } else if rng.random_bool(0.1) {
                self.leave_on_disk(place, Found::Nothing);
            }
            self.join(place, ReplicaStatus::Up);
            if !plan.joins_at_once {
                self.run_for(rng.random_range(0..250) * MS);
            }
            if rng.random_bool(0.2) {
                let (Some(one), Some(other)) = (self.choose(&self.living()), self.choose(&self.living())) else {
                    return;
                };
                if one != other {
                    self.part(one, other, true);
                }
            }
            if rng.random_bool(0.3) {
                let index = self.living().last().copied().unwrap_or_default();
                self.act_some(rng, index, 1);
            }
        }
        self.run_for(rng.random_range(0..400) * MS);
    }

    fn is_refused(&self, index: usize) -> bool {
        let lifecycle = self.processes[index].core.lifecycle();
        matches!(lifecycle, Lifecycle::Stopped(StopReason::StoreTooOld { .. }))
    }

    /// Checks that no store is refused, in histories without older stores, even if a clock was wrong for a while.
    fn check_nobody_is_refused(&mut self, when: &str, applies: bool) {
        let refused = self.living().into_iter().find(|index| self.is_refused(*index));
        if let Some(index) = refused.filter(|_| applies) {
            let what = format!("{index}, {when}: {:?}", self.processes[index].core.lifecycle());
            self.breaks("a store that is not too old is not refused (ddata Z9, 87)", what);
        }
    }

    /// Ends the faults: gates must open, and all replicas that are not refused must agree.
    fn settle_gates(&mut self, nobody_is_refused: bool) {
        self.tell(|| "-- all is well".to_owned());
        self.net.set_default_link(Link::reliable(2 * MS));
        self.mend();
        let all_answer = |world: &Self| {
            let open = |index: usize| {
                let core = &world.processes[index].core;
                !core.is_gate_closed() && core.is_current()
            };
            world.living().into_iter().all(|index| world.is_refused(index) || open(index))
        };
        if !self.run_until(60_000 * MS, |world| world.news.is_empty() && all_answer(world)) && self.broken.is_none() {
            let closed = self.living().into_iter().filter(|index| !self.is_refused(*index));
            let closed = closed.map(|index| (index, self.processes[index].core.pruning_news().standing));
            let what = format!("{:?}", closed.collect::<Vec<_>>());
            return self.breaks("no gate stays closed (ddata Z11)", what);
        }
        self.check_nobody_is_refused("after a full stop", nobody_is_refused);
        // Refused replicas have been there all the time; now they leave, and all others must agree.
        for index in self.living() {
            if self.is_refused(index) {
                self.kill(index);
            }
        }
        self.run_until(40_000 * MS, |world| world.news.is_empty() && world.unsettled().is_none());
        self.run_for(300 * MS);
        self.check_settled();
        // The markers of the last prunings expire, too.
        self.run_for(LIFE * 2 + SPREAD * 4);
        self.check_settled();
    }
}
