-- claim_parked.sql: handing out parked events that are due. PostgreSQL: claim_parked.sql.

-- next_due (consumer text, careful int): when the first of them is due; careful: careful ones count, too.
SELECT due_at FROM outbox_parked
 WHERE consumer = :consumer AND claim IS NULL AND due_at IS NOT NULL AND careful <= :careful
 ORDER BY due_at LIMIT 1;

-- careful_due (consumer text, now int): whether a careful one is due.
SELECT 1 FROM outbox_parked
 WHERE consumer = :consumer AND claim IS NULL AND due_at <= :now AND careful = 1 LIMIT 1;

-- pull_in (consumer text, now int): a clock that was ahead when they were parked must not make them wait for longer than they
-- were told to.
UPDATE outbox_parked SET due_at = :now + wait
 WHERE consumer = :consumer AND claim IS NULL AND delayed = 0 AND due_at > :now + wait;

-- due_heads (consumer text, now int, careful int, max int): those that are due, in the order in which they are.
SELECT @parked_columns@, careful FROM outbox_parked
 WHERE consumer = :consumer AND claim IS NULL AND due_at <= :now AND careful <= :careful
 ORDER BY due_at, seq LIMIT :max;

-- followers (consumer text, key int, seq int, max int): what is parked behind one of its key, and whether that has to stop there.
SELECT @parked_columns@, careful OR claim IS NOT NULL OR due_at IS NOT NULL FROM outbox_parked
 WHERE consumer = :consumer AND key = :key AND seq > :seq ORDER BY seq LIMIT :max;

-- one_event (seq int): the event of a parked row.
SELECT @event_columns@ FROM outbox_event WHERE seq = :seq;

-- one_letter (consumer text, seq int): the same if it was trimmed: a dead letter is kept whole.
SELECT @event_columns@ FROM outbox_dead WHERE consumer = :consumer AND seq = :seq;

-- take_parked (consumer text, seq int, epoch int): a row becomes part of a claim. The attempt of a careful one is counted now: it may
-- kill the process.
UPDATE outbox_parked SET claim = :epoch, attempts = attempts + careful WHERE consumer = :consumer AND seq = :seq;
