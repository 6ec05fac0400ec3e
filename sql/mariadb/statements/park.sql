-- park.sql: events that were handed out and are not over: they wait for a retry, for their time, or
-- behind another event of their key.

-- park (consumer text, seq int, key int, attempts int, due_at int, crashes int, delayed int,
-- error text, failed_at int, wait int, proven int): an event that waits behind another of its key
-- has no time of its own, whatever the reason for parking it; failed_at 0 means that it did not
-- fail now. Without an error, what is known of the last failure stays.
INSERT INTO outbox_parked (consumer, seq, key_hash, attempts, due_at, crashes, is_delayed, error,
                           failed_at, failing_since, wait, proven)
SELECT :consumer, :seq, :key, :attempts,
       IF(:key <> 0 AND EXISTS (SELECT 1 FROM outbox_parked b FORCE INDEX (by_key)
                                 WHERE b.consumer = :consumer AND b.key_hash = :key
                                   AND b.seq < :seq), NULL, :due_at),
       :crashes, :delayed, :error, nullif(:failed_at, 0), nullif(:failed_at, 0), :wait, :proven
    ON DUPLICATE KEY UPDATE
       attempts = VALUES(attempts), due_at = VALUES(due_at), wait = VALUES(wait),
       crashes = VALUES(crashes), is_delayed = VALUES(is_delayed), claim = NULL,
       error = coalesce(VALUES(error), error), failed_at = coalesce(VALUES(failed_at), failed_at),
       failing_since = coalesce(failing_since, VALUES(failing_since)),
       proven = greatest(proven, VALUES(proven));

-- go_behind (consumer text, seq int): an event that was due found one of its key before it, parked
-- later by whoever took a claim over.
UPDATE outbox_parked SET due_at = NULL WHERE consumer = :consumer AND seq = :seq;

-- promote (consumer text, key int, now int): makes the first event of a key due, now that nothing
-- is before it. If it failed earlier, it still waits for its own retry time.
UPDATE outbox_parked p
  JOIN (SELECT min(seq) AS seq FROM outbox_parked
         WHERE consumer = :consumer AND key_hash = :key) first ON p.seq = first.seq
   SET p.due_at = greatest(:now, coalesce(p.failed_at + p.wait, 0))
 WHERE p.consumer = :consumer AND p.claim IS NULL AND p.due_at IS NULL;

-- unpark (consumer text, seq int): the event is over.
DELETE FROM outbox_parked WHERE consumer = :consumer AND seq = :seq;

-- bury (consumer text, seq int, attempts int, error text, now int): a dead letter copies the whole
-- event, because it outlives it.
INSERT INTO outbox_dead (consumer, @letter_columns@, attempts, error, dead_at)
SELECT :consumer, @event_columns@, :attempts, :error, :now FROM @events@ WHERE o.seq = :seq
    ON DUPLICATE KEY UPDATE
       attempts = VALUES(attempts), error = VALUES(error), dead_at = VALUES(dead_at), retrying = 0;

-- bury_again (consumer text, seq int, attempts int, error text, now int): when a letter that was
-- sent back fails after its event was trimmed, its own row is all there is.
UPDATE outbox_dead SET attempts = :attempts, error = :error, dead_at = :now, retrying = 0
 WHERE consumer = :consumer AND seq = :seq AND retrying = 1;
