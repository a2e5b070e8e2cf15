//! Runs a handler over every event of some slices once, in the order of each id.
//!
//! ```text
//! claim ─▶ load ─▶ query ─▶ judge ─▶ Handle ─▶ … ─▶ Save          (at least once)
//!   ▲                        │  ╰──▶ Commit: both in one step      (exactly once)
//!   │                        ╰──▶ Read: the id itself, where a gap is to be filled
//!   ╰── back off ◀── a store failed                a stale owner, a poisoned event ──▶ Ended
//! ```
//! A projection claims all its slices at the start; a later save of an earlier owner is refused, and the
//! earlier owner ends. A reset announces a start, deletes the saved progress, confirms the start, and reads on as after
//! a claim; the next instance that loads an announced but unconfirmed reset finishes it.
//! After a failure the projection reads again from the saved progress, so events handled and not saved are
//! handled twice, unless handler and offset are one transaction. The machine reads one page at a time, and
//! the next when that page is handled; once it has caught up, it takes its events from the reader that the
//! node's projections share ([`Follower`]).
//!
//! Source: persistence §5 (projections).

mod control_rows;
mod messages;
mod progress;
mod running;
mod settings;

use std::collections::VecDeque;
use std::ops::RangeInclusive;
use std::time::Instant;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::query::envelope::Envelope;
use super::query::follower::{Follower, FollowerEffect, FollowerInput};
use super::query::settings::QuerySettings;
use crate::contract::error::OffsetError;
use crate::contract::journal::{Page, ReadRange};
use crate::contract::offset::{OwnedSlices, Position, Processed};
use crate::contract::query::{EventsOf, QueryCaps};
use crate::contract::settings::SettingsError;

pub use messages::{HandleError, ProjectionAnswer, ProjectionEffect, ProjectionEnd, ProjectionInput, ProjectionStats};
pub use settings::{OnPoison, ProjectionSettings};

use self::control_rows::Starts;
use self::progress::{GapDecision, Progress, Times};
use self::running::{Running, Work, processed};

/// The events to process, and the name of the projection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProjectionId {
    /// The name under which offsets are saved; all instances of one projection share it.
    pub name: String,
    /// The entity type whose events or durable states are read; the [`ReadJournal`](crate::ReadJournal) decides which
    /// of the two.
    pub entity_type: String,
    /// This instance's slices; no two instances have slices in common.
    pub slices: RangeInclusive<u16>,
}

/// How often the handler's effect on an event can happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Guarantee {
    /// Offsets are saved from time to time, after the handler.
    AtLeastOnce,
    /// The handler's writes and the offsets are one transaction.
    ExactlyOnce,
}

/// The phase of the machine.
#[derive(Debug)]
enum ProjectionPhase {
    Claiming,
    Loading,
    Resetting(Resetting),
    Running(Box<Running>),
    BackingOff { until: Instant },
    Ended,
}

/// Progress of a reset. An instance that starts after `Announcing` goes on with `Forgetting`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Resetting {
    /// Saves the announcement of this start, after which other instances ignore older marks.
    Announcing(u64),
    Forgetting(u64),
    Confirming,
}

/// One instance of a projection.
#[derive(Debug)]
pub struct Projection {
    id: ProjectionId,
    guarantee: Guarantee,
    caps: QueryCaps,
    query: QuerySettings,
    settings: ProjectionSettings,
    rng: ChaCha8Rng,
    /// Number of the run; an answer to an earlier run is dropped.
    run: u64,
    owned: Option<OwnedSlices>,
    /// Every start (reset) that was saved when this run began.
    starts: Starts,
    phase: ProjectionPhase,
    failures: u32,
    paused: bool,
    reset: bool,
    stopping: bool,
    stats: ProjectionStats,
}

impl Projection {
    /// Starts a projection, which claims its slices first.
    ///
    /// # Errors
    /// [`SettingsError`], naming the settings that cannot work.
    pub fn start(
        id: ProjectionId,
        guarantee: Guarantee,
        caps: QueryCaps,
        query: QuerySettings,
        settings: ProjectionSettings,
        seed: [u8; 32],
        out: &mut Vec<ProjectionEffect>,
    ) -> Result<Self, SettingsError> {
        settings.validate(&query)?;
        let mut projection = Self {
            id,
            guarantee,
            caps,
            query,
            settings,
            rng: ChaCha8Rng::from_seed(seed),
            run: 0,
            owned: None,
            starts: Starts::default(),
            phase: ProjectionPhase::Ended,
            failures: 0,
            paused: false,
            reset: false,
            stopping: false,
            stats: ProjectionStats::default(),
        };
        projection.claim(out);
        Ok(projection)
    }

    /// Takes one input.
    pub fn handle(&mut self, now: Instant, input: ProjectionInput, out: &mut Vec<ProjectionEffect>) {
        if matches!(self.phase, ProjectionPhase::Ended) {
            return;
        }
        match input {
            ProjectionInput::Answer(run, answer) if run == self.run => self.on_answer(now, answer, out),
            ProjectionInput::Answer(..) => {}
            ProjectionInput::Tick => self.feed(now, FollowerInput::Tick, out),
            ProjectionInput::Hint => self.feed(now, FollowerInput::Hint, out),
            ProjectionInput::Pause => self.paused = true,
            ProjectionInput::Resume => self.paused = false,
            ProjectionInput::Reset => self.reset = true,
            ProjectionInput::Stop => self.stopping = true,
        }
        self.advance(now, out);
        self.check_invariants();
    }

    /// Source: persistence §5 (projections).
    fn check_invariants(&self) {
        if !cfg!(debug_assertions) {
            return;
        }
        let is_claimed = self.owned.is_some();
        match &self.phase {
            ProjectionPhase::Claiming | ProjectionPhase::Ended => {}
            ProjectionPhase::Loading | ProjectionPhase::Resetting(_) => {
                assert!(is_claimed, "a projection claims its slices first");
            }
            ProjectionPhase::BackingOff { .. } => assert!(self.failures > 0, "a projection backs off after a failure"),
            ProjectionPhase::Running(running) => {
                assert!(is_claimed, "a projection claims its slices first");
                running.check_invariants();
                let is_idle = matches!(running.work, Work::Idle) && !self.is_halting();
                assert!(!is_idle || running.asked, "a projection without work has asked for events");
            }
        }
    }

    /// When a [`ProjectionInput::Tick`] next has work to do.
    pub fn next_deadline(&self) -> Option<Instant> {
        match &self.phase {
            ProjectionPhase::BackingOff { until } => Some(*until),
            ProjectionPhase::Running(running) => {
                let retry_at = match running.work {
                    Work::Retrying { at, .. } => Some(at),
                    _ => None,
                };
                let save_at = running.save_at.filter(|_| !running.saving);
                // A halting projection does not drive its feed, so the feed's deadline does not count.
                let feed_at = running.feed.next_deadline().filter(|_| !self.is_halting());
                [retry_at, save_at, feed_at].into_iter().flatten().min()
            }
            _ => None,
        }
    }

    /// The number of the present run, which its answers carry.
    pub fn run(&self) -> u64 {
        self.run
    }

    /// The present counts and state.
    pub fn stats(&self) -> ProjectionStats {
        let mut stats = self.stats.clone();
        if let ProjectionPhase::Running(running) = &self.phase {
            stats.remembered = running.progress.remembered();
            stats.waiting = running.progress.waiting();
            let group = match &running.work {
                Work::Handling { group, .. } | Work::Retrying { group, .. } => group.first(),
                Work::Looking { envelope, .. } | Work::Fetching { envelope, .. } => Some(envelope),
                Work::Idle => None,
            };
            let in_hand = group.or(running.singly.front()).or(running.queue.front());
            stats.oldest_in_hand = in_hand.and_then(Envelope::timestamp);
            stats.is_running = !self.paused;
        }
        stats
    }

    fn claim(&mut self, out: &mut Vec<ProjectionEffect>) {
        self.run += 1;
        self.phase = ProjectionPhase::Claiming;
        out.push(ProjectionEffect::Claim(self.run));
    }

    fn on_answer(&mut self, now: Instant, answer: ProjectionAnswer, out: &mut Vec<ProjectionEffect>) {
        match (answer, &mut self.phase) {
            (ProjectionAnswer::Claimed(Ok(owned)), ProjectionPhase::Claiming) => {
                self.owned = Some(owned);
                self.load(out);
            }
            (ProjectionAnswer::Saved(Ok(())), ProjectionPhase::Resetting(Resetting::Announcing(start))) => {
                let start = *start;
                self.forget_all(start, out);
            }
            (ProjectionAnswer::WasReset(Ok(())), ProjectionPhase::Resetting(Resetting::Forgetting(start))) => {
                let confirmed = control_rows::confirmed(&self.id.slices, *start, self.caps.kind);
                self.save_start(Resetting::Confirming, confirmed, out);
            }
            (ProjectionAnswer::Saved(Ok(())), ProjectionPhase::Resetting(Resetting::Confirming)) => self.load(out),
            (ProjectionAnswer::Loaded(Ok(saved)), ProjectionPhase::Loading) => self.on_loaded(now, saved, out),
            (
                ProjectionAnswer::Claimed(Err(error))
                | ProjectionAnswer::WasReset(Err(error))
                | ProjectionAnswer::Loaded(Err(error))
                | ProjectionAnswer::Saved(Err(error)),
                _,
            ) => self.on_offset_error(now, error, out),
            (ProjectionAnswer::Page(page), ProjectionPhase::Running(_)) => {
                self.feed(now, FollowerInput::Page(page), out);
            }
            (ProjectionAnswer::Shared(answer), ProjectionPhase::Running(_)) => {
                self.feed(now, FollowerInput::Shared(answer), out);
            }
            (ProjectionAnswer::Read(Ok(page)), ProjectionPhase::Running(_)) => self.on_read(page, out),
            (ProjectionAnswer::Read(Err(error)), _) => self.back_off(now, &error.to_string(), out),
            (ProjectionAnswer::Handled(handled), ProjectionPhase::Running(_)) => self.on_handled(now, handled, out),
            (ProjectionAnswer::Saved(Ok(())), ProjectionPhase::Running(running)) => {
                running.saving = false;
                self.failures = 0;
                self.stats.saves += 1;
            }
            _ => {}
        }
    }

    fn load(&mut self, out: &mut Vec<ProjectionEffect>) {
        self.phase = ProjectionPhase::Loading;
        out.push(ProjectionEffect::Load(self.run));
    }

    fn on_loaded(&mut self, now: Instant, saved: Vec<Processed>, out: &mut Vec<ProjectionEffect>) {
        self.starts = Starts::among(&saved);
        if self.starts.is_unfinished(&self.id.slices) {
            self.forget_all(self.starts.of_range(&self.id.slices), out);
        } else {
            self.begin_reading(now, saved, out);
        }
    }

    fn forget_all(&mut self, start: u64, out: &mut Vec<ProjectionEffect>) {
        // The announcement is saved, so some instance will finish the reset.
        self.reset = false;
        self.phase = ProjectionPhase::Resetting(Resetting::Forgetting(start));
        out.extend(self.owned.clone().map(|owned| ProjectionEffect::Reset(self.run, owned)));
    }

    fn save_start(&mut self, step: Resetting, row: Processed, out: &mut Vec<ProjectionEffect>) {
        self.phase = ProjectionPhase::Resetting(step);
        out.extend(self.owned.clone().map(|owned| ProjectionEffect::Save(self.run, owned, vec![row])));
    }

    fn begin_reading(&mut self, now: Instant, saved: Vec<Processed>, out: &mut Vec<ProjectionEffect>) {
        let times = Times { remember: self.settings.remember, lookback: self.query.backtracking.reach() };
        let (progress, offset) = Progress::resume(self.caps.shows, self.id.slices.clone(), times, saved);
        let of = EventsOf::Slices { entity_type: self.id.entity_type.clone(), slices: self.id.slices.clone() };
        match Follower::new(of, &offset, self.caps.kind, self.query.clone(), self.settings.share_reader, now) {
            Ok(feed) => {
                self.phase = ProjectionPhase::Running(Box::new(Running {
                    feed,
                    asked: false,
                    progress,
                    queue: VecDeque::new(),
                    singly: VecDeque::new(),
                    work: Work::Idle,
                    unsaved: Vec::new(),
                    save_at: None,
                    saving: false,
                    forget_at: now + self.settings.forget_interval,
                }));
            }
            Err(error) => self.end(ProjectionEnd::Impossible(error.to_string()), out),
        }
    }

    fn on_offset_error(&mut self, now: Instant, error: OffsetError, out: &mut Vec<ProjectionEffect>) {
        match error {
            OffsetError::StaleOwner { .. } | OffsetError::NotOwned { .. } => {
                self.end(ProjectionEnd::Fenced(error), out);
            }
            OffsetError::ForeignOffset { .. } | OffsetError::InvalidName => {
                self.end(ProjectionEnd::Impossible(error.to_string()), out);
            }
            OffsetError::Corrupt { .. } | OffsetError::Unavailable(_) => self.back_off(now, &error.to_string(), out),
        }
    }

    /// Ends the run and drops its state; the next run begins with the saved progress.
    fn back_off(&mut self, now: Instant, why: &str, out: &mut Vec<ProjectionEffect>) {
        self.failures = self.failures.saturating_add(1);
        self.stats.restarts += 1;
        // The answers under way carry the number of the ended run, so they are dropped.
        self.leave(out);
        self.run += 1;
        let wait = self.settings.backoff.wait(self.failures, self.rng.random::<f64>());
        self.phase = ProjectionPhase::BackingOff { until: now + wait };
        out.push(ProjectionEffect::Trouble(why.to_owned()));
    }

    fn end(&mut self, end: ProjectionEnd, out: &mut Vec<ProjectionEffect>) {
        self.leave(out);
        self.run += 1;
        self.phase = ProjectionPhase::Ended;
        out.push(ProjectionEffect::Ended(end));
    }

    fn leave(&mut self, out: &mut Vec<ProjectionEffect>) {
        if let ProjectionPhase::Running(running) = &self.phase
            && running.feed.has_joined()
        {
            out.push(ProjectionEffect::Leave);
        }
    }

    fn feed(&mut self, now: Instant, input: FollowerInput, out: &mut Vec<ProjectionEffect>) {
        let ProjectionPhase::Running(running) = &mut self.phase else { return };
        let mut effects = Vec::new();
        running.feed.handle(now, input, &mut effects);
        for effect in effects {
            match effect {
                FollowerEffect::Query(query) => out.push(ProjectionEffect::Query(self.run, query)),
                FollowerEffect::Join => out.push(ProjectionEffect::Join(self.run)),
                FollowerEffect::Pull => out.push(ProjectionEffect::Pull),
                FollowerEffect::Deliver(envelopes) => {
                    running.asked = false;
                    running.queue.extend(envelopes);
                }
                FollowerEffect::Failed(error) => {
                    running.asked = false;
                    out.push(ProjectionEffect::Trouble(error.to_string()));
                }
            }
        }
    }

    /// Takes a page of one history: the event asked for by a look, or the events that fill a gap.
    fn on_read(&mut self, page: Page, out: &mut Vec<ProjectionEffect>) {
        let ProjectionPhase::Running(running) = &mut self.phase else { return };
        match std::mem::replace(&mut running.work, Work::Idle) {
            Work::Looking { envelope, at } => running.on_looked(envelope, at, &page),
            Work::Fetching { envelope, to } => {
                self.stats.fetched += page.records.len() as u64;
                running.on_fetched(envelope, to, page);
            }
            other => running.work = other,
        }
        if let Work::Looking { envelope, at } = &running.work {
            out.push(ProjectionEffect::Read(self.run, envelope.id.clone(), ReadRange::new(*at, *at)));
        }
    }

    fn on_handled(&mut self, now: Instant, handled: Result<(), HandleError>, out: &mut Vec<ProjectionEffect>) {
        let ProjectionPhase::Running(running) = &mut self.phase else { return };
        let Work::Handling { group, reach, tries } = std::mem::replace(&mut running.work, Work::Idle) else { return };
        match handled {
            Ok(()) => {
                self.stats.handled += group.len() as u64;
                self.failures = 0;
                running.progress.reach(reach);
                if self.guarantee == Guarantee::AtLeastOnce {
                    running.unsaved.extend(group.iter().map(processed));
                    running.save_at.get_or_insert(now + self.settings.save_after);
                }
            }
            Err(HandleError::Handler(cause)) if tries < self.settings.tries().get() => {
                let wait = self.settings.backoff.wait(tries, self.rng.random::<f64>());
                running.work = Work::Retrying { group, reach, tries: tries + 1, at: now + wait };
                out.push(ProjectionEffect::Trouble(cause));
            }
            // One event of the group makes the handler fail: hand over each event alone to find it.
            Err(HandleError::Handler(_)) if group.len() > 1 => running.singly.extend(group),
            Err(HandleError::Handler(cause)) => self.on_poison(now, group, reach, cause, out),
            Err(HandleError::Offsets(error)) => self.on_offset_error(now, error, out),
            Err(HandleError::Unknown(cause)) => self.back_off(now, &cause, out),
        }
    }

    fn on_poison(
        &mut self,
        now: Instant,
        group: Vec<Envelope>,
        reach: Position,
        cause: String,
        out: &mut Vec<ProjectionEffect>,
    ) {
        let ProjectionPhase::Running(running) = &mut self.phase else { return };
        let Some(envelope) = group.into_iter().next() else { return };
        match self.settings.on_poison {
            OnPoison::Fail => {
                let (id, seq_nr) = (envelope.id, envelope.seq_nr);
                // Save the events handled before, so that they are not repeated; end even if that save fails.
                if let Some((owned, save)) = self.owned.clone().zip(running.take_unsaved()) {
                    out.push(ProjectionEffect::Save(self.run, owned, save));
                }
                self.end(ProjectionEnd::Poisoned { id, seq_nr, cause }, out);
            }
            OnPoison::Skip => {
                self.stats.skipped += 1;
                running.progress.reach(reach);
                running.unsaved.push(processed(&envelope));
                running.save_at = Some(now);
                out.push(ProjectionEffect::Skipped(Box::new(envelope), cause));
            }
        }
    }

    /// Starts all work that is due.
    fn advance(&mut self, now: Instant, out: &mut Vec<ProjectionEffect>) {
        match &mut self.phase {
            ProjectionPhase::BackingOff { .. } if self.stopping => self.end(ProjectionEnd::Stopped, out),
            ProjectionPhase::BackingOff { until } if *until <= now => self.claim(out),
            ProjectionPhase::Claiming | ProjectionPhase::Loading | ProjectionPhase::Resetting(_) if self.stopping => {
                self.end(ProjectionEnd::Stopped, out);
            }
            ProjectionPhase::Running(_) => {
                self.work(now, out);
                self.save(now, out);
                self.finish_if_idle(out);
            }
            _ => {}
        }
    }

    /// Whether no new work may begin.
    fn is_halting(&self) -> bool {
        self.paused || self.stopping || self.reset
    }

    fn work(&mut self, now: Instant, out: &mut Vec<ProjectionEffect>) {
        loop {
            let is_halting = self.is_halting();
            let ProjectionPhase::Running(running) = &mut self.phase else { return };
            match &mut running.work {
                Work::Retrying { at, .. } if *at <= now => {
                    let Work::Retrying { group, reach, tries, .. } = std::mem::replace(&mut running.work, Work::Idle)
                    else {
                        return;
                    };
                    self.hand_over(group, reach, tries, out);
                    return;
                }
                Work::Idle if !is_halting => {}
                _ => return,
            }
            if let Some(single) = running.singly.pop_front() {
                let reach = single.position;
                self.hand_over(vec![single], reach, 1, out);
                return;
            }
            if running.queue.is_empty() && !self.refill(now, out) {
                return;
            }
            if self.take_group(out) {
                return;
            }
        }
    }

    /// Asks the feed for more, unless it was asked already. Returns whether envelopes came at once.
    fn refill(&mut self, now: Instant, out: &mut Vec<ProjectionEffect>) -> bool {
        let ProjectionPhase::Running(running) = &mut self.phase else { return false };
        if running.asked {
            return false;
        }
        running.asked = true;
        // Every delivered envelope is judged by now, so all places up to here count as reread.
        running.progress.reread(running.feed.reread_to().unwrap_or_default());
        self.feed(now, FollowerInput::Demand, out);
        matches!(&self.phase, ProjectionPhase::Running(running) if !running.queue.is_empty())
    }

    /// Judges envelopes until a group is full or an event must be read first. Returns whether work is
    /// under way now.
    fn take_group(&mut self, out: &mut Vec<ProjectionEffect>) -> bool {
        let limit = self.settings.group.get();
        let ProjectionPhase::Running(running) = &mut self.phase else { return true };
        let (mut group, mut reach) = (Vec::new(), None);
        let mut ask = None;
        while group.len() < limit {
            let Some(envelope) = running.queue.pop_front() else { break };
            let position = envelope.position;
            match running.progress.judge(&envelope) {
                GapDecision::Accept => {
                    running.progress.track(&envelope.id, envelope.seq_nr, position);
                    group.push(envelope);
                }
                GapDecision::Duplicate => self.stats.duplicates += 1,
                GapDecision::Leave => {
                    self.stats.left += 1;
                    running.progress.leave(&envelope);
                }
                GapDecision::Fetch { .. } | GapDecision::Look { .. } if !group.is_empty() => {
                    running.queue.push_front(envelope);
                    break;
                }
                GapDecision::Fetch { from, to } => {
                    ask = Some((envelope.id.clone(), ReadRange::new(from, to)));
                    running.work = Work::Fetching { envelope, to };
                    break;
                }
                GapDecision::Look { at } => {
                    ask = Some((envelope.id.clone(), ReadRange::new(at, at)));
                    running.work = Work::Looking { envelope, at };
                    break;
                }
            }
            reach = reach.max(Some(position));
        }
        match reach {
            Some(reach) if !group.is_empty() => {
                self.hand_over(group, reach, 1, out);
                return true;
            }
            Some(reach) => running.progress.reach(reach),
            None => {}
        }
        let Some((id, range)) = ask else { return false };
        out.push(ProjectionEffect::Read(self.run, id, range));
        true
    }

    fn hand_over(&mut self, group: Vec<Envelope>, reach: Position, tries: u32, out: &mut Vec<ProjectionEffect>) {
        let ProjectionPhase::Running(running) = &mut self.phase else { return };
        out.push(match (self.guarantee, &self.owned) {
            (Guarantee::ExactlyOnce, Some(owned)) => {
                let mut saved: Vec<Processed> = group.iter().map(processed).collect();
                saved.extend(running.progress.mark(Some(reach)));
                ProjectionEffect::Commit(self.run, group.clone(), owned.clone(), saved)
            }
            _ => ProjectionEffect::Handle(self.run, group.clone()),
        });
        running.work = Work::Handling { group, reach, tries };
    }

    fn save(&mut self, now: Instant, out: &mut Vec<ProjectionEffect>) {
        let is_halting = self.is_halting();
        let ProjectionPhase::Running(running) = &mut self.phase else { return };
        let Some(owned) = &self.owned else { return };
        if running.saving {
            return;
        }
        let is_due = running.save_at.is_some_and(|at| at <= now)
            || running.unsaved.len() >= self.settings.save_after_n.get()
            || is_halting;
        if is_due && let Some(save) = running.take_unsaved() {
            running.saving = true;
            out.push(ProjectionEffect::Save(self.run, owned.clone(), save));
        }
        if running.forget_at <= now {
            running.forget_at = now + self.settings.forget_interval;
            if let Some(before) = running.progress.forget() {
                out.push(ProjectionEffect::Forget(owned.clone(), before));
            }
        }
    }

    /// Ends, or starts over, once no group is in the handler and all handled events are saved.
    fn finish_if_idle(&mut self, out: &mut Vec<ProjectionEffect>) {
        let ProjectionPhase::Running(running) = &self.phase else { return };
        let is_quiet = !running.saving && running.unsaved.is_empty() && !matches!(running.work, Work::Handling { .. });
        if !is_quiet {
            return;
        }
        if self.stopping {
            self.end(ProjectionEnd::Stopped, out);
        } else if self.reset {
            self.leave(out);
            self.run += 1;
            let start = self.starts.next();
            let announced = control_rows::announced(&self.id.slices, start, self.caps.kind);
            self.save_start(Resetting::Announcing(start), announced, out);
        }
    }
}
