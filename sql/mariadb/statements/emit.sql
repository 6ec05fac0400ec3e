-- emit.sql: inserting events and inbox rows, on our connection or on the caller's.

-- insert_event: the server generates the id, so that ids ascend no matter how an event was
-- inserted.
INSERT INTO outbox_event (type, aggregate_type, aggregate_id, version, payload, headers,
                          tenant, not_before, idempotency_key)
VALUES (:type, :aggregate_type, :aggregate_id, :version, :payload, :headers,
        :tenant, :not_before, :idempotency_key)
RETURNING id;

-- insert_plain: for an event without other fields: naming a column costs more than leaving it out.
INSERT INTO outbox_event (type, aggregate_type, aggregate_id, payload)
VALUES (:type, :aggregate_type, :aggregate_id, :payload)
RETURNING id;

-- insert_event_at: the same by a clock that is not the server's.
INSERT INTO outbox_event (type, aggregate_type, aggregate_id, version, payload, headers,
                          tenant, not_before, idempotency_key, created_at)
VALUES (:type, :aggregate_type, :aggregate_id, :version, :payload, :headers,
        :tenant, :not_before, :idempotency_key, :now)
RETURNING id;

-- find_key (key str, type str, aggregate_type str, aggregate_id str, payload str): the event of an
-- idempotency key, and whether it had the same content. A locking read sees everything committed so
-- far, even in a transaction with an older snapshot.
SELECT e.id, e.type = :type AND e.aggregate_type <=> :aggregate_type
             AND e.aggregate_id <=> :aggregate_id AND e.payload = :payload
  FROM outbox_event e WHERE e.idempotency_key = :key LOCK IN SHARE MODE;

-- put_handled (handler str, key str, hash int, now int): changes no row if the key was there. It
-- commits together with the effect.
INSERT INTO outbox_handled (handler, `key`, hash, at) VALUES (:handler, :key, :hash, :now);
