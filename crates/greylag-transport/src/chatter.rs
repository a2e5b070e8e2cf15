//! Which dropped messages do no harm, because their protocol repeats them.

use greylag_core::DeadLetterReason;

/// How much is made of a dropped message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Weight {
    /// Counted alone.
    Chatter,
    /// Counted and published, and no warning.
    Repeated,
    /// Counted, published, and a warning.
    Missed,
}

/// The declarations, by the beginnings of recipients' paths.
#[derive(Debug, Default)]
pub(crate) struct Declared {
    chatter: Vec<String>,
    repeated: Vec<(String, DeadLetterReason)>,
}

impl Declared {
    /// Declares that messages for these paths are chatter.
    pub(crate) fn chatter(&mut self, prefix: &str) {
        if !self.chatter.iter().any(|known| known == prefix) {
            self.chatter.push(prefix.to_owned());
        }
    }

    /// Declares that messages for these paths are sent again if they are dropped for one of these reasons.
    pub(crate) fn repeated(&mut self, prefix: &str, reasons: &[DeadLetterReason]) {
        for reason in reasons {
            if !self.repeated.iter().any(|(known, for_what)| known == prefix && for_what == reason) {
                self.repeated.push((prefix.to_owned(), *reason));
            }
        }
    }

    /// What a message for this path weighs that was dropped for this reason.
    pub(crate) fn weight(&self, path: &str, reason: DeadLetterReason) -> Weight {
        if self.chatter.iter().any(|prefix| path.starts_with(prefix.as_str())) {
            return Weight::Chatter;
        }
        let mut repeated = self.repeated.iter();
        match repeated.any(|(prefix, for_what)| *for_what == reason && path.starts_with(prefix.as_str())) {
            true => Weight::Repeated,
            false => Weight::Missed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_again_is_weighed_by_path_and_reason() {
        let (late, full) = (DeadLetterReason::NoSuchRecipient, DeadLetterReason::MailboxFull);
        let mut declared = Declared::default();
        for _ in 0..2 {
            declared.chatter("control/gossip");
            declared.chatter("control/heartbeat");
            declared.repeated("ddata/", &[late]);
            declared.repeated("delivery/", &[late, full]);
        }
        assert_eq!((declared.chatter.len(), declared.repeated.len()), (2, 3), "each is kept once");
        for chatter in ["control/gossip", "control/heartbeat"] {
            assert_eq!(declared.weight(chatter, full), Weight::Chatter);
        }
        assert_eq!(declared.weight("ddata/votes", late), Weight::Repeated);
        assert_eq!(declared.weight("ddata/votes", full), Weight::Missed, "a full mailbox there is worth a look");
        assert_eq!(declared.weight("delivery/1", full), Weight::Repeated);
        assert_eq!(declared.weight("inbox", late), Weight::Missed);
    }
}
