-- settle.sql: recording how a claim ended; is_claimed comes first and drop_claim last. PostgreSQL:
-- settle_claim.sql, settle_outcomes.sql, release.sql.

-- put_receipt (consumer text, seq int, event_id str, sink_id text, now int): keeps the sink's own
-- name for an event, for people who look for it there.
INSERT INTO outbox_receipt (consumer, seq, event_id, sink_id, at)
VALUES (:consumer, :seq, :event_id, :sink_id, :now)
    ON CONFLICT (consumer, seq) DO UPDATE SET sink_id = :sink_id, at = :now;

-- put_back (consumer text, seq int, attempts int): an event of a parked claim was not tried.
UPDATE outbox_parked SET claim = NULL, attempts = :attempts
 WHERE consumer = :consumer AND seq = :seq;

-- is_last (consumer text, lane int, to_seq int, ordered int): whether nothing was handed out after
-- this range. The position may have moved on over events that were only skipped; where order
-- matters, nobody else can have claimed from the lane meanwhile. All lanes (-1) must still stand
-- together.
SELECT min(position) = max(position)
       AND (min(position) = :to_seq
            OR (:ordered AND NOT EXISTS (SELECT 1 FROM outbox_claim
                                          WHERE consumer = :consumer AND parked = 0
                                            AND (lane = :lane OR lane < 0 OR :lane < 0)
                                            AND from_seq >= :to_seq AND to_seq > from_seq)))
  FROM outbox_lane
 WHERE consumer = :consumer AND (lane = :lane OR :lane < 0);

-- release (consumer text, lane int, position int): gives back the end of the last range.
UPDATE outbox_lane SET position = :position
 WHERE consumer = :consumer AND (lane = :lane OR :lane < 0);

-- forget_letters (consumer text, epoch int): this claim delivered dead letters that were sent back.
DELETE FROM outbox_dead
 WHERE EXISTS (SELECT 1 FROM outbox_dead WHERE consumer = :consumer)
   AND consumer = :consumer AND retrying = 1 AND seq IN (@taken@)
   AND EXISTS (SELECT 1 FROM outbox_parked p
                WHERE p.consumer = :consumer AND p.seq = outbox_dead.seq AND p.claim = :epoch);

-- promote_behind (consumer text, epoch int, now int): promotes the first event behind each of those
-- that this claim delivered, and that are still there.
UPDATE outbox_parked SET due_at = max(:now, coalesce(failed_at + wait, 0))
 WHERE consumer = :consumer AND claim IS NULL AND due_at IS NULL
   AND seq IN (SELECT (SELECT min(f.seq) FROM outbox_parked f INDEXED BY outbox_parked_key
                        WHERE f.consumer = :consumer AND f.key = p.key AND f.claim IS NOT :epoch)
                 FROM outbox_parked p
                WHERE p.consumer = :consumer AND p.claim = :epoch AND p.key <> 0
                  AND p.seq IN (@taken@));

-- unpark_delivered (consumer text, epoch int): whatever no outcome took out of the claim was
-- delivered.
DELETE FROM outbox_parked
 WHERE consumer = :consumer AND claim = :epoch AND seq IN (@taken@);

-- put_mark (stream str, consumer text, hi int, lo int, now int): a stream's high-water mark never
-- goes back.
INSERT INTO outbox_mark (stream, consumer, hi, lo, at)
VALUES (:stream, :consumer, :hi, :lo, :now)
    ON CONFLICT (stream, consumer) DO UPDATE SET hi = :hi, lo = :lo, at = :now
 WHERE (:hi, :lo) > (hi, lo);
