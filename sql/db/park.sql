-- park.sql: parked events, which wait for a retry, for their time, or behind another event of their
-- key; and dead letters.

-- @letter_columns@: a whole event of a dead letter.
seq, id, type, aggregate_type, aggregate_id, version, payload, headers, tenant, created_at,
not_before, idempotency_key;

-- note_parked (consumer text, stamp int): runs in each transaction that parks events: other handles
-- then read the keys of parked events again.
UPDATE outbox_consumer SET parked_stamp = :stamp WHERE name = :consumer;

-- park: an event waiting behind another event of the same key has no due time. failed_at 0: it did
-- not fail now. Without an error, the recorded failure stays.
INSERT INTO outbox_parked (consumer, seq, `key`, attempts, due_at, crashes, `delayed`, error,
                           failed_at, failing_since, wait, proven)
SELECT :consumer, :seq, :key, :attempts,
       CASE WHEN :key <> 0 AND EXISTS (SELECT 1 FROM outbox_parked b @by_key@
                                        WHERE b.consumer = :consumer AND b.`key` = :key
                                          AND b.seq < :seq) THEN NULL ELSE :due_at END,
       :crashes, :delayed, :error, nullif(:failed_at, 0), nullif(:failed_at, 0), :wait, :proven
  FROM DUAL WHERE 1
    ON CONFLICT (consumer, seq) DO UPDATE SET
       attempts = excluded.attempts, due_at = excluded.due_at, wait = excluded.wait,
       crashes = excluded.crashes, `delayed` = excluded.`delayed`, claim = NULL,
       error = coalesce(excluded.error, error), failed_at = coalesce(excluded.failed_at, failed_at),
       failing_since = coalesce(failing_since, excluded.failing_since),
       proven = greatest(proven, excluded.proven);

-- go_behind: an event that was due now waits behind another event of the same key, parked since.
UPDATE outbox_parked SET due_at = NULL WHERE consumer = :consumer AND seq = :seq;

-- unpark: the event has ended.
DELETE FROM outbox_parked WHERE consumer = :consumer AND seq = :seq;

-- bury: a dead letter copies the whole event, because the letter outlives the event.
INSERT INTO outbox_dead (consumer, @letter_columns@, attempts, error, dead_at)
SELECT :consumer, @event_columns@, :attempts, :error, :now FROM @events@ WHERE seq = :seq
    ON CONFLICT (consumer, seq) DO UPDATE SET
       attempts = excluded.attempts, error = excluded.error, dead_at = excluded.dead_at,
       retrying = 0;

-- bury_again: once its event is trimmed, the row of a retried letter is the only copy.
UPDATE outbox_dead SET attempts = :attempts, error = :error, dead_at = :now, retrying = 0
 WHERE consumer = :consumer AND seq = :seq AND retrying = 1;

-- put_receipt: records the sink's own id of an event, so that operators can find it there.
INSERT INTO outbox_receipt (consumer, seq, event_id, sink_id, at)
VALUES (:consumer, :seq, :event_id, :sink_id, :now)
    ON CONFLICT (consumer, seq) DO UPDATE SET sink_id = excluded.sink_id, at = excluded.at;

-- put_back: an event of a parked claim was not tried.
UPDATE outbox_parked SET claim = NULL, attempts = :attempts
 WHERE consumer = :consumer AND seq = :seq;

-- unpark_delivered: the rows left in the claim after all other outcomes were delivered.
DELETE FROM outbox_parked WHERE consumer = :consumer AND claim = :epoch @and_taken@;

-- handled_hash (handler str, key str): the hash of the payload that the handler handled under this
-- key; see emit.sql of SQLite for main.
SELECT hash FROM main.outbox_handled WHERE handler = :handler AND `key` = :key LOCK IN SHARE MODE;

-- list_letters: each restriction is optional; id is NULL for all.
SELECT @letter_columns@, consumer, attempts, error, dead_at, retrying FROM outbox_dead
 WHERE (:consumer IS NULL OR consumer = :consumer)
   AND (:id IS NULL OR id = :id OR seq = :seq)
 ORDER BY consumer, seq;

-- ordering_of: the consumer's order: what a retried letter must wait for.
SELECT ordering FROM outbox_consumer WHERE name = :consumer FOR UPDATE;

-- park_letter: parks the event of a letter for a retry, with no attempt used and due at once.
INSERT IGNORE INTO outbox_parked (consumer, seq, `key`, attempts, due_at)
VALUES (:consumer, :seq, :key, 0, :now);

-- mark_retrying: the letter stays until its event is delivered or dies again.
UPDATE outbox_dead SET retrying = 1 WHERE consumer = :consumer AND seq = :seq;

-- drop_letter: an operator drops the event.
DELETE FROM outbox_dead WHERE consumer = :consumer AND seq = :seq;

-- retry_now: makes an event due, unless it waits behind another or for its not_before.
UPDATE outbox_parked SET due_at = least(due_at, :now)
 WHERE consumer = :consumer AND seq = :seq AND claim IS NULL AND due_at IS NOT NULL
   AND NOT `delayed`;
