-- rights: what a role needs for its part, and nothing beyond. Functions run with the rights of whoever calls them, so that
-- tenants stay apart; rights on tables decide. Functions are for everyone whom the schema is open to, but for those that
-- change it.
-- An event's xid, seq and created_at are the outbox's own: reading and trimming rely on them, so no producer sets them.
CREATE OR REPLACE FUNCTION @schema@.rights(part text) RETURNS TABLE (privilege text, kind text, object text)
LANGUAGE sql IMMUTABLE AS $outbox$
    SELECT r.privilege, r.kind, r.object FROM (VALUES
        (NULL, 'USAGE', 'SCHEMA', '@schema@'),
        (NULL, 'SELECT', 'TABLE', '@schema@.meta'),

        ('producer', 'INSERT (id, type, aggregate_type, aggregate_id, version, payload, headers, tenant, not_before)', 'TABLE',
                     '@schema@.event'),
        ('producer', 'SELECT (tenant, key, event_id, hash), INSERT (tenant, key, event_id, hash)', 'TABLE',
                     '@schema@.idempotency'),

        ('consumer', 'SELECT', 'TABLE', '@schema@.event'),
        ('consumer', 'SELECT, INSERT (name, events, type_like, predicate, ordering, lanes, retry, start_seen, start_floor), UPDATE (events, '
                     'type_like, predicate, ordering, lanes, retry, report, report_at)', 'TABLE', '@schema@.consumer'),
        ('consumer', 'SELECT, INSERT, DELETE', 'TABLE', '@schema@.setting'),
        ('consumer', 'SELECT, INSERT, UPDATE, DELETE', 'TABLE', '@schema@.lane'),
        ('consumer', 'SELECT, INSERT, UPDATE, DELETE', 'TABLE', '@schema@.claim'),
        ('consumer', 'SELECT, INSERT, UPDATE, DELETE', 'TABLE', '@schema@.parked'),
        ('consumer', 'SELECT, INSERT, UPDATE (attempts, error, dead_at, retrying), DELETE', 'TABLE', '@schema@.dead'),
        ('consumer', 'SELECT, INSERT, UPDATE (state)', 'TABLE', '@schema@.ended'),
        ('consumer', 'SELECT, INSERT', 'TABLE', '@schema@.former_filter'),
        ('consumer', 'SELECT, INSERT', 'TABLE', '@schema@.handled'),
        ('consumer', 'SELECT, INSERT, UPDATE (sink_id, at)', 'TABLE', '@schema@.receipt'),
        ('consumer', 'SELECT, INSERT, UPDATE (hi, lo, at)', 'TABLE', '@schema@.mark'),
        ('consumer', 'SELECT', 'TABLE', '@schema@.delivery'),
        ('consumer', 'SELECT', 'TABLE', '@schema@.consumer_status'),
        ('consumer', 'SELECT', 'SEQUENCE', '@schema@.event_seq_seq'),
        ('consumer', 'USAGE, UPDATE', 'SEQUENCE', '@schema@.epoch'),

        ('operator', 'SELECT, DELETE', 'TABLE', '@schema@.event'),
        ('operator', 'SELECT, DELETE', 'TABLE', '@schema@.idempotency'),
        ('operator', 'SELECT, INSERT, UPDATE, DELETE', 'TABLE', '@schema@.consumer'),
        ('operator', 'SELECT, INSERT, DELETE', 'TABLE', '@schema@.setting'),
        ('operator', 'SELECT, INSERT, DELETE', 'TABLE', '@schema@.lane'),
        ('operator', 'SELECT, DELETE', 'TABLE', '@schema@.claim'),
        ('operator', 'SELECT, INSERT, DELETE', 'TABLE', '@schema@.parked'),
        ('operator', 'SELECT, UPDATE (retrying), DELETE', 'TABLE', '@schema@.dead'),
        ('operator', 'SELECT, INSERT, UPDATE (state), DELETE', 'TABLE', '@schema@.ended'),
        ('operator', 'SELECT, INSERT, DELETE', 'TABLE', '@schema@.former_filter'),
        ('operator', 'SELECT, DELETE', 'TABLE', '@schema@.handled'),
        ('operator', 'SELECT, DELETE', 'TABLE', '@schema@.receipt'),
        ('operator', 'SELECT, DELETE', 'TABLE', '@schema@.mark'),
        ('operator', 'SELECT', 'TABLE', '@schema@.delivery'),
        ('operator', 'SELECT', 'TABLE', '@schema@.consumer_status'),
        ('operator', 'SELECT', 'SEQUENCE', '@schema@.event_seq_seq'),
        ('operator', 'SELECT', 'SEQUENCE', '@schema@.epoch')) AS r (part, privilege, kind, object)
    WHERE r.part = $1 OR r.part IS NULL
$outbox$;
COMMENT ON FUNCTION @schema@.rights(text) IS 'what a role needs for its part';
