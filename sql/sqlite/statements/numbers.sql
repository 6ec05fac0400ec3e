-- numbers.sql: events whose numbers began again; see src/store/sqlite/numbers.c. PostgreSQL: trouble.sql, rebaseline.sql.

-- @began_again@: a lane remembers the highest number it was handed, and the id of that event. If no number that high was ever given,
-- or it belongs to another event now, they have begun again. An event that is not there any more says nothing: it was trimmed.
(e.id <> l.high_id
 OR l.high > max(coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'outbox_event'), 0),
                 coalesce((SELECT max(seq) FROM outbox_event), 0)));

-- numbers_broken_for (consumer text): asked at every turn: one lane tells for all.
SELECT 1 FROM (SELECT high, high_id FROM outbox_lane WHERE consumer = :consumer ORDER BY high DESC LIMIT 1) l
  LEFT JOIN outbox_event e ON e.seq = l.high
 WHERE @began_again@;

-- numbers_broken (): for any consumer.
SELECT 1 FROM outbox_lane l LEFT JOIN outbox_event e ON e.seq = l.high WHERE @began_again@ LIMIT 1;

-- highest_number (): by which anybody knows an event. A position is not one: a consumer may be told to start further ahead than
-- events have come.
SELECT max(n) FROM (SELECT max(high) AS n FROM outbox_lane
                    UNION ALL SELECT max(to_seq) FROM outbox_claim
                    UNION ALL SELECT max(seq) FROM outbox_parked
                    UNION ALL SELECT max(seq) FROM outbox_dead
                    UNION ALL SELECT max(seq) FROM outbox_receipt
                    UNION ALL SELECT max(seq) FROM outbox_ended
                    UNION ALL SELECT max(seq) FROM outbox_event
                    UNION ALL SELECT max(seq) FROM sqlite_sequence WHERE name = 'outbox_event');

-- renumber (base int): which of the events are new cannot be told, so all get numbers past everything known, in their order.
UPDATE outbox_event SET seq = seq + :base;

-- first_event (): the lowest number.
SELECT min(seq) FROM outbox_event;

-- last_event (): the highest number.
SELECT max(seq) FROM outbox_event;

-- forget_sequence (): the table has no unique index, so it takes two statements to set a number.
DELETE FROM sqlite_sequence WHERE name = 'outbox_event';

-- set_sequence (top int): the next event gets the number after this.
INSERT INTO sqlite_sequence (name, seq) VALUES ('outbox_event', :top);

-- unpark_nowhere (): what is parked under numbers that lead nowhere now. What is with a worker is left to that one, and a dead letter
-- that was sent back has a copy of its own.
DELETE FROM outbox_parked
 WHERE claim IS NULL
   AND NOT EXISTS (SELECT 1 FROM outbox_dead d
                    WHERE d.consumer = outbox_parked.consumer AND d.seq = outbox_parked.seq AND d.retrying = 1);

-- promote_all (now int): nothing is before what is left.
UPDATE outbox_parked SET due_at = :now WHERE claim IS NULL AND due_at IS NULL;

-- note_renumbered (now int): for operators.
INSERT OR REPLACE INTO outbox_meta (name, value) VALUES ('renumbered_at', :now);
