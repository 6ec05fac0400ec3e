-- park.sql: events that were handed out and are not over: they wait for a retry, for their time, or
-- behind another event of their key. PostgreSQL: park.sql, bury.sql, promote.sql.

-- park (consumer text, seq int, key int, attempts int, due_at int, crashes int, delayed int,
-- error text, failed_at int, wait int, proven int): an event that waits behind another of its key
-- has no time of its own, whatever the reason for parking it; failed_at 0 means that it did not
-- fail now. Without an error, what is known of the last failure stays.
INSERT INTO outbox_parked (consumer, seq, key, attempts, due_at, crashes, delayed, error, failed_at,
                           failing_since, wait, proven)
VALUES (:consumer, :seq, :key, :attempts,
        CASE WHEN :key <> 0 AND EXISTS (SELECT 1 FROM outbox_parked b INDEXED BY outbox_parked_key
                                         WHERE b.consumer = :consumer AND b.key = :key
                                           AND b.seq < :seq) THEN NULL ELSE :due_at END,
        :crashes, :delayed, :error, nullif(:failed_at, 0), nullif(:failed_at, 0), :wait, :proven)
    ON CONFLICT (consumer, seq) DO UPDATE
   SET attempts = excluded.attempts, due_at = excluded.due_at, wait = excluded.wait,
       crashes = excluded.crashes, delayed = excluded.delayed, claim = NULL,
       error = coalesce(excluded.error, error), failed_at = coalesce(excluded.failed_at, failed_at),
       failing_since = coalesce(failing_since, excluded.failing_since),
       proven = max(proven, excluded.proven);

-- note_parked (consumer text, stamp int): whoever parks events says so, in the same transaction:
-- other handles have to read again which keys are held up.
UPDATE outbox_consumer SET parked_stamp = :stamp WHERE name = :consumer;

-- go_behind (consumer text, seq int): an event that was due found one of its key before it, parked
-- later by whoever took a claim over.
UPDATE outbox_parked SET due_at = NULL WHERE consumer = :consumer AND seq = :seq;

-- promote (consumer text, key int, now int): makes the first event of a key due, now that nothing
-- is before it. If it failed earlier, it still waits for its own retry time.
UPDATE outbox_parked SET due_at = max(:now, coalesce(failed_at + wait, 0))
 WHERE consumer = :consumer AND claim IS NULL AND due_at IS NULL
   AND seq = (SELECT min(seq) FROM outbox_parked WHERE consumer = :consumer AND key = :key);

-- unpark (consumer text, seq int): the event is over.
DELETE FROM outbox_parked WHERE consumer = :consumer AND seq = :seq;

-- bury (consumer text, seq int, attempts int, error text, now int): a dead letter copies the whole
-- event, because it outlives it.
INSERT INTO outbox_dead (consumer, @event_columns@, attempts, error, dead_at)
SELECT :consumer, @event_columns@, :attempts, :error, :now FROM outbox_event WHERE seq = :seq
    ON CONFLICT (consumer, seq) DO UPDATE
   SET attempts = :attempts, error = :error, dead_at = :now, retrying = 0;

-- bury_again (consumer text, seq int, attempts int, error text, now int): when a letter that was
-- sent back fails after its event was trimmed, its own row is all there is.
UPDATE outbox_dead SET attempts = :attempts, error = :error, dead_at = :now, retrying = 0
 WHERE consumer = :consumer AND seq = :seq AND retrying = 1;
