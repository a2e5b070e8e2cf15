//! `persistence.journal` and the keys of journals, `persistence.query.*` and `persistence.projection.*`.
//! Source: persistence §9.

use greylag_persistence::OnPoison;

use super::Key;
use crate::config::given::words;
use crate::settings::JournalKind;

words!(OnPoison { "fail" => Self::Fail, "skip" => Self::Skip });
words!(JournalKind {
    "program" => Self::Program,
    "sled" => Self::Sled,
    "postgres" => Self::Postgres,
    "service" => Self::Service,
});

#[cfg(feature = "journal-postgres")]
words!(greylag_journal_postgres::Migrate {
    "apply" => Self::Apply,
    "refuse" => Self::Refuse,
});

const SOURCE: &str = "persistence §9";

pub(super) fn keys() -> Vec<Key> {
    let mut keys = vec![Key::new(
        "persistence.journal",
        SOURCE,
        "What keeps events: stores that the program gives, or one that the node opens by the settings below, for which it needs the feature `journal-sled`, `journal-postgres` or `journal-service`. What the program gives goes before it.",
        |draft| &mut draft.settings.journal.kind,
    )];
    keys.extend(breakers());
    keys.extend(queries());
    keys.extend(projections());
    keys.extend(deliveries());
    #[cfg(feature = "journal-sled")]
    keys.extend(sled());
    #[cfg(feature = "journal-postgres")]
    keys.extend(pg());
    #[cfg(feature = "journal-service")]
    keys.extend(service());
    keys
}

fn breakers() -> Vec<Key> {
    vec![
        Key::new(
            "persistence.breaker.max_failures",
            SOURCE,
            "Calls to the journal are refused at once after so many failures in a row; so are those to its durable states. Each of both has a breaker for writes and one for reads.",
            |draft| &mut draft.settings.journal.breaker.max_failures,
        ),
        Key::new(
            "persistence.breaker.call_timeout",
            SOURCE,
            "Longest wait for one call. It is never shorter than what the journal's own time-outs let one call take, and 2 s, or what was never sent would count as unknown. That is twice the longer of `pg.append_timeout` and `pg.call_timeout` (an append may have to wait for room first, a claim for its turn), or the longer of `service.append_timeout` and `service.call_timeout`.",
            |draft| &mut draft.settings.journal.breaker.call_timeout,
        ),
        Key::new(
            "persistence.breaker.reset_timeout",
            SOURCE,
            "While it is open it asks the journal by a read of its own whether it is back: after 100 ms, then after twice as long each time, up to this. No call of the program is such a probe; an answer lets all pass, and entities that back off start at once.",
            |draft| &mut draft.settings.journal.breaker.reset_timeout,
        ),
        Key::new("persistence.snapshot_breaker.max_failures", SOURCE, "The same for snapshots.", |draft| {
            &mut draft.settings.journal.snapshot_breaker.max_failures
        }),
        Key::new(
            "persistence.snapshot_breaker.call_timeout",
            SOURCE,
            "Longest wait for one call; at least `pg.snapshot_timeout`, or `service.snapshot_timeout`, and 2 s.",
            |draft| &mut draft.settings.journal.snapshot_breaker.call_timeout,
        ),
        Key::new(
            "persistence.snapshot_breaker.reset_timeout",
            SOURCE,
            "Longest wait between two probes, as for the journal.",
            |draft| &mut draft.settings.journal.snapshot_breaker.reset_timeout,
        ),
    ]
}

fn queries() -> Vec<Key> {
    vec![
        Key::new(
            "persistence.query.refresh_interval",
            SOURCE,
            "Between two looks for new events, while none come.",
            |draft| &mut draft.settings.query.refresh_interval,
        ),
        Key::new("persistence.query.page", SOURCE, "Most events of one page.", |draft| &mut draft.settings.query.page),
        Key::new(
            "persistence.query.backtracking.window",
            SOURCE,
            "How far before its offset a stream begins to look for what came late; at most what projections remember.",
            |draft| &mut draft.settings.query.backtracking.window,
        ),
        Key::new(
            "persistence.query.backtracking.behind",
            SOURCE,
            "How far behind the present that look ends.",
            |draft| &mut draft.settings.query.backtracking.behind,
        ),
        Key::new(
            "persistence.query.fanout_buffer",
            SOURCE,
            "Most events that wait for the slowest projection at the reader that projections share.",
            |draft| &mut draft.settings.query.sharing.fanout_buffer,
        ),
        Key::new(
            "persistence.query.catchup_overlap",
            SOURCE,
            "How long a projection that has caught up goes on reading by itself beside the shared reader.",
            |draft| &mut draft.settings.query.sharing.catchup_overlap,
        ),
        Key::new(
            "persistence.query.linger",
            SOURCE,
            "How long the shared reader stays after its last projection.",
            |draft| &mut draft.settings.query.sharing.linger,
        ),
        Key::new(
            "persistence.query.slow_consumer_lag",
            SOURCE,
            "A projection is slow that is behind the fastest by more than this.",
            |draft| &mut draft.settings.query.sharing.slow_consumer_lag,
        ),
        Key::new(
            "persistence.query.abort_after",
            SOURCE,
            "A slow one that holds half of the buffer for so long has to catch up by itself.",
            |draft| &mut draft.settings.query.sharing.abort_after,
        ),
    ]
}

fn projections() -> Vec<Key> {
    vec![
        Key::new(
            "persistence.projection.share_reader",
            "persistence §5",
            "Whether projections that have caught up share one reader.",
            |draft| &mut draft.settings.projection.share_reader,
        ),
        Key::new("persistence.projection.save_after_n", SOURCE, "Offsets are saved after so many events.", |draft| {
            &mut draft.settings.projection.save_after_n
        }),
        Key::new(
            "persistence.projection.save_after",
            SOURCE,
            "Offsets are saved at the latest this long after an event was handled.",
            |draft| &mut draft.settings.projection.save_after,
        ),
        Key::new("persistence.projection.group", "persistence §5", "Events that the handler gets at once.", |draft| {
            &mut draft.settings.projection.group
        }),
        Key::new(
            "persistence.projection.max_retries",
            "persistence §5",
            "How often the handler is asked again about an event that it failed.",
            |draft| &mut draft.settings.projection.max_retries,
        ),
        Key::new(
            "persistence.projection.on_poison",
            "persistence §5",
            "What follows when it fails once more.",
            |draft| &mut draft.settings.projection.on_poison,
        ),
        Key::new(
            "persistence.projection.backoff_min",
            "persistence §5",
            "The first wait before the handler is asked again, or before a projection whose store failed starts over; doubles.",
            |draft| &mut draft.settings.projection.backoff.min,
        ),
        Key::new(
            "persistence.projection.backoff_max",
            "persistence §5",
            "The longest of these waits, before `projection.backoff_jitter` is added.",
            |draft| &mut draft.settings.projection.backoff.max,
        ),
        Key::new(
            "persistence.projection.backoff_jitter",
            "persistence §5",
            "Share of the wait that is drawn on top.",
            |draft| &mut draft.settings.projection.backoff.jitter,
        ),
        Key::new(
            "persistence.projection.remember",
            "persistence §5",
            "How long what was processed of each id is remembered.",
            |draft| &mut draft.settings.projection.remember,
        ),
        Key::new(
            "persistence.projection.forget_interval",
            "persistence §5",
            "Between two removals of what need not be remembered.",
            |draft| &mut draft.settings.projection.forget_interval,
        ),
    ]
}

fn deliveries() -> Vec<Key> {
    vec![
        Key::new(
            "persistence.delivery_tracker.redeliver_interval",
            "persistence §6",
            "How old the last attempt of a delivery is when the next one follows.",
            |draft| &mut draft.settings.persistence.delivery_tracker.redeliver_interval,
        ),
        Key::new(
            "persistence.delivery_tracker.redelivery_burst_limit",
            "persistence §6",
            "Most deliveries sent again at a time.",
            |draft| &mut draft.settings.persistence.delivery_tracker.redelivery_burst_limit,
        ),
        Key::new(
            "persistence.delivery_tracker.warn_after_attempts",
            "persistence §6",
            "After how many attempts a delivery that is not confirmed is told of.",
            |draft| &mut draft.settings.persistence.delivery_tracker.warn_after_attempts,
        ),
        Key::new(
            "persistence.delivery_tracker.max_unconfirmed",
            "persistence §6",
            "Beyond so many deliveries that are not confirmed there is no room.",
            |draft| &mut draft.settings.persistence.delivery_tracker.max_unconfirmed,
        ),
    ]
}

#[cfg(feature = "journal-sled")]
fn sled() -> Vec<Key> {
    vec![
        Key::new("persistence.sled.dir", SOURCE, "The directory of the journal, of this node alone.", |draft| {
            &mut draft.settings.journal.sled.dir
        })
        .default_is("required by the journal sled"),
        Key::bytes("persistence.sled.cache_bytes", SOURCE, "Page cache; plan for 1.3 times as much.", |draft| {
            &mut draft.settings.journal.sled.settings.store.cache_bytes
        }),
        Key::new(
            "persistence.sled.verify_commits",
            SOURCE,
            "Latest commits that are verified when it opens.",
            |draft| &mut draft.settings.journal.sled.settings.verify_commits,
        ),
        Key::new(
            "persistence.sled.lock_retry",
            SOURCE,
            "How long opening waits for another process to let go of the directory.",
            |draft| &mut draft.settings.journal.sled.settings.store.lock_retry,
        ),
        Key::new("persistence.sled.commit_stall_timeout", SOURCE, "A commit that takes longer has failed.", |draft| {
            &mut draft.settings.journal.sled.settings.store.commit_stall_timeout
        }),
        Key::new(
            "persistence.sled.abort_when_stuck",
            SOURCE,
            "Ends the process when a commit still hangs as long again.",
            |draft| &mut draft.settings.journal.sled.settings.store.abort_when_stuck,
        ),
        Key::bytes(
            "persistence.sled.min_free_bytes",
            SOURCE,
            "With less room on the disk, writes are refused; 0 switches it off.",
            |draft| &mut draft.settings.journal.sled.settings.min_free_bytes,
        ),
        Key::bytes(
            "persistence.sled.ballast_bytes",
            SOURCE,
            "Size of a file that is given up when a full disk would not let the journal open; 0 for none.",
            |draft| &mut draft.settings.journal.sled.settings.ballast_bytes,
        ),
        Key::new("persistence.sled.max_batch_appends", "persistence §7", "Most requests of one commit.", |draft| {
            &mut draft.settings.journal.sled.settings.store.max_group_requests
        }),
        Key::bytes(
            "persistence.sled.max_batch_bytes",
            "persistence §7",
            "Most bytes of one commit; a larger request goes alone.",
            |draft| &mut draft.settings.journal.sled.settings.store.max_group_bytes,
        ),
        Key::bytes(
            "persistence.sled.max_pending_bytes",
            "persistence §7",
            "Bytes that may wait for a commit.",
            |draft| &mut draft.settings.journal.sled.settings.store.max_pending_bytes,
        ),
        Key::bytes(
            "persistence.sled.max_append_bytes",
            "persistence §7",
            "Largest append; larger ones are rejected.",
            |draft| &mut draft.settings.journal.sled.settings.max_append_bytes,
        ),
    ]
}

#[cfg(feature = "journal-postgres")]
fn pg() -> Vec<Key> {
    vec![
        Key::new("persistence.pg.url", SOURCE, "The database of the journal, as for libpq: a URL, or `host=db.example user=greylag dbname=journal sslmode=verify-full sslrootcert=/etc/greylag/ca.pem`. It is shown nowhere.", |draft| &mut draft.settings.journal.pg.url).default_is("required by the journal postgres"),
        Key::some("persistence.pg.password_file", SOURCE, "A file with the password, if it does not stand in `url`.", |draft| &mut draft.settings.journal.pg.password_file).default_is("none"),
        Key::new("persistence.pg.schema", SOURCE, "The schema of the tables.", |draft| &mut draft.settings.journal.pg.settings.schema),
        Key::new("persistence.pg.migrate", "persistence §4.4", "Whether an older schema is brought up to date, or refused.", |draft| &mut draft.settings.journal.pg.settings.migrate),
        Key::new("persistence.pg.write_lanes", SOURCE, "Connections that append, at most 1024.", |draft| &mut draft.settings.journal.pg.settings.write_lanes),
        Key::new("persistence.pg.pipeline", SOURCE, "Statements that each of them has under way at once.", |draft| &mut draft.settings.journal.pg.settings.pipeline),
        Key::new("persistence.pg.max_batch_appends", "persistence §4.4", "Most appends of one statement.", |draft| &mut draft.settings.journal.pg.settings.max_batch_appends),
        Key::bytes("persistence.pg.max_batch_bytes", SOURCE, "A statement takes no more appends once it carries so much.", |draft| &mut draft.settings.journal.pg.settings.max_batch_bytes),
        Key::bytes("persistence.pg.max_pending_bytes", SOURCE, "Appends wait outside while so many bytes are under way.", |draft| &mut draft.settings.journal.pg.settings.max_pending_bytes),
        Key::bytes("persistence.pg.max_append_bytes", "persistence §7", "Largest append; larger ones are rejected.", |draft| &mut draft.settings.journal.pg.settings.max_append_bytes),
        Key::new("persistence.pg.pool_write", SOURCE, "Connections for claims, deletions, snapshots and states.", |draft| &mut draft.settings.journal.pg.settings.pool_write),
        Key::new("persistence.pg.pool_read", SOURCE, "Connections for replay.", |draft| &mut draft.settings.journal.pg.settings.pool_read),
        Key::new("persistence.pg.pool_query", SOURCE, "Connections for queries and offsets.", |draft| &mut draft.settings.journal.pg.settings.pool_query),
        Key::new("persistence.pg.append_timeout", SOURCE, "How long an append is tried before its outcome is unknown.", |draft| &mut draft.settings.journal.pg.settings.append_timeout),
        Key::new("persistence.pg.call_timeout", SOURCE, "How long another call is tried.", |draft| &mut draft.settings.journal.pg.settings.call_timeout),
        Key::new("persistence.pg.snapshot_timeout", SOURCE, "How long a snapshot call is tried.", |draft| &mut draft.settings.journal.pg.settings.snapshot_timeout),
        Key::new("persistence.pg.statement_timeout", SOURCE, "How long one try of a statement may take.", |draft| &mut draft.settings.journal.pg.settings.statement_timeout),
        Key::new("persistence.pg.connect_timeout", SOURCE, "How long one try to connect may take.", |draft| &mut draft.settings.journal.pg.settings.connect_timeout),
        Key::new("persistence.pg.min_backoff", SOURCE, "First wait before connecting again; doubles.", |draft| &mut draft.settings.journal.pg.settings.min_backoff),
        Key::new("persistence.pg.max_backoff", SOURCE, "Longest wait before connecting again.", |draft| &mut draft.settings.journal.pg.settings.max_backoff),
        Key::new("persistence.pg.sweep_events", "persistence §4.4", "Deleted events that one statement removes.", |draft| &mut draft.settings.journal.pg.settings.sweep_events),
        Key::new("persistence.pg.max_clock_lag", "persistence §4.4", "Nothing is stored while the server's clock is behind the latest stored event by more.", |draft| &mut draft.settings.journal.pg.settings.max_clock_lag),
        Key::new("persistence.query.behind_current_time", SOURCE, "On PostgreSQL, queries hold back what is younger; at least what the clocks of a distributed database may differ by.", |draft| &mut draft.settings.journal.pg.settings.behind_current_time),
    ]
}

#[cfg(feature = "journal-service")]
fn service() -> Vec<Key> {
    vec![
        Key::new(
            "persistence.service.address",
            SOURCE,
            "Where the journal is served, `host:port`; with the certificates of `transport.tls`.",
            |draft| &mut draft.settings.journal.service.address,
        )
        .default_is("required by the journal service"),
        Key::new("persistence.service.max_in_flight", SOURCE, "Most calls in progress; more wait.", |draft| {
            &mut draft.settings.journal.service.settings.max_in_flight
        }),
        Key::new(
            "persistence.service.connect_timeout",
            "persistence §4.4a",
            "How long the start waits for the service.",
            |draft| &mut draft.settings.journal.service.settings.connect_timeout,
        ),
        Key::new(
            "persistence.service.append_timeout",
            SOURCE,
            "How long an append is tried before its outcome is unknown.",
            |draft| &mut draft.settings.journal.service.settings.append_timeout,
        ),
        Key::new("persistence.service.call_timeout", SOURCE, "How long another call is tried.", |draft| {
            &mut draft.settings.journal.service.settings.call_timeout
        }),
        Key::new("persistence.service.snapshot_timeout", SOURCE, "How long a snapshot call is tried.", |draft| {
            &mut draft.settings.journal.service.settings.snapshot_timeout
        }),
        Key::new(
            "persistence.service.unavailable_after",
            "persistence §4.4a",
            "Once the service has been away for so long, calls are answered at once.",
            |draft| &mut draft.settings.journal.service.settings.unavailable_after,
        ),
        Key::new(
            "persistence.service.min_backoff",
            "persistence §4.4a",
            "First wait before connecting again; doubles.",
            |draft| &mut draft.settings.journal.service.settings.min_backoff,
        ),
        Key::new(
            "persistence.service.max_backoff",
            "persistence §4.4a",
            "Longest wait before connecting again.",
            |draft| &mut draft.settings.journal.service.settings.max_backoff,
        ),
    ]
}
