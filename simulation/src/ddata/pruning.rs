//! Histories of pruning, built on purpose, since random schedules hardly reach them.
//!
//! A replica (the leaver) writes, partly where few others hear it, and is removed. What happens while others take over
//! its data is drawn from a list of events: owners die, members vanish before they were collected, others join, copies
//! turn up late, two members believe that they lead. Each history has one event that its seed names and up to two more;
//! their timing is drawn, too. Source: ddata §5.

use std::time::Duration;

use greylag_crdt::{Markers, Performed};
use greylag_ddata::{
    Clause, DurableSettings, Envelope, Input, KeyId, Message, Omissions, ReadReply, ReplicaStatus, ReplicatorSettings,
    WriteLevel,
};
use greylag_testkit::network::Link;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::membership::News;
use super::world::{Arrangement, World};

const MS: Duration = Duration::from_millis(1);
const GOSSIP: Duration = Duration::from_millis(100);
/// The longest time in which a change reaches all replicas while there are no faults.
const SPREAD: Duration = Duration::from_millis(250);
/// Life of markers in histories that outlive them.
const LIFE: Duration = Duration::from_millis(1_500);

/// An event while a removed replica is pruned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PruningEvent {
    /// Only updates.
    Updates,
    /// The owner dies as soon as it has performed something; its store comes back, or not.
    OwnerDies,
    /// A store of the removed replica, or an old copy of its writes, turns up.
    CopyReturns,
    /// The member that holds most of the leaver's writes vanishes before it was collected.
    MemberVanishes,
    /// Two members believe that they lead, and do not hear each other.
    TwoOwners,
    /// A process joins while others are collected.
    Joins,
    /// The removed replica continues, and some hear late that it is removed.
    Continues,
    /// The owner changes an entry between reserving numbers and using them.
    ChangesBetween,
    /// The owner, or another replica, is removed when the round is done.
    Chain,
    /// A replicator starts anew in its process.
    Restarts,
    /// A member is unreachable for longer than markers live.
    LongAway,
    /// A link is cut in one direction.
    OneWay,
    /// The counter expires at some processes, the owner among them, is counted again there, and old copies return. Only
    /// in histories of births.
    Expires,
}

const PRUNING_EVENTS: [PruningEvent; 12] = [
    PruningEvent::Updates,
    PruningEvent::OwnerDies,
    PruningEvent::CopyReturns,
    PruningEvent::MemberVanishes,
    PruningEvent::TwoOwners,
    PruningEvent::Joins,
    PruningEvent::Continues,
    PruningEvent::ChangesBetween,
    PruningEvent::Chain,
    PruningEvent::Restarts,
    PruningEvent::LongAway,
    PruningEvent::OneWay,
];

impl PruningEvent {
    /// Whether an entry may have to be performed again after this event.
    fn repeats_work(self) -> bool {
        matches!(
            self,
            Self::OwnerDies
                | Self::CopyReturns
                | Self::MemberVanishes
                | Self::Chain
                | Self::Restarts
                | Self::LongAway
                | Self::Expires
        )
    }
}

/// Copies of a process's entries, as in its store.
#[derive(Debug, Clone, Default)]
pub(super) struct Copies {
    /// When the process was last in touch with others.
    synced_at: Duration,
    entries: Vec<(KeyId, Envelope)>,
}

impl Copies {
    /// The entries as loaded later: only time in touch with others counts for the age of markers. Source: ddata Z9.
    fn loaded_at(&self, now: Duration) -> Vec<(KeyId, Envelope)> {
        let by = i64::try_from((now - self.synced_at).as_millis()).expect("histories are short");
        let mut entries = self.entries.clone();
        for (_, envelope) in &mut entries {
            let mut markers = Markers::new();
            for marker in envelope.markers.iter() {
                markers.add(&Performed { obsolete_at: marker.obsolete_at.map(|at| at + by), ..marker.clone() });
            }
            envelope.markers = markers;
        }
        entries
    }
}

fn arrangement(rng: &mut ChaCha8Rng, forgets: bool, without: Option<Clause>) -> Arrangement {
    let life = if forgets { LIFE } else { 3_600_000 * MS };
    let settings = ReplicatorSettings {
        gossip_interval: GOSSIP,
        delta_propagation_interval: 20 * MS,
        notify_subscribers_interval: 200 * MS,
        delta_resend_timeout: 60 * MS,
        sync_timeout: Duration::from_secs(600),
        pruning_interval: Some(80 * MS),
        max_pruning_dissemination: SPREAD,
        pruning_marker_time_to_live: life,
        durable: DurableSettings { pruning_marker_time_to_live: life, ..DurableSettings::default() },
        omissions: Omissions::of(without),
        ..ReplicatorSettings::default()
    };
    let lag = if rng.random_bool(0.5) { Duration::ZERO } else { rng.random_range(0..100) * MS };
    Arrangement {
        settings,
        lag,
        skew: rng.random_range(0..50),
        ledgers: 1,
        tallies: 1,
        without_deltas: None,
        disks_fail: false,
        refused_stay: false,
    }
}

/// Plays one history.
pub(super) fn history(seed: u64, without: Option<Clause>, story: bool) -> World {
    let mut rng = ChaCha8Rng::seed_from_u64(seed ^ 0x9127);
    let count = PRUNING_EVENTS.len() as u64;
    let main = PRUNING_EVENTS[usize::try_from(seed % count).expect("a few")];
    let mut events = vec![main];
    for _ in 0..2 {
        if rng.random_bool(0.25) {
            let at = rng.random_range(0..=events.len());
            events.insert(at, PRUNING_EVENTS[rng.random_range(0..PRUNING_EVENTS.len())]);
        }
    }
    played(rng, seed, main, &events, without, story)
}

/// Plays one history in which the counter expires at some processes while another event happens.
pub(super) fn births(seed: u64, without: Option<Clause>, story: bool) -> World {
    let mut rng = ChaCha8Rng::seed_from_u64(seed ^ 0xb127);
    let others = [
        PruningEvent::Updates,
        PruningEvent::OwnerDies,
        PruningEvent::CopyReturns,
        PruningEvent::TwoOwners,
        PruningEvent::Chain,
        PruningEvent::Restarts,
    ];
    let other = others[rng.random_range(0..others.len())];
    let events = [PruningEvent::Expires, other, PruningEvent::Expires];
    let from = rng.random_range(0..2);
    played(rng, seed, events[from], &events[from..], without, story)
}

fn played(
    mut rng: ChaCha8Rng,
    seed: u64,
    main: PruningEvent,
    events: &[PruningEvent],
    without: Option<Clause>,
    story: bool,
) -> World {
    let forgets = events.contains(&PruningEvent::LongAway);
    let members = rng.random_range(3..=4) + usize::from(main == PruningEvent::MemberVanishes);
    let mut world = World::new(seed, arrangement(&mut rng, forgets, without), members);
    if story {
        world.story = Some(vec![format!("{members} members, {events:?}")]);
    }
    world.play(&mut rng, events);
    if !events.iter().any(|event| event.repeats_work()) {
        world.check_performed_once();
    }
    world
}

impl World {
    fn play(&mut self, rng: &mut ChaCha8Rng, events: &[PruningEvent]) {
        self.run_for(GOSSIP);
        let leaver = rng.random_range(0..self.processes.len());
        self.scatter(rng, leaver, events[0]);
        let copies = self.copies(leaver);
        if rng.random_bool(0.3) {
            // Here the leaver writes more after its copy was made.
            self.write_some(rng, leaver, 2);
        }
        let later = self.copies(leaver);
        self.go(rng, leaver, events.contains(&PruningEvent::Continues));
        for event in events {
            let copies = if rng.random_bool(0.5) { &copies } else { &later };
            self.event(rng, *event, leaver, copies);
            if self.broken.is_some() {
                return;
            }
        }
        self.settle();
    }

    /// Lets every replica write; only some hear of the leaver's last writes.
    fn scatter(&mut self, rng: &mut ChaCha8Rng, leaver: usize, main: PruningEvent) {
        for index in self.living() {
            let count = rng.random_range(0..=2);
            self.write_some(rng, index, count);
        }
        if rng.random_bool(0.7) {
            self.run_for(rng.random_range(0..80) * MS);
        }
        let others: Vec<usize> = self.living().into_iter().filter(|index| *index != leaver).collect();
        // At least one replica hears nothing of them.
        let hears_nothing = rng.random_range(0..others.len());
        for (at, other) in others.iter().enumerate() {
            if at == hears_nothing || rng.random_bool(0.5) {
                self.part(leaver, *other, false);
                if main == PruningEvent::MemberVanishes {
                    // With this event, replicas that hear the leaver do not pass its writes on to this one yet.
                    let heard = others.iter().copied().filter(|heard| heard != other);
                    heard.for_each(|heard| self.part(heard, *other, false));
                }
            }
        }
        let count = rng.random_range(1..=4);
        self.write_some(rng, leaver, count);
        self.run_for(rng.random_range(0..120) * MS);
    }

    fn write_some(&mut self, rng: &mut ChaCha8Rng, index: usize, count: usize) {
        for _ in 0..count {
            if rng.random_bool(0.3) {
                self.count(index, 0, WriteLevel::Local);
            } else {
                let act = self.draw_act(index, 0);
                self.change(index, 0, act, WriteLevel::Local);
            }
        }
    }

    /// Removes the leaver; it dies before, or continues for a while.
    fn go(&mut self, rng: &mut ChaCha8Rng, leaver: usize, goes_on: bool) {
        if goes_on {
            // News of membership is slow here.
            self.arrangement.lag = 400 * MS;
            self.mend();
            self.remove(leaver);
            for _ in 0..rng.random_range(1..4) {
                self.run_for(rng.random_range(0..120) * MS);
                self.write_some(rng, leaver, 1);
            }
            self.arrangement.lag = 50 * MS;
            return;
        }
        if rng.random_bool(0.5) {
            self.crash(leaver);
            self.run_for(rng.random_range(0..100) * MS);
        }
        self.remove(leaver);
        self.crash(leaver);
        if rng.random_bool(0.4) {
            self.mend();
        }
    }

    /// Whether markers are forgotten in this history. Then a cut must be noticed in time, since no replica waits for a
    /// member that it does not know to be unreachable.
    fn forgets(&self) -> bool {
        self.arrangement.settings.pruning_marker_time_to_live == LIFE
    }

    fn is_announced(&self) -> bool {
        self.living().iter().any(|index| !self.processes[*index].core.pruning_news().rounds.is_empty())
    }

    /// The process that owns a round and has performed something, or is about to.
    fn owner(&self) -> Option<usize> {
        let owns = |index: &usize| {
            let core = &self.processes[*index].core;
            core.is_performing() || core.stats().performed > 0
        };
        self.living().into_iter().find(owns)
    }

    /// Runs until some point: for a random time, or until a round is announced, or performed.
    fn until_some_point(&mut self, rng: &mut ChaCha8Rng) {
        match rng.random_range(0..4) {
            0 => self.run_for(rng.random_range(0..600) * MS),
            1 => drop(self.run_until(1_000 * MS, Self::is_announced)),
            2 => drop(self.run_until(1_500 * MS, |world| world.owner().is_some())),
            _ => self.run_for(rng.random_range(0..200) * MS),
        }
    }

    fn event(&mut self, rng: &mut ChaCha8Rng, event: PruningEvent, leaver: usize, copies: &Copies) {
        self.tell(|| format!("-- {event:?}"));
        let others = self.living();
        match event {
            PruningEvent::Updates => {
                for _ in 0..rng.random_range(2..5) {
                    self.until_some_point(rng);
                    let Some(index) = self.choose(&others) else { return };
                    self.write_some(rng, index, 1);
                }
            }
            PruningEvent::OwnerDies => self.owner_dies(rng),
            PruningEvent::CopyReturns => {
                self.until_some_point(rng);
                for _ in 0..rng.random_range(1..3) {
                    let Some(index) = self.choose(&others) else { return };
                    self.turns_up(index, copies);
                    self.run_for(rng.random_range(0..300) * MS);
                }
            }
            PruningEvent::MemberVanishes => self.member_vanishes(rng, leaver),
            PruningEvent::TwoOwners => self.two_owners(rng),
            PruningEvent::Joins => self.somebody_joins(rng),
            PruningEvent::Continues => {
                self.run_for(rng.random_range(0..400) * MS);
                if self.processes[leaver].alive {
                    self.write_some(rng, leaver, 1);
                    self.run_for(rng.random_range(0..100) * MS);
                    self.crash(leaver);
                }
            }
            PruningEvent::ChangesBetween => self.changes_between(rng),
            PruningEvent::Chain => {
                self.until_some_point(rng);
                let Some(index) = self.owner().or(others.first().copied()).filter(|_| others.len() > 2) else { return };
                let late = self.copies(index);
                self.kill(index);
                self.until_some_point(rng);
                if rng.random_bool(0.5)
                    && let Some(at) = self.living().first().copied()
                {
                    self.turns_up(at, &late);
                }
            }
            PruningEvent::Restarts => {
                self.until_some_point(rng);
                let Some(index) = self.owner().filter(|_| rng.random_bool(0.5)).or_else(|| self.choose(&others)) else {
                    return;
                };
                self.restart_in_place(index);
                self.write_some(rng, index, 1);
            }
            PruningEvent::LongAway => self.long_away(rng),
            PruningEvent::Expires => self.expires(rng, copies),
            PruningEvent::OneWay => {
                let (Some(one), Some(other)) = (self.choose(&others), self.choose(&others)) else { return };
                if one != other {
                    let is_noticed = self.forgets() || rng.random_bool(0.5);
                    self.cut(one, other, is_noticed);
                }
                self.until_some_point(rng);
                let lossy = Link { delay: (MS, 15 * MS), loss: 0.2, duplication: 0.2, reorder: true };
                self.net.set_default_link(lossy);
                self.run_for(rng.random_range(0..300) * MS);
                self.mend();
            }
        }
    }

    /// Expires the counter at some process, the owner or another; it comes back from others or from old copies, and is
    /// counted meanwhile.
    fn expires(&mut self, rng: &mut ChaCha8Rng, copies: &Copies) {
        for _ in 0..rng.random_range(1..4) {
            self.until_some_point(rng);
            let living = self.living();
            let Some(index) = self.owner().filter(|_| rng.random_bool(0.6)).or_else(|| self.choose(&living)) else {
                return;
            };
            let own = self.copies(index);
            let is_cut = rng.random_bool(0.5);
            if is_cut {
                let others = living.iter().copied().filter(|other| *other != index);
                others.for_each(|other| self.part(index, other, false));
            }
            self.expire(index, 0);
            if rng.random_bool(0.7) {
                self.count(index, 0, WriteLevel::Local);
            }
            self.run_for(rng.random_range(0..200) * MS);
            let copies = if rng.random_bool(0.5) { copies } else { &own };
            if rng.random_bool(0.6) {
                self.turns_up(index, copies);
            }
            self.run_for(rng.random_range(0..300) * MS);
            if is_cut {
                self.mend();
            }
        }
    }

    /// Kills the owner before some, or all, of the others hear of what it has performed.
    fn owner_dies(&mut self, rng: &mut ChaCha8Rng) {
        self.mend();
        let some = rng.random_range(1..=2);
        let has_performed = move |world: &Self, index: &usize| world.processes[*index].core.stats().performed >= some;
        let found = self.run_until(2_000 * MS, |world| world.living().iter().any(|index| has_performed(world, index)));
        let living = self.living();
        let Some(owner) = living.iter().copied().find(|index| has_performed(self, index)).filter(|_| found) else {
            return;
        };
        if living.len() < 3 {
            return;
        }
        if rng.random_bool(0.4) {
            self.write_some(rng, owner, 1);
        }
        if rng.random_bool(0.3) {
            self.run_for(rng.random_range(0..40) * MS);
        }
        let copies = self.copies(owner);
        self.kill(owner);
        self.until_some_point(rng);
        let living = self.living();
        if rng.random_bool(0.6)
            && let Some(index) = self.choose(&living)
        {
            if rng.random_bool(0.5) {
                self.run_until(2_000 * MS, |world| world.owner().is_some());
                self.run_for(rng.random_range(0..300) * MS);
            }
            self.write_some(rng, index, 1);
            self.turns_up(index, &copies);
        }
    }

    /// Cuts the member that holds most of the leaver's writes off from the owner, lets it pass some of them on, and
    /// kills it.
    fn member_vanishes(&mut self, rng: &mut ChaCha8Rng, leaver: usize) {
        let living = self.living();
        let Some((leader, rest)) = living.split_first() else { return };
        let known = |world: &Self, index: usize| world.processes[index].seen[0].count_ones();
        let Some(keeper) = rest.iter().copied().max_by_key(|index| known(self, *index)) else { return };
        self.tell(|| format!("{keeper} is who holds most of {leaver}"));
        self.mend();
        let forgets = self.forgets();
        self.part(*leader, keeper, forgets);
        let others: Vec<usize> = rest.iter().copied().filter(|index| *index != keeper).collect();
        // Cut off from the others, too, so that they are collected before they hear anything from it.
        others.iter().for_each(|other| self.part(keeper, *other, forgets));
        self.run_until(1_000 * MS, Self::is_announced);
        self.run_for(rng.random_range(0..500) * MS);
        let Some(told) = self.choose(&others) else { return };
        let copies = self.copies(keeper);
        if rng.random_bool(0.5) {
            self.part(*leader, told, forgets);
        }
        self.turns_up(told, &copies);
        self.run_for(rng.random_range(0..30) * MS);
        if self.living().len() > 2 {
            self.kill(keeper);
        }
        self.run_for(rng.random_range(0..200) * MS);
        self.mend();
    }

    /// Makes a second member lead, too, since in its view the leader is not fully in.
    fn two_owners(&mut self, rng: &mut ChaCha8Rng) {
        let living = self.living();
        let [first, second, ..] = living[..] else { return };
        self.send_news(second, News::Status(first, ReplicaStatus::WeaklyUp));
        if rng.random_bool(0.7) {
            let forgets = self.forgets();
            self.part(first, second, forgets);
        }
        self.run_until(1_000 * MS, Self::is_announced);
        self.run_for(rng.random_range(0..500) * MS);
        self.mend();
        self.run_for(rng.random_range(0..500) * MS);
        if rng.random_bool(0.5) {
            self.send_news(second, News::Status(first, ReplicaStatus::Up));
        }
        // In the end both views agree.
        self.run_for(rng.random_range(0..300) * MS);
        self.send_news(second, News::Status(first, ReplicaStatus::Up));
    }

    /// Lets a process join, reach some members, and be promoted.
    fn somebody_joins(&mut self, rng: &mut ChaCha8Rng) {
        if rng.random_bool(0.5) {
            self.until_some_point(rng);
        }
        let living = self.living();
        let place = self.processes.len() + 10;
        let fresh = self.join(place, ReplicaStatus::Joining);
        for other in &living {
            if rng.random_bool(0.4) {
                let forgets = self.forgets();
                self.part(fresh, *other, forgets);
            }
        }
        self.run_for(rng.random_range(0..300) * MS);
        self.write_some(rng, fresh, 1);
        if rng.random_bool(0.5) {
            self.promote(fresh, ReplicaStatus::WeaklyUp);
            self.run_for(rng.random_range(0..200) * MS);
        }
        self.mend();
        self.promote(fresh, ReplicaStatus::Up);
    }

    /// As in scenario 67: numbers are reserved, nothing is performed yet, and the owner sends a delta.
    fn changes_between(&mut self, rng: &mut ChaCha8Rng) {
        let living = self.living();
        let Some((leader, rest)) = living.split_first() else { return };
        // Some members do not hear what the owner has collected.
        let deaf: Vec<usize> = rest.iter().copied().filter(|_| rng.random_bool(0.5)).collect();
        self.run_until(1_500 * MS, Self::is_announced);
        for other in &deaf {
            for heard in rest.iter().filter(|heard| !deaf.contains(heard)) {
                let forgets = self.forgets();
                self.part(*heard, *other, forgets);
            }
        }
        if rng.random_bool(0.5) {
            self.mend();
        }
        let begins = |world: &Self| world.processes[*leader].core.is_performing();
        if self.run_until(1_000 * MS, begins) {
            let act = self.draw_act(*leader, 0);
            let level = if rng.random_bool(0.8) { WriteLevel::all(300 * MS) } else { WriteLevel::Local };
            self.change(*leader, 0, act, level);
            self.run_for(rng.random_range(0..20) * MS);
        }
        self.mend();
    }

    /// Makes a member unreachable while markers expire; all others know it.
    fn long_away(&mut self, rng: &mut ChaCha8Rng) {
        let living = self.living();
        let Some(away) = self.choose(&living).filter(|_| living.len() > 2) else { return };
        if rng.random_bool(0.7) {
            // In this case the member's data are from before the round.
            self.run_until(1_500 * MS, |world| world.owner().is_some());
            self.run_for(rng.random_range(0..20) * MS);
        } else {
            self.until_some_point(rng);
        }
        // For a while after its return the member may not have completed a round.
        let now = self.net.now();
        let still = self.alone.filter(|(process, _, until)| *process == away && now < *until);
        let from = still.map_or(now, |(_, from, _)| from);
        self.alone = Some((away, from, now + LIFE * 3));
        for other in living.iter().copied().filter(|other| *other != away) {
            self.part(away, other, true);
        }
        self.write_some(rng, away, 1);
        self.run_for(LIFE + rng.random_range(0..800) * MS);
        for other in living.iter().copied().filter(|other| *other != away) {
            self.write_some(rng, other, 1);
        }
        if rng.random_bool(0.4) {
            // Here the member never comes back, but its copies do, after others have done its work.
            let copies = self.copies(away);
            self.kill(away);
            self.run_until(1_500 * MS, |world| world.owner().is_some());
            self.run_for(rng.random_range(0..120) * MS);
            if let Some(index) = self.choose(&self.living()) {
                self.write_some(rng, index, 1);
                self.turns_up(index, &copies);
            }
        }
        self.mend();
        self.alone = Some((away, from, self.net.now() + SPREAD * 2));
        self.run_for(rng.random_range(0..300) * MS);
    }

    /// The entries of a process, as they would be in its store.
    pub(super) fn copies(&mut self, index: usize) -> Copies {
        let now = self.net.now();
        let was_alone =
            |(process, from, until): &(usize, Duration, Duration)| *process == index && (*from..*until).contains(&now);
        let synced_at = self.alone.filter(was_alone).map_or(now, |(_, from, _)| from);
        let Some(asker) = self.processes[index].view.others.keys().next().copied() else { return Copies::default() };
        let from = self.processes[asker].address.clone();
        let ledgers = self.ledger_keys.iter().map(|key| (key.id().clone(), tag(key)));
        let tallies = self.tally_keys.iter().map(|key| (key.id().clone(), tag(key)));
        let keys: Vec<_> = ledgers.chain(tallies).collect();
        let (mut entries, now) = (Vec::new(), self.now());
        for (key, tag) in keys {
            let mut out = Vec::new();
            let message = Message::Read { request: 1, key: key.clone(), tag, digest: None };
            self.processes[index].core.handle(now, Input::Received { from: from.clone(), message }, &mut out);
            entries.extend(out.into_iter().find_map(|effect| match effect {
                greylag_ddata::Effect::Send {
                    message: Message::ReadReply { reply: ReadReply::Value(envelope), .. },
                    ..
                } => Some((key.clone(), envelope)),
                _ => None,
            }));
        }
        Copies { synced_at, entries }
    }

    /// Gives copies to a process, as from a returned store, or a message that was long under way.
    pub(super) fn turns_up(&mut self, index: usize, copies: &Copies) {
        let Some(other) = self.processes[index].view.others.keys().next().copied() else { return };
        // A store from before markers were forgotten would be refused (ddata Z9).
        if self.processes.iter().any(|process| process.core.stats().markers_forgotten > 0) {
            return;
        }
        self.tell(|| format!("old copies turn up at {index}"));
        let from = self.processes[other].address.clone();
        let entries = copies.loaded_at(self.net.now());
        let message = Message::Gossip { round: None, number: 0, send_back: false, entries };
        self.input(index, Input::Received { from, message });
    }

    /// Ends the faults; all replicas must agree soon.
    fn settle(&mut self) {
        self.tell(|| "-- all is well".to_owned());
        self.net.set_default_link(Link::reliable(2 * MS));
        for index in 0..self.processes.len() {
            if self.processes[index].alive && !self.members.contains_key(&index) {
                self.crash(index);
            }
        }
        self.mend();
        for _ in 0..200 {
            self.run_for(GOSSIP);
            if self.broken.is_some() || (self.news.is_empty() && self.unsettled().is_none()) {
                break;
            }
        }
        // Notices to subscribers are sent at intervals.
        self.run_for(220 * MS);
        self.check_settled();
    }
}

fn tag<T: greylag_crdt::ReplicatedData>(_: &greylag_ddata::Key<T>) -> std::sync::Arc<str> {
    T::TAG.to_string().into()
}
