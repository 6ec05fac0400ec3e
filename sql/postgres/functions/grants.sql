-- The parts that a role was granted. Each is recognised by a right that the other parts lack, and
-- that a grant of the tables by hand does not include: init grants each part again (see _give), and
-- a role that may read everything must not become an operator.
CREATE OR REPLACE FUNCTION @schema@.parts(role text) RETURNS SETOF text
LANGUAGE sql STABLE AS $outbox$
    SELECT p.part FROM pg_catalog.pg_roles g, (VALUES
        ('producer', 'INSERT', (SELECT a.attacl FROM pg_catalog.pg_attribute a
             WHERE a.attrelid = '@schema@.event'::regclass AND a.attname = 'type')),
        ('consumer', 'EXECUTE', (SELECT f.proacl FROM pg_catalog.pg_proc f
             WHERE f.oid = '@schema@._worker_report(text, text)'::regprocedure)),
        ('operator', 'EXECUTE', (SELECT f.proacl FROM pg_catalog.pg_proc f
             WHERE f.oid = '@schema@._operator_pause(text, boolean)'::regprocedure))
    ) AS p (part, privilege, acl)
    WHERE g.rolname = parts.role
      AND EXISTS (SELECT 1 FROM pg_catalog.aclexplode(p.acl) x
                  WHERE x.grantee = g.oid AND x.privilege_type = p.privilege)
$outbox$;
COMMENT ON FUNCTION @schema@.parts(text) IS 'the parts that a role was given';

-- Whether a role has the part of an operator, directly or by inheritance.
CREATE OR REPLACE FUNCTION @schema@._operates(who name) RETURNS boolean
LANGUAGE sql STABLE AS $outbox$
    SELECT has_function_privilege(who, '@schema@._operator_pause(text, boolean)', 'EXECUTE')
$outbox$;

-- Grants an existing role a part, producer, consumer or operator, also again.
--
--     consumer  which consumer the role may work on: a name, or a prefix and a *; NULL: every
--               consumer
--     tenant    limits the role to this tenant in all its parts, regardless of outbox.tenant
CREATE OR REPLACE FUNCTION @schema@.allow(
    part text, role text, consumer text DEFAULT NULL, tenant text DEFAULT NULL) RETURNS void
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    other text := (SELECT h.tenant FROM @schema@.held h WHERE h.role = allow.role);
BEGIN
    PERFORM @schema@._check_grant(part, role, consumer);
    IF tenant IS NOT NULL AND @schema@._tenant_fits(tenant) IS NOT TRUE THEN
        RAISE EXCEPTION 'tenant: 1 to 1024 bytes, no control character' USING ERRCODE = 'OB004';
    END IF;
    IF other <> tenant THEN
        RAISE EXCEPTION 'role "%" is already limited to tenant "%"', role, other
            USING ERRCODE = 'OB001', HINT = 'revoke all its parts first, or use another role';
    END IF;

    IF other IS NULL AND tenant IS NOT NULL THEN
        INSERT INTO @schema@.held (role, tenant) VALUES (allow.role, allow.tenant);
        -- The parts that it has already are limited, too.
        PERFORM @schema@._give(p, role) FROM @schema@.parts(role) AS p WHERE p <> part;
    END IF;
    IF part = 'consumer' THEN
        INSERT INTO @schema@.worker (role, consumer)
        VALUES (allow.role, coalesce(allow.consumer, '*'))
        ON CONFLICT DO NOTHING;
    END IF;
    PERFORM @schema@._give(part, role);
END $outbox$;
COMMENT ON FUNCTION @schema@.allow(text, text, text, text) IS 'gives a role a part';

-- Raises an error for an unknown part or role, and for an invalid consumer name.
CREATE OR REPLACE FUNCTION @schema@._check_grant(part text, role text, consumer text) RETURNS void
LANGUAGE plpgsql STABLE AS $outbox$
BEGIN
    IF coalesce(part, '') NOT IN ('producer', 'consumer', 'operator') THEN
        RAISE EXCEPTION 'part "%" is not one of producer, consumer, operator', part
            USING ERRCODE = 'OB004';
    END IF;
    IF NOT EXISTS (SELECT 1 FROM pg_catalog.pg_roles g WHERE g.rolname = role) THEN
        RAISE EXCEPTION 'there is no role "%"', role
            USING ERRCODE = 'OB003', HINT = 'create it with CREATE ROLE';
    END IF;
    IF consumer IS NOT NULL AND part <> 'consumer' THEN
        RAISE EXCEPTION 'only the part consumer can be limited to a consumer, not the part %',
            part USING ERRCODE = 'OB004';
    END IF;
    -- Names follow the rule of register. A * at the end stands for all names with that prefix.
    IF consumer !~ '^[A-Za-z0-9_.-]{0,63}\*?$' OR consumer = '' THEN
        RAISE EXCEPTION 'consumer "%" is not 1 to 63 characters of A-Z a-z 0-9 _ . -, '
            'or fewer with a * at the end', consumer USING ERRCODE = 'OB004';
    END IF;
END $outbox$;

-- Grants a role the rights that this version needs for a part.
CREATE OR REPLACE FUNCTION @schema@._give(part text, role text) RETURNS void
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    held boolean := EXISTS (SELECT 1 FROM @schema@.held h WHERE h.role = _give.role);
    r record;
BEGIN
    IF part = 'producer' AND held THEN
        -- Before it was limited to a tenant, the role may have had the right to choose ids.
        EXECUTE format('REVOKE INSERT ON %s FROM %I', '@schema@.event', role);
    END IF;
    FOR r IN SELECT * FROM @schema@._rights(part, held) LOOP
        EXECUTE format('GRANT %s ON %s %s TO %I', r.privilege, r.kind, r.object, role);
    END LOOP;
    -- Schemas differ in the views under names from elsewhere, so _rights cannot list them.
    FOR r IN SELECT v.name FROM @schema@._named_views() v
             WHERE part = 'operator' OR (part = 'consumer' AND NOT v.inbox) LOOP
        EXECUTE format('GRANT SELECT ON %s.%I TO %I', '@schema@', r.name, role);
    END LOOP;
END $outbox$;

-- Revokes a part of a role, except rights that its other parts need. With `consumer`, spelled as
-- granted, only that consumer, and the part with the last one. Returns whether the role had it.
CREATE OR REPLACE FUNCTION @schema@.disallow(part text, role text, consumer text DEFAULT NULL)
RETURNS boolean LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    had text[] := ARRAY(SELECT @schema@.parts(role));
    had_consumer boolean;
    r record;
BEGIN
    PERFORM @schema@._check_grant(part, role, consumer);
    IF part <> ALL (had) THEN RETURN false; END IF;
    IF part = 'consumer' THEN
        DELETE FROM @schema@.worker w
        WHERE w.role = disallow.role AND w.consumer = coalesce(disallow.consumer, w.consumer);
        had_consumer := FOUND;
        -- A role that may still work on others keeps the part.
        IF EXISTS (SELECT 1 FROM @schema@.worker w WHERE w.role = disallow.role) THEN
            RETURN had_consumer;
        END IF;
    END IF;

    -- Rights that other parts need are granted again. USAGE of the schema is revoked last.
    FOR r IN SELECT * FROM @schema@._rights(part) x WHERE x.kind <> 'SCHEMA' LOOP
        EXECUTE format('REVOKE ALL ON %s %s FROM %I', r.kind, r.object, role);
    END LOOP;
    FOR r IN SELECT v.name FROM @schema@._named_views() v LOOP
        EXECUTE format('REVOKE ALL ON %s.%I FROM %I', '@schema@', r.name, role);
    END LOOP;
    PERFORM @schema@._give(h, role) FROM unnest(had) AS h WHERE h <> part;
    IF cardinality(had) > 1 THEN RETURN true; END IF;

    -- The role has lost its last part, so it is no longer limited to a tenant.
    DELETE FROM @schema@.held h WHERE h.role = disallow.role;
    -- The application may have tables here, too: the role keeps USAGE while it has rights on any.
    IF NOT EXISTS (SELECT 1 FROM pg_catalog.pg_class c, pg_catalog.aclexplode(c.relacl) x,
                        pg_catalog.pg_roles g
                   WHERE c.relnamespace = '@schema@'::regnamespace
                     AND g.rolname = role AND x.grantee = g.oid) THEN
        EXECUTE format('REVOKE USAGE ON SCHEMA %s FROM %I', '@schema@', role);
    END IF;
    RETURN true;
END $outbox$;
COMMENT ON FUNCTION @schema@.disallow(text, text, text) IS 'revokes a part of a role';

-- Exactly the rights that a role needs for its part. held: it is limited to a tenant. Apart from
-- emitting, only the owner writes to the tables; others call functions that check them (see
-- _admit). Rights on tables and row-level security limit what they read.
--
-- Reading and trimming rely on the xid, seq and created_at of an event, so no producer may set
-- them. A role that is limited to a tenant cannot choose ids, either: a receiver that drops
-- duplicates by id would drop another tenant's event.
CREATE OR REPLACE FUNCTION @schema@._rights(part text, held boolean DEFAULT false)
RETURNS TABLE (privilege text, kind text, object text) LANGUAGE sql IMMUTABLE AS $outbox$
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
CREATE OR REPLACE FUNCTION @schema@._open_to_all() RETURNS text[] LANGUAGE sql IMMUTABLE AS $outbox$
    SELECT '{emit, emit_once, _uuid7, _clock,
             wakeup_works, _wakeup_key, wakeup_channel, wakeup_sleep, wakeup_release,
             _wakeup_notify, _wakeup_notify_all, _wakeup_locks, _wakeup_lock_is_foreign,
             _wakeup_foreign_holders, _wakeup_wanted, _wakeup_second,
             _session, _holder, _owner, _adoptions,
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
             _window_events, _home, _here, _at_home, _trouble, _known, rebaseline, _may_rebaseline,
             _refuse_version, _rights, parts, _open_to_all,
             _acting_for, _sees, _inherits, _name_like, _caller}'::text[]
$outbox$;
