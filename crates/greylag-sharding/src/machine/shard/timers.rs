//! Everything that falls due in a shard: timers, receive timeouts, deadlines of stops, and warnings of long operations.
//!
//! What is known of one entity's times lies in its slot; [`Timers`] keeps the wheel and the deadlines in step with it.
//!
//! Source: sharding §4.3 (suspend_warn_after), §4.4, §4.5 (stop requests that are ignored).

mod repeats;
mod wheel;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use greylag_persistence::IdleTimer;

pub(crate) use self::repeats::{Fired, RepeatSpec, Repeats};
pub(super) use self::wheel::TimerPlace;
use self::wheel::Wheel;
use super::protocol::TimerChange;
use super::table::{IncarnationPhase, ReceiveTimeout, Slot, StartDelay, Timer};
use crate::host::Suspension;

/// Resolution of the time at which an entity was last active.
pub(super) const TOUCH_TICK: Duration = Duration::from_millis(10);

/// How long an entity, or a shard, may take to stop before a warning. Source: sharding §4.5.
pub const STOP_WARN_AFTER: Duration = Duration::from_secs(5);

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
    wheel: Wheel<Due>,
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

    pub(super) fn check_invariants(&self) {
        self.wheel.check_invariants();
    }

    /// Whether this deadline of the entity is set.
    pub(super) fn has_deadline(&self, due: Instant, at: u32) -> bool {
        self.deadlines.contains(&(due, at))
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
    pub(super) fn take_deadline(&mut self, now: Instant) -> Option<(Instant, u32)> {
        self.deadlines.first().is_some_and(|(due, _)| *due <= now).then(|| self.deadlines.pop_first()).flatten()
    }

    fn next_serial(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    /// Takes out the items of the wheel that are due.
    pub(super) fn take_due(&mut self, now: Instant) -> Vec<Due> {
        self.wheel.take_due(now)
    }

    /// Sets or cancels a timer of the entity.
    pub(super) fn change<E, P>(&mut self, at: u32, slot: &mut Slot<E, P>, change: TimerChange<P>) {
        let key = match &change {
            TimerChange::Set { key, .. } | TimerChange::Cancel(key) => *key,
        };
        if let Some(extra) = slot.existing()
            && let Some(known) = extra.timers.iter().position(|timer| timer.key == key)
            && let Some(place) = extra.timers.swap_remove(known).place
        {
            self.wheel.remove(place);
        }
        if let TimerChange::Set { key, at: due, payload, influences } = change {
            let serial = self.next_serial();
            let place = Some(self.wheel.insert(due, Due::Timer { slot: at, serial }));
            slot.extra().timers.push(Timer { key, serial, place, payload, influences });
        }
    }

    /// Sets or removes the receive timeout of the entity.
    pub(super) fn set_receive_timeout<E, P>(
        &mut self,
        now: Instant,
        at: u32,
        slot: &mut Slot<E, P>,
        after: Option<Duration>,
    ) {
        let before = slot.existing().and_then(|extra| extra.receive_timeout.take());
        if let Some(place) = before.and_then(|before| before.place) {
            self.wheel.remove(place);
        }
        if let Some(after) = after {
            slot.extra().receive_timeout = Some(ReceiveTimeout { idle: IdleTimer::new(after, now), place: None });
            self.schedule_receive_timeout(at, slot);
        }
    }

    /// Schedules a check of the entity's silence.
    fn schedule_receive_timeout<E, P>(&mut self, at: u32, slot: &mut Slot<E, P>) {
        let Some(extra) = slot.existing() else { return };
        if let Some(receive) = &mut extra.receive_timeout
            && let Some(due_at) = receive.idle.due_at()
        {
            receive.place = Some(self.wheel.insert(due_at, Due::ReceiveTimeout(at)));
        }
    }

    /// Checks the entity's silence. Returns whether it is too long; otherwise it is checked again.
    pub(super) fn on_receive_timeout<E, P>(&mut self, now: Instant, at: u32, slot: &mut Slot<E, P>) -> bool {
        let Some(receive) = slot.existing().and_then(|extra| extra.receive_timeout.as_mut()) else { return false };
        receive.place = None;
        let is_due = receive.idle.is_due(now);
        if !is_due {
            self.schedule_receive_timeout(at, slot);
        }
        is_due
    }

    /// Ends a silence whose turn to be told has come, and begins the next one. False if the receive timeout was
    /// cancelled, or a message was handled meanwhile.
    pub(super) fn end_silence<E, P>(&mut self, now: Instant, at: u32, slot: &mut Slot<E, P>) -> bool {
        let Some(extra) = slot.existing() else { return false };
        // A receive timeout that is watched was set after this silence was queued.
        let Some(receive) = extra.receive_timeout.as_mut().filter(|receive| receive.place.is_none()) else {
            return false;
        };
        let is_due = receive.idle.is_due(now);
        if is_due {
            receive.idle.restart(now);
        }
        self.schedule_receive_timeout(at, slot);
        is_due
    }

    /// The entity waits for asynchronous work: a warning is due after `warn_after`, and its silence is paused.
    pub(super) fn begin_suspension<E, P>(
        &mut self,
        now: Instant,
        at: u32,
        slot: &mut Slot<E, P>,
        (suspension, warn_after): (Suspension, Duration),
    ) {
        slot.phase = IncarnationPhase::Suspended(suspension);
        let warn_at = now.checked_add(warn_after);
        let place = warn_at.map(|warn_at| self.wheel.insert(warn_at, Due::Suspension(at)));
        if let Some(before) = std::mem::replace(&mut slot.suspended, place) {
            self.wheel.remove(before);
        }
        if let Some(receive) = slot.existing().and_then(|extra| extra.receive_timeout.as_mut()) {
            receive.idle.pause(now);
            if let Some(place) = receive.place.take() {
                self.wheel.remove(place);
            }
        }
    }

    /// The entity goes on with its messages.
    pub(super) fn end_suspension<E, P>(&mut self, now: Instant, at: u32, slot: &mut Slot<E, P>) {
        slot.phase = IncarnationPhase::Active;
        if let Some(place) = slot.suspended.take() {
            self.wheel.remove(place);
        }
        if let Some(receive) = slot.existing().and_then(|extra| extra.receive_timeout.as_mut()) {
            receive.idle.resume(now);
            self.schedule_receive_timeout(at, slot);
        }
    }

    /// Schedules a warning in case the entity has not stopped by then.
    pub(super) fn warn_of_stop<E, P>(&mut self, now: Instant, at: u32, slot: &mut Slot<E, P>) {
        let place = self.wheel.insert(now + STOP_WARN_AFTER, Due::StopWarning(at));
        if let Some(before) = slot.extra().stop_warning.replace(place) {
            self.wheel.remove(before);
        }
    }

    /// Starts no incarnation before `until`.
    pub(super) fn hold<E, P>(&mut self, at: u32, slot: &mut Slot<E, P>, until: Instant, why: StartDelay) {
        slot.phase = IncarnationPhase::Held;
        slot.extra().held = Some((until, why));
        self.set_deadline(until, at);
    }

    /// Lets a message start a held entity, if the hold allows it.
    pub(super) fn wake_held<E, P>(&mut self, at: u32, slot: &mut Slot<E, P>) {
        if slot.phase != IncarnationPhase::Held {
            return;
        }
        let held = slot.existing().and_then(|extra| extra.held);
        if matches!(held, Some((_, StartDelay::Stopped)) | None) {
            slot.phase = IncarnationPhase::Absent;
            if let Some((until, _)) = slot.existing().and_then(|extra| extra.held.take()) {
                self.end_deadline(until, at);
            }
        }
    }

    /// Removes the wheel items of an incarnation that ends. The stop deadline and the successor's hold are removed
    /// elsewhere.
    pub(super) fn forget<E, P>(&mut self, slot: &mut Slot<E, P>) {
        if let Some(place) = slot.suspended.take() {
            self.wheel.remove(place);
        }
        let Some(extra) = slot.existing() else { return };
        let silence = extra.receive_timeout.take().and_then(|receive| receive.place);
        let own = [silence, extra.stop_warning.take()];
        let timers = extra.timers.drain(..).map(|timer| timer.place);
        own.into_iter().chain(timers).flatten().for_each(|place| self.wheel.remove(place));
    }
}

/// Notes that a timer of the entity fell due. Returns whether the entity still has the timer.
pub(super) fn note_due<E, P>(slot: &mut Slot<E, P>, serial: u64) -> bool {
    let timers = slot.existing().map(|extra| &mut extra.timers);
    let timer = timers.into_iter().flatten().find(|timer| timer.serial == serial);
    timer.map(|timer| timer.place = None).is_some()
}

/// Takes a timer whose turn has come. `None` if the timer was cancelled or replaced meanwhile.
pub(super) fn take_timer<E, P>(slot: &mut Slot<E, P>, serial: u64) -> Option<Timer<P>> {
    let timers = slot.existing().map(|extra| &mut extra.timers)?;
    let of = timers.iter().position(|timer| timer.serial == serial)?;
    Some(timers.swap_remove(of))
}
