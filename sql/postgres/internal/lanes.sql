-- The rows of table lane: the positions of a consumer.

-- The seq up to which lane l has seen all numbers, so that no event up to it can be new to the
-- lane; NULL if that is unknown. The configured start of a consumer (start_at) does not count: it
-- may be ahead of everything that the lane has seen.
CREATE OR REPLACE FUNCTION @schema@._reached(c @schema@.consumer, l @schema@.lane) RETURNS bigint
LANGUAGE sql STABLE
RETURN CASE WHEN (l).window_end IS NULL THEN NULL
            WHEN (l).target IS NOT NULL AND (l).next_floor > (l).window_end THEN NULL
            WHEN (l).target IS NOT NULL THEN (l).next_floor
            WHEN (l).floor <= @include start_of((c))@ THEN NULL
            ELSE least((l).floor, (l).window_end) END;

-- The current rows of a consumer with `lanes` lanes: first lane -1 (the parked events), then each
-- lane. The rows are as stored: the position of a lane in a group is in the row of its leader (see
-- groups.sql). The current row has the highest version, which one backward index probe finds. The
-- function can be inlined into queries.
CREATE OR REPLACE FUNCTION @schema@._places(consumer text, lanes int) RETURNS SETOF @schema@.lane
LANGUAGE sql STABLE ROWS 2 AS $outbox$
    -- Every name is schema-qualified.
    SELECT l.*
    FROM pg_catalog.generate_series(-1, _places.lanes OPERATOR(pg_catalog.-) 1) AS n,
         LATERAL (SELECT * FROM @schema@.lane x
                  WHERE x.consumer OPERATOR(pg_catalog.=) _places.consumer
                    AND x.lane OPERATOR(pg_catalog.=) n
                  ORDER BY x.version DESC LIMIT 1) AS l
$outbox$;

-- The position of every lane of a consumer, as if no lanes were grouped: the rows of _places, with
-- the position of the leader for a lane that has one. The columns are listed, so that a column
-- added to the table by hand does no harm.
CREATE OR REPLACE FUNCTION @schema@._lanes(whose text, n_lanes int) RETURNS TABLE (
    consumer text, lane int, version bigint, seen pg_snapshot, floor bigint, target pg_snapshot,
    next_floor bigint, window_end bigint, pos bigint, claims_from bigint, delivered bigint,
    home text, due_from timestamptz, leader int, members bigint, kept_for text,
    kept_until timestamptz) LANGUAGE sql STABLE ROWS 2 AS $outbox$
    -- Every name is schema-qualified.
    SELECT l.consumer, l.lane, l.version, p.seen, p.floor, p.target, p.next_floor, p.window_end,
           p.pos, p.claims_from, l.delivered, p.home, l.due_from, NULL::pg_catalog.int4,
           NULL::pg_catalog.int8, NULL::pg_catalog.text, NULL::pg_catalog.timestamptz
    FROM pg_catalog.generate_series(-1, _lanes.n_lanes OPERATOR(pg_catalog.-) 1) AS n,
         LATERAL (SELECT * FROM @schema@.lane x
                  WHERE x.consumer OPERATOR(pg_catalog.=) _lanes.whose
                    AND x.lane OPERATOR(pg_catalog.=) n
                  ORDER BY x.version DESC LIMIT 1) AS l,
         LATERAL (SELECT * FROM @schema@.lane x
                  WHERE x.consumer OPERATOR(pg_catalog.=) _lanes.whose
                    AND x.lane OPERATOR(pg_catalog.=) coalesce(l.leader, n)
                  ORDER BY x.version DESC LIMIT 1) AS p
$outbox$;

-- Raises an error while a restore is under way. A restore creates keys last, so while they are
-- missing, rows may be missing, too.
CREATE OR REPLACE FUNCTION @schema@._check_whole() RETURNS void LANGUAGE plpgsql STABLE AS $outbox$
BEGIN
    IF to_regclass('@schema@.event_pkey') IS NULL OR to_regclass('@schema@.lane_pkey') IS NULL THEN
        RAISE EXCEPTION 'the outbox in schema % has no primary keys yet: a restore is under way',
            '@schema@'
            USING ERRCODE = 'lock_not_available', HINT = 'wait until it is done';
    END IF;
END $outbox$;

-- Always raises an error. It is called for a consumer whose rows in lane are missing, so that it is
-- unknown which events were handed out.
CREATE OR REPLACE FUNCTION @schema@._lost_place(c @schema@.consumer) RETURNS void
LANGUAGE plpgsql STABLE AS $outbox$
BEGIN
    -- During a restore the rows may still arrive.
    PERFORM @schema@._check_whole();
    RAISE EXCEPTION 'consumer "%" has lost its position: % of its % rows in table %.lane are left',
        c.name, (SELECT count(*) FROM @schema@._lanes(c.name, c.lanes)), c.lanes + 1, '@schema@'
        USING ERRCODE = 'OB006',
              HINT = format('restore the rows, or run `outbox consumers remove %s` and start '
                            'the consumer again where you want it to begin', c.name);
END $outbox$;

-- Makes l the current row of its lane. Under _lock_consumer. A new row is found at the end of the
-- index, however many dead rows a long transaction keeps from being cleaned up.
CREATE OR REPLACE FUNCTION @schema@._put_lane(l @schema@.lane) RETURNS void
LANGUAGE plpgsql VOLATILE AS $outbox$
BEGIN
    INSERT INTO @schema@.lane
    VALUES (l.consumer, l.lane, l.version + 1, l.seen, l.floor, l.target, l.next_floor,
            l.window_end, l.pos, l.claims_from, l.delivered, l.home, l.due_from, l.leader,
            l.members, l.kept_for, l.kept_until);
    DELETE FROM @schema@.lane x
    WHERE x.consumer = l.consumer AND x.lane = l.lane AND x.version = l.version;
END $outbox$;

-- Does the same for the changed lanes of a consumer. ls and dirty: see _turn_full. Old rows are
-- deleted by ctid, with one index probe for each.
CREATE OR REPLACE FUNCTION @schema@._put_lanes(ls @schema@.lane[], dirty boolean[]) RETURNS void
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    changed int[] := array_positions(dirty, true);
BEGIN
    IF cardinality(changed) <= 2 THEN -- faster one by one
        FOR i IN 1 .. cardinality(changed) LOOP
            PERFORM @schema@._put_lane(ls[changed[i]]);
        END LOOP;
        RETURN;
    END IF;
    INSERT INTO @schema@.lane
    SELECT l.consumer, l.lane, l.version + 1, l.seen, l.floor, l.target, l.next_floor,
           l.window_end, l.pos, l.claims_from, l.delivered, l.home, l.due_from, l.leader,
           l.members, l.kept_for, l.kept_until
    FROM unnest(ls) l WHERE dirty[l.lane + 2];
    DELETE FROM @schema@.lane x
    WHERE x.ctid = ANY (ARRAY(SELECT (SELECT y.ctid FROM @schema@.lane y
                                      WHERE y.consumer = l.consumer AND y.lane = l.lane
                                        AND y.version = l.version)
                              FROM unnest(ls) l WHERE dirty[l.lane + 2]));
END $outbox$;
