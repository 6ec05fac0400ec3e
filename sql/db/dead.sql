-- dead.sql: dead letters, and events that wait for a retry.

-- list_letters (consumer text, id text, seq int): each restriction is optional; id is NULL for all.
SELECT @letter_columns@, consumer, attempts, error, dead_at, retrying FROM outbox_dead
 WHERE (:consumer IS NULL OR consumer = :consumer)
   AND (:id IS NULL OR id = :id OR seq = :seq)
 ORDER BY consumer, seq;

-- ordering_of (consumer text): the consumer's order, which decides what a letter must wait for when
-- it is sent back.
SELECT ordering FROM outbox_consumer WHERE name = :consumer FOR UPDATE;

-- park_letter (consumer text, seq int, key int, now int): sends a letter back, with no attempt used
-- and due at once.
INSERT IGNORE INTO outbox_parked (consumer, seq, `key`, attempts, due_at)
VALUES (:consumer, :seq, :key, 0, :now);

-- mark_retrying (consumer text, seq int): the letter stays until its event is delivered or dies
-- again.
UPDATE outbox_dead SET retrying = 1 WHERE consumer = :consumer AND seq = :seq;

-- drop_letter (consumer text, seq int): an operator drops the event.
DELETE FROM outbox_dead WHERE consumer = :consumer AND seq = :seq;

-- retry_now (consumer text, seq int, now int): makes a parked event due. An event that waits behind
-- another, or for its not_before, keeps waiting.
UPDATE outbox_parked SET due_at = least(due_at, :now)
 WHERE consumer = :consumer AND seq = :seq AND claim IS NULL AND due_at IS NOT NULL
   AND NOT `delayed`;
