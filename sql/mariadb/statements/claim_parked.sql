-- claim_parked.sql: handing out parked events that are due.

-- next_due (consumer text, suspect int): when the first parked event falls due. With suspect = 0
-- suspect events are left out.
SELECT due_at FROM outbox_parked
 WHERE consumer = :consumer AND claim IS NULL AND due_at IS NOT NULL AND (crashes > 0) <= :suspect
 ORDER BY due_at LIMIT 1;

-- suspect_due (consumer text, now int): a caller that may not take a suspect event now is told that
-- one waits.
SELECT 1 FROM outbox_parked
 WHERE consumer = :consumer AND claim IS NULL AND due_at <= :now AND crashes > 0 LIMIT 1;

-- pull_in (consumer text, now int): if the clock was ahead when events were parked, they still wait
-- no longer than they were told to.
UPDATE outbox_parked SET due_at = :now + wait
 WHERE consumer = :consumer AND claim IS NULL AND is_delayed = 0 AND due_at > :now + wait;

-- due_heads (consumer text, now int, suspect int, alone int, max int): what is due, longest
-- overdue first, and whether others of its key are parked before and behind it. alone: suspect
-- events go alone.
SELECT @parked_columns@, crashes > 0 AND :alone,
       p.key_hash <> 0 AND EXISTS (SELECT 1 FROM outbox_parked b FORCE INDEX (by_key)
                                    WHERE b.consumer = p.consumer AND b.key_hash = p.key_hash
                                      AND b.seq < p.seq),
       p.key_hash <> 0 AND EXISTS (SELECT 1 FROM outbox_parked b FORCE INDEX (by_key)
                                    WHERE b.consumer = p.consumer AND b.key_hash = p.key_hash
                                      AND b.seq > p.seq)
  FROM outbox_parked p
 WHERE p.consumer = :consumer AND p.claim IS NULL AND p.due_at <= :now
   AND (p.crashes > 0) <= :suspect
 ORDER BY p.due_at, p.seq LIMIT :max;

-- followers (consumer text, key int, seq int, alone int, max int): what is parked behind an event
-- of its key, so that the key catches up in one claim. The last column says where to stop.
SELECT @parked_columns@, (crashes > 0 AND :alone) OR claim IS NOT NULL OR due_at IS NOT NULL,
       FALSE, FALSE
  FROM outbox_parked FORCE INDEX (by_key)
 WHERE consumer = :consumer AND key_hash = :key AND seq > :seq ORDER BY seq LIMIT :max;

-- one_event (seq int, most int): the event of a parked row.
SELECT @chunk_columns@ FROM @events@ WHERE o.seq = :seq;

-- one_letter (consumer text, seq int): the same after the event was trimmed. A dead letter carries
-- the whole event.
SELECT @letter_columns@ FROM outbox_dead WHERE consumer = :consumer AND seq = :seq;

-- list_taken (consumer text, epoch int, seqs text): the rows that a claim has name its epoch.
NONE;

-- take_listed (consumer text, epoch int, seqs text): makes rows part of a claim. seqs is a JSON
-- array of their numbers.
UPDATE JSON_TABLE(:seqs, '$[*]' COLUMNS (seq BIGINT PATH '$')) taken
       STRAIGHT_JOIN outbox_parked p ON p.consumer = :consumer AND p.seq = taken.seq
   SET p.claim = :epoch;
