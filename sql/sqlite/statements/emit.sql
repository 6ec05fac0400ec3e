-- emit.sql: inserting events and inbox rows. Every table here is qualified with `main.`: on a
-- caller's connection, emit.c replaces it with the name of the database that has the outbox.
-- Unqualified, a temporary table of the caller could shadow ours.

-- insert_event: the event, in the open transaction. On the caller's connection this is prepared for
-- every event, and expressions would make that slower.
INSERT INTO main.outbox_event (id, type, aggregate_type, aggregate_id, version, payload, headers,
                               tenant, not_before, created_at, idempotency_key)
VALUES (:id, :type, :aggregate_type, :aggregate_id, :version, :payload, :headers,
        :tenant, :not_before, :now, :idempotency_key);

-- find_key (key str, type str, aggregate_type str, aggregate_id str, payload str, hash int): the
-- event of an idempotency key, and whether it had the same content. If the event was deleted by
-- hand, its hash still shows that.
SELECT e.id, (e.type, e.aggregate_type, e.aggregate_id, e.payload)
             IS (:type, :aggregate_type, :aggregate_id, :payload)
  FROM main.outbox_event e WHERE e.idempotency_key = :key
UNION ALL
SELECT i.event_id, i.hash = :hash FROM main.outbox_idempotency i WHERE i.key = :key
 LIMIT 1;

-- put_key (key str, id text, hash int, now int): keeps the key until it is trimmed, even if the
-- event is deleted by hand.
INSERT INTO main.outbox_idempotency (key, event_id, hash, at) VALUES (:key, :id, :hash, :now);

-- put_handled (handler str, key str, hash int, now int): changes no row if the key is recorded
-- already. The record commits together with the effect.
INSERT INTO main.outbox_handled (handler, key, hash, at) VALUES (:handler, :key, :hash, :now)
    ON CONFLICT DO NOTHING;
