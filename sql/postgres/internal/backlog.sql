-- _backlog: how many events wait for somebody to claim them (see waiting). exact: all there are were looked at; otherwise n is
-- about that many: what was found among max_rows events stands for the rest. oldest_at: of the oldest that was found.
CREATE OR REPLACE FUNCTION @schema@._backlog(consumer text, max_rows int, OUT n bigint, OUT exact boolean, OUT scanned bigint,
                                            OUT oldest_at timestamptz)
LANGUAGE sql STABLE AS $outbox$
    SELECT CASE WHEN b.scanned < $2 THEN b.found + b.rest
                ELSE b.rest + ceil(b.found::numeric * greatest(b.head - b.first + 1, b.last - b.first + 1)
                                   / (b.last - b.first + 1))::bigint END,
           b.scanned < $2, b.scanned, b.oldest_at
    FROM (SELECT count(*) FILTER (WHERE w.fresh) AS scanned, count(*) FILTER (WHERE w.fresh AND w.waits) AS found,
                 count(*) FILTER (WHERE w.waits AND NOT w.fresh) AS rest, min(w.seq) FILTER (WHERE w.fresh) AS first,
                 max(w.seq) FILTER (WHERE w.fresh) AS last, min(w.created_at) FILTER (WHERE w.waits) AS oldest_at,
                 coalesce(pg_sequence_last_value('@schema@.event_seq_seq'), 0) AS head
          FROM @schema@._waiting($1, $2) w) b
$outbox$;
COMMENT ON FUNCTION @schema@._backlog(text, int) IS 'how many events wait for somebody to claim them';
