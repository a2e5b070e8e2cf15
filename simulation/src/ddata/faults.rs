//! Histories drawn from a seed: users act under faults of every kind, then the faults stop and all replicas must agree.

use std::time::Duration;

use greylag_ddata::{Clause, DurableSettings, Omissions, ReadLevel, ReplicaStatus, ReplicatorSettings, WriteLevel};
use greylag_testkit::network::Link;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::acts::TIMEOUT;
use super::disks::Found;
use super::world::{Arrangement, World};

const MS: Duration = Duration::from_millis(1);

/// Traits of a history, drawn before it begins.
#[derive(Debug, Clone, Copy)]
struct Traits {
    /// Markers live for seconds only, so that they are forgotten in the end.
    forgets: bool,
    /// Members may crash.
    crashes: bool,
    deletes: bool,
    /// Bare counters expire now and then, each time at one process.
    expires: bool,
    /// Deltas are joined in any order, which must be safe (ddata K8).
    disordered: bool,
}

fn traits(seed: u64) -> Traits {
    Traits {
        forgets: seed % 8 == 1,
        crashes: seed % 8 != 2,
        deletes: seed % 4 == 3,
        expires: seed % 8 == 4,
        disordered: seed % 16 == 5,
    }
}

fn arrangement(seed: u64, omissions: Omissions) -> Arrangement {
    let mut rng = ChaCha8Rng::seed_from_u64(seed ^ 0x5eed);
    let forgets = traits(seed).forgets;
    let keys = match seed % 3 {
        0 => Vec::new(),
        1 => vec!["l0".to_owned(), "c0".to_owned()],
        _ => vec!["*".to_owned()],
    };
    let life = if forgets { 9_000 * MS } else { 3_600_000 * MS };
    let settings = ReplicatorSettings {
        gossip_interval: 200 * MS,
        delta_propagation_interval: 40 * MS,
        notify_subscribers_interval: 100 * MS,
        delta_resend_timeout: 150 * MS,
        // Longer than every history, so that a replica catches up by complete rounds, not by the timeout.
        sync_timeout: Duration::from_secs(600),
        // Small enough that now and then batches split, hints are used and logs overflow.
        max_delta_elements: if seed.is_multiple_of(3) { 2 } else { 500 },
        eager_full_state_bytes: if seed.is_multiple_of(4) { 64 } else { 64 * 1024 },
        delta_log_max_entries: if seed.is_multiple_of(5) { 12 } else { 100_000 },
        max_delta_size: if seed.is_multiple_of(11) { 2 } else { 1_000 },
        pruning_interval: (!seed.is_multiple_of(6) || forgets).then_some(300 * MS),
        // Long before everything has spread, except in histories that forget: an early pruning would be forgotten
        // there.
        max_pruning_dissemination: if forgets { 6_000 * MS } else { 200 * MS },
        pruning_marker_time_to_live: life,
        durable: DurableSettings { keys, pruning_marker_time_to_live: life, ..DurableSettings::default() },
        omissions,
        ..ReplicatorSettings::default()
    };
    Arrangement {
        settings,
        lag: rng.random_range(0..400) * MS,
        skew: if rng.random_bool(0.5) { 2_000 } else { 0 },
        ledgers: rng.random_range(1..=3),
        tallies: rng.random_range(1..=2),
        without_deltas: (seed.is_multiple_of(7)).then_some(0),
        disks_fail: seed % 5 == 2,
        refused_stay: false,
    }
}

/// Plays one history.
pub(super) fn history(seed: u64, without: Option<Clause>, story: bool) -> World {
    let mut rng = ChaCha8Rng::seed_from_u64(seed ^ 0xacc);
    let members = rng.random_range(3..=5);
    let traits = traits(seed);
    let gap = traits.disordered && matches!(without, None | Some(Clause::ClaimStart));
    let omissions = Omissions::of(without.into_iter().chain(gap.then_some(Clause::Gap)));
    let mut world = World::new(seed, arrangement(seed, omissions), members);
    world.is_ordered = !traits.disordered;
    world.story = story.then(Vec::new);
    for _ in 0..rng.random_range(30..100) {
        if rng.random_bool(0.25) {
            world.fault(traits);
        } else {
            world.act(traits);
        }
        let pause = world.net.rng().random_range(0..100) * MS;
        world.run_for(pause);
        if world.broken.is_some() {
            return world;
        }
    }
    world.calm();
    // All replicas must agree within this time.
    world.run_until(40 * Duration::from_secs(1), |world| world.news.is_empty() && world.unsettled().is_none());
    // By then the last paused process has woken and notified its subscribers.
    world.run_for(1_000 * MS);
    world.check_settled();
    if !traits.crashes {
        world.check_performed_once();
    }
    if traits.forgets {
        world.forget();
    }
    world.check_serves();
    world
}

/// A world of a few members without any faults.
pub(super) fn quiet(seed: u64) -> World {
    World::new(seed, arrangement(seed, Omissions::default()), 3 + usize::try_from(seed % 3).expect("it is small"))
}

impl World {
    /// A random act of a user at some member.
    fn act(&mut self, traits: Traits) {
        let living: Vec<usize> = self.living().into_iter().filter(|index| self.is_loaded(*index)).collect();
        let Some(index) = self.choose(&living) else { return };
        if self.chance(0.1) {
            self.back_up(index);
        }
        if traits.expires && self.chance(0.15) {
            let tally = self.net.rng().random_range(0..self.tallies.len());
            self.expire(index, tally);
        }
        let level = self.draw_level();
        let (ledgers, tallies) = (self.books.len(), self.tallies.len());
        let (ledger, tally) = (self.net.rng().random_range(0..ledgers), self.net.rng().random_range(0..tallies));
        match self.net.rng().random_range(0..20) {
            0..=11 => {
                let act = self.draw_act(index, ledger);
                self.change(index, ledger, act, level);
            }
            12..=14 => self.count(index, tally, level),
            15 | 16 => self.confirm(index, ledger, level),
            17 | 18 => {
                let level = if self.chance(0.3) { ReadLevel::Local } else { ReadLevel::majority(TIMEOUT) };
                self.read(index, ledger, level);
            }
            _ if traits.deletes && ledger > 0 => self.delete(index, ledger, level),
            _ => {}
        }
    }

    fn fault(&mut self, traits: Traits) {
        self.faults += 1;
        let living = self.living();
        // In histories that forget, every cut is noticed: an unnoticed one would outlast the life of markers.
        let is_noticed = traits.forgets || self.chance(0.5);
        let (Some(one), Some(other)) = (self.choose(&living), self.choose(&living)) else { return };
        match self.net.rng().random_range(0..16) {
            0 | 1 => {
                let split = self.net.rng().random_range(0..living.len());
                let (left, right) = living.split_at(split);
                left.iter().for_each(|one| right.iter().for_each(|other| self.part(*one, *other, is_noticed)));
            }
            2 if one != other => self.cut(one, other, is_noticed),
            3..=6 => self.mend(),
            7 => {
                let node = self.processes[one].node;
                self.tell(|| format!("{one} stands still"));
                self.net.pause(node, 700 * MS);
            }
            8 | 9 if traits.crashes => self.replace(one),
            10 if traits.crashes => self.restart_in_place(one),
            11 if living.len() < 6 => {
                let place = self.processes.len() + 10;
                let fresh = self.join(place, ReplicaStatus::Joining);
                self.run_for(100 * MS);
                self.promote(fresh, ReplicaStatus::Up);
            }
            12 if living.len() > 2 => {
                // Removed while it runs: it continues for a while without hearing of its removal.
                self.remove(one);
                self.run_for(50 * MS);
                let does = self.chance(0.5);
                if does && self.is_loaded(one) {
                    let act = self.draw_act(one, 0);
                    self.change(one, 0, act, WriteLevel::Local);
                }
                self.run_for(50 * MS);
                self.crash(one);
            }
            13 if living.len() > 2 && traits.crashes => self.kill(one),
            _ => {
                let link = Link {
                    delay: (MS, 60 * MS),
                    loss: self.net.rng().random_range(0.0..0.4),
                    duplication: self.net.rng().random_range(0.0..0.3),
                    reorder: true,
                };
                self.net.set_default_link(link);
            }
        }
    }

    /// Kills a process; another one takes its place under a new uid.
    fn replace(&mut self, index: usize) {
        let place = self.processes[index].place;
        self.kill(index);
        let found = match self.net.rng().random_range(0..4) {
            0 => Found::Nothing,
            1 => Found::Older,
            _ => Found::All,
        };
        self.leave_on_disk(place, found);
        if self.chance(0.3) {
            let pause = self.net.rng().random_range(0..1_500) * MS;
            self.run_for(pause);
        }
        self.join(place, ReplicaStatus::Up);
    }

    /// Ends the faults.
    fn calm(&mut self) {
        self.net.set_default_link(Link::reliable(5 * MS));
        self.arrangement.disks_fail = false;
        self.mend();
    }

    /// Waits until markers have expired, and checks that everything about removed replicas is forgotten.
    fn forget(&mut self) {
        let settings = &self.arrangement.settings;
        let time = 2 * settings.pruning_marker_time_to_live + settings.max_pruning_dissemination + 5_000 * MS;
        self.run_for(time);
        self.check_settled();
        for index in self.living() {
            let core = &self.processes[index].core;
            let keys = self
                .ledger_keys
                .iter()
                .map(greylag_ddata::Key::id)
                .chain(self.tally_keys.iter().map(greylag_ddata::Key::id));
            let mut markers = keys.map(|key| core.markers(key));
            let left = markers.any(|markers| markers.iter().any(|marker| marker.obsolete_at.is_some()));
            if left || !core.pruning_news().rounds.is_empty() {
                let what = format!("{index} forgot nothing: {:?}", core.pruning_news());
                return self.breaks("markers and rounds are forgotten in their time (ddata Z9)", what);
            }
        }
    }
}
