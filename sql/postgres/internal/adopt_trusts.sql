-- _adopt_trusts: why rows of a table cannot be marked by whoever owns the outbox; NULL: they can. An UPDATE runs what the table's owner
-- put on it (triggers, constraints, indexes), with the rights of whoever makes it, and whatever function it is hidden in: that could
-- leave a trigger behind for the end of the transaction, or change the session. So it is made for those alone who may act as
-- the outbox's owner anyhow: of the table's owner, of its partitions', and of those whose functions its triggers call.
CREATE OR REPLACE FUNCTION @schema@._adopt_trusts(tab regclass) RETURNS text
LANGUAGE sql STABLE AS $outbox$
    WITH o AS (SELECT c.relowner AS owner FROM pg_catalog.pg_class c WHERE c.oid = '@schema@.event'::regclass),
    t AS (SELECT $1::oid AS oid UNION SELECT p.relid FROM pg_partition_tree($1) p)
    SELECT format('%s role "%s", who could have %s run with the rights of "%s", the outbox''s owner',
                  x.what, pg_get_userbyid(x.owner), x.his, pg_get_userbyid(o.owner))
    FROM o, (SELECT 0 AS rank, 'table ' || c.oid::regclass || ' belongs to' AS what, 'what is his' AS his, c.relowner AS owner
             FROM t JOIN pg_catalog.pg_class c ON c.oid = t.oid
             UNION ALL
             SELECT 1, format('trigger "%s" of table %s calls a function of', g.tgname, g.tgrelid::regclass), 'it', f.proowner
             FROM t JOIN pg_catalog.pg_trigger g ON g.tgrelid = t.oid AND NOT g.tgisinternal AND g.tgtype & 16 <> 0
             JOIN pg_catalog.pg_proc f ON f.oid = g.tgfoid) x
    WHERE NOT pg_has_role(x.owner, o.owner, 'MEMBER') ORDER BY x.rank LIMIT 1
$outbox$;
COMMENT ON FUNCTION @schema@._adopt_trusts(regclass) IS 'why rows of a table cannot be marked by the owner of the outbox';
