-- The caller's role, tenant and rights.

-- The role whose rights count. In a SECURITY DEFINER function current_user is its owner, so _caller
-- returns the role that is logged in, or set by SET ROLE; such a function can change neither. The
-- server runs some functions as their owner, such as those of an index: there the role is the
-- session's, maybe a superuser's (see _admit).
CREATE OR REPLACE FUNCTION @schema@._caller() RETURNS name LANGUAGE sql STABLE
RETURN CASE WHEN current_setting('role') = 'none' THEN session_user
            ELSE current_setting('role')::name END;

-- The owner of the outbox.
CREATE OR REPLACE FUNCTION @schema@._owner() RETURNS name LANGUAGE sql STABLE
RETURN (SELECT pg_get_userbyid(c.relowner) FROM pg_catalog.pg_class c
        WHERE c.oid = '@schema@.event'::regclass);

-- Whether the role `who` has the rights of `role`; false if `role` does not exist.
CREATE OR REPLACE FUNCTION @schema@._inherits(who name, role text) RETURNS boolean
LANGUAGE sql STABLE
RETURN coalesce(pg_has_role(who, to_regrole(quote_ident(role))::oid, 'USAGE'), false);

-- Patterns for LIKE ANY that match the consumers of a name in a grant: mail stands for itself and
-- for mail.anything, mail* for all names with that prefix. The underscore is the only character of
-- a name that LIKE treats specially.
CREATE OR REPLACE FUNCTION @schema@._name_like(granted text) RETURNS text[]
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN granted LIKE '%*' THEN ARRAY[left(replace(granted, '_', E'\\_'), -1) || '%']
            ELSE ARRAY[replace(granted, '_', E'\\_'), replace(granted, '_', E'\\_') || '.%'] END;

-- Patterns for LIKE of the consumers that a role may see, or NULL for all: operators, and roles
-- that were granted the tables by hand. It answers only about the caller (works_here).
CREATE OR REPLACE FUNCTION @schema@._sees(who name) RETURNS text[]
LANGUAGE plpgsql STABLE AS $outbox$
DECLARE -- Every name is schema-qualified.
    names pg_catalog.text[];
BEGIN
    IF who OPERATOR(pg_catalog.<>) current_user THEN
        RAISE EXCEPTION 'permission denied: a role may ask only about itself'
            USING ERRCODE = 'insufficient_privilege';
    END IF;
    -- Operators, and roles that were granted the tables, have this right; workers do not.
    IF pg_catalog.has_table_privilege(who, '@schema@.idempotency'::pg_catalog.regclass,
                                      'SELECT') THEN
        RETURN NULL;
    END IF;
    SELECT pg_catalog.array_agg(n) INTO names
    FROM @schema@.works_here w, pg_catalog.unnest(@schema@._name_like(w.consumer)) AS n;
    RETURN CASE WHEN '%' OPERATOR(pg_catalog.=) ANY (names) THEN NULL ELSE names END;
END $outbox$;

-- The tenant that a role acts for on this connection; '' is the platform, which has access to all.
-- A role that is bound to one tenant acts for it; one that is bound to several, for the one that
-- the connection names; NULL: it names none. About itself, a role learns from the view held_here;
-- only a role that may read table held can ask about others.
CREATE OR REPLACE FUNCTION @schema@._acting_for(who name) RETURNS text
LANGUAGE plpgsql STABLE AS $outbox$
DECLARE -- Every name is schema-qualified.
    said pg_catalog.text := coalesce(pg_catalog.current_setting('outbox.tenant', true), '');
    tenants pg_catalog.text[];
BEGIN
    -- A table without a page never had a row. Every emit calls this function, and most
    -- installations bind no role, so the query is saved there.
    IF pg_catalog.pg_relation_size('@schema@.held'::pg_catalog.regclass)
           OPERATOR(pg_catalog.=) 0 THEN
        RETURN said;
    END IF;

    IF who OPERATOR(pg_catalog.=) current_user THEN
        SELECT pg_catalog.array_agg(DISTINCT h.tenant) INTO tenants FROM @schema@.held_here h;
    ELSE
        SELECT pg_catalog.array_agg(DISTINCT h.tenant) INTO tenants FROM @schema@.held h
        WHERE @schema@._inherits(who, h.role);
    END IF;

    -- A superuser inherits all bindings, but none of them applies.
    IF tenants IS NULL
       OR (SELECT r.rolsuper FROM pg_catalog.pg_roles r
           WHERE r.rolname OPERATOR(pg_catalog.=) who) THEN
        RETURN said;
    ELSIF pg_catalog.cardinality(tenants) OPERATOR(pg_catalog.=) 1 THEN
        RETURN tenants[1];
    END IF;
    RETURN CASE WHEN said OPERATOR(pg_catalog.=) ANY (tenants) THEN said END;
END $outbox$;

-- Raises an error unless consumer c belongs to the tenant that this connection works for
-- (outbox.tenant). A consumer gets the events of its tenant, or of all tenants if it is the
-- platform's. A connection of another tenant would skip some of its events, or get those of others.
CREATE OR REPLACE FUNCTION @schema@._check_tenant(c @schema@.consumer) RETURNS void
LANGUAGE plpgsql STABLE AS $outbox$
DECLARE
    tenant text := coalesce(current_setting('outbox.tenant', true), '');
BEGIN
    IF c.tenant <> tenant THEN
        RAISE EXCEPTION 'consumer "%" belongs to %, this connection to %', c.name,
            CASE c.tenant WHEN '' THEN 'the platform' ELSE format('tenant "%s"', c.tenant) END,
            CASE tenant WHEN '' THEN 'the platform' ELSE format('tenant "%s"', tenant) END
            USING ERRCODE = 'OB004',
                  HINT = 'give the consumer another name, or put ?tenant=NAME in the store''s URL';
    END IF;

    -- Inside a wrapper current_user is the owner, to whom row-level security does not apply: there
    -- every query names the tenant, and _admit has checked the caller.
    IF tenant <> '' AND NOT row_security_active('@schema@.event')
       AND current_user = @schema@._caller() THEN
        RAISE EXCEPTION 'row-level security does not apply to role "%": consumer "%" would get '
                        'every tenant''s events', current_user, c.name
            USING ERRCODE = 'OB004',
                  HINT = 'connect as a role that neither owns the outbox nor has BYPASSRLS';
    END IF;
END $outbox$;

-- Checks the caller of a wrapper (internal/wrappers.sql): the server decides which roles may call
-- it (_rights), _admit for which consumer and tenant. part: the caller must have the part
-- 'consumer' for this consumer, or 'operator', else it is an error. Returns whether the consumer
-- belongs to the caller's tenant, or does not exist yet. Afterwards outbox.tenant names the tenant
-- that the caller acts for.
--
-- The owner and superusers need no wrapper, so their sessions are refused: such a session may be
-- running a function of an unrelated role, in an index on its table, which must not use its rights.
CREATE OR REPLACE FUNCTION @schema@._admit(part text, consumer text) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    who name := @schema@._caller();
    said text := coalesce(current_setting('outbox.tenant', true), '');
    acting text;
    tenants text[];
    whose text;
    may boolean;
BEGIN
    -- The caller's rights and tenants, and the consumer's tenant. This is one statement, with
    -- _acting_for written out, because each turn of each worker runs it.
    SELECT NOT pg_has_role(who, r.relowner, 'USAGE')
           AND CASE part
                   WHEN 'consumer' THEN EXISTS (
                       SELECT 1 FROM @schema@.worker w
                       WHERE _admit.consumer LIKE ANY (@schema@._name_like(w.consumer))
                         AND @schema@._inherits(who, w.role))
                   WHEN 'operator' THEN @schema@._operates(who)
               END,
           (SELECT array_agg(DISTINCT h.tenant) FROM @schema@.held h
            WHERE @schema@._inherits(who, h.role)),
           (SELECT c.tenant FROM @schema@.consumer c WHERE c.name = _admit.consumer)
    INTO may, tenants, whose
    FROM pg_catalog.pg_class r WHERE r.oid = '@schema@.event'::regclass;

    IF may IS NOT TRUE THEN
        RAISE EXCEPTION 'permission denied: role "%" may not work %', who,
            CASE part WHEN 'consumer' THEN format('on consumer "%s"', left(consumer, 100))
                      ELSE format('as %s', part) END
            USING ERRCODE = 'insufficient_privilege',
                  HINT = format('run as the outbox''s owner: outbox grant %s %I%s', part, who,
                                CASE part WHEN 'consumer'
                                     THEN format(' --consumer %s', left(consumer, 100)) END);
    END IF;

    -- A role that is bound to several tenants acts for the one it names; to one, need not name it.
    acting := CASE WHEN tenants IS NULL OR said = ANY (tenants) THEN said
                   WHEN cardinality(tenants) = 1 THEN tenants[1] END;
    IF acting IS NULL OR said NOT IN ('', acting) THEN
        RAISE EXCEPTION 'permission denied: role "%" may not act for tenant "%"', who, said
            USING ERRCODE = 'insufficient_privilege',
                  HINT = 'name another tenant in the store''s URL, or none';
    END IF;
    IF said <> acting THEN PERFORM set_config('outbox.tenant', acting, true); END IF;

    RETURN acting = '' OR coalesce(whose = acting, true);
END $outbox$;
