-- A producer: places orders, and emits an event for each in the transaction that writes it.
--
--     psql -f producer.sql        $PGHOST, $PGDATABASE and so on say which database
\set ON_ERROR_STOP on
SET client_min_messages = warning;

CREATE TABLE IF NOT EXISTS shop_order (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    customer text NOT NULL,
    total int NOT NULL
);

-- The order and its event: both, or neither.
BEGIN;
INSERT INTO shop_order (customer, total) VALUES ('ada', 30) RETURNING id \gset
SELECT outbox.emit('order.created', 'order', :'id', '{"customer": "ada", "total": 30}');
COMMIT;

-- Rolled back, and its event with it.
BEGIN;
INSERT INTO shop_order (customer, total) VALUES ('bob', 50) RETURNING id \gset
SELECT outbox.emit('order.created', 'order', :'id', '{"customer": "bob", "total": 50}');
ROLLBACK;

-- A plain INSERT is an event as well, even in one statement with the order.
WITH new AS (INSERT INTO shop_order (customer, total) VALUES ('ada', 12) RETURNING *)
INSERT INTO outbox.event (type, aggregate_type, aggregate_id, payload)
SELECT 'order.created', 'order', id::text,
    json_build_object('customer', customer, 'total', total)
FROM new;
