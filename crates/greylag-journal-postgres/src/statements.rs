//! The statements. Only what PostgreSQL 13 and its relatives share; each is one transaction of its own.

/// Stores appends of many ids, each id once. Answers those stored; nothing is said of the others.
///
/// Heads are compared and raised by one update (J3), and only what it changed is stored. A row that
/// another transaction holds is waited for, and compared as that leaves it.
pub(crate) const APPEND: &str = "\
WITH w AS (
    SELECT * FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[]) AS w(pid, epoch, first_nr, last_nr)
), f AS (
    UPDATE entity e SET highest_seq_nr = w.last_nr,
        last_event_at = GREATEST(statement_timestamp(), e.last_event_at + interval '1 microsecond')
    FROM w
    WHERE e.persistence_id = w.pid AND e.writer_epoch = w.epoch AND e.highest_seq_nr = w.first_nr - 1
    RETURNING e.persistence_id, e.slice, e.entity_type, e.writer_epoch, e.last_event_at
), r AS (
    SELECT f.persistence_id, f.slice, f.entity_type, f.writer_epoch, f.last_event_at, x.seq_nr, x.writer_uuid,
        x.codec_id, x.manifest, x.schema_version, x.filtered, x.payload, x.metadata, x.tags, x.crc32c
    FROM unnest($5::text[], $6::bigint[], $7::uuid[], $8::integer[], $9::text[], $10::integer[], $11::boolean[],
        $12::bytea[], $13::bytea[], $14::text[], $15::bigint[])
        AS x(pid, seq_nr, writer_uuid, codec_id, manifest, schema_version, filtered, payload, metadata, tags, crc32c)
    JOIN f ON f.persistence_id = x.pid
), i AS (
    INSERT INTO event (persistence_id, seq_nr, slice, entity_type, db_timestamp, writer_uuid, writer_epoch, codec_id,
        manifest, schema_version, filtered, payload, metadata, tags, crc32c)
    SELECT persistence_id, seq_nr, slice, entity_type, last_event_at, writer_uuid, writer_epoch, codec_id,
        manifest, schema_version, filtered, payload, metadata, string_to_array(tags, E'\\x1f'), crc32c
    FROM r
), t AS (
    INSERT INTO event_tag (tag, db_timestamp, persistence_id, seq_nr, slice)
    SELECT g.tag, r.last_event_at, r.persistence_id, r.seq_nr, r.slice
    FROM r, unnest(string_to_array(r.tags, E'\\x1f')) AS g(tag)
)
SELECT persistence_id, last_event_at FROM f";

/// What stands in the place of appends that were not stored, heads and events of one moment.
pub(crate) const LOOK_UP: &str = "\
SELECT w.pid, e.writer_epoch, e.writer_uuid, e.generation, e.highest_seq_nr, e.deleted_to,
    v.writer_uuid AS last_writer_uuid, v.crc32c AS last_crc32c, v.db_timestamp AS last_timestamp
FROM unnest($1::text[], $2::bigint[]) AS w(pid, last_nr)
LEFT JOIN entity e ON e.persistence_id = w.pid
LEFT JOIN event v ON v.persistence_id = w.pid AND v.seq_nr = w.last_nr";

/// J4. No row: the claim is refused. Waits on the row while an append of the id is in flight anywhere.
/// A claim that says it saw an epoch makes no first row.
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

/// Removes some of what is deleted, and its tags.
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

/// One page: the head with every event of it, or with none. The running sum cuts pages on the server,
/// so that at most one record more than `$5` bytes travels.
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
