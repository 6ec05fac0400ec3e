-- _admit is the check at every door. A door is a SECURITY DEFINER function that does to the tables
-- what its callers may not do themselves. The server decides who may call it at all (EXECUTE, see
-- _rights); _admit decides for which consumer, and for which tenant.
--
-- part is what the caller must have been granted: 'consumer' to work on this consumer, 'operator'
-- to work on any. A caller without it gets an error.
--
-- _admit returns whether the consumer belongs to the caller's tenant, or could: one that does not
-- exist yet could. A consumer of another tenant is treated as if it did not exist. Afterwards the
-- setting outbox.tenant names the tenant that the caller acts for, even if the caller did not set
-- it.
--
-- The owner and superusers need no door, so their sessions are refused. Such a session may be
-- running the function of a stranger, for example that of an index on the stranger's table. _caller
-- names the session even then, and the stranger must not borrow its rights.
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
    -- What may the caller do, for which tenants, and whose is the consumer? This is one statement,
    -- with _acting_for written out, because each turn of each worker comes through here.
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
    FROM pg_catalog.pg_class r
    WHERE r.oid = '@schema@.event'::regclass;

    IF may IS NOT TRUE THEN
        RAISE EXCEPTION 'permission denied: role "%" may not work %', who,
            CASE part WHEN 'consumer' THEN format('on consumer "%s"', left(consumer, 100))
                      ELSE format('as %s', part) END
            USING ERRCODE = 'insufficient_privilege',
                  HINT = format('run as the outbox''s owner: outbox grant %s %I%s', part, who,
                                CASE part WHEN 'consumer'
                                     THEN format(' --consumer %s', left(consumer, 100)) END);
    END IF;

    -- A role that is bound to several tenants acts for the one it names. A role that is bound to
    -- one need not name it.
    acting := CASE WHEN tenants IS NULL OR said = ANY (tenants) THEN said
                   WHEN cardinality(tenants) = 1 THEN tenants[1] END;
    IF acting IS NULL OR said NOT IN ('', acting) THEN
        RAISE EXCEPTION 'permission denied: role "%" may not act for tenant "%"', who, said
            USING ERRCODE = 'insufficient_privilege',
                  HINT = 'name another tenant in the store''s URL, or none';
    END IF;
    IF said <> acting THEN
        PERFORM set_config('outbox.tenant', acting, true);
    END IF;

    -- A consumer that does not exist yet can become the caller's.
    RETURN acting = '' OR coalesce(whose = acting, true);
END
$outbox$;
COMMENT ON FUNCTION @schema@._admit(text, text) IS 'whether the caller may work on a consumer';
