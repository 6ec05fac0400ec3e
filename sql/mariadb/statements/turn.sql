-- turn.sql: what a turn checks, under the lock of its consumer, before it changes anything.

-- consumer_state (consumer text): what an operator may have changed since the last turn, the
-- version, whether rows of a table are marked once this consumer has had them, and the time by the
-- server's clock. Nobody else changes what belongs to the consumer until the commit.
SELECT paused, epoch, ordering, lanes, events, predicate,
       (SELECT CAST(value AS SIGNED) FROM outbox_meta WHERE name = 'schema_version'),
       EXISTS (SELECT 1 FROM outbox_marking m WHERE m.consumer = :consumer), parked_stamp,
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000, NULL
  FROM outbox_consumer
 WHERE name = :consumer FOR UPDATE;

-- clock (): the time by the server's clock.
SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000;

-- anything_parked (consumer text, now int): tells a drain whether the consumer is through. An event
-- that its producer delayed does not count before its time has come.
SELECT EXISTS (SELECT 1 FROM outbox_parked
                WHERE consumer = :consumer AND claim IS NULL AND due_at IS NOT NULL
                  AND (is_delayed = 0 OR due_at <= :now));

-- new_events (seq int, most int, max int): what a look at the outbox finds. Payloads of more than
-- most bytes are left out.
SELECT o.seq, e.type, IF(OCTET_LENGTH(e.payload) <= :most, e.payload, NULL)
  FROM @events@ WHERE o.seq > :seq ORDER BY o.seq LIMIT :max;
