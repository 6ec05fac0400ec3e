-- _turns makes simple turns of several consumers in one transaction. They share its commit, and the
-- look for new events. A relay with many consumers lives on it.
--
-- A turn is simple if the claim that it settles was delivered whole, the consumer has one lane and
-- nothing parked, and whatever was handed out before is settled or in this worker's hands. Such a
-- turn is made, and has a row in the answer. Nothing is done about any other: the worker calls
-- _turn for it.
--
-- A consumer that is behind gets a few events of its window, and the next ones in its next turn. So
-- where many are behind, each gets more in a turn, and all of them share it as before.
--
-- The order of steps is that of _claim_fresh, which explains it: the locks; the window (head,
-- snapshot, last number); the reading, in a statement that sees at least as much. Nobody is waited
-- for: a consumer that somebody else has locked is not simple.
CREATE OR REPLACE FUNCTION @schema@._turns(asked json, knows int)
RETURNS SETOF @schema@._simple_answer
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $outbox$
DECLARE
    few int := 256;           -- events that a simple turn hands out to a consumer at most
    on_disk text;
    head bigint := coalesce(pg_sequence_last_value('@schema@.event_seq_seq'), 0);
    begun boolean := pg_current_xact_id_if_assigned() IS NOT NULL;
    wanted @schema@._simple[];
    moment timestamptz;
    here text;
    showing pg_snapshot;      -- what the window ends with
    ending bigint;            -- no event that it shows is past this
    answers @schema@._simple_answer[];
    mode text;                -- assigned, since PERFORM would be a statement
    fenced boolean;           -- every new epoch is past those that its consumer knows
    q @schema@._simple;
BEGIN
    IF NOT has_table_privilege('@schema@.lane'::regclass, 'DELETE') THEN
        RETURN QUERY SELECT * FROM @schema@._worker_turns(asked, knows);
        RETURN;
    END IF;

    -- What has to be considered for all of them is _turn's business.
    IF begun OR current_setting('transaction_isolation') <> 'read committed'
       OR coalesce(current_setting('outbox.tenant', true), '') <> ''
       OR NOT EXISTS (SELECT 1 FROM @schema@.meta m
                      WHERE m.name = 'schema_version' AND m.value = knows::text)
       OR EXISTS (SELECT 1 FROM pg_catalog.pg_subscription_rel r
                  WHERE r.srrelid = '@schema@.event'::regclass) THEN
        RETURN;
    END IF;
    IF current_user <> @schema@._caller() THEN
        PERFORM set_config('outbox.cluster', '', true); -- as in _turn_home
    END IF;

    on_disk := @schema@._on_disk();

    -- By itself for each: a join may compare each turn with each consumer, because nobody tells the
    -- planner how many there are.
    wanted := ARRAY(SELECT x
                    FROM json_populate_recordset(NULL::@schema@._simple, asked) x
                    CROSS JOIN LATERAL (
                        SELECT c.name
                        FROM @schema@.consumer c
                        WHERE c.name = x.consumer AND c.lanes = 1 AND c.ordering = x.ordering
                          AND c.events = x.events AND c.predicate = x.predicate
                          AND c.tenant = '' AND NOT c.paused AND NOT c.marks
                        FOR NO KEY UPDATE SKIP LOCKED) locked); -- as in _lock_consumer
    IF cardinality(wanted) = 0 THEN
        RETURN;
    END IF;

    moment := @schema@._clock();
    here := @schema@._here();
    showing := pg_current_snapshot();
    mode := @schema@._commit_mode(on_disk, showing);
    ending := coalesce(pg_sequence_last_value('@schema@.event_seq_seq'), 0);
    showing := @schema@._name_running(showing);
    IF showing IS NULL THEN
        RETURN;
    END IF;

    WITH
    -- Where each consumer stands, if that is simple: in a window that is open, or where the next
    -- one begins (target NULL). A window that was handed out to its end is as good as closed.
    stand AS MATERIALIZED (
        SELECT w.*, c.type_like, @schema@._starts_after(c.start_seen, c.start_floor) AS start,
               l.version, l.claims_from, l.delivered, l.home,
               l.window_end AS upto, p.seen, p.seen::text AS at, p.floor, p.pos, p.target,
               coalesce(p.target, showing) AS shown, k.first, k.last,
               CASE WHEN p.target IS NULL THEN head ELSE l.next_floor END AS next_floor,
               CASE WHEN p.target IS NULL THEN ending ELSE l.window_end END AS window_end,
               l.ctid AS lane_row, k.own_row
        FROM unnest(wanted) w
        CROSS JOIN LATERAL (SELECT * FROM @schema@.consumer x
                            WHERE x.name = w.consumer LIMIT 1) c
        CROSS JOIN LATERAL (SELECT x.*, x.ctid FROM @schema@.lane x
                            WHERE x.consumer = w.consumer AND x.lane = 0
                            ORDER BY x.version DESC LIMIT 1) l
        CROSS JOIN LATERAL (SELECT x.due_from FROM @schema@.lane x
                            WHERE x.consumer = w.consumer AND x.lane = -1
                            ORDER BY x.version DESC LIMIT 1) parked
        CROSS JOIN LATERAL (SELECT l.seen, l.floor, l.pos, l.target WHERE l.pos < l.window_end
                                   AND l.target IS NOT NULL
                            UNION ALL
                            SELECT coalesce(l.target, l.seen),
                                   CASE WHEN l.target IS NULL THEN l.floor
                                        ELSE greatest(l.floor, l.next_floor) END, 0, NULL
                            WHERE (l.pos < l.window_end AND l.target IS NOT NULL) IS NOT TRUE) p
        CROSS JOIN LATERAL (
            SELECT min(x.epoch) FILTER (WHERE x.epoch <> w.epoch) AS first, max(x.epoch) AS last,
                   bool_or(x.epoch = w.epoch AND x.owner = w.owner AND x.lane = 0
                           AND x.locked_until > moment) AS own,
                   (array_agg(x.ctid) FILTER (WHERE x.epoch = w.epoch))[1] AS own_row,
                   bool_and(x.epoch = w.epoch
                            OR (x.epoch = ANY (w.known) AND x.locked_until > moment
                                AND x.locked_until <= moment + x.lease + interval '1 s')
                               IS TRUE) AS mine
            FROM @schema@.claim x
            WHERE x.consumer = w.consumer AND x.epoch >= l.claims_from) k
        WHERE l.window_end <= ending
          AND @schema@._at_home(l.home, here)
          AND (parked.due_from > moment) IS NOT TRUE -- the clock was not set back
          AND (p.target IS NOT NULL -- as in _reached
               OR NOT (p.floor <= c.start_floor AND c.start_seen::text = '1:1:'))
          AND (w.epoch = 0 OR k.own)
          AND k.mine IS NOT FALSE
          -- as in _first_due, which would take longer than the rest
          AND (SELECT x.due_at FROM @schema@.parked x
               WHERE x.consumer = w.consumer
                 AND x.due_at >= coalesce(CASE WHEN w.pull_in IS NOT TRUE THEN parked.due_from END,
                                          '-infinity')
               ORDER BY x.due_at, x.seq LIMIT 1) IS NULL),

    -- The places where they stand, most of them at the same, and what comes next there.
    place AS MATERIALIZED (
        SELECT s.*, new.seqs, new.types, new.more
        FROM (SELECT DISTINCT x.at, x.floor, x.upto, x.pos, x.shown::text AS shown, x.window_end,
                     x.target IS NULL AS opens
              FROM stand x) s
        CROSS JOIN LATERAL @schema@._news(s.at::pg_snapshot, s.floor, s.upto, s.pos, s.opens,
                                          s.shown::pg_snapshot, s.window_end, few) AS new
        WHERE new.plain),

    -- What each of them gets: the first events that it wants, and how far that is. One that gets
    -- nothing is written only if its place can move on. One that would have to look on is not
    -- simple, unless it only settles (max_events 0). Nor is one that has to pass over late events
    -- from before its start.
    turn AS MATERIALIZED (
        SELECT x.*, CASE WHEN x.n > 0 THEN @schema@._next_epoch() END AS next,
               x.epoch <> 0 OR x.news OR x.floor < head AS writes,
               CASE WHEN x.max_events = 0 THEN x.pos WHEN x.filled THEN x.last_seq
                    WHEN x.more THEN x.upmost ELSE x.window_end END AS to_seq
        FROM (SELECT s.*, p.more, o.upmost, o.upmost IS NOT NULL AS news, g.n, g.last_seq,
                     coalesce(g.n = s.max_events AND g.last_seq < o.upmost, false) AS filled
              FROM stand s
              JOIN place p ON p.at = s.at AND p.floor = s.floor AND p.upto = s.upto
                              AND p.pos = s.pos AND p.shown = s.shown::text
                              AND p.opens = (s.target IS NULL)
              CROSS JOIN LATERAL (SELECT p.seqs[cardinality(p.seqs)] AS upmost) o
              CROSS JOIN LATERAL (
                  SELECT count(*)::int AS n, max(e.seq) AS last_seq
                  FROM (SELECT u.seq FROM unnest(p.seqs, p.types) AS u (seq, type)
                        WHERE s.type_like IS NULL OR u.type LIKE ANY (s.type_like)
                        LIMIT s.max_events) e) g
              WHERE (p.seqs[1] <= s.start) IS NOT TRUE) x
        WHERE x.n > 0 OR x.max_events = 0 OR NOT (x.more OR x.target IS NOT NULL)),

    -- What goes is found by where it is. To join it by its key may take a comparison of each turn
    -- with each row, because nobody tells the planner how many turns there are.
    settled AS (
        DELETE FROM @schema@.claim k
        WHERE k.ctid = ANY (ARRAY(SELECT t.own_row FROM turn t WHERE t.epoch <> 0))),
    claimed AS (
        INSERT INTO @schema@.claim
        SELECT t.consumer, t.next, 0, t.seen, t.floor, t.shown, t.next_floor, t.window_end, t.pos,
               t.to_seq, t.owner, moment + t.lease_ms * interval '1 millisecond',
               t.lease_ms * interval '1 millisecond'
        FROM turn t WHERE t.n > 0),
    moved AS ( -- as in _put_lane; without news the window is closed at once
        INSERT INTO @schema@.lane
        SELECT t.consumer, 0, t.version + 1,
               CASE WHEN t.news THEN t.seen ELSE t.shown END,
               CASE WHEN t.news THEN t.floor ELSE greatest(t.floor, t.next_floor) END,
               CASE WHEN t.news THEN t.shown END,
               t.next_floor, t.window_end,
               CASE WHEN t.news THEN t.to_seq ELSE 0 END,
               coalesce(t.first, t.next, CASE WHEN t.epoch <> 0 THEN t.epoch + 1 END,
                        t.claims_from),
               t.delivered + greatest(t.tried, 0), t.home
        FROM turn t WHERE t.writes),
    away AS (
        DELETE FROM @schema@.lane l
        WHERE l.ctid = ANY (ARRAY(SELECT t.lane_row FROM turn t WHERE t.writes)))
    SELECT array_agg(ROW(t.place, t.next, t.n, t.first IS NOT NULL, t.at, t.floor, t.shown,
                         t.pos, t.to_seq, NOT t.filled AND NOT t.more AND t.target IS NULL,
                         floor(extract(epoch FROM moment) * 1000))
                     ::@schema@._simple_answer),
           bool_and(t.next > greatest(t.epoch, t.last, t.claims_from - 1)) IS NOT FALSE
    INTO answers, fenced
    FROM turn t;

    IF NOT fenced THEN
        RAISE EXCEPTION 'the sequence @schema@.epoch is behind' USING ERRCODE = 'OB006',
            HINT = 'a turn of each consumer by itself puts that right';
    END IF;
    FOREACH q IN ARRAY wanted LOOP
        IF q.marks IS NOT NULL THEN -- by itself: the rest would be set up for each consumer
            IF EXISTS (SELECT 1 FROM unnest(answers) x WHERE x.place = q.place) THEN
                PERFORM @schema@._put_marks(q.consumer, q.marks);
            END IF;
        END IF;
    END LOOP;
    RETURN QUERY SELECT * FROM unnest(answers);
END
$outbox$;
COMMENT ON FUNCTION @schema@._turns(json, int) IS
    'simple turns of several consumers, in one transaction';

-- _worker_turns is _turns for a role that may not write to the tables. A door, see _admit.
CREATE OR REPLACE FUNCTION @schema@._worker_turns(asked json, knows int)
RETURNS SETOF @schema@._simple_answer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $outbox$
BEGIN
    RETURN QUERY
    SELECT t.*
    FROM @schema@._turns((SELECT json_agg(x) FROM json_array_elements(asked) x
                          WHERE @schema@._admit('consumer', x ->> 'consumer')), knows) t;
END
$outbox$;
COMMENT ON FUNCTION @schema@._worker_turns(json, int) IS '_turns, for workers';

-- _news returns the first events, at most `most`, that are new to whoever stands at a place: what
-- `showing` shows, with a number in (pos, ending], and `seen` did not. more: there are others. upto
-- is the highest number known there. opens: the window is a new one. plain: this is still the
-- outbox that was known there. That is asked as in _claim_fresh, in the same words.
CREATE OR REPLACE FUNCTION @schema@._news(
    seen pg_snapshot, floor bigint, upto bigint, pos bigint, opens boolean, showing pg_snapshot,
    ending bigint, most int,
    OUT plain boolean, OUT seqs bigint[], OUT types text[], OUT more boolean)
LANGUAGE plpgsql STABLE AS $outbox$
DECLARE
    passed bigint := least(floor, upto); -- up to it no event can be new
    first bigint;
    again boolean;
    behind boolean;
    strange boolean;
BEGIN
    SELECT (SELECT e.seq
            FROM @schema@.event e
            WHERE e.xid >= pg_snapshot_xmax(seen)
            ORDER BY e.xid, e.seq
            LIMIT 1),
           EXISTS (SELECT 1
                   FROM (SELECT x.xid
                         FROM @schema@.event x
                         WHERE x.seq <= passed AND x.seq > passed - 100
                         ORDER BY x.seq DESC
                         LIMIT 1) e
                   WHERE e.xid >= pg_snapshot_xmax(seen)),
           (SELECT true
            FROM @schema@.event e
            WHERE opens AND e.seq > ending AND pg_visible_in_snapshot(e.xid, showing)
            ORDER BY e.seq
            LIMIT 1),
           EXISTS (SELECT 1
                   FROM (SELECT x.xid
                         FROM @schema@.event x
                         WHERE x.seq > upto
                         ORDER BY x.seq
                         LIMIT 100) e
                   WHERE pg_visible_in_snapshot(e.xid, seen))
    INTO first, again, behind, strange;
    plain := (first <= passed) IS NOT TRUE AND NOT again AND behind IS NULL AND NOT strange;

    SELECT coalesce(array_agg(e.seq ORDER BY e.seq), '{}'),
           coalesce(array_agg(e.type ORDER BY e.seq), '{}')
    INTO seqs, types
    FROM (SELECT w.seq, w.type
          FROM @schema@._window_events(seen, floor, showing, pos, ending, '') w
          ORDER BY w.seq
          LIMIT most + 1) e;
    more := cardinality(seqs) > most;
    seqs := seqs[:most];
    types := types[:most];
END
$outbox$;
COMMENT ON FUNCTION @schema@._news(pg_snapshot, bigint, bigint, bigint, boolean, pg_snapshot,
    bigint, int) IS
    'what is new at the place where several consumers stand';
