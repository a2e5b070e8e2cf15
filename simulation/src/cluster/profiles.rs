//! Named kinds of faults. Each profile draws a plan from a seed.
//!
//! A profile keeps to what the guarantees cover (cluster G1): pauses and clock jumps stay below the margin less four
//! heartbeats, and a cut that shall be decided lasts. A profile that goes further says so, with the reason; violations
//! of G1 are then counted and not refused.

use std::collections::BTreeSet;
use std::time::Duration;

use greylag_cluster::Strategy;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::plan::{AddressIndex, Excuse, Fault, LeaseUse, Link, Plan, Promises, Timed};

const MS: Duration = Duration::from_millis(1);
/// Longer than detection, `stable_after` and the margin together: after such a cut the decision and its consequences
/// have happened.
const LASTING_MS: u32 = 70_000;
/// Until then the resolver has not decided about a cut that began at 0.
const UNDECIDED_MS: u32 = 18_000;
/// By then the resolver has decided about it, and all have carried the decision out.
const DECIDED_MS: u32 = 40_000;

/// A kind of faults.
pub(crate) struct Profile {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) draw: fn(&mut Draw),
}

/// Every profile.
pub(crate) const PROFILES: [Profile; 19] = [
    Profile { name: "crash", about: "one process, or its host, is gone", draw: crash },
    Profile { name: "crashes-in-sequence", about: "two deaths 15 to 20 s apart", draw: crashes_in_sequence },
    Profile { name: "restart-same-address", about: "killed and started again, also at once", draw: restart },
    Profile { name: "moved-name", about: "a member's name moves to another host", draw: moved_name },
    Profile { name: "kill-with-proofs", about: "deaths that the kernel proves", draw: kill_with_proofs },
    Profile { name: "leave", about: "one member leaves", draw: leave },
    Profile { name: "several-leaves", about: "members leave one right after another", draw: several_leaves },
    Profile { name: "leave-then-cut", about: "a leave or a join seconds before a lasting cut", draw: leave_then_cut },
    Profile { name: "clean-cut", about: "a lasting cut", draw: clean_cut },
    Profile { name: "cut-that-heals", about: "a cut that ends some time", draw: cut_that_heals },
    Profile { name: "cut-with-paused-leader", about: "a side's leader stands still", draw: cut_with_paused_leader },
    Profile { name: "flapping-then-cut", about: "links flap for stable_after, then stay cut", draw: flapping_then_cut },
    Profile { name: "one-sick-node-steady", about: "one node misses the same peers", draw: sick_steady },
    Profile { name: "one-sick-node-changing", about: "one node misses peers by turns", draw: sick_changing },
    Profile { name: "one-way-loss", about: "one direction between two nodes is dead", draw: one_way_loss },
    Profile { name: "suspended-some", about: "some stand still for 22 to 60 s", draw: suspended_some },
    Profile { name: "suspended-all", about: "all stand still together", draw: suspended_all },
    Profile { name: "clock-jump", about: "monotonic clocks jump forward", draw: clock_jump },
    Profile { name: "all-mixed", about: "faults of every kind", draw: all_mixed },
];

impl Profile {
    /// The plan of a seed.
    pub(crate) fn plan(&self, seed: u64) -> Plan {
        // Salted, so that two profiles do not draw the same cluster from one seed.
        let salt = self.name.bytes().fold(0u64, |salt, byte| salt.wrapping_mul(31).wrapping_add(u64::from(byte)));
        let mut draw = Draw::new(seed, salt);
        (self.draw)(&mut draw);
        draw.plan.faults.sort_by_key(|timed| timed.at);
        draw.lease_use(ChaCha8Rng::seed_from_u64(seed ^ salt.rotate_left(16)));
        draw.plan
    }
}

/// A plan that is being drawn.
pub(crate) struct Draw {
    rng: ChaCha8Rng,
    plan: Plan,
    now: Duration,
}

impl Draw {
    fn new(seed: u64, salt: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed ^ salt.rotate_left(32));
        let places = 5;
        let link = Link {
            latency: (200 * MS / 1000, MS * rng.random_range(1..60)),
            tail: rng.random_range(0.0..0.02),
            loss: rng.random_range(0.0..0.03),
            bandwidth: rng.random_range(200_000..20_000_000),
        };
        let plan = Plan {
            seed,
            places,
            strategy: Strategy::KeepMajority { role: None },
            resolver: true,
            margin: None,
            leases: LeaseUse::default(),
            provable: false,
            stop_delay: MS * rng.random_range(1..3_000),
            link,
            clock_ppm: (0..8).map(|_| rng.random_range(-50_000..=50_000)).collect(),
            faults: Vec::new(),
            quiet_at: Duration::ZERO,
            promises: Promises { healthy_stay: true, cluster_stays: true, excuse: None },
        };
        Self { rng, plan, now: Duration::ZERO }
    }

    fn places(&mut self, least: usize, most: usize) -> usize {
        self.plan.places = self.rng.random_range(least..=most);
        self.plan.places
    }

    fn place(&mut self) -> AddressIndex {
        self.rng.random_range(0..self.plan.places)
    }

    /// `count` different places, in random order.
    fn some(&mut self, count: usize) -> Vec<AddressIndex> {
        let mut places: Vec<AddressIndex> = (0..self.plan.places).collect();
        places.shuffle(&mut self.rng);
        places.truncate(count);
        places
    }

    fn side(&mut self) -> Vec<AddressIndex> {
        let count = self.rng.random_range(1..self.plan.places);
        let mut side = self.some(count);
        side.sort_unstable();
        side
    }

    fn time(&mut self, least_ms: u32, most_ms: u32) -> Duration {
        MS * self.rng.random_range(least_ms..=most_ms)
    }

    fn wait(&mut self, least_ms: u32, most_ms: u32) {
        let time = self.time(least_ms, most_ms);
        self.now += time;
    }

    fn fault(&mut self, fault: Fault) {
        self.plan.faults.push(Timed { at: self.now, fault });
    }

    fn chance(&mut self, chance: f64) -> bool {
        self.rng.random_bool(chance)
    }

    /// Clocks with errors of at most a hundredth, and instances that stop soon. The margin of G1 must also cover the
    /// error that a clock accumulates until the margin is over, and the time in which an instance stops; and two clocks
    /// that differ by a tenth differ by more than the 3 s of S13 after 35 s.
    fn exact(&mut self) {
        self.plan.stop_delay = MS * self.rng.random_range(1..500);
        self.plan.clock_ppm.iter_mut().for_each(|ppm| *ppm /= 5);
    }

    /// Draws one of the strategies for which G1 promises one side at most; mostly the default.
    fn strategy(&mut self) {
        self.plan.strategy = match self.rng.random_range(0..6) {
            0 => Strategy::StaticQuorum { role: None, quorum_size: self.plan.places / 2 + 1 },
            1 => Strategy::KeepOldest { role: None, down_if_alone: self.rng.random_bool(0.5) },
            _ => return,
        };
    }

    /// Adds a cut; answers whether a side of it survives by the strategy.
    fn cut(&mut self, side: Vec<AddressIndex>) -> bool {
        let others: Vec<AddressIndex> = (0..self.plan.places).filter(|place| !side.contains(place)).collect();
        let survives = !self.plan.loses(&side, &others) || !self.plan.loses(&others, &side);
        self.fault(Fault::Cut(side));
        survives
    }

    /// Draws whether the singleton needs a lease, and whether the strategy is one that downs all members or asks the
    /// store. Drawn from an rng of its own, so that nothing else of the plan depends on it.
    fn lease_use(&mut self, mut rng: ChaCha8Rng) {
        let failures = if rng.random_bool(0.2) { rng.random_range(0.01..0.3) } else { 0.0 };
        self.plan.leases = LeaseUse { singleton: rng.random_bool(0.25), failures };
        let Promises { healthy_stay, cluster_stays, .. } = &mut self.plan.promises;
        match rng.random_range(0..24) {
            _ if !self.plan.resolver => {}
            0 => {
                self.plan.strategy = Strategy::DownAll;
                (*healthy_stay, *cluster_stays) = (false, false);
            }
            1..=3 => {
                self.plan.strategy = Strategy::named("lease_majority", None).expect("it is one of the strategies");
                // The minority asks for the lease 2 s later, and its marks may be deferred (F10): the margin must cover
                // both.
                for timed in &mut self.plan.faults {
                    if let Fault::Pause { time, .. } = &mut timed.fault {
                        *time = (*time).min(Duration::from_secs(8));
                    }
                }
                // A leader that dies while it holds the lease keeps the others from it for two minutes.
                let is_big =
                    |fault: &Fault| !matches!(fault, Fault::OneWay { .. } | Fault::Deaf { .. } | Fault::Hears(_));
                let big = self.plan.faults.iter().filter(|timed| is_big(&timed.fault)).count();
                let cut = self.plan.faults.iter().any(|timed| matches!(timed.fault, Fault::Cut(_)));
                *cluster_stays &= big <= 1 && failures == 0.0;
                // A node that hears no other node takes itself for a side of a partition, and asks for a lease that no
                // other node wants.
                let deaf = self.plan.faults.iter().any(|timed| matches!(timed.fault, Fault::Deaf { .. }));
                *healthy_stay &= *cluster_stays && !cut && !deaf;
            }
            _ => {}
        }
    }

    /// Kills a process, whose kernel then refuses connections, or its host, which does not.
    fn death(&mut self, place: AddressIndex) {
        let fault = if self.chance(0.5) { Fault::Kill(place) } else { Fault::Crash(place) };
        self.fault(fault);
    }

    fn quiet_after(&mut self, ms: u32) {
        self.plan.quiet_at = self.now + MS * ms;
    }
}

fn crash(draw: &mut Draw) {
    draw.places(3, 6);
    let place = draw.place();
    draw.death(place);
    draw.quiet_after(1_000);
}

fn crashes_in_sequence(draw: &mut Draw) {
    draw.places(5, 7);
    draw.exact();
    let dead = draw.some(2);
    draw.death(dead[0]);
    draw.wait(15_000, 20_000);
    draw.death(dead[1]);
    draw.quiet_after(1_000);
}

fn restart(draw: &mut Draw) {
    draw.places(3, 5);
    draw.plan.provable = draw.chance(0.5);
    let place = draw.place();
    for _ in 0..draw.rng.random_range(1..=3) {
        if draw.chance(0.3) {
            draw.fault(Fault::Kill(place));
            draw.wait(50, 8_000);
        }
        draw.fault(Fault::Restart(place));
        draw.wait(100, 12_000);
    }
    draw.quiet_after(100);
}

/// The process that had the name is cut off, alone or with others; or dead; or neither.
fn moved_name(draw: &mut Draw) {
    let places = draw.places(3, 7);
    match draw.rng.random_range(0..6) {
        0 => draw.plan.resolver = false,
        1 => draw.plan.strategy = Strategy::DownAll,
        2 => draw.plan.strategy = Strategy::named("lease_majority", None).expect("it is one of the strategies"),
        _ => draw.strategy(),
    }
    // Most often the host of the singleton.
    let place = if draw.chance(0.6) { 0 } else { draw.place() };
    let mut side = vec![place];
    let mut heals = false;
    match draw.rng.random_range(0..4) {
        0 => draw.death(place),
        1 => {}
        _ => {
            // At least one place is not cut off, where the new process is.
            let more = draw.rng.random_range(0..=(places - 2).min(2));
            let others = draw.some(places).into_iter().filter(|other| *other != place);
            side.extend(others.take(more));
            side.sort_unstable();
            draw.fault(Fault::Cut(side.clone()));
            heals = draw.chance(0.3);
        }
    }
    let rest: Vec<AddressIndex> = (0..places).filter(|other| !side.contains(other)).collect();
    let is_lost = draw.plan.strategy == Strategy::DownAll || draw.plan.loses(&rest, &side);
    // A failed request for the lease downs all members (cluster S10).
    let asks = matches!(draw.plan.strategy, Strategy::LeaseMajority { .. });
    let cluster_stays = !draw.plan.resolver || (!heals && !is_lost && !asks);
    draw.plan.promises = Promises { healthy_stay: false, cluster_stays, excuse: None };
    let cut = draw.now;
    let (soon, told) = (draw.chance(0.5), draw.chance(0.5));
    draw.wait(0, if soon { 6_000 } else { 60_000 });
    let beside = rest[draw.rng.random_range(0..rest.len())];
    draw.fault(Fault::Move { place, beside, told });
    let moved = draw.now;
    if heals {
        draw.now = cut;
        draw.wait(500, 60_000);
        draw.fault(Fault::Heal);
    }
    draw.now = draw.now.max(moved);
    draw.wait(LASTING_MS, LASTING_MS + 10_000);
    draw.fault(Fault::EndOld(place));
    draw.wait(1_000, 10_000);
    if !draw.plan.resolver {
        draw.fault(Fault::DownOld(place));
    }
    draw.quiet_after(1_000);
}

fn kill_with_proofs(draw: &mut Draw) {
    let places = draw.places(3, 6);
    draw.plan.provable = true;
    let count = draw.rng.random_range(1..places);
    for place in draw.some(count) {
        draw.fault(Fault::Kill(place));
        draw.wait(0, 4_000);
        if draw.chance(0.3) {
            draw.fault(Fault::Restart(place));
            draw.wait(0, 2_000);
        }
    }
    draw.quiet_after(500);
}

fn leave(draw: &mut Draw) {
    draw.places(2, 5);
    let (place, by) = (draw.place(), draw.place());
    draw.fault(Fault::Leave { place, by });
    draw.quiet_after(3_000);
}

fn several_leaves(draw: &mut Draw) {
    let places = draw.places(4, 6);
    let count = draw.rng.random_range(2..places);
    let leaving = draw.some(count);
    for &place in &leaving {
        let by = if draw.chance(0.5) { place } else { draw.place() };
        draw.fault(Fault::Leave { place, by });
        draw.wait(0, 1_500);
    }
    if draw.chance(0.3) {
        // One of the leaving members is killed; if only few stay, its side can be the one that survives.
        let few = places - count < 2;
        (draw.plan.promises.healthy_stay, draw.plan.promises.cluster_stays) = (!few, !few);
        draw.wait(0, 3_000);
        draw.fault(Fault::Kill(leaving[0]));
    }
    draw.quiet_after(1_000);
}

fn leave_then_cut(draw: &mut Draw) {
    draw.places(3, 6);
    draw.strategy();
    draw.plan.promises.healthy_stay = false;
    // The price of the re-check (cluster S6): a cut within seconds of a leave can end everything.
    draw.plan.promises.cluster_stays = false;
    for _ in 0..draw.rng.random_range(1..=2) {
        let place = draw.place();
        if draw.chance(0.8) {
            let by = draw.place();
            draw.fault(Fault::Leave { place, by });
        } else {
            draw.fault(Fault::Restart(place));
        }
        draw.wait(0, 3_000);
    }
    let side = draw.side();
    draw.fault(Fault::Cut(side));
    draw.quiet_after(LASTING_MS);
}

fn clean_cut(draw: &mut Draw) {
    draw.places(3, 7);
    draw.strategy();
    let side = draw.side();
    // An even cut leaves no side a quorum.
    draw.plan.promises.cluster_stays = draw.cut(side);
    draw.quiet_after(LASTING_MS);
}

fn cut_that_heals(draw: &mut Draw) {
    draw.places(3, 6);
    draw.strategy();
    let side = draw.side();
    let survives = draw.cut(side);
    let (least, most) = if draw.chance(0.5) { (500, 18_000) } else { (18_000, 50_000) };
    draw.wait(least, most);
    let (undecided, decided) = (draw.now < MS * UNDECIDED_MS, draw.now > MS * DECIDED_MS);
    // A cut that heals in the middle of the decision leaves nodes that both sides have marked.
    draw.plan.promises.healthy_stay = undecided || decided;
    let by_default = matches!(draw.plan.strategy, Strategy::KeepMajority { .. });
    draw.plan.promises.cluster_stays = undecided || if decided { survives } else { by_default };
    draw.fault(Fault::Heal);
    draw.quiet_after(1_000);
}

fn cut_with_paused_leader(draw: &mut Draw) {
    let places = draw.places(3, 6);
    draw.strategy();
    let side = draw.side();
    let others: Vec<AddressIndex> = (0..places).filter(|place| !side.contains(place)).collect();
    let led = if draw.chance(0.5) { &side } else { &others };
    let leader = led.iter().copied().min().unwrap_or(0);
    // A leader that wakes in the middle of the decision is an instability (cluster S13), which the other side does not
    // notice.
    let loses = draw.plan.loses(led, if led == &side { &others } else { &side });
    draw.exact();
    let survives = draw.cut(side.clone());
    let unnoticed = loses && survives;
    (draw.plan.promises.healthy_stay, draw.plan.promises.cluster_stays) = (unnoticed, unnoticed);
    draw.wait(0, 30_000);
    let time = draw.time(1_000, 12_000);
    draw.fault(Fault::Pause { place: leader, time });
    draw.quiet_after(LASTING_MS);
}

fn flapping_then_cut(draw: &mut Draw) {
    draw.places(4, 6);
    draw.strategy();
    (draw.plan.promises.healthy_stay, draw.plan.promises.cluster_stays) = (false, false);
    let until = draw.time(18_000, 26_000);
    let side = draw.side();
    while draw.now < until {
        match draw.rng.random_range(0..3) {
            0 => draw.fault(Fault::Cut(side.clone())),
            1 => {
                let pair = draw.some(2);
                draw.fault(Fault::OneWay { from: pair[0], to: pair[1] });
            }
            _ => {
                let other = draw.side();
                draw.fault(Fault::Cut(other));
            }
        }
        draw.wait(1_000, 7_000);
        draw.fault(Fault::Heal);
        draw.wait(500, 5_000);
    }
    if draw.chance(0.5) {
        let place = draw.place();
        draw.death(place);
        draw.wait(0, 3_000);
    }
    draw.fault(Fault::Cut(side));
    // The losing side ends by S13, 38 s after its last detection; the winner starts 40 s after its own. Drawn last, so
    // that the faults of a seed do not depend on it.
    draw.exact();
    draw.quiet_after(LASTING_MS + 20_000);
}

fn sick_steady(draw: &mut Draw) {
    draw.plan.places = 5;
    draw.exact();
    let sick = draw.place();
    let mut peers: Vec<AddressIndex> = draw.some(5).into_iter().filter(|place| *place != sick).collect();
    peers.truncate(draw.rng.random_range(2..=4));
    for to in peers {
        draw.fault(Fault::Deaf { place: sick, to });
        draw.wait(0, 500);
    }
    draw.wait(LASTING_MS, LASTING_MS);
    draw.fault(Fault::Hears(sick));
    draw.quiet_after(10);
}

fn sick_changing(draw: &mut Draw) {
    draw.plan.places = 5;
    draw.exact();
    let sick = draw.place();
    while draw.now < MS * LASTING_MS {
        let mut peers: Vec<AddressIndex> = draw.some(5).into_iter().filter(|place| *place != sick).collect();
        peers.truncate(draw.rng.random_range(2..=4));
        for to in peers {
            draw.fault(Fault::Deaf { place: sick, to });
        }
        draw.wait(5_000, 12_000);
        draw.fault(Fault::Hears(sick));
        draw.wait(0, 4_000);
    }
    draw.quiet_after(10);
}

fn one_way_loss(draw: &mut Draw) {
    draw.places(5, 6);
    let pair = draw.some(2);
    draw.fault(Fault::OneWay { from: pair[0], to: pair[1] });
    draw.quiet_after(LASTING_MS);
}

fn suspended_some(draw: &mut Draw) {
    let places = draw.places(3, 6);
    let count = draw.rng.random_range(1..places);
    let time = draw.time(22_000, 60_000);
    let few = 2 * count < places;
    // A process that wakes in the middle of the decision is accused by some members and heard by others.
    let decided = time > MS * DECIDED_MS;
    draw.plan.promises =
        Promises { healthy_stay: few && decided, cluster_stays: few, excuse: Some(Excuse::StoodStill) };
    for place in draw.some(count) {
        let more = draw.time(0, 50);
        draw.fault(Fault::Pause { place, time: time + more });
    }
    draw.now += time;
    draw.quiet_after(100);
}

fn suspended_all(draw: &mut Draw) {
    let places = draw.places(3, 6);
    let time = draw.time(5_000, 60_000);
    for place in 0..places {
        let more = draw.time(0, 50);
        draw.fault(Fault::Pause { place, time: time + more });
    }
    draw.now += time;
    draw.quiet_after(100);
}

fn clock_jump(draw: &mut Draw) {
    draw.places(3, 6);
    draw.exact();
    let cut = draw.chance(0.5);
    if cut {
        let side = draw.side();
        draw.fault(Fault::Cut(side));
        draw.wait(0, 40_000);
    }
    // The jumps of two nodes add up: one decides, the other waits for the margin.
    for place in draw.some(2) {
        let time = draw.time(100, 6_000);
        draw.fault(Fault::Jump { place, time });
        draw.wait(0, 10_000);
    }
    draw.quiet_after(if cut { LASTING_MS } else { 1_000 });
}

fn all_mixed(draw: &mut Draw) {
    let places = draw.places(3, 6);
    draw.plan.provable = draw.chance(0.5);
    draw.exact();
    draw.plan.promises = Promises { healthy_stay: false, cluster_stays: false, excuse: Some(Excuse::Unsettled) };
    let mut restarted = BTreeSet::new();
    for _ in 0..draw.rng.random_range(2..8) {
        let place = draw.place();
        let fault = match draw.rng.random_range(0..10) {
            0 | 1 => {
                let side = draw.side();
                Fault::Cut(side)
            }
            2 => Fault::OneWay { from: place, to: (place + 1) % places },
            3 => Fault::Pause { place, time: draw.time(100, 12_000) },
            4 => Fault::Kill(place),
            5 => Fault::Leave { place, by: draw.place() },
            6 | 7 => Fault::Heal,
            8 => Fault::Jump { place, time: draw.time(100, 10_000) },
            // Kills instead of restarting: once a majority of the seeds has started anew, they may found another
            // cluster (M24).
            _ if !restarted.contains(&place) && restarted.len() + 1 > places / 2 => Fault::Kill(place),
            _ => {
                restarted.insert(place);
                Fault::Restart(place)
            }
        };
        draw.fault(fault);
        draw.wait(50, 15_000);
    }
    draw.quiet_after(1_000);
}
