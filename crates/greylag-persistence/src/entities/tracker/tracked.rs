//! A tracker together with its send function, as a behaviour lends it to the machine of its entity.
//!
//! The machine knows neither destinations nor messages, so both types are hidden behind [`Tracked`].

use std::fmt;
use std::time::Instant;

use super::{DeliveryId, DeliveryTracker, TrackerEffect, TrackerInput, UnconfirmedWarning};

/// One attempt at one delivery.
#[derive(Debug)]
pub struct DeliveryAttempt<'a, D, M> {
    /// Id of the delivery. It should travel with the message, so that the receiver can recognize a repeat and
    /// confirm the delivery.
    pub id: DeliveryId,
    /// Number of the attempt in this incarnation of the entity, from 1.
    pub number: u32,
    /// The destination.
    pub dest: &'a D,
    /// The message to send.
    pub message: &'a M,
}

/// The tracker that [`EventSourced::tracker`](crate::EventSourced::tracker) lends to the machine.
pub struct Tracked<'a>(Box<dyn Driven + 'a>);

impl<D, M> DeliveryTracker<D, M> {
    /// This tracker, sending by `send`. `send` must not wait, like any handler; a message that it cannot send now
    /// will come again.
    pub fn send_by<'a>(&'a mut self, send: impl FnMut(DeliveryAttempt<'_, D, M>) + 'a) -> Tracked<'a> {
        Tracked(Box::new(SendBy { tracker: self, send }))
    }
}

impl Tracked<'_> {
    /// Passes an input to the tracker, and sends the deliveries that it asks for.
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
