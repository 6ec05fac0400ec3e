-- Views with the names and columns of other outboxes; docs/coming-from.md lists them. A reader sees
-- no more than in the tables that they are based on (security_invoker).

-- outbox_listeners shows the progress of each consumer, which is done with all events up to
-- last_processed_id. The columns about a retry are those of the first event that has failed and
-- waits. last_processed_at is known where receipts are kept.
SELECT @schema@._name_view('outbox_listeners', 'how far each consumer is', $view$
    SELECT c.name AS listener_id, o.floor AS last_processed_id, r.at AS last_processed_at,
           coalesce(p.attempts, 0) AS retry_count, p.due_at AS retry_after,
           p.error AS last_error, c.created_at,
           greatest(c.created_at, r.at, p.failed_at, c.report_at) AS updated_at
    FROM @schema@.consumer c
    JOIN @schema@._floors() o ON o.consumer = c.name
    LEFT JOIN LATERAL (SELECT x.at
                       FROM @schema@.receipt x WHERE x.consumer = c.name
                       ORDER BY x.seq DESC LIMIT 1) r ON true
    LEFT JOIN LATERAL (SELECT x.attempts, x.due_at, x.error, x.failed_at
                       FROM @schema@.parked x WHERE x.consumer = c.name AND x.failed_at IS NOT NULL
                       ORDER BY x.seq LIMIT 1) p ON true
$view$);

-- outbox_dead_letters excludes dead letters that were sent back.
SELECT @schema@._name_view('outbox_dead_letters', 'dead letters, by consumer and seq', $view$
    SELECT d.consumer AS listener_id, d.seq AS outbox_event_id, d.error, d.dead_at AS failed_at
    FROM @schema@.dead d WHERE NOT d.retrying
$view$);

-- The next two views are named after the schema: <service>_outbox and <service>_outbox_dlq in the
-- schema <service>_outbox, outbox and outbox_dlq in the schema outbox. If an event has several
-- receipts, dispatched_at is the time of the first.
SELECT @schema@._name_view(n.nspname,
                           'events, and when they were dispatched where receipts are kept', $view$
    SELECT e.seq AS id, e.id::uuid AS event_id, e.type AS event_type, e.type AS topic,
           e.aggregate_type AS aggregate_kind, e.aggregate_id,
           e.version AS source_entity_version, e.payload, e.headers AS telemetry_envelope,
           e.tenant AS tenant_id, e.created_at,
           r.at AS dispatched_at, r.sink_id AS stream_id
    FROM @schema@.event e
    LEFT JOIN LATERAL (SELECT x.at, x.sink_id
                       FROM @schema@.consumer c
                       JOIN @schema@.receipt x ON x.consumer = c.name AND x.seq = e.seq
                       ORDER BY x.at LIMIT 1) r ON true
$view$) FROM pg_catalog.pg_namespace n WHERE n.oid = '@schema@'::regnamespace;

SELECT @schema@._name_view(n.nspname || '_dlq', 'dead letters, whole', $view$
    SELECT d.consumer, d.id AS original_outbox_id, d.type AS topic,
           d.aggregate_type AS aggregate_kind, d.aggregate_id,
           d.version AS source_entity_version, d.payload, d.headers AS telemetry_envelope,
           d.tenant AS tenant_id, d.attempts AS publish_attempts, d.error AS final_error,
           d.created_at, d.dead_at AS failed_at
    FROM @schema@.dead d WHERE NOT d.retrying
$view$) FROM pg_catalog.pg_namespace n WHERE n.oid = '@schema@'::regnamespace;

-- event_handled and consumed_events both show the inbox, under the names of two other outboxes.
SELECT @schema@._name_view('event_handled',
                           'the inbox: which handler took effect for what', $view$
    SELECT h.handler AS handler_name, h.key AS idempotency_key, h.at AS handled_at
    FROM @schema@.handled h
$view$);

SELECT @schema@._name_view('consumed_events',
                           'the inbox: which events a group of readers has handled', $view$
    SELECT h.key AS event_id, h.handler AS consumer, h.at AS consumed_at
    FROM @schema@.handled h
$view$);

-- outbox_event has a row for each event and each consumer that gets it, not one for each event.
SELECT @schema@._name_view('outbox_event', 'events with their state for each consumer', $view$
    SELECT e.id::uuid AS id, d.consumer, e.type AS event_type, e.aggregate_type, e.aggregate_id,
           e.payload,
           e.idempotency_key, d.state AS status, d.attempts, d.due_at AS next_attempt_at,
           d.error AS error_message, e.created_at, r.at AS delivered_at
    FROM @schema@.delivery d
    JOIN @schema@.event e ON e.seq = d.seq
    LEFT JOIN @schema@.receipt r ON r.consumer = d.consumer AND r.seq = d.seq
$view$);
