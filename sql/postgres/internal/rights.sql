-- _rights returns what a role needs for its part (producer, consumer, operator), and nothing
-- beyond. held: the role is held to a tenant.
--
-- Apart from emitting, only the owner writes to the tables: workers and operators change rows only
-- through functions that check them (see _admit). Reading is a matter of rights on tables, and of
-- row-level security: a worker sees its own consumers, and a role that is held to a tenant those of
-- that tenant.
--
-- The xid, seq and created_at of an event are the outbox's own: reading and trimming rely on them,
-- so no producer sets them. A role that is held to a tenant cannot choose ids, either: a receiver
-- that drops duplicates by id would drop another tenant's event.
CREATE OR REPLACE FUNCTION @schema@._rights(part text, held boolean DEFAULT false)
RETURNS TABLE (privilege text, kind text, object text)
LANGUAGE sql IMMUTABLE AS $outbox$
    SELECT r.privilege, r.kind, r.object
    FROM (VALUES
        (NULL, NULL, 'USAGE', 'SCHEMA', '@schema@'),
        (NULL, NULL, 'SELECT', 'TABLE', '@schema@.meta'),

        ('producer', false, 'INSERT (id, type, aggregate_type, aggregate_id, version, payload, '
                            'headers, tenant, not_before, idempotency_key)',
                            'TABLE', '@schema@.event'),
        ('producer', true, 'SELECT (id), INSERT (type, aggregate_type, aggregate_id, version, '
                           'payload, headers, tenant, not_before, idempotency_key)',
                           'TABLE', '@schema@.event'),
        ('producer', false, 'SELECT (tenant, key, event_id, hash), '
                            'INSERT (tenant, key, event_id, hash)',
                            'TABLE', '@schema@.idempotency'),
        ('producer', true, 'SELECT (tenant, key, event_id, hash), '
                           'INSERT (tenant, key, event_id, hash)',
                           'TABLE', '@schema@.idempotency'),

        ('consumer', NULL, 'SELECT', 'TABLE', '@schema@.worker'),
        ('consumer', NULL, 'SELECT', 'TABLE', '@schema@.event'),
        ('consumer', NULL, 'SELECT', 'TABLE', '@schema@.consumer'),
        ('consumer', NULL, 'SELECT', 'TABLE', '@schema@.setting'),
        ('consumer', NULL, 'SELECT', 'TABLE', '@schema@.lane'),
        ('consumer', NULL, 'SELECT', 'TABLE', '@schema@.claim'),
        ('consumer', NULL, 'SELECT', 'TABLE', '@schema@.parked'),
        ('consumer', NULL, 'SELECT', 'TABLE', '@schema@.dead'),
        ('consumer', NULL, 'SELECT', 'TABLE', '@schema@.ended'),
        ('consumer', NULL, 'SELECT', 'TABLE', '@schema@.former_filter'),
        ('consumer', NULL, 'SELECT', 'TABLE', '@schema@.receipt'),
        ('consumer', NULL, 'SELECT', 'TABLE', '@schema@.mark'),
        ('consumer', NULL, 'SELECT', 'TABLE', '@schema@.passed'),
        ('consumer', NULL, 'SELECT', 'TABLE', '@schema@.marking'),
        ('consumer', NULL, 'SELECT', 'TABLE', '@schema@.delivery'),
        ('consumer', NULL, 'SELECT', 'TABLE', '@schema@.consumer_status'),
        ('consumer', NULL, 'SELECT', 'SEQUENCE', '@schema@.event_seq_seq'),
        ('consumer', NULL, 'SELECT', 'SEQUENCE', '@schema@.epoch'),
        ('consumer', NULL, 'EXECUTE', 'FUNCTION', '@schema@._worker_turn'),
        ('consumer', NULL, 'EXECUTE', 'FUNCTION', '@schema@._worker_turns'),
        ('consumer', NULL, 'EXECUTE', 'FUNCTION', '@schema@._worker_extend'),
        ('consumer', NULL, 'EXECUTE', 'FUNCTION', '@schema@._worker_shrink'),
        ('consumer', NULL, 'EXECUTE', 'FUNCTION', '@schema@._worker_register'),
        ('consumer', NULL, 'EXECUTE', 'FUNCTION', '@schema@._worker_report'),
        ('consumer', NULL, 'EXECUTE', 'FUNCTION', '@schema@._worker_handle'),
        ('consumer', NULL, 'EXECUTE', 'FUNCTION', '@schema@._worker_handle_all'),
        ('consumer', NULL, 'EXECUTE', 'FUNCTION', '@schema@._worker_handled_before'),

        ('operator', NULL, 'SELECT (role, consumer)', 'TABLE', '@schema@.worker'),
        ('operator', NULL, 'SELECT', 'TABLE', '@schema@.held'),
        ('operator', NULL, 'SELECT', 'TABLE', '@schema@.event'),
        ('operator', NULL, 'SELECT', 'TABLE', '@schema@.idempotency'),
        ('operator', NULL, 'SELECT', 'TABLE', '@schema@.consumer'),
        ('operator', NULL, 'SELECT', 'TABLE', '@schema@.setting'),
        ('operator', NULL, 'SELECT', 'TABLE', '@schema@.lane'),
        ('operator', NULL, 'SELECT', 'TABLE', '@schema@.claim'),
        ('operator', NULL, 'SELECT', 'TABLE', '@schema@.parked'),
        ('operator', NULL, 'SELECT', 'TABLE', '@schema@.dead'),
        ('operator', NULL, 'SELECT', 'TABLE', '@schema@.ended'),
        ('operator', NULL, 'SELECT', 'TABLE', '@schema@.former_filter'),
        ('operator', NULL, 'SELECT', 'TABLE', '@schema@.handled'),
        ('operator', NULL, 'SELECT', 'TABLE', '@schema@.receipt'),
        ('operator', NULL, 'SELECT', 'TABLE', '@schema@.mark'),
        ('operator', NULL, 'SELECT', 'TABLE', '@schema@.passed'),
        ('operator', NULL, 'SELECT', 'TABLE', '@schema@.marking'),
        ('operator', NULL, 'SELECT', 'TABLE', '@schema@.adopted_row'),
        ('operator', NULL, 'SELECT', 'SEQUENCE', '@schema@.marking_id_seq'),
        ('operator', NULL, 'SELECT', 'TABLE', '@schema@.delivery'),
        ('operator', NULL, 'SELECT', 'TABLE', '@schema@.consumer_status'),
        ('operator', NULL, 'SELECT', 'SEQUENCE', '@schema@.event_seq_seq'),
        ('operator', NULL, 'SELECT', 'SEQUENCE', '@schema@.epoch'),
        ('operator', NULL, 'EXECUTE', 'FUNCTION', '@schema@._worker_register'),
        ('operator', NULL, 'EXECUTE', 'FUNCTION', '@schema@._operator_pause'),
        ('operator', NULL, 'EXECUTE', 'FUNCTION', '@schema@._operator_redrive'),
        ('operator', NULL, 'EXECUTE', 'FUNCTION', '@schema@._operator_retry'),
        ('operator', NULL, 'EXECUTE', 'FUNCTION', '@schema@._operator_drop'),
        ('operator', NULL, 'EXECUTE', 'FUNCTION', '@schema@._operator_remove'),
        ('operator', NULL, 'EXECUTE', 'FUNCTION', '@schema@._operator_trim')
    ) AS r (part, held, privilege, kind, object)
    WHERE (r.part = _rights.part OR r.part IS NULL)
      AND (r.held = _rights.held OR r.held IS NULL)
$outbox$;

-- _open_to_all returns the functions that every role with USAGE on the schema may call. They run
-- with the rights of the caller, and read, compute, or call a function that checks. All others are
-- for the owner, and for the roles that _rights names.
CREATE OR REPLACE FUNCTION @schema@._open_to_all() RETURNS text[]
LANGUAGE sql IMMUTABLE AS $outbox$
    SELECT '{emit, emit_once, _uuid7, _clock,
             wakeup_works, _wakeup_key, wakeup_channel, wakeup_sleep, wakeup_release,
             _wakeup_notify, _wakeup_notify_all, _wakeup_locks, _wakeup_lock_is_foreign,
             _wakeup_foreign_holders, _wakeup_wanted, _wakeup_second,
             _session, _holder, _adopted_formerly, _adopted_mark,
             _turn, _turns, claim, claim_batch, _claim_some, _check_claim, _workable,
             _idle, settle, extend, _shrink, register, _report, revert,
             pause, redrive, _redrive, retry_now, drop_dead, remove, trim, _trim_dry_run,
             handle_once, _handle, _handle_all, _handled_before, _claimed, hwm,
             find_unprocessed, find_processing, find_failed, find_abandoned, find_published,
             _found, _look_end, _scopes, _candidates, _exceptional, _states, _seq_of,
             _wants, _at_path, _equals, _normal_number, _plain_json, _too_deep,
             _backlog, _waiting, _floors, _low, _progress, _needed, _surely_done, _lanes, _places,
             _members, _is_member, _all_lanes, _parked_events, _parked_summary,
             _key_cutoff, _passed_by, _passed_since, _common_snapshot, _all_but_running,
             _lane_of, _key, _type_like, _handed_out, _reached, _before_start, _starts_after,
             _window_events, _home, _here, _at_home, _moved, _trouble, rebaseline, _may_rebaseline,
             _refuse_version, _rights, parts, _open_to_all,
             _acting_for, _sees, _inherits, _name_like, _caller}'::text[]
$outbox$;
