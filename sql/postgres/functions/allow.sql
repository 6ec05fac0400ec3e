-- allow: gives an existing role its part: producer, consumer or operator. It may have several. Doing it again does no harm,
-- and gives what a newer version of the outbox has added.
CREATE OR REPLACE FUNCTION @schema@.allow(part text, role text) RETURNS void
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    r record;
BEGIN
    IF coalesce(part, '') NOT IN ('producer', 'consumer', 'operator') THEN
        RAISE EXCEPTION 'part "%" is not one of producer, consumer, operator', part USING ERRCODE = 'OB004';
    END IF;
    IF NOT EXISTS (SELECT 1 FROM pg_catalog.pg_roles g WHERE g.rolname = role) THEN
        RAISE EXCEPTION 'there is no role "%"', role USING ERRCODE = 'OB003', HINT = 'make it with CREATE ROLE';
    END IF;
    FOR r IN SELECT * FROM @schema@.rights(part) LOOP
        EXECUTE format('GRANT %s ON %s %s TO %I', r.privilege, r.kind, r.object, role);
    END LOOP;
END
$outbox$;
REVOKE EXECUTE ON FUNCTION @schema@.allow(text, text) FROM PUBLIC;
COMMENT ON FUNCTION @schema@.allow(text, text) IS 'gives a role its part: producer, consumer or operator';
