-- turn.sql: what a turn looks at before it settles or claims anything. Under the write lock.

-- schema_version (): the outbox may have been brought up while a relay runs.
SELECT CAST(value AS INTEGER) FROM outbox_meta WHERE name = 'schema_version';

-- identity (): tells this outbox from every other one that could be put into the file.
SELECT value FROM outbox_meta WHERE name = 'identity';

-- consumer_state (consumer text): what may have been changed, by operators or by a restore, since the last turn.
SELECT paused, epoch, ordering, lanes, events, predicate, (SELECT value FROM outbox_meta WHERE name = 'identity')
  FROM outbox_consumer
 WHERE name = :consumer;

-- anything_left (consumer text, now int): whether something of a consumer is in flight, or parked and due by itself. What waits
-- for a time that its producer gave it does not count before that.
SELECT EXISTS (SELECT 1 FROM outbox_claim WHERE consumer = :consumer)
    OR EXISTS (SELECT 1 FROM outbox_parked
                WHERE consumer = :consumer AND claim IS NULL AND due_at IS NOT NULL
                  AND (delayed = 0 OR due_at <= :now));
