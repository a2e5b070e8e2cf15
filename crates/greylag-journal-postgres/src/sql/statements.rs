//! The statements, in the SQL that PostgreSQL 13 and its compatible databases share; each is a transaction of its own.

/// The latest time under which anything was stored; null if nothing was. The condition makes the planner read the few
/// rows by their key: lanes forbid sequential scans, and such a plan would count as costly enough to be compiled.
macro_rules! latest {
    () => {
        "(SELECT max(latest) FROM lane_clock WHERE lane >= '')"
    };
}

/// The present: the time of the server's clock, but never earlier than the latest stored event. Without that bound, a
/// server that takes over with a clock that is behind would store events before places that projections have passed.
macro_rules! now {
    () => {
        concat!("GREATEST(greylag_clock(), ", latest!(), ")")
    };
}

/// Keeps the latest of the times of a statement in the connection's row (`$lane`); `$stored` selects the times.
macro_rules! keep_time {
    ($lane:literal, $stored:literal) => {
        concat!(
            "k AS (
    INSERT INTO lane_clock AS k (lane, latest)
    SELECT ",
            $lane,
            "::text, max(stored_at) FROM (",
            $stored,
            ") AS stored (stored_at) HAVING max(stored_at) IS NOT NULL
    ON CONFLICT (lane) DO UPDATE SET latest = GREATEST(k.latest, excluded.latest)
)"
        )
    };
}

/// Stores appends of many ids, each id once. Answers the places of the stored appends and their times, in one row, and
/// the lag of the server's clock behind the latest event; appends that were not stored are left out.
///
/// Nothing is stored while the clock is behind by more than `max_clock_lag` (`$17`, in microseconds), and no append of
/// an id whose own last event is so far ahead. `$16` names the connection's row of `lane_clock`.
///
/// One update compares and raises the heads (J3), and only appends whose head it changed are stored. A row that another
/// transaction has locked is waited for, and compared as that transaction leaves it. `$1` numbers the appends, and `$7`
/// is the number of the append that each event belongs to.
///
/// The arrays are unnested in parallel by the lists of `SELECT`: in `FROM` the server would first copy each array, row
/// by row, into a tuple store, which took a tenth of the whole time. A null array stands for a column of nulls: last
/// numbers (`$6`) if each equals the first, filtered (`$12`) if no event is, metadata (`$14`) if no event has any.
macro_rules! append {
    ($then:literal) => {
        concat!(
            "WITH c AS (
    SELECT greylag_clock() AS clock, ",
            now!(),
            " AS now
), w AS (
    SELECT unnest($1::integer[]) AS place, unnest($2::text[]) AS pid, unnest($3::uuid[]) AS writer_uuid,
        unnest($4::bigint[]) AS epoch, unnest($5::bigint[]) AS first_nr, unnest($6::bigint[]) AS last_nr
), f AS (
    UPDATE entity e SET highest_seq_nr = COALESCE(w.last_nr, w.first_nr),
        last_event_at = GREATEST((SELECT now FROM c), e.last_event_at + interval '1 microsecond')
    FROM w
    WHERE e.persistence_id = w.pid AND e.writer_epoch = w.epoch AND e.highest_seq_nr = w.first_nr - 1
        AND GREATEST((SELECT now FROM c), e.last_event_at)
            <= (SELECT clock + $17::bigint * interval '1 microsecond' FROM c)
    RETURNING w.place, w.writer_uuid, e.persistence_id, e.slice, e.entity_type, e.writer_epoch, e.last_event_at
), ",
            keep_time!("$16", "SELECT last_event_at FROM f"),
            ", ",
            $then,
            " SELECT array_agg(place), array_agg(last_event_at),
    (SELECT (extract(epoch FROM now - clock) * 1000000)::bigint FROM c) FROM f"
        )
    };
}

/// Appends without tags, which need no unnesting of tags.
pub(crate) const APPEND: &str = append!(
    "i AS (
    INSERT INTO event (persistence_id, seq_nr, slice, entity_type, db_timestamp, writer_uuid, writer_epoch, codec_id,
        manifest, schema_version, filtered, payload, metadata, crc32c)
    SELECT f.persistence_id, x.seq_nr, f.slice, f.entity_type, f.last_event_at, f.writer_uuid, f.writer_epoch,
        x.codec_id, x.manifest, x.schema_version, COALESCE(x.filtered, false), x.payload, x.metadata, x.crc32c
    FROM (
        SELECT unnest($7::integer[]) AS place, unnest($8::bigint[]) AS seq_nr, unnest($9::integer[]) AS codec_id,
            unnest($10::text[]) AS manifest, unnest($11::integer[]) AS schema_version,
            unnest($12::boolean[]) AS filtered, unnest($13::bytea[]) AS payload, unnest($14::bytea[]) AS metadata,
            unnest($15::bigint[]) AS crc32c
    ) x
    JOIN f ON f.place = x.place
)"
);

/// As [`APPEND`], for appends of which some events have tags (`$18`).
pub(crate) const APPEND_TAGGED: &str = append!(
    "r AS (
    SELECT f.persistence_id, x.seq_nr, f.slice, f.entity_type, f.last_event_at, f.writer_uuid, f.writer_epoch,
        x.codec_id, x.manifest, x.schema_version, COALESCE(x.filtered, false) AS filtered, x.payload, x.metadata,
        string_to_array(x.tags, E'\\x1f') AS tags, x.crc32c
    FROM (
        SELECT unnest($7::integer[]) AS place, unnest($8::bigint[]) AS seq_nr, unnest($9::integer[]) AS codec_id,
            unnest($10::text[]) AS manifest, unnest($11::integer[]) AS schema_version,
            unnest($12::boolean[]) AS filtered, unnest($13::bytea[]) AS payload, unnest($14::bytea[]) AS metadata,
            unnest($15::bigint[]) AS crc32c, unnest($18::text[]) AS tags
    ) x
    JOIN f ON f.place = x.place
), i AS (
    INSERT INTO event (persistence_id, seq_nr, slice, entity_type, db_timestamp, writer_uuid, writer_epoch, codec_id,
        manifest, schema_version, filtered, payload, metadata, tags, crc32c)
    SELECT persistence_id, seq_nr, slice, entity_type, last_event_at, writer_uuid, writer_epoch, codec_id,
        manifest, schema_version, filtered, payload, metadata, tags, crc32c
    FROM r
), t AS (
    INSERT INTO event_tag (tag, db_timestamp, persistence_id, seq_nr, slice)
    SELECT g.tag, r.last_event_at, r.persistence_id, r.seq_nr, r.slice FROM r, unnest(r.tags) AS g(tag)
)"
);

/// Heads and last events for appends that were not stored, read at one moment; and the lag of the server's clock behind
/// the latest event, the id's own included.
pub(crate) const LOOK_UP: &str = concat!(
    "\
WITH c AS (SELECT greylag_clock() AS clock, ",
    now!(),
    " AS now)
SELECT w.pid, e.writer_epoch, e.writer_uuid, e.generation, e.highest_seq_nr, e.deleted_to,
    v.writer_uuid AS last_writer_uuid, v.crc32c AS last_crc32c, v.db_timestamp AS last_timestamp,
    (extract(epoch FROM GREATEST(c.now, e.last_event_at) - c.clock) * 1000000)::bigint AS behind
FROM unnest($1::text[], $2::bigint[]) AS w(pid, last_nr)
CROSS JOIN c
LEFT JOIN entity e ON e.persistence_id = w.pid
LEFT JOIN event v ON v.persistence_id = w.pid AND v.seq_nr = w.last_nr"
);

/// J4. No row: the claim is refused. The claim waits for the row while an append of the id is in flight anywhere.
/// A claim under an epoch that was seen elsewhere does not create the row.
pub(crate) const CLAIM: &str = "\
INSERT INTO entity AS entity (persistence_id, entity_type, slice, writer_epoch, writer_uuid, generation, highest_seq_nr)
SELECT $1::text, $2::text, $3::smallint, 1, $4::uuid, coalesce($5::bigint, 0), 0
WHERE coalesce($6::bigint, 0) = 0 OR EXISTS (SELECT 1 FROM entity WHERE persistence_id = $1::text)
ON CONFLICT (persistence_id) DO UPDATE SET
    writer_epoch = entity.writer_epoch + CASE WHEN entity.writer_uuid = $4::uuid THEN 0 ELSE 1 END,
    writer_uuid = $4::uuid,
    generation = GREATEST(entity.generation, $5::bigint)
WHERE ($5::bigint IS NULL OR entity.generation <= $5::bigint)
    AND ($6::bigint IS NULL OR entity.writer_epoch = $6::bigint OR entity.writer_uuid = $4::uuid)
RETURNING writer_epoch, highest_seq_nr, deleted_to";

pub(crate) const HEAD: &str = "\
SELECT writer_epoch, writer_uuid, generation, highest_seq_nr, deleted_to FROM entity WHERE persistence_id = $1";

pub(crate) const ADVANCE: &str = "\
UPDATE entity SET highest_seq_nr = $3::bigint, deleted_to = $3::bigint
WHERE persistence_id = $1 AND writer_epoch = $2 AND $3::bigint > 0
    AND (highest_seq_nr = 0 OR (highest_seq_nr = $3::bigint AND deleted_to = $3::bigint))
RETURNING highest_seq_nr";

pub(crate) const DELETE_TO: &str = "\
UPDATE entity SET deleted_to = GREATEST(deleted_to, LEAST($3, highest_seq_nr))
WHERE persistence_id = $1 AND writer_epoch = $2
RETURNING deleted_to";

/// Removes some of the deleted events, and their tags.
pub(crate) const SWEEP: &str = "\
WITH d AS (
    DELETE FROM event
    WHERE persistence_id = $1 AND seq_nr IN (
        SELECT seq_nr FROM event WHERE persistence_id = $1 AND seq_nr <= $2 ORDER BY seq_nr LIMIT $3)
    RETURNING seq_nr, db_timestamp, tags
), g AS (
    DELETE FROM event_tag t
    USING (SELECT unnest(d.tags) AS tag, d.db_timestamp, d.seq_nr FROM d) AS x
    WHERE t.tag = x.tag AND t.db_timestamp = x.db_timestamp AND t.persistence_id = $1 AND t.seq_nr = x.seq_nr
)
SELECT count(*) FROM d";

/// One page: the head with every event of the page, or the head alone. The running sum cuts pages on the server, so
/// that at most one record beyond `$5` bytes is transferred.
pub(crate) const READ: &str = "\
SELECT e.deleted_to, e.highest_seq_nr, v.seq_nr, v.db_timestamp, v.writer_uuid, v.writer_epoch, v.codec_id, v.manifest,
    v.schema_version, v.filtered, v.payload, v.metadata, v.tags, v.crc32c
FROM entity e
LEFT JOIN LATERAL (
    SELECT p.* FROM (
        SELECT q.*, sum(octet_length(q.payload) + octet_length(q.manifest) + coalesce(octet_length(q.metadata), 0)
            + coalesce(octet_length(array_to_string(q.tags, '')), 0)) OVER (ORDER BY q.seq_nr ROWS UNBOUNDED PRECEDING)
            AS running, row_number() OVER (ORDER BY q.seq_nr) AS place
        FROM (
            SELECT * FROM event
            WHERE persistence_id = $1 AND seq_nr >= $2 AND seq_nr > e.deleted_to
                AND seq_nr <= $3 AND seq_nr <= e.highest_seq_nr
            ORDER BY seq_nr LIMIT $4
        ) q
    ) p
    WHERE p.running <= $5 OR p.place = 1
) v ON true
WHERE e.persistence_id = $1
ORDER BY v.seq_nr";

pub(crate) const LOAD_SNAPSHOT: &str = "\
SELECT seq_nr, taken_at, codec_id, manifest, schema_version, payload, metadata, crc32c FROM snapshot
WHERE persistence_id = $1 AND seq_nr BETWEEN $2 AND $3 AND taken_at BETWEEN $4 AND $5
ORDER BY seq_nr DESC LIMIT 1";

pub(crate) const SAVE_SNAPSHOT: &str = "\
INSERT INTO snapshot (persistence_id, seq_nr, taken_at, codec_id, manifest, schema_version, payload, metadata, crc32c)
VALUES ($1, $2, statement_timestamp(), $3, $4, $5, $6, $7, $8)
ON CONFLICT (persistence_id, seq_nr) DO UPDATE SET
    taken_at = excluded.taken_at, codec_id = excluded.codec_id, manifest = excluded.manifest,
    schema_version = excluded.schema_version, payload = excluded.payload, metadata = excluded.metadata,
    crc32c = excluded.crc32c
RETURNING taken_at";

pub(crate) const DELETE_SNAPSHOTS: &str = "\
DELETE FROM snapshot
WHERE persistence_id = $1 AND seq_nr BETWEEN $2 AND $3 AND taken_at BETWEEN $4 AND $5";

pub(crate) const GET_STATE: &str = "\
SELECT revision, generation, writer_uuid, db_timestamp, codec_id, manifest, schema_version, payload, tag, crc32c
FROM durable_state WHERE persistence_id = $1";

/// The lag of the server's clock behind the latest event, in microseconds; or behind the state of an id, if that is
/// more.
pub(crate) const CLOCK_BEHIND: &str = concat!(
    "SELECT (extract(epoch FROM GREATEST(",
    now!(),
    ", (SELECT db_timestamp FROM durable_state WHERE persistence_id = $1)) - greylag_clock()) * 1000000)::bigint"
);

/// Stores a revision at the present time, which `lane_clock` keeps as it keeps the times of events; see [`APPEND`].
macro_rules! store_state {
    ($lane:literal, $then:literal) => {
        concat!(
            "WITH c AS (
    SELECT greylag_clock() AS clock, ",
            now!(),
            " AS now
), s AS (",
            $then,
            " RETURNING revision, db_timestamp), ",
            keep_time!($lane, "SELECT db_timestamp FROM s"),
            " SELECT revision FROM s"
        )
    };
}

/// Stores the first revision. No row: another writer was first, or the clock is too far behind (`$13`).
pub(crate) const INSERT_STATE: &str = store_state!(
    "$12",
    "
INSERT INTO durable_state (persistence_id, entity_type, slice, revision, generation, writer_uuid, db_timestamp,
    codec_id, manifest, schema_version, payload, tag, crc32c)
SELECT $1::text, $2::text, $3::smallint, 1, coalesce($4::bigint, 0), $5::uuid, c.now, $6::integer, $7::text, $8::integer,
    $9::bytea, $10::text, $11::bigint
FROM c WHERE c.now <= c.clock + $13::bigint * interval '1 microsecond'
ON CONFLICT (persistence_id) DO NOTHING"
);

/// Stores a later revision; a tombstone, which has no codec, keeps the tag. No row: the stored revision is not the one
/// before, or a greater generation owns the state, or the clock is too far behind (`$12`).
pub(crate) const UPDATE_STATE: &str = store_state!(
    "$11",
    "
UPDATE durable_state SET revision = $2::bigint, generation = GREATEST(generation, $3::bigint), writer_uuid = $4,
    db_timestamp = GREATEST((SELECT now FROM c), db_timestamp + interval '1 microsecond'),
    codec_id = $5::integer, manifest = $6, schema_version = $7, payload = $8,
    tag = CASE WHEN $5::integer IS NULL THEN tag ELSE $9 END, crc32c = $10
WHERE persistence_id = $1 AND revision = $2::bigint - 1 AND ($3::bigint IS NULL OR generation <= $3::bigint)
    AND GREATEST((SELECT now FROM c), db_timestamp) <= (SELECT clock + $12::bigint * interval '1 microsecond' FROM c)"
);

pub(crate) const STATE_IDS: &str = "\
SELECT persistence_id FROM durable_state WHERE persistence_id > $1 ORDER BY persistence_id LIMIT $2";

/// `$2`: the first time of the page; `$3`: how far to stay behind the present, in microseconds.
pub(crate) const STATES_BY_TAG: &str = concat!(
    "\
SELECT persistence_id, revision, generation, writer_uuid, db_timestamp, codec_id, manifest, schema_version, payload,
    tag, crc32c
FROM durable_state
WHERE tag = $1 AND db_timestamp >= $2 AND db_timestamp < ",
    now!(),
    " - $3::bigint * interval '1 microsecond'
ORDER BY db_timestamp, persistence_id LIMIT $4"
);

pub(crate) const STATES_BY_SLICES: &str = concat!(
    "\
SELECT persistence_id, revision, generation, writer_uuid, db_timestamp, codec_id, manifest, schema_version, payload,
    tag, crc32c
FROM durable_state
WHERE entity_type = $1 AND db_timestamp >= $2
    AND db_timestamp < ",
    now!(),
    " - $3::bigint * interval '1 microsecond'
    AND slice BETWEEN $5::smallint AND $6::smallint
ORDER BY db_timestamp, persistence_id LIMIT $4"
);

pub(crate) const CLAIM_SLICES: &str = "\
INSERT INTO projection_owner AS o (projection, slice, epoch)
SELECT $1::text, s, 1 FROM generate_series($2::integer, $3::integer) AS s
ON CONFLICT (projection, slice) DO UPDATE SET epoch = o.epoch + 1
RETURNING slice, epoch";

pub(crate) const OWNERS: &str = "\
SELECT slice, epoch FROM projection_owner WHERE projection = $1 AND slice = ANY($2::smallint[])";

pub(crate) const LOAD_OFFSETS: &str = "\
SELECT persistence_id, seq_nr, db_timestamp FROM projection_offset
WHERE projection = $1 AND slice BETWEEN $2::smallint AND $3::smallint
ORDER BY db_timestamp, persistence_id";

/// The fence of offsets: `ok` is true if every slice of `$2` is owned under its epoch in `$3`. The lock makes a claim
/// of these slices wait until the transaction that checked the fence ends.
macro_rules! owned {
    ($then:literal) => {
        concat!(
            "WITH o AS (
    SELECT * FROM unnest($2::smallint[], $3::bigint[]) AS o(slice, epoch)
), held AS (
    SELECT p.slice FROM projection_owner p JOIN o ON o.slice = p.slice AND o.epoch = p.epoch
    WHERE p.projection = $1::text FOR SHARE OF p
), fence AS (
    SELECT (SELECT count(*) FROM held) = (SELECT count(*) FROM o) AS ok
), ",
            $then,
            " SELECT ok FROM fence"
        )
    };
}

pub(crate) const SAVE_OFFSETS: &str = owned!(
    "s AS (
    INSERT INTO projection_offset AS t (projection, slice, persistence_id, seq_nr, db_timestamp, consumed_at)
    SELECT $1::text, x.slice, x.pid, x.seq_nr, x.db_timestamp, statement_timestamp()
    FROM fence, unnest($4::smallint[], $5::text[], $6::bigint[], $7::timestamptz[]) AS x(slice, pid, seq_nr, db_timestamp)
    WHERE fence.ok
    ON CONFLICT (projection, slice, persistence_id) DO UPDATE SET
        seq_nr = excluded.seq_nr, db_timestamp = excluded.db_timestamp, consumed_at = excluded.consumed_at
    WHERE t.seq_nr < excluded.seq_nr
)"
);

/// Start marks (`Processed::is_start`) stay, here and in [`RESET_OFFSETS`].
pub(crate) const FORGET_OFFSETS: &str = owned!(
    "d AS (
    DELETE FROM projection_offset t USING fence
    WHERE fence.ok AND t.projection = $1::text AND t.slice = ANY($2::smallint[]) AND t.db_timestamp < $4::timestamptz
        AND t.persistence_id NOT LIKE 'gl.projection|!%' AND t.db_timestamp < (
            SELECT max(n.db_timestamp) FROM projection_offset n
            WHERE n.projection = t.projection AND n.slice = t.slice)
)"
);

pub(crate) const RESET_OFFSETS: &str = owned!(
    "d AS (
    DELETE FROM projection_offset t USING fence
    WHERE fence.ok AND t.projection = $1::text AND t.slice = ANY($2::smallint[])
        AND t.persistence_id NOT LIKE 'gl.projection|!%'
)"
);

/// Ids after `$1`; with `$3`, only those of this entity type.
pub(crate) const IDS: &str = "\
SELECT persistence_id FROM entity
WHERE persistence_id > $1 AND highest_seq_nr > 0 AND ($3::text IS NULL OR entity_type = $3)
ORDER BY persistence_id LIMIT $2";

/// The present; null if no event was ever stored.
pub(crate) const NEWEST: &str =
    concat!("SELECT CASE WHEN EXISTS (SELECT 1 FROM entity WHERE highest_seq_nr > 0) THEN ", now!(), " END AS now");

/// The common part of all pages of events. `$2`, `$3`, `$4`: the row to begin after; `$5`: the last time of the page;
/// `$6`: how far to stay behind the present, in microseconds.
///
/// The comparison of rows walks the index from its place, even if many rows share a time.
macro_rules! page_of_events {
    ($columns:literal, $table:literal, $where:literal) => {
        concat!(
            "SELECT ",
            $columns,
            " FROM ",
            $table,
            " WHERE ",
            $where,
            " AND (db_timestamp, persistence_id, seq_nr) > ($2::timestamptz, $3::text COLLATE \"C\", $4::bigint)
    AND db_timestamp <= $5::timestamptz
    AND db_timestamp < ",
            now!(),
            " - $6::bigint * interval '1 microsecond'
ORDER BY db_timestamp, persistence_id, seq_nr LIMIT $7::bigint"
        )
    };
}

/// Places only, from the index alone.
pub(crate) const PLACES_BY_SLICES: &str = page_of_events!(
    "persistence_id, seq_nr, db_timestamp",
    "event",
    "entity_type = $1 AND slice BETWEEN $8::smallint AND $9::smallint"
);

pub(crate) const PLACES_BY_TAG: &str = page_of_events!("persistence_id, seq_nr, db_timestamp", "event_tag", "tag = $1");

/// Events with the head of their id, which tells what is deleted; the event is null if it was removed since its place
/// was found. The places come first, so that the index alone decides which rows are read.
macro_rules! loaded {
    ($places:expr) => {
        concat!(
            "SELECT p.persistence_id, p.seq_nr, p.db_timestamp, e.deleted_to, v.writer_uuid, v.writer_epoch, v.codec_id,
    v.manifest, v.schema_version, v.filtered, v.payload, v.metadata, v.tags, v.crc32c
FROM (",
            $places,
            ") p
LEFT JOIN entity e ON e.persistence_id = p.persistence_id
LEFT JOIN event v ON v.persistence_id = p.persistence_id AND v.seq_nr = p.seq_nr
ORDER BY p.db_timestamp, p.persistence_id, p.seq_nr"
        )
    };
}

pub(crate) const EVENTS_BY_SLICES: &str = loaded!(page_of_events!(
    "persistence_id, seq_nr, db_timestamp",
    "event",
    "entity_type = $1 AND slice BETWEEN $8::smallint AND $9::smallint"
));

pub(crate) const EVENTS_BY_TAG: &str =
    loaded!(page_of_events!("persistence_id, seq_nr, db_timestamp", "event_tag", "tag = $1"));

/// Ids of states; parameters as of [`IDS`].
pub(crate) const STATE_IDS_OF_TYPE: &str = "\
SELECT persistence_id FROM durable_state
WHERE persistence_id > $1 AND ($3::text IS NULL OR entity_type = $3)
ORDER BY persistence_id LIMIT $2";

/// As [`NEWEST`], for states.
pub(crate) const NEWEST_CHANGE: &str =
    concat!("SELECT CASE WHEN EXISTS (SELECT 1 FROM durable_state) THEN ", now!(), " END AS now");

/// As [`page_of_events`], for changes of states. An id has one row, so its revision need not be compared.
macro_rules! page_of_changes {
    ($columns:literal, $where:literal) => {
        concat!(
            "SELECT ",
            $columns,
            " FROM durable_state WHERE ",
            $where,
            " AND (db_timestamp, persistence_id) > ($2::timestamptz, $3::text COLLATE \"C\")
    AND db_timestamp <= $4::timestamptz
    AND db_timestamp < ",
            now!(),
            " - $5::bigint * interval '1 microsecond'
ORDER BY db_timestamp, persistence_id LIMIT $6::bigint"
        )
    };
}

pub(crate) const CHANGE_PLACES_BY_SLICES: &str = page_of_changes!(
    "persistence_id, revision AS seq_nr, db_timestamp",
    "entity_type = $1 AND slice BETWEEN $7::smallint AND $8::smallint"
);

pub(crate) const CHANGE_PLACES_BY_TAG: &str =
    page_of_changes!("persistence_id, revision AS seq_nr, db_timestamp", "tag = $1");

pub(crate) const CHANGES_BY_SLICES: &str = page_of_changes!(
    "persistence_id, revision, generation, writer_uuid, db_timestamp, codec_id, manifest, schema_version, payload, tag,
    crc32c",
    "entity_type = $1 AND slice BETWEEN $7::smallint AND $8::smallint"
);

pub(crate) const CHANGES_BY_TAG: &str = page_of_changes!(
    "persistence_id, revision, generation, writer_uuid, db_timestamp, codec_id, manifest, schema_version, payload, tag,
    crc32c",
    "tag = $1"
);

/// Stores a part of a history of another store. `$10`, `$11`, `$12`: highest number, epoch and deleted prefix of the
/// head that the part was checked against. No row: the stored head is another one by now.
pub(crate) const IMPORT_EVENTS: &str = "\
WITH f AS (
    INSERT INTO entity AS e (persistence_id, entity_type, slice, writer_epoch, writer_uuid, generation, highest_seq_nr,
        deleted_to, last_event_at)
    SELECT $1::text, $2::text, $3::smallint, $4::bigint, $5::uuid, $6::bigint, $7::bigint, $8::bigint, $9::timestamptz
    WHERE $10::bigint = 0 OR EXISTS (SELECT 1 FROM entity WHERE persistence_id = $1::text)
    ON CONFLICT (persistence_id) DO UPDATE SET
        writer_epoch = excluded.writer_epoch, writer_uuid = excluded.writer_uuid, generation = excluded.generation,
        highest_seq_nr = excluded.highest_seq_nr, deleted_to = excluded.deleted_to,
        last_event_at = excluded.last_event_at
    WHERE e.highest_seq_nr = $10::bigint AND e.writer_epoch = $11::bigint AND e.deleted_to = $12::bigint
    RETURNING e.persistence_id, e.slice, e.entity_type
), r AS (
    SELECT f.persistence_id, f.slice, f.entity_type, x.seq_nr, x.db_timestamp, x.writer_uuid, x.writer_epoch,
        x.codec_id, x.manifest, x.schema_version, x.filtered, x.payload, x.metadata, x.tags, x.crc32c
    FROM f, unnest($13::bigint[], $14::timestamptz[], $15::uuid[], $16::bigint[], $17::integer[], $18::text[],
        $19::integer[], $20::boolean[], $21::bytea[], $22::bytea[], $23::text[], $24::bigint[])
        AS x(seq_nr, db_timestamp, writer_uuid, writer_epoch, codec_id, manifest, schema_version, filtered, payload,
            metadata, tags, crc32c)
), i AS (
    INSERT INTO event (persistence_id, seq_nr, slice, entity_type, db_timestamp, writer_uuid, writer_epoch, codec_id,
        manifest, schema_version, filtered, payload, metadata, tags, crc32c)
    SELECT persistence_id, seq_nr, slice, entity_type, db_timestamp, writer_uuid, writer_epoch, codec_id,
        manifest, schema_version, filtered, payload, metadata, string_to_array(tags, E'\\x1f'), crc32c
    FROM r
), t AS (
    INSERT INTO event_tag (tag, db_timestamp, persistence_id, seq_nr, slice)
    SELECT g.tag, r.db_timestamp, r.persistence_id, r.seq_nr, r.slice
    FROM r, unnest(string_to_array(r.tags, E'\\x1f')) AS g(tag)
)
SELECT persistence_id FROM f";

/// As [`SAVE_SNAPSHOT`], with the snapshot's own time.
pub(crate) const IMPORT_SNAPSHOT: &str = "\
INSERT INTO snapshot (persistence_id, seq_nr, taken_at, codec_id, manifest, schema_version, payload, metadata, crc32c)
VALUES ($1, $2, $9, $3, $4, $5, $6, $7, $8)
ON CONFLICT (persistence_id, seq_nr) DO UPDATE SET
    taken_at = excluded.taken_at, codec_id = excluded.codec_id, manifest = excluded.manifest,
    schema_version = excluded.schema_version, payload = excluded.payload, metadata = excluded.metadata,
    crc32c = excluded.crc32c";

/// Stores a state of another store, in place of one of a smaller revision.
pub(crate) const IMPORT_STATE: &str = "\
INSERT INTO durable_state AS s (persistence_id, entity_type, slice, revision, generation, writer_uuid, db_timestamp,
    codec_id, manifest, schema_version, payload, tag, crc32c)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)
ON CONFLICT (persistence_id) DO UPDATE SET
    revision = excluded.revision, generation = excluded.generation, writer_uuid = excluded.writer_uuid,
    db_timestamp = excluded.db_timestamp, codec_id = excluded.codec_id, manifest = excluded.manifest,
    schema_version = excluded.schema_version, payload = excluded.payload, tag = excluded.tag, crc32c = excluded.crc32c
WHERE s.revision < excluded.revision
RETURNING revision";

/// Ids of everything that is stored. Each part has its own limit, so that a page costs no more than a page.
pub(crate) const ALL_IDS: &str = "\
SELECT persistence_id FROM (
    (SELECT persistence_id FROM entity WHERE persistence_id > $1 ORDER BY persistence_id LIMIT $2)
    UNION
    (SELECT DISTINCT persistence_id FROM snapshot WHERE persistence_id > $1 ORDER BY persistence_id LIMIT $2)
    UNION
    (SELECT persistence_id FROM durable_state WHERE persistence_id > $1 ORDER BY persistence_id LIMIT $2)
) AS i
ORDER BY persistence_id LIMIT $2";

pub(crate) const LAST_APPEND: &str = "SELECT last_event_at FROM entity WHERE persistence_id = $1";

/// Removes rows of connections that ended long ago; the latest time stays.
pub(crate) const TIDY_CLOCK: &str =
    "DELETE FROM lane_clock WHERE latest < (SELECT max(latest) FROM lane_clock) - interval '1 day'";
