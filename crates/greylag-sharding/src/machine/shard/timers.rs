//! Everything that falls due in a shard: timers, receive timeouts, deadlines of stops, and warnings of long operations.
//!
//! Source: sharding §4.3 (suspend_warn_after), §4.4, §4.5 (stop requests that are ignored).

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use greylag_persistence::IdleTimer;

use super::protocol::{Effect, Ended, Overdue, SlotId, TimerChange, Weigh};
use super::slab::{Item, Phase, ReceiveTimeout, StartDelay, Timer};
use super::wheel::Wheel;
use super::{Life, Shard};
use crate::host::Suspension;
use crate::ids::EntityId;

/// Resolution of the time at which an entity was last active.
pub(super) const TOUCH_TICK: Duration = Duration::from_millis(10);

/// How long an entity, or a shard, may take to stop before a warning. Source: sharding §4.5.
pub const STOP_WARN_AFTER: Duration = Duration::from_secs(5);

/// How many of a stopping shard's entities are named then. Source: sharding §2.9.
const NAMED_OVERDUE: usize = 5;

/// An item of a shard's wheel. All items of an incarnation are removed when it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Due {
    Timer {
        slot: u32,
        serial: u64,
    },
    /// Check whether the entity has handled no message for its receive timeout.
    ReceiveTimeout(u32),
    /// Warn that the entity has been suspended for long.
    Suspension(u32),
    /// Warn that the entity takes long to stop.
    StopWarning(u32),
}

/// The items that fall due, and the time as the shard knows it.
#[derive(Debug)]
pub(super) struct Timers {
    pub(super) wheel: Wheel<Due>,
    serial: u64,
    /// Deadlines of stopping and held entities.
    deadlines: BTreeSet<(Instant, u32)>,
    started_at: Instant,
    /// Now, in ticks since the start.
    tick: u32,
}

impl Timers {
    pub(super) fn new(resolution: Duration, now: Instant) -> Self {
        Self { wheel: Wheel::new(resolution, now), serial: 0, deadlines: BTreeSet::new(), started_at: now, tick: 0 }
    }

    /// Sets the present time.
    pub(super) fn observe(&mut self, now: Instant) {
        let ticks = now.saturating_duration_since(self.started_at).as_millis() / TOUCH_TICK.as_millis();
        self.tick = u32::try_from(ticks).unwrap_or(u32::MAX);
    }

    /// Now, in ticks since the start.
    pub(super) fn tick(&self) -> u32 {
        self.tick
    }

    /// When the shard was made.
    pub(super) fn started_at(&self) -> Instant {
        self.started_at
    }

    /// When the tick `tick` begins.
    pub(super) fn instant_of(&self, tick: u32) -> Option<Instant> {
        self.started_at.checked_add(TOUCH_TICK.saturating_mul(tick))
    }

    /// When the first item of the wheel, or deadline of an entity, is due.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let deadline = self.deadlines.first().map(|(at, _)| *at);
        self.wheel.next_deadline().into_iter().chain(deadline).min()
    }

    /// Sets a deadline of the entity.
    pub(super) fn set_deadline(&mut self, due: Instant, at: u32) {
        self.deadlines.insert((due, at));
    }

    /// Removes a deadline of the entity.
    pub(super) fn end_deadline(&mut self, due: Instant, at: u32) {
        self.deadlines.remove(&(due, at));
    }

    /// Takes the first deadline that has come.
    fn take_deadline(&mut self, now: Instant) -> Option<(Instant, u32)> {
        self.deadlines.first().is_some_and(|(due, _)| *due <= now).then(|| self.deadlines.pop_first()).flatten()
    }

    fn next_serial(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }
}

impl<E, P: Weigh> Shard<E, P> {
    pub(super) fn on_tick(&mut self, now: Instant, out: &mut Vec<Effect<E, P>>) {
        self.observe(now);
        for due in self.timers.wheel.take_due(now) {
            self.on_due(now, due, out);
        }
        while let Some((due, at)) = self.timers.take_deadline(now) {
            self.on_deadline(now, at, due, out);
        }
        self.on_stopping_tick(now, out);
        self.on_store_tick(now, out);
        self.passivating.idle.on_tick(self.timers.tick());
    }

    fn on_stopping_tick(&mut self, now: Instant, out: &mut Vec<Effect<E, P>>) {
        let Life::Stopping { next, deadline, warn_at } = self.life else { return };
        if deadline <= now {
            let next = self.table.bound();
            self.life = Life::Stopping { next, deadline, warn_at: None };
            self.end_all(now, Ended::Forced, out);
        } else if warn_at.is_some_and(|warn_at| warn_at <= now) {
            self.life = Life::Stopping { next, deadline, warn_at: None };
            let left = (0..self.table.bound()).filter_map(|at| self.table.get(at).id.clone());
            let ids: Vec<EntityId> = left.take(NAMED_OVERDUE).collect();
            if !ids.is_empty() {
                out.push(Effect::StopOverdue { entities: self.table.live(), ids });
            }
        }
    }

    fn on_due(&mut self, now: Instant, due: Due, out: &mut Vec<Effect<E, P>>) {
        let (at, what) = match due {
            Due::Timer { slot, serial } => return self.on_timer(slot, serial),
            Due::ReceiveTimeout(slot) => return self.on_receive_timeout(now, slot),
            Due::Suspension(slot) => {
                self.table.get_mut(slot).suspended = None;
                (slot, Overdue::Suspension)
            }
            Due::StopWarning(slot) => {
                if let Some(extra) = self.table.get_mut(slot).existing() {
                    extra.stop_warning = None;
                }
                (slot, Overdue::Stop)
            }
        };
        out.extend(self.table.get(at).id.clone().map(|id| Effect::Overdue { id, what }));
    }

    // --- timers ---

    pub(super) fn change_timer(&mut self, at: u32, change: TimerChange<P>) {
        let key = match &change {
            TimerChange::Set { key, .. } | TimerChange::Cancel(key) => *key,
        };
        let slot = self.table.get_mut(at);
        if let Some(extra) = slot.existing()
            && let Some(known) = extra.timers.iter().position(|timer| timer.key == key)
            && let Some(place) = extra.timers.swap_remove(known).place
        {
            self.timers.wheel.remove(place);
        }
        if let TimerChange::Set { key, at: due, payload, influences } = change {
            let serial = self.timers.next_serial();
            let place = Some(self.timers.wheel.insert(due, Due::Timer { slot: at, serial }));
            slot.extra().timers.push(Timer { key, serial, place, payload, influences });
        }
    }

    fn on_timer(&mut self, at: u32, serial: u64) {
        let timers = self.table.get_mut(at).existing().map(|extra| &mut extra.timers);
        if let Some(timer) = timers.into_iter().flatten().find(|timer| timer.serial == serial) {
            timer.place = None;
            self.enqueue_internal(at, Item::Timer(serial));
        }
    }

    /// Hands an entity the message of a timer whose turn has come. False if the timer was cancelled or replaced
    /// meanwhile.
    pub(super) fn run_timer(&mut self, now: Instant, at: u32, serial: u64, out: &mut Vec<Effect<E, P>>) -> bool {
        let slot = self.table.get_mut(at);
        let Some(timers) = slot.existing().map(|extra| &mut extra.timers) else { return false };
        let Some(of) = timers.iter().position(|timer| timer.serial == serial) else { return false };
        let timer = timers.swap_remove(of);
        if timer.influences {
            slot.restart_receive_timeout(now);
        }
        out.push(Effect::Run { slot: SlotId(at), payload: timer.payload });
        self.count_internal(at);
        true
    }

    /// Counts a timer or silence of the entity as activity, if the settings say so.
    fn count_internal(&mut self, at: u32) {
        if self.settings.passivation.count_internal {
            let tick = self.timers.tick();
            let slot = self.table.get_mut(at);
            slot.touched = tick;
            if !slot.stop_requested {
                self.touch(at);
            }
        }
    }

    // --- receive timeout ---

    /// Sets or removes the receive timeout of the entity.
    pub(super) fn set_receive_timeout(&mut self, now: Instant, at: u32, after: Option<Duration>) {
        let slot = self.table.get_mut(at);
        let before = slot.existing().and_then(|extra| extra.receive_timeout.take());
        if let Some(place) = before.and_then(|before| before.place) {
            self.timers.wheel.remove(place);
        }
        if let Some(after) = after {
            slot.extra().receive_timeout = Some(ReceiveTimeout { idle: IdleTimer::new(after, now), place: None });
            self.schedule_receive_timeout(at);
        }
    }

    /// Schedules a check of the entity's silence.
    fn schedule_receive_timeout(&mut self, at: u32) {
        let Some(extra) = self.table.get_mut(at).existing() else { return };
        if let Some(receive) = &mut extra.receive_timeout
            && let Some(due_at) = receive.idle.due_at()
        {
            receive.place = Some(self.timers.wheel.insert(due_at, Due::ReceiveTimeout(at)));
        }
    }

    fn on_receive_timeout(&mut self, now: Instant, at: u32) {
        let Some(extra) = self.table.get_mut(at).existing() else { return };
        let Some(receive) = &mut extra.receive_timeout else { return };
        receive.place = None;
        if receive.idle.is_due(now) {
            self.enqueue_internal(at, Item::ReceiveTimeout);
        } else {
            self.schedule_receive_timeout(at);
        }
    }

    /// Tells an entity of a silence whose turn has come, and begins the next silence. False if the receive timeout was
    /// cancelled, or a message was handled meanwhile.
    pub(super) fn notify_receive_timeout(&mut self, now: Instant, at: u32, out: &mut Vec<Effect<E, P>>) -> bool {
        let Some(extra) = self.table.get_mut(at).existing() else { return false };
        // A receive timeout that is watched was set after this silence was queued.
        let Some(receive) = extra.receive_timeout.as_mut().filter(|receive| receive.place.is_none()) else {
            return false;
        };
        let is_due = receive.idle.is_due(now);
        if is_due {
            receive.idle.restart(now);
            out.push(Effect::NotifyReceiveTimeout { slot: SlotId(at) });
            self.count_internal(at);
        }
        self.schedule_receive_timeout(at);
        is_due
    }

    // --- suspensions and stops that take long ---

    pub(super) fn begin_suspension(&mut self, now: Instant, at: u32, suspension: Suspension) {
        let warn_at = now.checked_add(self.settings.runtime.suspend_warn_after);
        let slot = self.table.get_mut(at);
        slot.phase = Phase::Suspended(suspension);
        let place = warn_at.map(|warn_at| self.timers.wheel.insert(warn_at, Due::Suspension(at)));
        if let Some(before) = std::mem::replace(&mut slot.suspended, place) {
            self.timers.wheel.remove(before);
        }
        if let Some(receive) = slot.existing().and_then(|extra| extra.receive_timeout.as_mut()) {
            receive.idle.pause(now);
            if let Some(place) = receive.place.take() {
                self.timers.wheel.remove(place);
            }
        }
    }

    pub(super) fn end_suspension(&mut self, now: Instant, at: u32) {
        let slot = self.table.get_mut(at);
        slot.phase = Phase::Active;
        if let Some(place) = slot.suspended.take() {
            self.timers.wheel.remove(place);
        }
        if let Some(receive) = slot.existing().and_then(|extra| extra.receive_timeout.as_mut()) {
            receive.idle.resume(now);
            self.schedule_receive_timeout(at);
        }
    }

    /// Schedules a warning in case the entity has not stopped by then.
    pub(super) fn warn_of_stop(&mut self, now: Instant, at: u32) {
        let place = self.timers.wheel.insert(now + STOP_WARN_AFTER, Due::StopWarning(at));
        if let Some(before) = self.table.get_mut(at).extra().stop_warning.replace(place) {
            self.timers.wheel.remove(before);
        }
    }

    /// Removes the wheel items of an incarnation that ends. The stop deadline and the successor's hold are removed
    /// elsewhere.
    pub(super) fn forget_times(&mut self, at: u32) {
        let slot = self.table.get_mut(at);
        if let Some(place) = slot.suspended.take() {
            self.timers.wheel.remove(place);
        }
        let Some(extra) = slot.existing() else { return };
        let silence = extra.receive_timeout.take().and_then(|receive| receive.place);
        let own = [silence, extra.stop_warning.take()];
        let timers = extra.timers.drain(..).map(|timer| timer.place);
        own.into_iter().chain(timers).flatten().for_each(|place| self.timers.wheel.remove(place));
    }

    // --- deadlines ---

    fn on_deadline(&mut self, now: Instant, at: u32, due: Instant, out: &mut Vec<Effect<E, P>>) {
        let slot = self.table.get_mut(at);
        let Some(extra) = slot.existing() else { return };
        if extra.stop_deadline == Some(due) {
            extra.stop_deadline = None;
            self.end(now, at, Ended::Forced, out);
        } else if let Some((_, why)) = extra.held.take_if(|(until, _)| *until == due) {
            slot.phase = Phase::Absent;
            if slot.has_queue() {
                self.make_ready(at);
            } else if self.life != Life::Serving {
                self.free(at);
            } else if why == StartDelay::GivenUp {
                self.table.get_mut(at).phase = Phase::Held;
            } else if why == StartDelay::Backoff || self.remembers() {
                self.begin_start(now, at, None, out);
            } else {
                self.free(at);
            }
        }
    }
}
