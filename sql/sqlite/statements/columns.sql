-- columns.sql: what several statements select. First in the list of sql/sqlite/meson.build: it is named in the others.

-- @event_columns@: the columns of a whole event, in the order in which sqlite_event_row takes them.
seq, id, type, aggregate_type, aggregate_id, version, payload, headers, tenant, created_at, not_before, idempotency_key;

-- @parked_columns@: what is taken over from a parked row into the event that is handed out; see list_parked.
failing_since, proven, attempts, key, seq;
