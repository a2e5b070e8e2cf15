//! Declarations of dropped messages that do no harm because their protocol repeats them.

use greylag_core::DeadLetterReason;

/// How loudly a dropped message is reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Weight {
    /// Counted only.
    Chatter,
    /// Counted and published, without a warning.
    Repeated,
    /// Counted, published, and logged as a warning.
    Missed,
}

/// A declaration that messages of paths with this prefix (all, or those of one manifest) are sent again if they are
/// dropped for this reason.
#[derive(Debug, PartialEq, Eq)]
struct Repeated {
    prefix: String,
    manifest: Option<String>,
    reason: DeadLetterReason,
}

/// The declarations, by the beginnings of recipients' paths.
#[derive(Debug, Default)]
pub(crate) struct Declared {
    chatter: Vec<String>,
    repeated: Vec<Repeated>,
}

impl Declared {
    /// Declares that messages for these paths are chatter.
    pub(crate) fn chatter(&mut self, prefix: &str) {
        if !self.chatter.iter().any(|known| known == prefix) {
            self.chatter.push(prefix.to_owned());
        }
    }

    /// Declares that messages for these paths, all of them or those of one manifest, are sent again if they are dropped
    /// for one of these reasons.
    pub(crate) fn repeated(&mut self, prefix: &str, manifest: Option<&str>, reasons: &[DeadLetterReason]) {
        for reason in reasons {
            let new =
                Repeated { prefix: prefix.to_owned(), manifest: manifest.map(ToOwned::to_owned), reason: *reason };
            if !self.repeated.contains(&new) {
                self.repeated.push(new);
            }
        }
    }

    /// How loudly to report a message of this path and manifest that was dropped for this reason.
    pub(crate) fn weight(&self, (path, manifest): (&str, &str), reason: DeadLetterReason) -> Weight {
        if self.chatter.iter().any(|prefix| path.starts_with(prefix.as_str())) {
            return Weight::Chatter;
        }
        let is_meant = |known: &Repeated| {
            known.reason == reason
                && path.starts_with(known.prefix.as_str())
                && known.manifest.as_deref().is_none_or(|known| known == manifest)
        };
        if self.repeated.iter().any(is_meant) { Weight::Repeated } else { Weight::Missed }
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
            declared.repeated("ddata/", None, &[late]);
            declared.repeated("delivery/", None, &[late, full]);
            declared.repeated("sharding/", Some("mark"), &[late]);
        }
        assert_eq!((declared.chatter.len(), declared.repeated.len()), (2, 4), "each is kept once");
        for chatter in ["control/gossip", "control/heartbeat"] {
            assert_eq!(declared.weight((chatter, "m"), full), Weight::Chatter);
        }
        assert_eq!(declared.weight(("ddata/votes", "m"), late), Weight::Repeated);
        assert_eq!(declared.weight(("ddata/votes", "m"), full), Weight::Missed, "a full mailbox there is worth a look");
        assert_eq!(declared.weight(("delivery/1", "m"), full), Weight::Repeated);
        assert_eq!(declared.weight(("inbox", "m"), late), Weight::Missed);
        assert_eq!(declared.weight(("sharding/cart/7", "mark"), late), Weight::Repeated);
        assert_eq!(declared.weight(("sharding/cart/7", "order"), late), Weight::Missed, "a user's message there");
    }
}
