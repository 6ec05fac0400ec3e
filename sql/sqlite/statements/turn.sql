-- turn.sql: what a turn checks, under the write lock, before it changes anything.

-- schema_version (): a migration may have run since the relay started.
SELECT CAST(value AS INTEGER) FROM outbox_meta WHERE name = 'schema_version';

-- identity (): distinguishes this outbox from any other that could be restored into the same file.
SELECT value FROM outbox_meta WHERE name = 'identity';

-- consumer_state (consumer text): what an operator or a restore may have changed since the last
-- turn: also the version, whether rows of a table are marked once this consumer has had them, and
-- which outbox it is. This machine's clock counts.
SELECT paused, epoch, ordering, lanes, events, predicate,
       (SELECT CAST(value AS INTEGER) FROM outbox_meta WHERE name = 'schema_version'),
       EXISTS (SELECT 1 FROM outbox_adopted WHERE consumer = :consumer AND mark IS NOT NULL),
       parked_stamp, 0, (SELECT value FROM outbox_meta WHERE name = 'identity')
  FROM outbox_consumer
 WHERE name = :consumer;

-- anything_parked (consumer text, now int): tells a drain whether the consumer is through. An event
-- that its producer delayed does not count before its time has come.
SELECT EXISTS (SELECT 1 FROM outbox_parked
                WHERE consumer = :consumer AND claim IS NULL AND due_at IS NOT NULL
                  AND (delayed = 0 OR due_at <= :now));

-- new_events (seq int, most int, max int): what a look at the outbox finds. Payloads of more than
-- most bytes are left out.
SELECT seq, type, CASE WHEN length(CAST(payload AS BLOB)) <= :most THEN payload END
  FROM outbox_event WHERE seq > :seq ORDER BY seq LIMIT :max;
