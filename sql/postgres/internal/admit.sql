-- _admit: the check at every door, which is a function that does with its owner's rights what others may not do to the tables by
-- themselves. Who may call it at all is decided by the server (EXECUTE, see rights); here, which consumer, and for which tenant. The
-- caller's tenant is then the setting outbox.tenant, also where the caller did not say so. Returns whether the consumer is, or can
-- become, the caller's: another tenant's is as good as not there.
--
-- The owner, and a superuser, need no door. A session of theirs is refused: it may be running somebody else's function, for an index
-- of that one's table, with that one's rights, and has more to give than those.
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
    -- One statement for all of it, since every turn of every worker comes through here: acting_for, written out.
    SELECT NOT pg_has_role(who, r.relowner, 'USAGE') AND CASE part
               WHEN 'consumer' THEN EXISTS (SELECT 1 FROM @schema@.worker w WHERE _admit.consumer LIKE ANY (@schema@._name_like(w.consumer))
                                               AND @schema@._inherits(who, w.role))
               WHEN 'operator' THEN @schema@._operates(who) END,
           (SELECT array_agg(DISTINCT h.tenant) FROM @schema@.held h WHERE @schema@._inherits(who, h.role)),
           (SELECT c.tenant FROM @schema@.consumer c WHERE c.name = _admit.consumer)
    INTO may, tenants, whose FROM pg_catalog.pg_class r WHERE r.oid = '@schema@.event'::regclass;
    IF may IS NOT TRUE THEN
        RAISE EXCEPTION 'permission denied: role "%" may not work %', who,
            CASE part WHEN 'consumer' THEN format('on consumer "%s"', left(consumer, 100)) ELSE format('as %s', part) END
            USING ERRCODE = 'insufficient_privilege', HINT = format('as the owner of the outbox: outbox grant %s %I%s', part, who,
                CASE part WHEN 'consumer' THEN format(' --consumer %s', left(consumer, 100)) END);
    END IF;
    acting := CASE WHEN tenants IS NULL OR said = ANY (tenants) THEN said WHEN cardinality(tenants) = 1 THEN tenants[1] END;
    IF acting IS NULL OR said NOT IN ('', acting) THEN
        RAISE EXCEPTION 'permission denied: role "%" may not act for tenant "%"', who, said
            USING ERRCODE = 'insufficient_privilege', HINT = 'say another tenant, or none, in the store''s URL';
    END IF;
    IF said <> acting THEN
        PERFORM set_config('outbox.tenant', acting, true);
    END IF;
    RETURN acting = '' OR coalesce(whose = acting, true);
END
$outbox$;
COMMENT ON FUNCTION @schema@._admit(text, text) IS 'whether whoever calls may work on a consumer';
