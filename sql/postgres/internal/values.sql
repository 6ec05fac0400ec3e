-- Values: the clock, keys, ids, and the conversion of an application's values.

-- The database's time, the only clock that counts here. It stands still during a statement. For a
-- procedure that commits, the statement is the whole CALL, however long it takes; there the start
-- of the current transaction is later, and is returned. (CURRENT_TIMESTAMP is not a function call,
-- so each emit has one call less to prepare.)
CREATE OR REPLACE FUNCTION @schema@._clock() RETURNS timestamptz LANGUAGE sql STABLE PARALLEL SAFE
RETURN greatest(statement_timestamp(), CURRENT_TIMESTAMP);

-- A new event id, as the default of event.id, for callers that may not read events: a random UUID
-- whose first 16 digits are replaced by 48 bits of milliseconds since 1970, the version, and 12
-- bits of their fraction, so that ids grow.
CREATE OR REPLACE FUNCTION @schema@._uuid7() RETURNS uuid LANGUAGE sql VOLATILE PARALLEL SAFE
RETURN overlay(gen_random_uuid()::text,
               overlay(lpad(to_hex((date_part('epoch', clock_timestamp()) * 4096000)::bigint),
                            15, '0'), '7', 13, 0),
               1, 18)::uuid;

-- Converts a type name of an adopted table to an event type: without white space or control
-- characters, not empty, not too long.
CREATE OR REPLACE FUNCTION @schema@._as_type(value text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN coalesce(nullif(left(regexp_replace(value, '[[:space:][:cntrl:]]+', '_', 'g'), 255), ''),
                'unknown');

-- Converts a value of an adopted table to a payload. Text that is JSON stays as it is; other text
-- becomes a JSON string. It never fails, because it runs inside the application's INSERT.
CREATE OR REPLACE FUNCTION @schema@._as_json(value text) RETURNS json
LANGUAGE plpgsql IMMUTABLE STRICT AS $outbox$
BEGIN
    RETURN value::json;
EXCEPTION WHEN data_exception OR statement_too_complex THEN -- nested too deeply
    RETURN to_json(value);
END $outbox$;

-- The same for bytes: text if they are UTF-8, else their base64 as a string.
CREATE OR REPLACE FUNCTION @schema@._as_json(value bytea) RETURNS json
LANGUAGE plpgsql IMMUTABLE STRICT AS $outbox$
BEGIN
    RETURN @schema@._as_json(convert_from(value, 'UTF8'));
EXCEPTION WHEN data_exception THEN
    RETURN to_json(replace(encode(value, 'base64'), E'\n', ''));
END $outbox$;

-- Converts type patterns ('order.*, user.*') to patterns for LIKE ANY; NULL stands for every type.
CREATE OR REPLACE FUNCTION @schema@._type_like(events text) RETURNS text[]
LANGUAGE sql IMMUTABLE PARALLEL SAFE
BEGIN ATOMIC
    -- The special characters of LIKE are escaped before * becomes %.
    SELECT CASE WHEN NOT bool_or(p = '*')
                THEN array_agg(replace(replace(replace(replace(
                         p, E'\\', E'\\\\'), '%', E'\\%'), '_', E'\\_'), '*', '%')) END
    FROM regexp_split_to_table(events, ',') AS x, btrim(x, E' \t\r\n') AS p WHERE p <> '';
END;

-- The ordering key of an event, as a number. Events with the same number are delivered one after
-- the other; 0 means that order does not matter for the event. The hash must never change, because
-- it is stored in parked.key. hashtextextended does not, since hash partitions depend on it.
CREATE OR REPLACE FUNCTION @schema@._key(ordering text, aggregate_type text, aggregate_id text)
RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN ordering = 'none' THEN 0
            WHEN ordering = 'global' THEN 1
            WHEN aggregate_id IS NULL THEN 0
            ELSE coalesce(nullif(hashtextextended(coalesce(aggregate_type, '') || chr(1)
                                                  || aggregate_id, 0), 0), 1) END;

-- Which of a consumer's lanes, from 0 to lanes - 1, an event belongs to: by the hash of its key, or
-- by its seq if it has none. The mask makes the hash positive.
CREATE OR REPLACE FUNCTION @schema@._lane_of(
    lanes int, seq bigint, aggregate_type text, aggregate_id text) RETURNS int
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN lanes = 1 THEN 0
            WHEN aggregate_id IS NULL THEN (seq % lanes)::int
            ELSE ((hashtextextended(coalesce(aggregate_type, '') || chr(1) || aggregate_id, 0)
                   & 9223372036854775807) % lanes)::int END;

-- The normal form of type patterns: sorted, without duplicates, and '' for every type.
-- src/event/filter_normal.c does the same in the program.
CREATE OR REPLACE FUNCTION @schema@._normal_events(events text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $outbox$
    SELECT CASE WHEN bool_or(p = '*') THEN ''
                ELSE coalesce(string_agg(DISTINCT p, ', ' ORDER BY p), '') END
    FROM (SELECT regexp_replace(btrim(x, E' \t\n\v\f\r'), E'\\*+', '*', 'g') COLLATE "C"
          FROM regexp_split_to_table(events, ',') AS x) AS n (p)
    WHERE p <> ''
$outbox$;
