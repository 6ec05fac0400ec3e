-- Simple turns: of one consumer while events arrive one by one (_turn_single), or of many
-- consumers, which share the commit and the poll for new events (_turn_batch). A turn is simple if
-- the claim that it settles was delivered whole, the consumer has one lane and nothing parked, and
-- everything handed out before is settled or held by this worker.
--
-- Statements are prepared again in each transaction. So _turn_single has few and simple ones, and
-- _turn_batch runs as many for a thousand consumers as for two. _open_window explains the order of
-- the steps: head; locks; window; the read. If another session has locked the consumer, the turn is
-- not simple.

-- Takes those of the requested turns that are simple; the others change nothing and have no answer:
-- the worker calls _turn. path is `single`, for a consumer without another claim, or `batch`.
--
-- A single turn also returns its events if they are few, without large payloads; the worker reads
-- all others. The statement that reads them has the rights of the caller, and begins after the
-- claim was made, so it sees all its events.
CREATE OR REPLACE FUNCTION @schema@._turns(asked @schema@._request[], path text, knows int)
RETURNS TABLE (seq bigint, id uuid, type text, aggregate_type text, aggregate_id text,
               version bigint, payload json, headers json, tenant text, created_at timestamptz,
               not_before timestamptz, idempotency_key text,
               place int, lost boolean, paused boolean, changed boolean, busy boolean,
               through boolean, skipped boolean, suspect_due boolean, crashed bigint,
               buried bigint, wait_ms bigint, now_ms bigint, epoch bigint, lane int, n int,
               suspect boolean, held bigint[], keys bigint[], seen text, floor bigint, target text,
               from_seq bigint, to_seq bigint, window_end bigint, quiet boolean, members bigint,
               wanted bigint[]) LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $outbox$
#variable_conflict use_column
DECLARE
    answers @schema@._answer[];
BEGIN
    IF has_table_privilege('@schema@.lane'::regclass, 'DELETE') THEN
        answers := @include make_turns(asked, path, knows)@;
    ELSE
        answers := @schema@._worker_turns(asked, path, knows);
    END IF;
    IF cardinality(answers) > 0 THEN
        RETURN QUERY
        SELECT e.seq::bigint, e.id::uuid, e.type::text, e.aggregate_type::text,
               e.aggregate_id::text, e.version::bigint,
               CASE WHEN pg_column_size(e.payload) + coalesce(pg_column_size(e.headers), 0) < 8000
                    THEN e.payload::json END,
               e.headers::json, e.tenant::text, e.created_at::timestamptz,
               e.not_before::timestamptz, e.idempotency_key::text, a.*
        FROM unnest(answers) a LEFT JOIN @schema@.event e ON e.seq = ANY (a.wanted) AND a.n <= 8
        ORDER BY e.seq; -- only a single turn returns events
    END IF;
END $outbox$;

-- Takes the simple turns among those of several consumers. One with a backlog gets its first
-- events.
CREATE OR REPLACE FUNCTION @schema@._turn_batch(asked @schema@._request[], knows int)
RETURNS @schema@._answer[] LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    on_disk text := @schema@._on_disk();
    head bigint := coalesce(pg_sequence_last_value('@schema@.event_seq_seq'), 0);
    begun boolean := pg_current_xact_id_if_assigned() IS NOT NULL;
    answers @schema@._answer[];
    few int := 256;           -- the most events that a simple turn hands out to a consumer
    moment timestamptz;
    here text;
    wanted @schema@._request[];
    showing pg_snapshot;      -- the snapshot that ends the window
    ending bigint;            -- no event that showing shows is past this
    marked boolean;           -- some requests have marks to store
    mode text;                -- assigned: PERFORM would be another statement
    fenced boolean;           -- every new epoch is higher than those its consumer knows
    q @schema@._request;
BEGIN
    -- Locks. One lookup per turn: a join might compare each with each consumer.
    wanted := ARRAY(SELECT x
                    FROM unnest(asked) x
                    CROSS JOIN LATERAL (
                        SELECT c.name FROM @schema@.consumer c
                        WHERE c.name = x.consumer AND c.lanes = 1 AND c.tenant = ''
                          AND @include same_settings(c, x)@
                        FOR NO KEY UPDATE SKIP LOCKED) locked -- the lock of _lock_consumer
                    WHERE NOT begun AND @include nothing_special(knows)@);
    IF cardinality(wanted) = 0 THEN RETURN '{}'; END IF;

    -- The window that all of them open, in the order of _open_window.
    moment := @schema@._clock();
    here := @schema@._here();
    showing := pg_current_snapshot();
    mode := @schema@._commit_mode(on_disk, showing);
    ending := coalesce(pg_sequence_last_value('@schema@.event_seq_seq'), 0);
    showing := @schema@._name_running(showing);
    IF showing IS NULL THEN RETURN '{}'; END IF;

    WITH
    -- Position: of each consumer, if it is simple, in an open window, or where the next one begins
    -- (target NULL). A window handed out to its end counts as closed.
    positions AS MATERIALIZED (
        SELECT w.place, w.consumer, w.owner, w.epoch, w.tried, w.marks, w.max_events, w.lease_ms,
               c.type_like, @schema@._starts_after(c.start_seen, c.start_floor) AS start,
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
                            OR (x.epoch = ANY (w.known)
                                AND @include is_alive(x, moment)@) IS TRUE) AS mine
            FROM @schema@.claim x WHERE x.consumer = w.consumer AND x.epoch >= l.claims_from) k
        WHERE l.window_end <= ending
          AND @schema@._at_home(l.home, here)
          AND (parked.due_from > moment) IS NOT TRUE -- the clock was not set back
          AND (p.target IS NOT NULL OR (p.floor <= @include start_of(c)@) IS NOT TRUE)
          AND (w.epoch = 0 OR k.own)
          AND k.mine IS NOT FALSE
          AND @include first_due(w.consumer, CASE WHEN w.clock_repair IS NOT TRUE
                                                  THEN parked.due_from END)@ IS NULL),

    -- News: the next events at each distinct position. Most consumers share one.
    news AS MATERIALIZED (
        SELECT s.*, new.seqs, new.types, new.more
        FROM (SELECT DISTINCT x.at, x.floor, x.upto, x.pos, x.shown::text AS shown, x.window_end,
                     x.target IS NULL AS opens
              FROM positions x) s
        CROSS JOIN LATERAL @schema@._news(s.at::pg_snapshot, s.floor, s.upto, s.pos, s.opens,
                                          s.shown::pg_snapshot, s.window_end, few) AS new
        WHERE new.plain),

    -- Turn: what each consumer gets, the first events that match, and the new position. A lane
    -- without new events is stored only if it can advance. A turn that would have to scan further
    -- is not simple, unless it only settles (max_events 0); nor is one with a late event from
    -- before the start.
    turn AS MATERIALIZED (
        SELECT x.*, CASE WHEN x.n > 0 THEN @schema@._next_epoch() END AS next,
               x.epoch <> 0 OR x.news OR x.floor < head AS writes,
               CASE WHEN x.max_events = 0 THEN x.pos WHEN x.filled THEN x.last_seq
                    WHEN x.more THEN x.upmost ELSE x.window_end END AS to_seq
        FROM (SELECT s.*, p.more, o.upmost, o.upmost IS NOT NULL AS news, g.n, g.last_seq,
                     coalesce(g.n = s.max_events AND g.last_seq < o.upmost, false) AS filled
              FROM positions s
              JOIN news p ON p.at = s.at AND p.floor = s.floor AND p.upto = s.upto
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

    -- Settle and claim. Old rows are deleted by ctid: a join by key might compare each turn with
    -- each row.
    settled AS (
        DELETE FROM @schema@.claim k
        WHERE k.ctid = ANY (ARRAY(SELECT t.own_row FROM turn t WHERE t.epoch <> 0))),
    claimed AS (
        INSERT INTO @schema@.claim
        SELECT t.consumer, t.next, 0, t.seen, t.floor, t.shown, t.next_floor, t.window_end, t.pos,
               t.to_seq, t.owner, moment + t.lease_ms * interval '1 millisecond',
               t.lease_ms * interval '1 millisecond'
        FROM turn t WHERE t.n > 0),
    moved AS ( -- a window without new events is closed at once
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
    replaced AS (
        DELETE FROM @schema@.lane l
        WHERE l.ctid = ANY (ARRAY(SELECT t.lane_row FROM turn t WHERE t.writes)))
    SELECT array_agg(@include simple_answer(t.place, moment, t.next, t.n, t.first IS NOT NULL,
                                            t.at, t.floor, t.shown, t.pos, t.to_seq,
                                            NOT t.filled AND NOT t.more AND t.target IS NULL,
                                            NULL)@),
           bool_or(t.marks IS NOT NULL),
           bool_and(t.next > greatest(t.epoch, t.last, t.claims_from - 1)) IS NOT FALSE
    INTO answers, marked, fenced
    FROM turn t;

    IF NOT fenced THEN PERFORM @schema@._refuse_epoch(); END IF;
    IF marked THEN
        FOREACH q IN ARRAY wanted LOOP
            IF q.marks IS NOT NULL
               AND EXISTS (SELECT 1 FROM unnest(answers) x WHERE x.place = q.place) THEN
                PERFORM @schema@._put_marks(q.consumer, q.marks);
            END IF;
        END LOOP;
    END IF;
    RETURN answers;
END $outbox$;

-- Refuses an epoch that is not higher than those its consumer knows: it would not fence off the
-- claims made under them.
CREATE OR REPLACE FUNCTION @schema@._refuse_epoch() RETURNS void LANGUAGE plpgsql STABLE AS $outbox$
BEGIN
    RAISE EXCEPTION 'the sequence @schema@.epoch is behind' USING ERRCODE = 'OB006',
        HINT = 'a separate turn of each consumer repairs it';
END $outbox$;

-- At most `most` events that are new at a position: with a seq in (pos, ending], shown by `showing`
-- and not by `seen`. more: others follow. upto is the highest number known there. opens: the window
-- is new. plain: the outbox is still the one known there.
CREATE OR REPLACE FUNCTION @schema@._news(
    seen pg_snapshot, floor bigint, upto bigint, pos bigint, opens boolean, showing pg_snapshot,
    ending bigint, most int,
    OUT plain boolean, OUT seqs bigint[], OUT types text[], OUT more boolean)
LANGUAGE plpgsql STABLE AS $outbox$
DECLARE
    passed bigint := least(floor, upto); -- no event up to it can be new
BEGIN
    plain := NOT @include unseen_and_passed(seen, passed)@
             AND NOT @include seen_past_known(seen, upto)@
             AND NOT (opens AND @include shown_past_end(showing, ending)@);

    SELECT coalesce(array_agg(e.seq ORDER BY e.seq), '{}'),
           coalesce(array_agg(e.type ORDER BY e.seq), '{}')
    INTO seqs, types
    FROM (SELECT w.seq, w.type
          FROM @schema@._window_events(seen, floor, showing, pos, ending, '') w
          ORDER BY w.seq LIMIT most + 1) e;
    more := cardinality(seqs) > most;
    seqs := seqs[:most];
    types := types[:most];
END $outbox$;

-- Takes the turn of a consumer that has no other claim and whose last window was handed out to its
-- end. The query for the lane finds new events with the snapshot that becomes the end of the
-- window, so the snapshot shows exactly the events that the query sees.
CREATE OR REPLACE FUNCTION @schema@._turn_single(q @schema@._request, knows int)
RETURNS @schema@._answer[] LANGUAGE plpgsql VOLATILE AS $outbox$
#variable_conflict use_column
<<turn>>
DECLARE
    on_disk text := @schema@._on_disk();
    head bigint := coalesce(pg_sequence_last_value('@schema@.event_seq_seq'), 0);
    -- the consumer
    likes text[];
    start bigint;
    -- its position
    was_at bigint;       -- the version of the lane
    claims_from bigint;
    upto bigint;         -- its last window ended there
    -- the window
    seen pg_snapshot;
    floor bigint;
    target pg_snapshot;
    window_end bigint;
    -- the news in it
    wanted bigint[];
    news bigint;         -- events that are new, wanted or not
    all_named boolean;   -- the snapshot names all running transactions
    had_running boolean; -- some were running when the last window ended
    lowest bigint;       -- the first of their events
    last bigint;
    epoch bigint;
    n int;               -- cardinality of wanted
    mode text;           -- assigned: PERFORM would be another statement
BEGIN
    -- Lock.
    SELECT c.type_like, @include start_of(c)@ INTO likes, start FROM @schema@.consumer c
    WHERE c.name = q.consumer AND c.lanes = 1 AND c.tenant = ''
      AND @include same_settings(c, q)@
      AND pg_current_xact_id_if_assigned() IS NULL AND @include nothing_special(knows)@
    FOR NO KEY UPDATE OF c SKIP LOCKED; -- the lock of _lock_consumer
    IF NOT FOUND THEN RETURN '{}'; END IF;

    -- Position and news, if both are simple.
    SELECT l.version, l.claims_from, p.seen, p.floor, l.window_end, pg_current_snapshot(),
           fresh.n, fresh.wanted, fresh.last,
           pg_current_xact_id() = pg_snapshot_xmax(pg_current_snapshot()),
           pg_snapshot_xmin(p.seen) <> pg_snapshot_xmax(p.seen)
    INTO was_at, claims_from, seen, floor, upto, target, news, wanted, window_end, all_named,
         had_running
    FROM (SELECT x.version, x.claims_from, x.window_end, x.home, x.target, x.pos, x.seen, x.floor,
                 x.next_floor
          FROM @schema@.lane x WHERE x.consumer = q.consumer AND x.lane = 0
          ORDER BY x.version DESC LIMIT 1) l
    CROSS JOIN (SELECT x.due_from FROM @schema@.lane x
                WHERE x.consumer = q.consumer AND x.lane = -1
                ORDER BY x.version DESC LIMIT 1) parked
    CROSS JOIN LATERAL (SELECT coalesce(l.target, l.seen) AS seen,
                               CASE WHEN l.target IS NULL THEN l.floor
                                    ELSE greatest(l.floor, l.next_floor) END AS floor) p
    CROSS JOIN LATERAL (
        SELECT count(*) AS looked, max(e.seq) AS last,
               count(*) FILTER (WHERE e.new) AS n,
               array_agg(e.seq) FILTER (WHERE e.new AND (likes IS NULL OR e.type LIKE ANY (likes)))
                   AS wanted,
               bool_or(e.seq > l.window_end AND pg_visible_in_snapshot(e.xid, p.seen))
                   AS strange -- it was brought in
        FROM (SELECT x.seq, x.type, x.xid,
                     x.seq > p.floor AND x.xid >= pg_snapshot_xmax(p.seen) AS new
              FROM @schema@.event x
              WHERE x.seq > least(p.floor, l.window_end) ORDER BY x.seq LIMIT 257) e) fresh
    WHERE (l.target IS NULL OR l.pos >= l.window_end)
      -- a call of _here would take longer than the rest of this statement
      AND @schema@._at_home(l.home, @include place_in(current_setting('outbox.cluster', true))@)
      AND (p.floor <= start) IS NOT TRUE
      AND (parked.due_from > @schema@._clock()) IS NOT TRUE -- the clock was not set back
      AND @include first_due(q.consumer, CASE WHEN q.clock_repair IS NOT TRUE
                                              THEN parked.due_from END)@ IS NULL
      AND (SELECT k.epoch FROM @schema@.claim k
           WHERE k.consumer = q.consumer AND k.epoch >= l.claims_from AND k.epoch <> q.epoch
           LIMIT 1) IS NULL
      AND fresh.looked <= 256 AND fresh.strange IS NOT TRUE
      AND NOT @include unseen_and_passed(p.seen, least(p.floor, l.window_end))@;
    IF NOT FOUND THEN RETURN '{}'; END IF;

    -- The end of the window, and its late events.
    mode := @schema@._commit_mode(on_disk, target);
    IF NOT all_named THEN target := @schema@._name_running(target); END IF;
    IF had_running THEN
        SELECT news + count(*),
               wanted || array_agg(e.seq) FILTER (WHERE likes IS NULL OR e.type LIKE ANY (likes)),
               greatest(turn.window_end, max(e.seq)), min(e.seq)
        INTO news, wanted, window_end, lowest
        FROM (SELECT i.seq, i.type
              FROM pg_snapshot_xip(turn.seen) AS r (xid),
                   LATERAL (SELECT y.seq, y.type FROM @schema@.event y
                            WHERE y.xid = r.xid ORDER BY y.seq LIMIT 257) i
              WHERE pg_visible_in_snapshot(r.xid, turn.target) LIMIT 257) e;
    END IF;
    -- No event that the snapshot shows is past the last number, which is read after it.
    last := coalesce(pg_sequence_last_value('@schema@.event_seq_seq'), 0);
    IF target IS NULL OR upto > last OR window_end > last
       OR lowest <= start OR news > 256 OR cardinality(wanted) > q.max_events THEN
        RETURN '{}';
    END IF;
    window_end := last;
    n := coalesce(cardinality(wanted), 0);

    -- Settle and claim: the settled claim becomes the next one.
    IF wanted IS NULL THEN
        DELETE FROM @schema@.claim k
        WHERE k.consumer = q.consumer AND k.epoch = q.epoch AND k.owner = q.owner AND k.lane = 0
          AND k.locked_until > @schema@._clock();
    ELSIF q.epoch = 0 THEN
        INSERT INTO @schema@.claim AS k
        VALUES (q.consumer, @schema@._next_epoch(), 0, turn.seen, turn.floor, turn.target, head,
                turn.window_end, 0, turn.window_end, q.owner,
                @schema@._clock() + q.lease_ms * interval '1 millisecond',
                q.lease_ms * interval '1 millisecond')
        RETURNING k.epoch INTO epoch;
    ELSE
        UPDATE @schema@.claim k
        SET epoch = @schema@._next_epoch(), seen = turn.seen, floor = turn.floor,
            target = turn.target, next_floor = head, window_end = turn.window_end, from_seq = 0,
            to_seq = turn.window_end,
            locked_until = @schema@._clock() + q.lease_ms * interval '1 millisecond',
            lease = q.lease_ms * interval '1 millisecond', members = NULL
        WHERE k.consumer = q.consumer AND k.epoch = q.epoch AND k.owner = q.owner AND k.lane = 0
          AND k.locked_until > @schema@._clock()
        RETURNING k.epoch INTO epoch;
    END IF;
    IF q.epoch <> 0 AND NOT FOUND THEN
        RETURN '{}'; -- it is not the worker's
    END IF;
    IF epoch <= greatest(q.epoch, claims_from - 1) THEN PERFORM @schema@._refuse_epoch(); END IF;

    -- The new position. A window without new events is closed at once.
    IF q.epoch <> 0 OR news > 0 OR floor < head THEN
        UPDATE @schema@.lane x
        SET version = was_at + 1,
            seen = CASE WHEN news > 0 THEN turn.seen ELSE turn.target END,
            floor = CASE WHEN news > 0 THEN turn.floor ELSE greatest(turn.floor, head) END,
            target = CASE WHEN news > 0 THEN turn.target END,
            next_floor = head, window_end = turn.window_end,
            pos = CASE WHEN news > 0 THEN turn.window_end ELSE 0 END,
            claims_from = coalesce(turn.epoch, nullif(q.epoch + 1, 1), x.claims_from),
            delivered = x.delivered + greatest(q.tried, 0)
        WHERE x.consumer = q.consumer AND x.lane = 0 AND x.version = was_at;
    END IF;
    IF q.marks IS NOT NULL THEN PERFORM @schema@._put_marks(q.consumer, q.marks); END IF;
    RETURN ARRAY[@include simple_answer(q.place, @schema@._clock(), epoch, n, false, seen::text,
                                        floor, target::text, 0, window_end, true, wanted)@];
END $outbox$;

-- An event must be on disk before it is handed out, whatever its producer's synchronous_commit. So
-- usually a turn waits for its own flush, which covers everything committed before. It need not
-- wait if all events are on disk already, as when they arrive one by one. The turn then reaches the
-- disk with the next commit, or within a moment. A crash before that loses only this turn of the
-- consumer, because earlier ones were on disk: its claim is delivered again.

-- The current snapshot, as text, if everything that it shows is on disk, else NULL. It must be
-- called before the transaction writes, which is not flushed. A standby writes no WAL.
CREATE OR REPLACE FUNCTION @schema@._on_disk() RETURNS text LANGUAGE sql VOLATILE
RETURN CASE WHEN pg_is_in_recovery() THEN NULL
            WHEN pg_current_wal_insert_lsn() <= pg_current_wal_flush_lsn()
            THEN pg_current_snapshot()::text END;

-- Lets the commit of a turn return before it is on disk, if the events were handed out by the
-- snapshot that _on_disk returned. A synchronous standby may lack what is on this server's disk.
CREATE OR REPLACE FUNCTION @schema@._commit_mode(on_disk text, showing pg_snapshot) RETURNS text
LANGUAGE sql VOLATILE
RETURN CASE WHEN on_disk = showing::text AND current_setting('synchronous_standby_names') = ''
                THEN set_config('synchronous_commit', 'off', true)
            WHEN current_setting('synchronous_commit') = 'off'
                THEN set_config('synchronous_commit', 'on', true) END;
