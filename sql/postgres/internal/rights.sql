-- Exactly the rights that a role needs for its part (producer, consumer, operator). held: the role
-- is limited to a tenant.
--
-- Apart from emitting, only the owner writes to the tables: workers and operators change rows only
-- through functions that check them (see _admit). Rights on tables and row-level security limit
-- what they read: a worker sees its own consumers, and a role that is limited to a tenant sees the
-- consumers of that tenant.
--
-- Reading and trimming rely on the xid, seq and created_at of an event, so no producer may set
-- them. A role that is limited to a tenant cannot choose ids, either: a receiver that drops
-- duplicates by id would drop another tenant's event.
CREATE OR REPLACE FUNCTION @schema@._rights(part text, held boolean DEFAULT false)
RETURNS TABLE (privilege text, kind text, object text)
LANGUAGE sql IMMUTABLE AS $outbox$
    SELECT r.privilege, r.kind, concat('@schema@.', o.name)
    FROM (VALUES
        (NULL, NULL, 'SELECT', 'TABLE', 'meta'),

        ('producer', false, 'INSERT (id, type, aggregate_type, aggregate_id, version, payload, '
                            'headers, tenant, not_before, idempotency_key)', 'TABLE', 'event'),
        ('producer', true, 'SELECT (id), INSERT (type, aggregate_type, aggregate_id, version, '
                           'payload, headers, tenant, not_before, idempotency_key)',
                           'TABLE', 'event'),
        ('producer', NULL, 'SELECT (tenant, key, event_id, hash), '
                           'INSERT (tenant, key, event_id, hash)', 'TABLE', 'idempotency'),

        ('consumer', NULL, 'SELECT', 'TABLE',
         'worker, event, consumer, setting, lane, claim, parked, dead, ended, former_filter, '
         'receipt, mark, passed, marking, delivery, consumer_status'),
        ('consumer', NULL, 'SELECT', 'SEQUENCE', 'event_seq_seq, epoch'),
        ('consumer', NULL, 'EXECUTE', 'FUNCTION',
         '_worker_turn, _worker_turns, _worker_extend, _worker_shrink, _worker_register, '
         '_worker_report, _worker_handle, _worker_handle_all, _worker_handled_before'),

        ('operator', NULL, 'SELECT (role, consumer)', 'TABLE', 'worker'),
        ('operator', NULL, 'SELECT', 'TABLE',
         'held, event, idempotency, consumer, setting, lane, claim, parked, dead, ended, '
         'former_filter, handled, receipt, mark, passed, marking, adopted_row, delivery, '
         'consumer_status'),
        ('operator', NULL, 'SELECT', 'SEQUENCE', 'event_seq_seq, epoch, marking_id_seq'),
        ('operator', NULL, 'EXECUTE', 'FUNCTION',
         '_worker_register, _operator_pause, _operator_redrive, _operator_retry, _operator_drop, '
         '_operator_remove, _operator_trim')
    ) AS r (part, held, privilege, kind, objects),
    LATERAL string_to_table(r.objects, ', ') AS o (name)
    WHERE (r.part = _rights.part OR r.part IS NULL)
      AND (r.held = _rights.held OR r.held IS NULL)
    UNION ALL
    SELECT 'USAGE', 'SCHEMA', '@schema@'
$outbox$;

-- The functions that every role with USAGE on the schema may call. They run with the rights of the
-- caller, and only read, compute, or call a function that checks the caller. All other functions
-- are for the owner and for the roles that _rights names.
CREATE OR REPLACE FUNCTION @schema@._open_to_all() RETURNS text[]
LANGUAGE sql IMMUTABLE AS $outbox$
    SELECT '{emit, emit_once, _uuid7, _clock,
             wakeup_works, _wakeup_key, wakeup_channel, wakeup_sleep, wakeup_release,
             _wakeup_notify, _wakeup_notify_all, _wakeup_locks, _wakeup_lock_is_foreign,
             _wakeup_foreign_holders, _wakeup_wanted, _wakeup_second,
             _session, _holder, _owner, _adoptions, _adopted_formerly, _adopted_mark,
             _turn, _turns, _no_request, claim, claim_batch, _claim_some, _check_claim, _workable,
             _idle, settle, extend, _shrink, register, _report, revert,
             pause, redrive, _redrive, retry_now, drop_dead, remove, trim, _trim_dry_run,
             handle_once, _handle, _handle_all, _handled_before, _claimed, hwm,
             find_unprocessed, find_processing, find_failed, find_abandoned, find_published,
             _found, _look_end, _scopes, _candidates, _exceptional, _states, _seq_of,
             _wants, _at_path, _equals, _normal_number, _plain_json, _too_deep,
             _backlog, _waiting, _floors, _low, _progress, _needed, _surely_done, _lanes, _places,
             _members, _is_member, _all_lanes, _parked_events, _parked_summary,
             _key_cutoff, _check_trim, _trim_pin, _passed_by, _passed_since, _common_snapshot,
             _all_but_running,
             _lane_of, _key, _type_like, _handed_out, _reached, _before_start, _starts_after,
             _window_events, _home, _here, _at_home, _trouble, rebaseline, _may_rebaseline,
             _refuse_version, _rights, parts, _open_to_all,
             _acting_for, _sees, _inherits, _name_like, _caller}'::text[]
$outbox$;
