-- _backlog counts the events of a consumer that are neither parked nor over (see _waiting): n wait
-- to be claimed, from a look at no more than max_rows of them, and held are in live claims of
-- lanes. If exact is true, all events were looked at. Otherwise n is extrapolated: the share found
-- among the events scanned stands for the rest, up to the last seq given out. oldest_at and held_at
-- are when the oldest of either was emitted, overdue_at when the first of all could have been
-- delivered.
CREATE OR REPLACE FUNCTION @schema@._backlog(
    consumer text, max_rows int,
    OUT n bigint, OUT exact boolean, OUT scanned bigint, OUT oldest_at timestamptz,
    OUT held bigint, OUT held_at timestamptz, OUT overdue_at timestamptz)
LANGUAGE sql STABLE AS $outbox$
    -- first and last are the ends of what was scanned, found the number of waiting events in it.
    -- rest is the number of those further back, which is not extrapolated.
    SELECT CASE WHEN b.scanned < max_rows THEN b.found + b.rest
                ELSE b.rest + ceil(b.found::numeric
                                   * greatest(b.head - b.first + 1, b.last - b.first + 1)
                                   / (b.last - b.first + 1))::bigint END,
           b.scanned < max_rows, b.scanned, b.oldest_at, b.held, b.held_at, b.overdue_at
    FROM (SELECT count(*) FILTER (WHERE w.fresh) AS scanned,
                 count(*) FILTER (WHERE w.fresh AND w.waits) AS found,
                 count(*) FILTER (WHERE w.waits AND NOT w.fresh) AS rest,
                 min(w.seq) FILTER (WHERE w.fresh) AS first,
                 max(w.seq) FILTER (WHERE w.fresh) AS last,
                 min(w.created_at) FILTER (WHERE w.waits) AS oldest_at,
                 count(*) FILTER (WHERE w.held) AS held,
                 min(w.created_at) FILTER (WHERE w.held) AS held_at,
                 min(w.due) FILTER (WHERE w.waits OR w.held) AS overdue_at,
                 coalesce(pg_sequence_last_value('@schema@.event_seq_seq'), 0) AS head
          FROM @schema@._waiting(consumer, max_rows) w) b
$outbox$;
COMMENT ON FUNCTION @schema@._backlog(text, int) IS
    'how many events wait for somebody to claim them, and how many are in claims';
