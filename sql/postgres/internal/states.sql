-- _states returns what the view delivery says of some events, for `target` (NULL: for everybody),
-- with their receipts, in order of seq. They are few, so each is looked up: a plan made for many
-- would read whole tables.
CREATE OR REPLACE FUNCTION @schema@._states(seqs bigint[], target text)
RETURNS TABLE (seq bigint, consumer text, state text, attempts int, due_at timestamptz, error text,
               predicate text, received_at timestamptz, sink_id text)
LANGUAGE sql STABLE
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
AS $outbox$
    SELECT d.seq, d.consumer, d.state, d.attempts, d.due_at, d.error, d.predicate, r.at, r.sink_id
    FROM @schema@.delivery d
    LEFT JOIN @schema@.receipt r
           ON r.consumer = d.consumer AND r.seq = d.seq AND r.event_id = d.event_id
    WHERE d.seq = ANY (_states.seqs) AND (_states.target IS NULL OR d.consumer = _states.target)
    ORDER BY d.seq
$outbox$;
COMMENT ON FUNCTION @schema@._states(bigint[], text) IS 'the states of some events';
