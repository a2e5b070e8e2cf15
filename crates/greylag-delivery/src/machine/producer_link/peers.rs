//! The consumer controllers at the other end of a link: the present one, the one before, and whoever spoke last.

use crate::ids::ControllerRef;

/// See the module's documentation.
#[derive(Debug, Clone, Default)]
pub(super) struct Peers {
    consumer: Option<ControllerRef>,
    /// The consumer that the last start-over displaced; its late words say nothing of the new one.
    former: Option<ControllerRef>,
    /// The consumer controller that spoke last, attached or not.
    speaker: Option<ControllerRef>,
}

impl Peers {
    pub(super) fn is_present(&self, from: &ControllerRef) -> bool {
        self.consumer.as_ref() == Some(from)
    }

    pub(super) fn has_present(&self) -> bool {
        self.consumer.is_some()
    }

    /// The consumer controller that attached last; if none did, the one that spoke last.
    pub(super) fn last_known(&self) -> Option<&ControllerRef> {
        self.consumer.as_ref().or(self.speaker.as_ref())
    }

    /// The consumer controller that is present, if one has attached since the last one was known to be gone.
    pub(super) fn present(&self) -> Option<&ControllerRef> {
        self.consumer.as_ref()
    }

    /// A consumer that is registered takes the place of another one.
    pub(super) fn register(&mut self, consumer: ControllerRef) {
        self.consumer = Some(consumer);
    }

    /// A consumer attached by what it said.
    pub(super) fn attach(&mut self, consumer: &ControllerRef) {
        if !self.is_present(consumer) {
            self.former = self.consumer.replace(consumer.clone()).or(self.former.take());
        }
    }

    /// The present consumer is known to be gone.
    pub(super) fn displace(&mut self) {
        self.former = self.consumer.take().or(self.former.take());
    }

    /// A consumer controller spoke. Returns whether it is the present one, and whether its messages count, as those of a
    /// displaced one do not. If the repeats after a start-over were left `unanswered`, a displaced controller that speaks
    /// becomes the present one again: news of a move may come after the new consumer attached, and a late message of a dead
    /// consumer may have displaced a living one.
    pub(super) fn heard(&mut self, from: &ControllerRef, unanswered: bool) -> (bool, bool) {
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
