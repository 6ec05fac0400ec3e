-- settle.sql: recording how a claim ended; is_claimed comes first and drop_claim last.

-- put_receipt (consumer text, seq int, event_id str, sink_id text, now int): keeps the sink's own
-- name for an event, for people who look for it there.
INSERT INTO outbox_receipt (consumer, seq, event_id, sink_id, at)
VALUES (:consumer, :seq, :event_id, :sink_id, :now)
    ON DUPLICATE KEY UPDATE sink_id = VALUES(sink_id), at = VALUES(at);

-- put_back (consumer text, seq int, attempts int): an event of a parked claim was not tried.
UPDATE outbox_parked SET claim = NULL, attempts = :attempts
 WHERE consumer = :consumer AND seq = :seq;

-- is_last (consumer text, lane int, to_seq int, ordered int): whether nothing was handed out after
-- this range. The position may have moved on over events that were only skipped; where order
-- matters, nobody else can have claimed from the lane meanwhile.
SELECT position = :to_seq
       OR (:ordered AND NOT EXISTS (SELECT 1 FROM outbox_claim
                                     WHERE consumer = :consumer AND lane = :lane AND parked = 0
                                       AND from_seq >= :to_seq))
  FROM outbox_lane
 WHERE consumer = :consumer AND lane = :lane;

-- release (consumer text, lane int, position int): gives back the end of the last range.
UPDATE outbox_lane SET position = :position WHERE consumer = :consumer AND lane = :lane;

-- forget_letters (consumer text, epoch int): this claim delivered dead letters that were sent back.
DELETE d FROM outbox_parked p STRAIGHT_JOIN outbox_dead d
          ON d.consumer = p.consumer AND d.seq = p.seq
 WHERE p.consumer = :consumer AND p.claim = :epoch AND d.retrying = 1;

-- promote_behind (consumer text, epoch int, now int): promotes the first event behind each of those
-- that this claim delivered, and that are still there.
UPDATE outbox_parked p
  JOIN (SELECT min(f.seq) AS seq
          FROM (SELECT DISTINCT key_hash FROM outbox_parked
                 WHERE consumer = :consumer AND claim = :epoch AND key_hash <> 0) k
          STRAIGHT_JOIN outbox_parked f FORCE INDEX (by_key)
             ON f.consumer = :consumer AND f.key_hash = k.key_hash
         WHERE f.claim IS NULL OR f.claim <> :epoch
         GROUP BY f.key_hash) first ON p.seq = first.seq
   SET p.due_at = greatest(:now, coalesce(p.failed_at + p.wait, 0))
 WHERE p.consumer = :consumer AND p.claim IS NULL AND p.due_at IS NULL;

-- unpark_delivered (consumer text, epoch int): whatever no outcome took out of the claim was
-- delivered.
DELETE FROM outbox_parked WHERE consumer = :consumer AND claim = :epoch;

-- put_mark (stream str, consumer text, hi int, lo int, now int): a stream's high-water mark never
-- goes back. MariaDB sets columns one after the other, so what decides comes last.
INSERT INTO outbox_mark (stream, consumer, hi, lo, at)
VALUES (:stream, :consumer, :hi, :lo, :now)
    ON DUPLICATE KEY UPDATE
       at = IF((VALUES(hi), VALUES(lo)) > (hi, lo), VALUES(at), at),
       lo = IF(VALUES(hi) > hi OR (VALUES(hi) = hi AND VALUES(lo) > lo), VALUES(lo), lo),
       hi = greatest(hi, VALUES(hi));
