-- SQL that several functions share. The build substitutes it for `@include NAME(...)@`
-- (scripts/embed). A function would not be planned together with the query that calls it.

-- Only the owner may write to the tables. Any other caller goes through a SECURITY DEFINER wrapper
-- (internal/wrappers.sql), which calls the function again.
@define through(wrapper)@
IF NOT has_table_privilege('@schema@.lane'::regclass, 'DELETE') THEN
    RETURN @schema@.{wrapper};
END IF;

-- A wrapper around a function that returns false for a consumer of another tenant.
@define wrapper(name, parameters, part, call)@
CREATE OR REPLACE FUNCTION @schema@.{name}{parameters} RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $outbox$
BEGIN
    RETURN @schema@._admit({part}, consumer) AND @schema@.{call};
END $outbox$;

-- What emit and emit_once insert, and the tenant that the connection names; NULL: none.
@define fields()@
type, aggregate_type, aggregate_id, payload, headers, version, not_before, tenant

@define values_of(f)@
{f}.type, {f}.aggregate_type, {f}.aggregate_id::pg_catalog.text, <json>,
{f}.headers::pg_catalog.json, {f}.version, {f}.not_before

@define named_tenant()@
CASE WHEN pg_catalog.current_setting('outbox.tenant', true) OPERATOR(pg_catalog.<>) ''
     THEN pg_catalog.current_setting('outbox.tenant', true) END

-- The consumer c has the settings that the request q names, and is not paused. Consumers that mark
-- rows of adopted tables are left to _turn_full, which marks them.
@define same_settings(c, q)@
{c}.ordering = {q}.ordering AND {c}.events = {q}.events AND {c}.predicate = {q}.predicate
AND NOT {c}.paused AND NOT {c}.marks

-- The worker was written for this version of the outbox.
@define knows_version(knows)@
EXISTS (SELECT 1 FROM @schema@.meta m
        WHERE m.name = 'schema_version' AND m.value = {knows}::text)

-- A subscription writes events here, of another cluster's transactions: _check_fed refuses that.
@define is_fed()@
EXISTS (SELECT 1 FROM pg_catalog.pg_subscription_rel r
        WHERE r.srrelid = '@schema@.event'::regclass)

-- Neither the session nor the outbox needs the checks of _turn_full.
@define nothing_special(knows)@
current_setting('transaction_isolation') = 'read committed'
AND coalesce(current_setting('outbox.tenant', true), '') = ''
AND @include knows_version({knows})@
AND NOT @include is_fed()@

-- The simple turns of _turn_single or _turn_batch, as the worker requests.
@define make_turns(asked, path, knows)@
CASE {path} WHEN 'single' THEN @schema@._turn_single({asked}[1], {knows})
            ELSE @schema@._turn_batch({asked}, {knows}) END

-- The answer to a simple turn. others: the consumer has other claims.
@define simple_answer(place, moment, epoch, n, others, seen, floor, target, pos, upto, quiet, seqs)@
ROW({place}, false, false, false, false, {n} = 0 AND NOT {others}, false, false, 0, 0, -1,
    floor(extract(epoch FROM {moment}) * 1000), {epoch}, 0, {n}, false, NULL, NULL, {seen},
    {floor}, {target}, {pos}, {upto}, NULL, {quiet}, NULL, {seqs})::@schema@._answer

-- The earliest due time of a consumer's parked events, claimed or not; NULL if none is parked. None
-- is due before `since`. The intended index is (consumer, due_at, seq): see _parked_rows.
@define first_due(consumer, since)@
(SELECT p.due_at FROM @schema@.parked p
 WHERE p.consumer = {consumer} AND p.due_at >= coalesce({since}, '-infinity')
 ORDER BY p.due_at, p.seq LIMIT 1)

-- An event e of a consumer waits behind a parked one of its key; NULL if not. The intended index is
-- (consumer, key, seq): see _parked_rows.
@define waits_behind(consumer, e)@
(SELECT true FROM @schema@.parked x
 WHERE x.consumer = {consumer} AND x.key BETWEEN {e}.key AND {e}.key AND x.seq < {e}.seq
 ORDER BY x.key, x.seq LIMIT 1)

-- The parked events of a consumer that are due, and that the request q may claim, in order of time.
@define due_events(consumer, q, apart)@
(SELECT x.seq, x.key, x.crashes > 0 AND {apart} AS alone, x.ctid AS at, x.due_at
 FROM @schema@.parked x
 WHERE x.consumer = {consumer} AND x.claim IS NULL AND x.due_at >= since AND x.due_at <= now
   AND ({q}.suspect_policy > 0 OR x.crashes = 0)
 ORDER BY x.due_at, x.seq LIMIT {q}.max_events)

-- The parked event p and those that wait behind it, up to one that goes alone, is in a claim, or
-- has a due time. odd: p goes alone, or is not the first of its key. The intended index is
-- (consumer, key, seq): see _parked_rows.
@define followed(consumer, q, p, apart)@
(SELECT {p}.seq, {p}.at, {p}.alone AS odd WHERE {p}.key = 0
 UNION ALL
 SELECT r.seq, r.at, {p}.alone OR r.seq < {p}.seq
 FROM (SELECT x.seq, x.ctid AS at,
              bool_or(x.seq > {p}.seq AND (x.crashes > 0 AND {apart} OR x.claim IS NOT NULL
                                           OR x.due_at IS NOT NULL))
                  OVER (ORDER BY x.key, x.seq) AS stop
       FROM @schema@.parked x
       WHERE x.consumer = {consumer} AND x.key BETWEEN {p}.key AND {p}.key AND {p}.key <> 0
       ORDER BY x.key, x.seq LIMIT {q}.max_events) r
 WHERE NOT r.stop)

-- A parked event of a consumer. If trimmed, it is a dead letter that was sent back: a full copy.
@define parked_event(consumer, parked)@
(SELECT i.seq, i.id, i.type, i.aggregate_type, i.aggregate_id, i.version, i.payload, i.headers,
        i.tenant, i.created_at, i.not_before, i.idempotency_key
 FROM @schema@.event i WHERE i.seq = {parked}.seq
 UNION ALL
 SELECT d.seq, d.id, d.type, d.aggregate_type, d.aggregate_id, d.version, d.payload, d.headers,
        d.tenant, d.created_at, d.not_before, d.idempotency_key
 FROM @schema@.dead d WHERE d.consumer = {consumer} AND d.seq = {parked}.seq
 LIMIT 1)

-- The seq after which a consumer was configured to start. NULL: it starts at the beginning, or at
-- the end of the events as of its registration.
@define start_of(c)@
CASE WHEN {c}.start_seen::text = '1:1:' THEN {c}.start_floor END

-- A claim is alive, and its end was not set by a clock that was ahead. The margin is for two turns
-- that get the lock in the reverse order of their start.
@define is_alive(k, moment)@
({k}.locked_until > {moment} AND {k}.locked_until <= {moment} + {k}.lease + interval '1 s')

-- Is this still the outbox that a lane knows (see _trouble)? Each of these conditions is an index
-- probe that forces its order: an EXISTS might read all of the other index.

-- The place of the outbox in a cluster: see _here.
@define place_in(cluster)@
concat({cluster}, '/', '@schema@.event_seq_seq'::regclass::oid, '/',
       pg_relation_filenode('@schema@.event_seq_seq'::regclass))

-- An event that the lane has not seen has a seq up to `passed`, where no event can be new.
@define unseen_and_passed(seen, passed)@
(((SELECT e.seq FROM @schema@.event e
   WHERE e.xid >= pg_snapshot_xmax({seen}) ORDER BY e.xid, e.seq LIMIT 1) <= {passed}) IS TRUE
 OR (SELECT e.xid >= pg_snapshot_xmax({seen}) FROM @schema@.event e
     WHERE e.seq <= {passed} AND e.seq > {passed} - 100 ORDER BY e.seq DESC LIMIT 1) IS TRUE)

-- An event that the new window shows is past its end: the sequence is behind.
@define shown_past_end(shown, window_end)@
((SELECT true FROM @schema@.event e
  WHERE e.seq > {window_end} AND pg_visible_in_snapshot(e.xid, {shown})
  ORDER BY e.seq LIMIT 1) IS TRUE)

-- An event past the numbers that the lane knows appears to have been seen: it was brought in.
@define seen_past_known(seen, known)@
EXISTS (SELECT 1
        FROM (SELECT x.xid FROM @schema@.event x WHERE x.seq > {known} ORDER BY x.seq LIMIT 100) e
        WHERE pg_visible_in_snapshot(e.xid, {seen}))

-- trim deletes an event: it is old, or its created_at is ahead of the clock, and nobody needs it.
@define is_trimmed(e)@
({e}.created_at < cutoff OR {e}.created_at > now)
AND (shown IS NULL OR pg_visible_in_snapshot({e}.xid, shown))
AND NOT (xid8ge({e}.xid, sure) AND @schema@._needed({e}.xid, {e}.seq))
