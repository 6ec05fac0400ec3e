-- _turn_claim claims for _long_turn: parked events that are due, or the next ones of a lane that is
-- free, whichever comes first by q.parked_first. It fills in r, ls and dirty, and says when
-- something that it left alone is due. first_due: of the parked events; NULL: there are none.
-- astray: event numbers began again, and nothing was claimed; the lanes that changed have to be
-- written before that is put right. Under _lock_consumer.
--
-- A worker that has something in hand brings lanes together (see group.sql). One that has nothing
-- takes a lane by itself, and leaves the others to those that come at the same time. But the only
-- worker of its process says so (lane_hint -1), and takes all lanes of a consumer that is new.
CREATE OR REPLACE FUNCTION @schema@._turn_claim(
    c @schema@.consumer, owner text, q @schema@._request, a @schema@._ahead, head bigint,
    now timestamptz, first_due timestamptz, claims_from bigint, last_epoch bigint,
    INOUT r @schema@._answer, INOUT ls @schema@.lane[], INOUT dirty boolean[],
    OUT due timestamptz, OUT astray text)
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    lease interval := q.lease_ms * interval '1 millisecond';
    p record;
    f record;
    i int;
    parked boolean := first_due IS NOT NULL;
    try_fresh boolean := NOT (parked AND c.ordering = 'global');
    until timestamptz;
    taken bigint := 0;     -- the lanes that claims of others cover
    at_work boolean := cardinality(q.known) > 0;
    is_new boolean := claims_from = 0 AND last_epoch IS NULL; -- nobody has claimed anything yet
    joins boolean := at_work OR (is_new AND q.lane_hint = -1);
    leaders int[] := '{0}';
    meets record;
    promised boolean;
    kept boolean := false; -- some lanes were left to another worker
    live bigint;
BEGIN
    FOR step IN 1 .. 2 LOOP
        IF parked AND q.parked_first = (step = 1) THEN
            SELECT * INTO p FROM @schema@._claim_parked(c, owner, q.max_events, lease,
                                                        q.careful_mode, q.pull_in, first_due, now);
            r.careful_due := p.careful_due;
            due := p.due;
            IF p.n > 0 THEN
                r.epoch := p.epoch;
                r.lane := -1;
                r.n := p.n;
                r.careful := p.careful;
                r.from_seq := 0;
                r.to_seq := 0;
                EXIT;
            END IF;
            EXIT WHEN r.careful_due AND q.careful_mode = 1;
        END IF;
        IF try_fresh AND q.parked_first = (step = 2) THEN
            IF c.ordering <> 'none' THEN
                SELECT coalesce(bit_or(@schema@._members(x.members, x.lane)), 0),
                       min(x.locked_until)
                INTO taken, until
                FROM @schema@.claim x
                WHERE x.consumer = c.name AND x.epoch >= claims_from AND x.lane >= 0
                  AND (x.epoch = ANY (q.known)) IS NOT TRUE;
            END IF;
            IF c.lanes > 1 THEN
                leaders := @schema@._behind_first(ls, greatest(q.lane_hint, 0));
            END IF;
            FOREACH i IN ARRAY leaders LOOP
                i := i + 2;
                CONTINUE WHEN ls[i].leader IS NOT NULL; -- it has joined one that was tried before
                IF @schema@._members(ls[i].members, i - 2) & taken <> 0 THEN
                    r.busy := true;
                    due := least(due, until);
                    CONTINUE;
                END IF;
                IF @schema@._is_kept(ls[i], owner, now) THEN
                    kept := true;
                    due := least(due, ls[i].kept_until);
                    CONTINUE;
                END IF;
                SELECT NULL::bigint AS upto, NULL::@schema@.lane AS other INTO meets;
                IF c.lanes > 1 AND joins THEN
                    SELECT y.ls, y.dirty INTO ls, dirty
                    FROM @schema@._join_lanes(i - 2, taken, owner, now, ls, dirty) y;
                END IF;
                IF joins AND @schema@._members(ls[i].members, i - 2)
                               <> @schema@._all_lanes(c.lanes) THEN
                    meets := @schema@._meets(i - 2, taken, owner, now, ls);
                END IF;
                IF a.lane = i - 2 AND a.members <> @schema@._members(ls[i].members, i - 2) THEN
                    a.lane := -1; -- the group is another one now
                END IF;
                f := @schema@._claim_fresh(c, ls[i], owner, q.max_events, lease, now, head,
                         CASE WHEN i - 2 = a.lane THEN a.n ELSE 0 END, a.target, a.from_seq,
                         CASE WHEN i - 2 = a.lane THEN a.to_seq ELSE 0 END,
                         meets.upto, meets.other);
                IF f.astray IS NOT NULL THEN
                    astray := f.astray;
                    RETURN;
                END IF;
                r.skipped := r.skipped OR f.skipped;
                IF f.changed THEN
                    ls[i] := f.l;
                    ls[i].kept_for := NULL;
                    ls[i].kept_until := NULL;
                    dirty[i] := true;
                END IF;
                IF f.n > 0 THEN
                    r.epoch := f.epoch;
                    r.lane := i - 2;
                    r.n := f.n;
                    r.from_seq := f.from_seq;
                    r.to_seq := ls[i].pos;
                    r.seen := ls[i].seen;
                    r.floor := ls[i].floor;
                    r.target := ls[i].target;
                    r.window_end := ls[i].window_end;
                    IF meets.upto > r.to_seq THEN
                        r.window_end := meets.upto;
                    END IF;
                    r.members := @schema@._members(ls[i].members, i - 2);
                    r.quiet := r.members = @schema@._all_lanes(c.lanes) AND NOT parked
                               AND r.n < q.max_events AND r.to_seq >= r.window_end;
                    EXIT;
                END IF;
            END LOOP;
            EXIT WHEN r.n > 0;
        END IF;
    END LOOP;

    IF r.n > 0 AND r.epoch <= greatest(last_epoch, claims_from - 1) THEN
        r.epoch := @schema@._refence(c.name, r.epoch, greatest(last_epoch, claims_from - 1));
    END IF;
    IF r.n > 0 AND r.lane >= 0 AND parked AND c.ordering = 'key' THEN
        SELECT h.held, h.keys INTO r.held, r.keys
        FROM @schema@._held(c, ls[r.lane + 2], r.from_seq, r.to_seq, r.n, first_due, a.sample) h;
    END IF;
    IF r.n > 0 THEN
        RETURN;
    END IF;

    IF taken <> 0 AND c.lanes > 1 AND NOT at_work AND NOT r.skipped THEN
        SELECT y.ls, y.dirty, y.promised INTO ls, dirty, promised
        FROM @schema@._split_lanes(c, taken, owner, now, ls, dirty) y;
        IF promised THEN
            due := least(due, now + interval '50 milliseconds');
        END IF;
    END IF;

    -- A claim of its own that the worker does not know, because the answer got lost, is waited for
    -- like a claim of somebody else.
    SELECT coalesce(min(x.locked_until) FILTER (WHERE x.locked_until > now
                        AND (x.owner <> _turn_claim.owner OR x.epoch <> ALL (q.known))), due),
           count(*)
    INTO until, live
    FROM @schema@.claim x WHERE x.consumer = c.name AND x.epoch >= claims_from;
    due := least(due, until);
    r.through := live = 0 AND NOT r.skipped AND NOT kept AND NOT (parked AND EXISTS (
        SELECT 1 FROM @schema@.parked x
        WHERE x.consumer = c.name AND x.claim IS NULL AND x.due_at >= first_due
          AND (NOT x.delayed OR x.due_at <= now)));
END
$outbox$;
COMMENT ON FUNCTION @schema@._turn_claim(@schema@.consumer, text, @schema@._request,
    @schema@._ahead, bigint, timestamptz, timestamptz, bigint, bigint, @schema@._answer,
    @schema@.lane[], boolean[]) IS 'claims parked events that are due, or the next ones of a lane';

-- _held gives the events of the open window of lane l, with a seq in (from_seq, to_seq], that have
-- to wait behind a parked one of their key. n is how many events there are. If not many more keys
-- are held up, all of them are read at once, by the first event of each, which has a time, and none
-- before `since`; and a worker who knows what a key is (sample) is given these, and looks up its
-- events itself. Else each event's key is looked up. Where numbers are close together, events of
-- other windows may be among those it gives: whoever asks has none of them, and to tell them apart
-- would take longer.
CREATE OR REPLACE FUNCTION @schema@._held(
    c @schema@.consumer, l @schema@.lane, from_seq bigint, to_seq bigint, n int, since timestamptz,
    sample bigint, OUT held bigint[], OUT keys bigint[])
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    most bigint := 4 * n;
    dense boolean := to_seq - from_seq <= most;
    few boolean;
BEGIN
    keys := @schema@._held_keys(c.name, since, most + 1);
    few := cardinality(keys) <= most;
    IF keys = '{}' OR few AND @schema@._knows_keys(sample) THEN
        RETURN;
    END IF;
    IF dense AND few THEN
        SELECT array_agg(e.seq) INTO held
        FROM @schema@.event e
        WHERE e.seq > from_seq AND e.seq <= to_seq AND e.aggregate_id IS NOT NULL
          AND @schema@._key('key', e.aggregate_type, e.aggregate_id)
              IN (SELECT k FROM unnest(keys) AS k);
    ELSE
        SELECT array_agg(w.seq) INTO held
        FROM (SELECT e.seq, @schema@._key('key', e.aggregate_type, e.aggregate_id) AS key
              FROM @schema@._window_events(l.seen, l.floor, l.target, $3, $4, c.tenant) e
              WHERE e.aggregate_id IS NOT NULL OFFSET 0) w
        WHERE CASE WHEN few
                   THEN w.key IN (SELECT k FROM unnest(keys) AS k)
                   ELSE (SELECT true FROM @schema@.parked x
                         WHERE x.consumer = c.name AND x.key BETWEEN w.key AND w.key
                         ORDER BY x.key LIMIT 1) END;
    END IF;
    keys := NULL;
END
$outbox$;
COMMENT ON FUNCTION @schema@._held(@schema@.consumer, @schema@.lane, bigint, bigint, int,
    timestamptz, bigint) IS
    'the events of a claim that have to wait behind parked ones';

-- _held_keys gives the keys of the parked events that have a time, and none before `since`: every
-- key that is held up is among them. It gives max_keys at most.
CREATE OR REPLACE FUNCTION @schema@._held_keys(consumer text, since timestamptz, max_keys bigint)
RETURNS bigint[]
LANGUAGE plpgsql VOLATILE AS $outbox$
BEGIN
    RETURN ARRAY(SELECT x.key FROM @schema@.parked x
                 WHERE x.consumer = $1 AND x.due_at >= coalesce(since, '-infinity')
                 ORDER BY x.due_at, x.seq LIMIT max_keys); -- by this index: see _parked_rows
END
$outbox$;
COMMENT ON FUNCTION @schema@._held_keys(text, timestamptz, bigint) IS 'the keys that are held up';

-- _knows_keys says whether a worker makes of a key what _key makes of it. It shows that with a
-- sample. It also needs the bytes that are hashed here: texts come to it in UTF-8.
CREATE OR REPLACE FUNCTION @schema@._knows_keys(sample bigint) RETURNS boolean
LANGUAGE sql STABLE
RETURN coalesce(sample = @schema@._key('key', 'outbox', 'a key of more than a few bytes'), false)
       AND getdatabaseencoding() IN ('UTF8', 'SQL_ASCII');
COMMENT ON FUNCTION @schema@._knows_keys(bigint) IS 'whether a worker knows what a key is';
