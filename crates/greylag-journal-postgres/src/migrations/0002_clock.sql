-- What the server says of the time, asked by every statement. Tests put another clock in its place.
CREATE OR REPLACE FUNCTION greylag_clock() RETURNS timestamptz LANGUAGE sql STABLE AS 'SELECT statement_timestamp()';

-- The time of the latest event or state that each connection stored. Nothing is stored under an earlier time than the
-- latest of them, and queries take that for the present, so that a server whose clock is behind hides no event.
CREATE TABLE IF NOT EXISTS lane_clock (
    lane text COLLATE "C" PRIMARY KEY,
    latest timestamptz NOT NULL
) WITH (fillfactor = 50);

-- What was stored before. A time far ahead was copied from elsewhere, and must not stop the clock.
INSERT INTO lane_clock (lane, latest)
SELECT 'before', max(t) FROM (
    SELECT max(last_event_at) AS t FROM entity WHERE last_event_at <= greylag_clock() + interval '10 minutes'
    UNION ALL
    SELECT max(db_timestamp) FROM durable_state WHERE db_timestamp <= greylag_clock() + interval '10 minutes'
) x HAVING max(t) > '-infinity'
ON CONFLICT (lane) DO UPDATE SET latest = GREATEST(lane_clock.latest, excluded.latest);
