//! The consumer controllers of a link: the attached one, the former one, and the one from which the last message came.

use crate::ids::ControllerRef;

/// See the module's documentation.
#[derive(Debug, Clone, Default)]
pub(super) struct Peers {
    consumer: Option<ControllerRef>,
    /// The consumer displaced by the last start-over; its late messages do not count for the new one.
    former: Option<ControllerRef>,
    /// The consumer controller from which the last message came, attached or not.
    speaker: Option<ControllerRef>,
}

impl Peers {
    pub(super) fn is_present(&self, from: &ControllerRef) -> bool {
        self.consumer.as_ref() == Some(from)
    }

    pub(super) fn has_present(&self) -> bool {
        self.consumer.is_some()
    }

    /// The consumer controller that attached last; if none did, the one from which the last message came.
    pub(super) fn last_known(&self) -> Option<&ControllerRef> {
        self.consumer.as_ref().or(self.speaker.as_ref())
    }

    /// The attached consumer controller, unless it is known to be gone.
    pub(super) fn present(&self) -> Option<&ControllerRef> {
        self.consumer.as_ref()
    }

    /// Replaces the present consumer by a registered one.
    pub(super) fn register(&mut self, consumer: ControllerRef) {
        self.consumer = Some(consumer);
    }

    /// Attaches a consumer because of a message from it.
    pub(super) fn attach(&mut self, consumer: &ControllerRef) {
        if !self.is_present(consumer) {
            self.former = self.consumer.replace(consumer.clone()).or(self.former.take());
        }
    }

    /// Removes the present consumer, which is known to be gone.
    pub(super) fn displace(&mut self) {
        self.former = self.consumer.take().or(self.former.take());
    }

    /// Notes a message of a consumer controller. Returns whether the controller is the present one, and whether its
    /// messages count (those of a displaced one do not). If the repeats after a start-over were left `unanswered`, a
    /// displaced controller becomes the present one again: the event of a move may arrive after the new consumer
    /// attached, and a late message of a dead consumer may have displaced a living one.
    pub(super) fn on_message(&mut self, from: &ControllerRef, unanswered: bool) -> (bool, bool) {
        if unanswered && self.former.as_ref() == Some(from) {
            std::mem::swap(&mut self.consumer, &mut self.former);
        }
        if self.speaker.as_ref() != Some(from) {
            self.speaker = Some(from.clone());
        }
        let is_former = self.former.as_ref() == Some(from);
        let is_present = match &self.consumer {
            Some(consumer) => consumer == from,
            None => !is_former,
        };
        (is_present, is_present || !is_former)
    }
}
