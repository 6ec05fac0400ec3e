-- home: which cluster this is; NULL where the role may not know.
CREATE OR REPLACE FUNCTION @schema@.home() RETURNS text
LANGUAGE plpgsql STABLE AS $outbox$
BEGIN
    RETURN (SELECT system_identifier::text FROM pg_catalog.pg_control_system());
EXCEPTION WHEN insufficient_privilege THEN
    RETURN NULL;
END
$outbox$;
COMMENT ON FUNCTION @schema@.home() IS 'which cluster this is';

-- moved: whether the outbox came here from another cluster, by dump and restore: then the transaction numbers in it mean
-- nothing here, and must be made anew (rebaseline) before anybody reads.
CREATE OR REPLACE FUNCTION @schema@.moved() RETURNS boolean
LANGUAGE sql STABLE AS $outbox$
    SELECT coalesce((SELECT m.value <> @schema@.home() FROM @schema@.meta m WHERE m.name = 'system_identifier'), false)
        OR coalesce((SELECT e.xid FROM @schema@.event e ORDER BY e.xid DESC LIMIT 1) >= pg_snapshot_xmax(pg_current_snapshot()), false)
        OR EXISTS (SELECT 1 FROM @schema@.consumer c, LATERAL @schema@.lanes(c.name, c.lanes) l
                   WHERE pg_snapshot_xmax(l.seen) > pg_snapshot_xmax(pg_current_snapshot()))
$outbox$;
COMMENT ON FUNCTION @schema@.moved() IS 'whether the outbox was restored from another cluster and not re-baselined yet';
