-- Ids compare byte by byte, whatever the collation of the database.
-- One row for each history. No index on what changes, so that updates stay in the row's page (HOT).
CREATE TABLE IF NOT EXISTS entity (
    persistence_id text COLLATE "C" PRIMARY KEY,
    entity_type text NOT NULL,
    slice smallint NOT NULL,
    writer_epoch bigint NOT NULL,
    writer_uuid uuid NOT NULL,
    generation bigint NOT NULL DEFAULT 0,
    highest_seq_nr bigint NOT NULL,
    deleted_to bigint NOT NULL DEFAULT 0,
    last_event_at timestamptz NOT NULL DEFAULT '-infinity'
) WITH (fillfactor = 70);

CREATE TABLE IF NOT EXISTS event (
    persistence_id text COLLATE "C" NOT NULL,
    seq_nr bigint NOT NULL CHECK (seq_nr > 0),
    slice smallint NOT NULL,
    entity_type text NOT NULL,
    db_timestamp timestamptz NOT NULL,
    writer_uuid uuid NOT NULL,
    writer_epoch bigint NOT NULL,
    codec_id integer NOT NULL,
    manifest text NOT NULL,
    schema_version integer NOT NULL,
    filtered boolean NOT NULL DEFAULT false,
    payload bytea NOT NULL,
    metadata bytea,
    tags text[],
    crc32c bigint NOT NULL,
    PRIMARY KEY (persistence_id, seq_nr)
);
CREATE INDEX IF NOT EXISTS event_time_idx
    ON event (entity_type, db_timestamp, persistence_id, seq_nr) INCLUDE (slice);

-- Written for tagged events only.
CREATE TABLE IF NOT EXISTS event_tag (
    tag text NOT NULL,
    db_timestamp timestamptz NOT NULL,
    persistence_id text COLLATE "C" NOT NULL,
    seq_nr bigint NOT NULL,
    slice smallint NOT NULL,
    PRIMARY KEY (tag, db_timestamp, persistence_id, seq_nr)
);

CREATE TABLE IF NOT EXISTS snapshot (
    persistence_id text COLLATE "C" NOT NULL,
    seq_nr bigint NOT NULL,
    taken_at timestamptz NOT NULL,
    codec_id integer NOT NULL,
    manifest text NOT NULL,
    schema_version integer NOT NULL,
    payload bytea NOT NULL,
    metadata bytea,
    crc32c bigint NOT NULL,
    PRIMARY KEY (persistence_id, seq_nr)
);

CREATE TABLE IF NOT EXISTS durable_state (
    persistence_id text COLLATE "C" PRIMARY KEY,
    entity_type text NOT NULL,
    slice smallint NOT NULL,
    revision bigint NOT NULL,
    generation bigint NOT NULL DEFAULT 0,
    writer_uuid uuid NOT NULL,
    db_timestamp timestamptz NOT NULL,
    codec_id integer,
    manifest text,
    schema_version integer,
    payload bytea,
    tag text,
    crc32c bigint
);
CREATE INDEX IF NOT EXISTS durable_state_time_idx
    ON durable_state (entity_type, db_timestamp, persistence_id) INCLUDE (slice, revision);
CREATE INDEX IF NOT EXISTS durable_state_tag_idx
    ON durable_state (tag, db_timestamp, persistence_id) WHERE tag IS NOT NULL;

CREATE TABLE IF NOT EXISTS projection_offset (
    projection text NOT NULL,
    slice smallint NOT NULL,
    persistence_id text COLLATE "C" NOT NULL,
    seq_nr bigint NOT NULL,
    db_timestamp timestamptz NOT NULL,
    consumed_at timestamptz NOT NULL,
    PRIMARY KEY (projection, slice, persistence_id)
);

CREATE TABLE IF NOT EXISTS projection_owner (
    projection text NOT NULL,
    slice smallint NOT NULL,
    epoch bigint NOT NULL,
    PRIMARY KEY (projection, slice)
);
