//! Settings of the journal that a node opens by itself.
//!
//! Source: persistence §9.

use std::time::Duration;

use greylag_persistence::{BreakerSettings, SettingsError};

/// How much longer than the journal's own timeouts its breakers wait, so that the journal answers first.
#[cfg(any(feature = "journal-postgres", feature = "journal-service"))]
const ANSWER_MARGIN: Duration = Duration::from_secs(2);

/// The kind of journal of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum JournalKind {
    /// The stores given by [`NodeBuilder::stores`](crate::NodeBuilder::stores), if any.
    #[default]
    Program,
    /// A directory of this node; needs feature `journal-sled`.
    Sled,
    /// A database that every node reaches; needs feature `journal-postgres`.
    Postgres,
    /// A process that serves its journal to every node; needs feature `journal-service`.
    Service,
}

/// The journal that the node opens, and its settings.
#[derive(Debug, Clone)]
pub struct JournalSettings {
    /// `persistence.journal`. Stores given by the program win over it.
    pub kind: JournalKind,
    /// `persistence.breaker.*`: when calls to the journal and to durable states are refused at once. The breaker waits
    /// for a call at least as long as the journal itself does, whatever `call_timeout` says: otherwise the outcome of
    /// an append that was never sent would be unknown, although the journal knows that it is not stored.
    pub breaker: BreakerSettings,
    /// `persistence.snapshot_breaker.*`: the same for snapshots.
    pub snapshot_breaker: BreakerSettings,
    /// `persistence.sled.*`.
    #[cfg(feature = "journal-sled")]
    pub sled: SledJournalPlace,
    /// `persistence.pg.*`.
    #[cfg(feature = "journal-postgres")]
    pub pg: PostgresJournalPlace,
    /// `persistence.service.*`.
    #[cfg(feature = "journal-service")]
    pub service: ServiceJournalPlace,
}

impl Default for JournalSettings {
    fn default() -> Self {
        Self {
            kind: JournalKind::default(),
            breaker: BreakerSettings::default(),
            snapshot_breaker: BreakerSettings::snapshots(),
            #[cfg(feature = "journal-sled")]
            sled: SledJournalPlace::default(),
            #[cfg(feature = "journal-postgres")]
            pg: PostgresJournalPlace::default(),
            #[cfg(feature = "journal-service")]
            service: ServiceJournalPlace::default(),
        }
    }
}

/// A journal on the disk of the node.
#[cfg(feature = "journal-sled")]
#[derive(Debug, Clone, Default)]
pub struct SledJournalPlace {
    /// Directory of the journal, used by this node alone.
    pub dir: std::path::PathBuf,
    /// Settings of the journal.
    pub settings: greylag_journal_sled::SledJournalSettings,
}

/// A journal in a database.
#[cfg(feature = "journal-postgres")]
#[derive(Debug, Clone, Default)]
pub struct PostgresJournalPlace {
    /// Connection string as for libpq, key words or a URL, with `sslmode` and its files.
    pub url: super::leases::Secret,
    /// A file with the password, if `url` has none. Default none.
    pub password_file: Option<std::path::PathBuf>,
    /// Settings of the journal.
    pub settings: greylag_journal_postgres::PostgresJournalSettings,
}

/// A journal that another process serves.
#[cfg(feature = "journal-service")]
#[derive(Debug, Clone, Default)]
pub struct ServiceJournalPlace {
    /// Address of the service, `host:port`.
    pub address: String,
    /// Settings of the client. `tls` is ignored: the node uses the certificates and authorities of its transport.
    pub settings: greylag_journal_service::ClientSettings,
}

/// The problem of a setting: its key with its section, and why.
pub(crate) fn refused(key: &str, why: impl ToString) -> (String, String) {
    (format!("persistence.{key}"), why.to_string())
}

/// The problem of a setting that persistence refuses.
pub(crate) fn refused_by(error: &SettingsError) -> (String, String) {
    refused(error.key(), error)
}

/// The same for projections, whose back-off has the same key as that of entities.
pub(crate) fn refused_of_projection(error: &SettingsError) -> (String, String) {
    let of_projection = |text: &str| text.replace("backoff_", "projection.backoff_");
    refused(&of_projection(error.key()), of_projection(&error.to_string()))
}

impl JournalSettings {
    /// Problems of these settings: the key with its section, and why.
    pub(crate) fn problems(&self) -> Vec<(String, String)> {
        let mut problems = Vec::new();
        problems.extend(self.breaker.validate().err().map(|error| refused_by(&error)));
        if let Err(error) = self.snapshot_breaker.validate() {
            let of_snapshots = |text: &str| text.replace("breaker.", "snapshot_breaker.");
            problems.push(refused(&of_snapshots(error.key()), of_snapshots(&error.to_string())));
        }
        self.problems_of_sled(&mut problems);
        self.problems_of_postgres(&mut problems);
        self.problems_of_service(&mut problems);
        problems
    }

    /// The settings of the breakers of the journal and of its snapshots, which wait at least as long as the journal
    /// does.
    pub(crate) fn breakers(&self) -> (BreakerSettings, BreakerSettings) {
        let (calls, snapshots) = self.longest_calls();
        let waiting = |breaker: &BreakerSettings, longest: Duration| {
            let call_timeout = breaker.call_timeout.max(longest);
            BreakerSettings { call_timeout, ..breaker.clone() }
        };
        (waiting(&self.breaker, calls), waiting(&self.snapshot_breaker, snapshots))
    }

    /// The longest times that the journal's own timeouts allow for a call and for a snapshot call, with a margin. Zero
    /// for a journal without timeouts.
    fn longest_calls(&self) -> (Duration, Duration) {
        match self.kind {
            #[cfg(feature = "journal-postgres")]
            JournalKind::Postgres => {
                let own = &self.pg.settings;
                // Twice, since an append may wait for room first, and a claim for its turn.
                let calls = own.append_timeout.max(own.call_timeout).saturating_mul(2);
                (calls.saturating_add(ANSWER_MARGIN), own.snapshot_timeout.saturating_add(ANSWER_MARGIN))
            }
            #[cfg(feature = "journal-service")]
            JournalKind::Service => {
                let own = &self.service.settings;
                let calls = own.append_timeout.max(own.call_timeout);
                (calls.saturating_add(ANSWER_MARGIN), own.snapshot_timeout.saturating_add(ANSWER_MARGIN))
            }
            _ => (Duration::ZERO, Duration::ZERO),
        }
    }

    #[cfg(feature = "journal-sled")]
    fn problems_of_sled(&self, problems: &mut Vec<(String, String)>) {
        let SledJournalPlace { dir, settings } = &self.sled;
        if self.kind == JournalKind::Sled && dir.as_os_str().is_empty() {
            problems.push(refused("sled.dir", "the journal sled needs a directory"));
        }
        let zeroes = [
            ("sled.cache_bytes", settings.store.cache_bytes == 0),
            ("sled.lock_retry", settings.store.lock_retry.is_zero()),
            ("sled.commit_stall_timeout", settings.store.commit_stall_timeout.is_zero()),
            ("sled.max_pending_bytes", settings.store.max_pending_bytes == 0),
            ("sled.max_batch_bytes", settings.store.max_group_bytes == 0),
            ("sled.max_batch_appends", settings.store.max_group_requests == 0),
            ("sled.max_append_bytes", settings.max_append_bytes == 0),
        ];
        let zeroes = zeroes.into_iter().filter(|(_, is_zero)| *is_zero);
        problems.extend(zeroes.map(|(key, _)| refused(key, "it must not be 0")));
    }

    #[cfg(not(feature = "journal-sled"))]
    fn problems_of_sled(&self, problems: &mut Vec<(String, String)>) {
        self.problems_without_feature(JournalKind::Sled, "\"sled\"", "journal-sled", problems);
    }

    #[cfg(feature = "journal-postgres")]
    fn problems_of_postgres(&self, problems: &mut Vec<(String, String)>) {
        if self.kind == JournalKind::Postgres && self.pg.url.is_empty() {
            problems.push(refused("pg.url", "the journal postgres needs a database"));
        }
        if let Err(error) = self.pg.settings.validate() {
            problems.push(refused(&format!("pg.{}", error.setting()), &error));
        }
        if self.pg.settings.behind_current_time.is_zero() {
            problems.push(refused("query.behind_current_time", "it must be longer than zero"));
        }
    }

    #[cfg(not(feature = "journal-postgres"))]
    fn problems_of_postgres(&self, problems: &mut Vec<(String, String)>) {
        self.problems_without_feature(JournalKind::Postgres, "\"postgres\"", "journal-postgres", problems);
    }

    #[cfg(feature = "journal-service")]
    fn problems_of_service(&self, problems: &mut Vec<(String, String)>) {
        use greylag_journal_service::SettingsError;
        if self.kind == JournalKind::Service && self.service.address.is_empty() {
            problems.push(refused("service.address", "the journal service needs an address, host:port"));
        }
        if let Err(error) = self.service.settings.validate() {
            let key = match &error {
                SettingsError::Zero { key } => key,
                SettingsError::Backoff { .. } => "service.max_backoff",
            };
            problems.push(refused(key, &error));
        }
    }

    #[cfg(not(feature = "journal-service"))]
    fn problems_of_service(&self, problems: &mut Vec<(String, String)>) {
        self.problems_without_feature(JournalKind::Service, "\"service\"", "journal-service", problems);
    }

    #[cfg(not(all(feature = "journal-sled", feature = "journal-postgres", feature = "journal-service")))]
    fn problems_without_feature(
        &self,
        kind: JournalKind,
        word: &str,
        feature: &str,
        problems: &mut Vec<(String, String)>,
    ) {
        if self.kind == kind {
            problems.push(refused("journal", format!("{word}: this program was built without the feature {feature}")));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn call_timeouts(settings: &JournalSettings) -> (Duration, Duration) {
        let (breaker, snapshot_breaker) = settings.breakers();
        (breaker.call_timeout, snapshot_breaker.call_timeout)
    }

    /// A breaker that waits longer than its journal keeps its timeout, and always its other settings.
    #[test]
    fn a_breaker_with_a_longer_timeout_keeps_it() {
        for kind in [JournalKind::Program, JournalKind::Sled, JournalKind::Postgres, JournalKind::Service] {
            let breaker = BreakerSettings { call_timeout: 60 * SECOND, ..BreakerSettings::default() };
            let snapshot_breaker = BreakerSettings { call_timeout: 70 * SECOND, ..BreakerSettings::snapshots() };
            let settings = JournalSettings { kind, breaker, snapshot_breaker, ..JournalSettings::default() };
            assert_eq!(settings.breakers(), (settings.breaker.clone(), settings.snapshot_breaker.clone()), "{kind:?}");
        }
    }

    /// persistence §4.1: a directory has no timeouts of its own, so the breakers keep theirs.
    #[test]
    fn breakers_of_a_journal_without_timeouts_keep_theirs() {
        for kind in [JournalKind::Program, JournalKind::Sled] {
            let settings = JournalSettings { kind, ..JournalSettings::default() };
            assert_eq!(call_timeouts(&settings), (10 * SECOND, 20 * SECOND));
        }
    }

    /// persistence §4.4: an append may wait for room and then in its lane; only after both is it known not to be
    /// stored.
    #[test]
    #[cfg(feature = "journal-postgres")]
    fn breakers_wait_longer_than_the_timeouts_of_postgresql() {
        let mut settings = JournalSettings { kind: JournalKind::Postgres, ..JournalSettings::default() };
        assert_eq!(call_timeouts(&settings), (22 * SECOND, 22 * SECOND));
        settings.pg.settings.append_timeout = 30 * SECOND;
        settings.pg.settings.snapshot_timeout = 40 * SECOND;
        assert_eq!(call_timeouts(&settings), (62 * SECOND, 42 * SECOND));
        settings.pg.settings.call_timeout = 50 * SECOND;
        assert_eq!(call_timeouts(&settings), (102 * SECOND, 42 * SECOND));
        settings.pg.settings.call_timeout = Duration::MAX;
        assert_eq!(call_timeouts(&settings).0, Duration::MAX);
    }

    /// persistence §4.4a: an append is tried until its deadline; only then is its outcome known.
    #[test]
    #[cfg(feature = "journal-service")]
    fn breakers_wait_longer_than_the_timeouts_of_the_service() {
        let mut settings = JournalSettings { kind: JournalKind::Service, ..JournalSettings::default() };
        assert_eq!(call_timeouts(&settings), (12 * SECOND, 22 * SECOND));
        settings.service.settings.append_timeout = 30 * SECOND;
        settings.service.settings.snapshot_timeout = 40 * SECOND;
        assert_eq!(call_timeouts(&settings), (32 * SECOND, 42 * SECOND));
        settings.service.settings.call_timeout = 50 * SECOND;
        assert_eq!(call_timeouts(&settings), (52 * SECOND, 42 * SECOND));
    }
}
