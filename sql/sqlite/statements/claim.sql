-- claim.sql: the statements of turns that are specific to SQLite: leases by the clock of this
-- machine, claims that list their parked events, lanes at the same position, and event numbers that
-- restarted.

-- event_id: shows whether a number still belongs to the event that was read under it.
SELECT id FROM outbox_event WHERE seq = :seq;

-- lanes_together: the position of all lanes, if they share one.
SELECT min(position) FROM outbox_lane WHERE consumer = :consumer
HAVING min(position) = max(position) AND count(*) = :lanes;

-- set_aside: a claim without events keeps a lane for its owner, if another worker has claimed from
-- all lanes at once, and there is more to claim.
INSERT INTO outbox_claim (consumer, epoch, lane, parked, from_seq, to_seq, owner, locked_until,
                          lease, boot, ahead)
SELECT consumer, :epoch, lane, 0, position, position, :owner, :now + :lease, :lease,
       nullif(:boot, 0), :ahead
  FROM outbox_lane l
 WHERE consumer = :consumer AND position < (SELECT max(seq) FROM outbox_event)
   AND EXISTS (SELECT 1 FROM outbox_claim
                WHERE consumer = :consumer AND parked = 0 AND lane < 0 AND owner <> :owner)
   AND NOT EXISTS (SELECT 1 FROM outbox_claim k
                    WHERE k.consumer = :consumer AND k.parked = 0
                      AND (k.owner = :owner OR k.lane = l.lane))
 ORDER BY lane LIMIT 1;

-- drop_aside: ends a reservation: its owner has found other work, or is no longer blocked.
DELETE FROM outbox_claim
 WHERE consumer = :consumer AND owner = :owner AND parked = 0 AND from_seq = to_seq;

-- move_position: records how far events have been handed out. The highest position ever reached is
-- kept with the id of its event: together they reveal a file whose numbers restarted.
UPDATE outbox_lane
   SET position = :position,
       high = max(high, :position),
       high_id = CASE WHEN :position > high THEN (SELECT id FROM outbox_event WHERE seq = :position)
                      ELSE high_id END
 WHERE consumer = :consumer AND lane = :lane;

-- move_others: the lanes after the first follow it. The highest position is known by the first.
UPDATE outbox_lane SET position = :position WHERE consumer = :consumer AND lane > 0;

-- list_taken: which parked events a claim holds, as a JSON array.
UPDATE outbox_claim SET seqs = :seqs WHERE consumer = :consumer AND epoch = :epoch;

-- take_listed: the rows it lists become part of a claim.
UPDATE outbox_parked SET claim = :epoch
 WHERE consumer = :consumer AND seq IN (SELECT value FROM json_each(:seqs));

-- @began_again@: a lane remembers the highest number it was handed and the id of that event. If no
-- number that high was ever assigned, or if it belongs to another event now, numbers restarted. A
-- missing event proves nothing: it was trimmed.
(e.id <> l.high_id
 OR l.high > max(coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'outbox_event'), 0),
                 coalesce((SELECT max(seq) FROM outbox_event), 0)));

-- numbers_broken_for: runs at every turn, so it examines only the lane that is furthest ahead.
SELECT 1
  FROM (SELECT high, high_id FROM outbox_lane
         WHERE consumer = :consumer ORDER BY high DESC LIMIT 1) l
  LEFT JOIN outbox_event e ON e.seq = l.high
 WHERE @began_again@;

-- numbers_broken: the same for all consumers.
SELECT 1 FROM outbox_lane l LEFT JOIN outbox_event e ON e.seq = l.high WHERE @began_again@ LIMIT 1;

-- highest_number: the highest event number recorded anywhere but in positions, which may be beyond.
SELECT max(n) FROM (SELECT max(high) AS n FROM outbox_lane
                    UNION ALL SELECT max(to_seq) FROM outbox_claim
                    UNION ALL SELECT max(seq) FROM outbox_parked
                    UNION ALL SELECT max(seq) FROM outbox_dead
                    UNION ALL SELECT max(seq) FROM outbox_receipt
                    UNION ALL SELECT max(seq) FROM outbox_ended
                    UNION ALL SELECT max(seq) FROM outbox_event
                    UNION ALL SELECT max(seq) FROM sqlite_sequence WHERE name = 'outbox_event');

-- renumber: new events cannot be told from old ones, so all are assigned numbers beyond every known
-- one.
UPDATE outbox_event SET seq = seq + :base;

-- head: the highest number ever assigned; its event may have been deleted.
SELECT seq FROM sqlite_sequence WHERE name = 'outbox_event';

-- forget_sequence: sqlite_sequence has no unique index, so setting a number takes two statements.
DELETE FROM sqlite_sequence WHERE name = 'outbox_event';

-- set_sequence: the next event is numbered after `top`.
INSERT INTO sqlite_sequence (name, seq) VALUES ('outbox_event', :top);

-- unpark_nowhere: parked numbers no longer lead to their events. Rows in a claim are left to its
-- worker, and a retried dead letter carries its own copy.
DELETE FROM outbox_parked
 WHERE claim IS NULL
   AND NOT EXISTS (SELECT 1 FROM outbox_dead d
                    WHERE d.consumer = outbox_parked.consumer AND d.seq = outbox_parked.seq
                      AND d.retrying = 1);

-- promote_all: after unpark_nowhere no event has another to wait behind.
UPDATE outbox_parked SET due_at = :now WHERE claim IS NULL AND due_at IS NULL;

-- note_renumbered: lets doctor report the renumbering.
INSERT OR REPLACE INTO outbox_meta (name, value) VALUES ('renumbered_at', :now);

-- renumbered_at: when events were last renumbered.
SELECT CAST(value AS INTEGER) FROM outbox_meta WHERE name = 'renumbered_at';

-- promote: makes the first event of a key due, but not before its own retry.
UPDATE outbox_parked SET due_at = max(:now, coalesce(failed_at + wait, 0))
 WHERE consumer = :consumer AND claim IS NULL AND due_at IS NULL
   AND seq = (SELECT min(seq) FROM outbox_parked WHERE consumer = :consumer AND key = :key);

-- forget_letters: this claim delivered the events of retried dead letters.
DELETE FROM outbox_dead
 WHERE EXISTS (SELECT 1 FROM outbox_dead WHERE consumer = :consumer)
   AND consumer = :consumer AND retrying = 1 AND seq IN (@taken@)
   AND EXISTS (SELECT 1 FROM outbox_parked p
                WHERE p.consumer = :consumer AND p.seq = outbox_dead.seq AND p.claim = :epoch);

-- promote_behind: promotes the first event behind each delivered one, while that still has its row.
UPDATE outbox_parked SET due_at = max(:now, coalesce(failed_at + wait, 0))
 WHERE consumer = :consumer AND claim IS NULL AND due_at IS NULL
   AND seq IN (SELECT (SELECT min(f.seq) FROM outbox_parked f INDEXED BY outbox_parked_key
                        WHERE f.consumer = :consumer AND f.key = p.key AND f.claim IS NOT :epoch)
                 FROM outbox_parked p
                WHERE p.consumer = :consumer AND p.claim = :epoch AND p.key <> 0
                  AND p.seq IN (@taken@));

-- put_mark: a stream's high-water mark never moves back.
INSERT INTO outbox_mark (stream, consumer, hi, lo, at)
VALUES (:stream, :consumer, :hi, :lo, :now)
    ON CONFLICT (stream, consumer) DO UPDATE SET hi = :hi, lo = :lo, at = :now
 WHERE (:hi, :lo) > (hi, lo);

-- identity: the identity of the outbox that is now in the file.
SELECT @identity_value@;
