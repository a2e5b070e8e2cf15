//! A tracker together with the way out, as a behaviour lends it to the machine of its entity.
//!
//! The machine knows neither destinations nor messages, so both stay behind this.

use std::fmt;
use std::time::Instant;

use super::{DeliveryId, DeliveryTracker, TrackerEffect, TrackerInput, UnconfirmedWarning};

/// One attempt at one delivery.
#[derive(Debug)]
pub struct DeliveryAttempt<'a, D, M> {
    /// Which delivery. It should travel with the message, for the receiver to know it again and to
    /// confirm it.
    pub id: DeliveryId,
    /// 1 for the first in this life of the entity.
    pub number: u32,
    /// Where it goes.
    pub dest: &'a D,
    /// What is to be sent.
    pub message: &'a M,
}

/// What [`EventSourced::tracker`](crate::EventSourced::tracker) lends to the machine.
pub struct Tracked<'a>(Box<dyn Driven + 'a>);

impl<D, M> DeliveryTracker<D, M> {
    /// This tracker, sending by `send`. That must not wait, as any handler; what it cannot send now
    /// will come again.
    pub fn send_by<'a>(&'a mut self, send: impl FnMut(DeliveryAttempt<'_, D, M>) + 'a) -> Tracked<'a> {
        Tracked(Box::new(SendBy { tracker: self, send }))
    }
}

impl Tracked<'_> {
    /// Tells the tracker, and sends what it wants sent.
    pub fn handle(&mut self, now: Instant, input: TrackerInput) -> Option<UnconfirmedWarning> {
        self.0.handle(now, input)
    }

    /// As [`DeliveryTracker::next_deadline`].
    pub fn next_deadline(&self) -> Option<Instant> {
        self.0.next_deadline()
    }
}

impl fmt::Debug for Tracked<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tracked").field("next_deadline", &self.next_deadline()).finish_non_exhaustive()
    }
}

trait Driven {
    fn handle(&mut self, now: Instant, input: TrackerInput) -> Option<UnconfirmedWarning>;

    fn next_deadline(&self) -> Option<Instant>;
}

struct SendBy<'a, D, M, F> {
    tracker: &'a mut DeliveryTracker<D, M>,
    send: F,
}

impl<D, M, F: FnMut(DeliveryAttempt<'_, D, M>)> Driven for SendBy<'_, D, M, F> {
    fn handle(&mut self, now: Instant, input: TrackerInput) -> Option<UnconfirmedWarning> {
        let (mut effects, mut warning) = (Vec::new(), None);
        self.tracker.handle(now, input, &mut effects);
        for effect in effects {
            match effect {
                TrackerEffect::Send { id, attempt: number } => {
                    if let Some((dest, message)) = self.tracker.get(id) {
                        (self.send)(DeliveryAttempt { id, number, dest, message });
                    }
                }
                TrackerEffect::Warn(unconfirmed) => warning = Some(unconfirmed),
            }
        }
        warning
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.tracker.next_deadline()
    }
}
