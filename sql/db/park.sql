-- park.sql: records the end of a claim, and parks events: they wait for a retry, for their time, or
-- behind another event of their key.

-- @letter_columns@: a whole event of a dead letter.
seq, id, type, aggregate_type, aggregate_id, version, payload, headers, tenant, created_at,
not_before, idempotency_key;

-- note_parked (consumer text, stamp int): runs in each transaction that parks events: other handles
-- then read the keys of parked events again.
UPDATE outbox_consumer SET parked_stamp = :stamp WHERE name = :consumer;

-- go_behind (consumer text, seq int): an event that was due now waits behind another of its key,
-- which a take-over has parked since.
UPDATE outbox_parked SET due_at = NULL WHERE consumer = :consumer AND seq = :seq;

-- unpark (consumer text, seq int): the event has ended.
DELETE FROM outbox_parked WHERE consumer = :consumer AND seq = :seq;

-- bury (consumer text, seq int, attempts int, error text, now int): a dead letter copies the whole
-- event, because it outlives it.
INSERT INTO outbox_dead (consumer, @letter_columns@, attempts, error, dead_at)
SELECT :consumer, @event_columns@, :attempts, :error, :now FROM @events@ WHERE seq = :seq
    ON CONFLICT (consumer, seq) DO UPDATE SET
       attempts = excluded.attempts, error = excluded.error, dead_at = excluded.dead_at,
       retrying = 0;

-- bury_again (consumer text, seq int, attempts int, error text, now int): when a letter that was
-- sent back fails after its event was trimmed, the letter's own row is the only copy.
UPDATE outbox_dead SET attempts = :attempts, error = :error, dead_at = :now, retrying = 0
 WHERE consumer = :consumer AND seq = :seq AND retrying = 1;

-- put_receipt (consumer text, seq int, event_id str, sink_id text, now int): records the sink's own
-- id of an event, so that operators can find it there.
INSERT INTO outbox_receipt (consumer, seq, event_id, sink_id, at)
VALUES (:consumer, :seq, :event_id, :sink_id, :now)
    ON CONFLICT (consumer, seq) DO UPDATE SET sink_id = excluded.sink_id, at = excluded.at;

-- put_back (consumer text, seq int, attempts int): an event of a parked claim was not tried.
UPDATE outbox_parked SET claim = NULL, attempts = :attempts
 WHERE consumer = :consumer AND seq = :seq;

-- unpark_delivered (consumer text, epoch int): the rows left in the claim after all other outcomes:
-- their events were delivered.
DELETE FROM outbox_parked WHERE consumer = :consumer AND claim = :epoch @and_taken@;

-- is_handled (handler str, key str): whether the handler has handled the key.
SELECT 1 FROM outbox_handled WHERE handler = :handler AND `key` = :key LOCK IN SHARE MODE;
