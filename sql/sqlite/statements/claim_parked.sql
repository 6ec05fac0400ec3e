-- claim_parked.sql: handing out parked events that are due. PostgreSQL: claim_parked.sql.

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
 WHERE consumer = :consumer AND claim IS NULL AND delayed = 0 AND due_at > :now + wait;

-- due_heads (consumer text, now int, suspect int, alone int, max int): what is due, longest
-- overdue first. alone: suspect events go alone. The last two columns say whether another event of
-- its key is parked before it, and behind it.
SELECT @parked_columns@, crashes > 0 AND :alone,
       key <> 0 AND EXISTS (SELECT 1 FROM outbox_parked b INDEXED BY outbox_parked_key
                             WHERE b.consumer = :consumer AND b.key = outbox_parked.key
                               AND b.seq < outbox_parked.seq),
       key <> 0 AND EXISTS (SELECT 1 FROM outbox_parked b INDEXED BY outbox_parked_key
                             WHERE b.consumer = :consumer AND b.key = outbox_parked.key
                               AND b.seq > outbox_parked.seq)
  FROM outbox_parked
 WHERE consumer = :consumer AND claim IS NULL AND due_at <= :now AND (crashes > 0) <= :suspect
 ORDER BY due_at, seq LIMIT :max;

-- followers (consumer text, key int, seq int, alone int, max int): what is parked behind an event
-- of its key, so that the key catches up in one claim. The last column says where to stop. Left to
-- itself, SQLite would go through all that is parked, for each key.
SELECT @parked_columns@, (crashes > 0 AND :alone) OR claim IS NOT NULL OR due_at IS NOT NULL, 0, 0
  FROM outbox_parked INDEXED BY outbox_parked_key
 WHERE consumer = :consumer AND key = :key AND seq > :seq ORDER BY seq LIMIT :max;

-- one_event (seq int): the event of a parked row.
SELECT @event_columns@ FROM outbox_event WHERE seq = :seq;

-- one_letter (consumer text, seq int): the same after the event was trimmed. A dead letter carries
-- the whole event.
SELECT @event_columns@ FROM outbox_dead WHERE consumer = :consumer AND seq = :seq;

-- list_taken (consumer text, epoch int, seqs text): which parked events a claim has, as a JSON
-- array.
UPDATE outbox_claim SET seqs = :seqs WHERE consumer = :consumer AND epoch = :epoch;

-- take_listed (consumer text, epoch int, seqs text): the rows it lists become part of a claim.
UPDATE outbox_parked SET claim = :epoch
 WHERE consumer = :consumer AND seq IN (SELECT value FROM json_each(:seqs));
