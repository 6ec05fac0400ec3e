-- numbers.sql: event numbers that began again; see src/store/sqlite/turn.c. PostgreSQL:
-- trouble.sql, rebaseline.sql.

-- @began_again@: a lane remembers the highest number it was handed and the id of that event. If no
-- number that high was ever given, or if it belongs to another event now, numbers began again. An
-- event that is gone proves nothing: it was trimmed.
(e.id <> l.high_id
 OR l.high > max(coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'outbox_event'), 0),
                 coalesce((SELECT max(seq) FROM outbox_event), 0)));

-- numbers_broken_for (consumer text): runs at every turn, so it asks only the lane that is furthest
-- ahead.
SELECT 1
  FROM (SELECT high, high_id FROM outbox_lane
         WHERE consumer = :consumer ORDER BY high DESC LIMIT 1) l
  LEFT JOIN outbox_event e ON e.seq = l.high
 WHERE @began_again@;

-- numbers_broken (): the same for all consumers.
SELECT 1 FROM outbox_lane l LEFT JOIN outbox_event e ON e.seq = l.high WHERE @began_again@ LIMIT 1;

-- highest_number (): the highest number under which anything knows an event. Positions do not
-- count: a consumer may be told to start beyond the last event.
SELECT max(n) FROM (SELECT max(high) AS n FROM outbox_lane
                    UNION ALL SELECT max(to_seq) FROM outbox_claim
                    UNION ALL SELECT max(seq) FROM outbox_parked
                    UNION ALL SELECT max(seq) FROM outbox_dead
                    UNION ALL SELECT max(seq) FROM outbox_receipt
                    UNION ALL SELECT max(seq) FROM outbox_ended
                    UNION ALL SELECT max(seq) FROM outbox_event
                    UNION ALL SELECT max(seq) FROM sqlite_sequence WHERE name = 'outbox_event');

-- renumber (base int): nobody can tell which of the events are new, so all of them get numbers
-- beyond every known one, in the same order.
UPDATE outbox_event SET seq = seq + :base;

-- first_event (): the lowest number there is.
SELECT min(seq) FROM outbox_event;

-- last_event (): the highest number there is.
SELECT max(seq) FROM outbox_event;

-- head (): the highest number ever given; its event may be gone.
SELECT seq FROM sqlite_sequence WHERE name = 'outbox_event';

-- forget_sequence (): sqlite_sequence has no unique index, so setting a number takes two
-- statements.
DELETE FROM sqlite_sequence WHERE name = 'outbox_event';

-- set_sequence (top int): the next event gets the number after this one.
INSERT INTO sqlite_sequence (name, seq) VALUES ('outbox_event', :top);

-- unpark_nowhere (): parked numbers no longer lead to their events. Rows in a claim are left to its
-- worker, and a dead letter that was sent back carries its own copy.
DELETE FROM outbox_parked
 WHERE claim IS NULL
   AND NOT EXISTS (SELECT 1 FROM outbox_dead d
                    WHERE d.consumer = outbox_parked.consumer AND d.seq = outbox_parked.seq
                      AND d.retrying = 1);

-- promote_all (now int): after unpark_nowhere nothing is left to wait behind.
UPDATE outbox_parked SET due_at = :now WHERE claim IS NULL AND due_at IS NULL;

-- note_renumbered (now int): lets doctor say that it happened.
INSERT OR REPLACE INTO outbox_meta (name, value) VALUES ('renumbered_at', :now);

-- renumbered_at (): when events last got new numbers.
SELECT CAST(value AS INTEGER) FROM outbox_meta WHERE name = 'renumbered_at';
