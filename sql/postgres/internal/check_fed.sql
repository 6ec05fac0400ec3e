-- _check_fed raises an error while an enabled subscription writes to the table event. Events that
-- logical replication brings in carry transaction numbers of another cluster. The lanes here would
-- take them for seen and pass them over, so nothing is handed out while more of them may come.
CREATE OR REPLACE FUNCTION @schema@._check_fed() RETURNS void
LANGUAGE plpgsql STABLE AS $outbox$
DECLARE
    name text := (SELECT min(s.subname)
                  FROM pg_catalog.pg_subscription_rel r
                  JOIN pg_catalog.pg_subscription s ON s.oid = r.srsubid
                  WHERE r.srrelid = '@schema@.event'::regclass AND s.subenabled);
BEGIN
    IF name IS NOT NULL THEN
        RAISE EXCEPTION 'the outbox in schema % is a copy that subscription "%" still writes to',
            '@schema@', name
            USING ERRCODE = 'OB006',
                  HINT = format('run workers on the publisher; at the cut-over stop them, '
                                'then run ALTER SUBSCRIPTION %I DISABLE here', name);
    END IF;
END
$outbox$;
COMMENT ON FUNCTION @schema@._check_fed() IS 'refuses a copy that a subscription writes to';
