//! Declarations of dropped messages that do no harm because their protocol repeats them.

use greylag_core::DeadLetterReason;

/// How loudly a dropped message is reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReportLevel {
    /// Counted only.
    Count,
    /// Counted and published, without a warning.
    Publish,
    /// Counted, published, and logged as a warning.
    Warn,
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
    pub(crate) fn report_level(&self, (path, manifest): (&str, &str), reason: DeadLetterReason) -> ReportLevel {
        if self.chatter.iter().any(|prefix| path.starts_with(prefix.as_str())) {
            return ReportLevel::Count;
        }
        let is_meant = |known: &Repeated| {
            known.reason == reason
                && path.starts_with(known.prefix.as_str())
                && known.manifest.as_deref().is_none_or(|known| known == manifest)
        };
        if self.repeated.iter().any(is_meant) { ReportLevel::Publish } else { ReportLevel::Warn }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_level_depends_on_path_and_reason() {
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
            assert_eq!(declared.report_level((chatter, "m"), full), ReportLevel::Count);
        }
        assert_eq!(declared.report_level(("ddata/votes", "m"), late), ReportLevel::Publish);
        assert_eq!(
            declared.report_level(("ddata/votes", "m"), full),
            ReportLevel::Warn,
            "a full mailbox there is worth a look"
        );
        assert_eq!(declared.report_level(("delivery/1", "m"), full), ReportLevel::Publish);
        assert_eq!(declared.report_level(("inbox", "m"), late), ReportLevel::Warn);
        assert_eq!(declared.report_level(("sharding/cart/7", "mark"), late), ReportLevel::Publish);
        assert_eq!(
            declared.report_level(("sharding/cart/7", "order"), late),
            ReportLevel::Warn,
            "a user's message there"
        );
    }
}
