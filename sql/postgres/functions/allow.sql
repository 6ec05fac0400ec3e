-- allow gives an existing role a part: producer, consumer or operator. A role may have several
-- parts. Giving one again does no harm.
--
--     consumer  which consumer the role may work on: a name, or the beginning of one and a *; NULL:
--               every consumer
--     tenant    the role is held to this tenant in all its parts, whatever its connections ask for
CREATE OR REPLACE FUNCTION @schema@.allow(
    part text, role text, consumer text DEFAULT NULL, tenant text DEFAULT NULL) RETURNS void
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    other text := (SELECT h.tenant FROM @schema@.held h WHERE h.role = allow.role);
BEGIN
    PERFORM @schema@._check_grant(part, role, consumer);
    -- A role has one tenant, or none.
    IF tenant IS NOT NULL AND @schema@._tenant_fits(tenant) IS NOT TRUE THEN
        RAISE EXCEPTION 'tenant: 1 to 1024 bytes, no control character'
            USING ERRCODE = 'OB004';
    END IF;
    IF other <> tenant THEN
        RAISE EXCEPTION 'role "%" is held to tenant "%", and a role has only one', role, other
            USING ERRCODE = 'OB001',
                  HINT = 'take all its parts away first, or make another role';
    END IF;

    IF other IS NULL AND tenant IS NOT NULL THEN
        INSERT INTO @schema@.held (role, tenant) VALUES (allow.role, allow.tenant);
        -- The parts that it has already are narrower now.
        PERFORM @schema@._give(p, role) FROM @schema@.parts(role) AS p WHERE p <> part;
    END IF;
    IF part = 'consumer' THEN
        INSERT INTO @schema@.worker (role, consumer)
        VALUES (allow.role, coalesce(allow.consumer, '*'))
        ON CONFLICT DO NOTHING;
    END IF;
    PERFORM @schema@._give(part, role);
END
$outbox$;
COMMENT ON FUNCTION @schema@.allow(text, text, text, text) IS
    'gives a role its part: producer, consumer or operator';

-- _check_grant raises an error for a part, a role or a consumer that cannot exist.
CREATE OR REPLACE FUNCTION @schema@._check_grant(part text, role text, consumer text) RETURNS void
LANGUAGE plpgsql STABLE AS $outbox$
BEGIN
    IF coalesce(part, '') NOT IN ('producer', 'consumer', 'operator') THEN
        RAISE EXCEPTION 'part "%" is not one of producer, consumer, operator', part
            USING ERRCODE = 'OB004';
    END IF;
    IF NOT EXISTS (SELECT 1 FROM pg_catalog.pg_roles g WHERE g.rolname = role) THEN
        RAISE EXCEPTION 'there is no role "%"', role
            USING ERRCODE = 'OB003', HINT = 'make it with CREATE ROLE';
    END IF;
    IF consumer IS NOT NULL AND part <> 'consumer' THEN
        RAISE EXCEPTION 'the part % is not given for single consumers; only the part consumer is',
            part USING ERRCODE = 'OB004';
    END IF;
    -- The rule for names is that of register. A * at the end stands for all names that begin so.
    IF consumer !~ '^[A-Za-z0-9_.-]{0,63}\*?$' OR consumer = '' THEN
        RAISE EXCEPTION 'consumer "%" is not 1 to 63 characters of A-Z a-z 0-9 _ . -, '
            'or fewer with a * at the end', consumer USING ERRCODE = 'OB004';
    END IF;
END
$outbox$;
COMMENT ON FUNCTION @schema@._check_grant(text, text, text) IS 'refuses what cannot be granted';

-- _give grants a role the rights of a part, as this version has them.
CREATE OR REPLACE FUNCTION @schema@._give(part text, role text) RETURNS void
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    held boolean := EXISTS (SELECT 1 FROM @schema@.held h WHERE h.role = _give.role);
    r record;
BEGIN
    IF part = 'producer' AND held THEN
        -- Until it was held to a tenant, it may have had the right to choose ids.
        EXECUTE format('REVOKE INSERT ON %s FROM %I', '@schema@.event', role);
    END IF;
    FOR r IN SELECT * FROM @schema@._rights(part, held) LOOP
        EXECUTE format('GRANT %s ON %s %s TO %I', r.privilege, r.kind, r.object, role);
    END LOOP;
    -- Not every schema has the same views under names from elsewhere, so _rights cannot list them.
    FOR r IN SELECT v.name FROM @schema@._named_views() v
             WHERE part = 'operator' OR (part = 'consumer' AND NOT v.inbox) LOOP
        EXECUTE format('GRANT SELECT ON %s.%I TO %I', '@schema@', r.name, role);
    END LOOP;
END
$outbox$;
COMMENT ON FUNCTION @schema@._give(text, text) IS 'the rights of a part';
