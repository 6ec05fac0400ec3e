-- _adopt_trusts says why the outbox's owner must not mark rows of a table; NULL if it may.
--
-- An UPDATE runs what others put on the table: triggers, constraints, indexes, and the functions
-- that these call, all with the rights of the role that updates. They could leave a trigger behind
-- for the end of the transaction, or change the session. So rows are marked only if everybody
-- concerned may act as the outbox's owner anyway: the owners of the table, of its partitions, and
-- of the functions that its UPDATE triggers call.
CREATE OR REPLACE FUNCTION @schema@._adopt_trusts(tab regclass) RETURNS text
LANGUAGE sql STABLE AS $outbox$
    -- o: who owns the outbox; t: the table and its partitions; x: whose code an UPDATE runs
    WITH o AS (SELECT c.relowner AS owner FROM pg_catalog.pg_class c
               WHERE c.oid = '@schema@.event'::regclass),
    t AS (SELECT tab::oid AS oid
          UNION
          SELECT p.relid FROM pg_partition_tree(tab) p)
    SELECT format('%s role "%s", which could have %s run with the rights of "%s", '
                  'the outbox''s owner',
                  x.what, pg_get_userbyid(x.owner), x.code, pg_get_userbyid(o.owner))
    FROM o,
         (SELECT 0 AS rank, 'table ' || c.oid::regclass || ' belongs to' AS what,
                 'code of its own' AS code, c.relowner AS owner
          FROM t
          JOIN pg_catalog.pg_class c ON c.oid = t.oid
          UNION ALL
          SELECT 1, format('trigger "%s" of table %s calls a function of',
                           g.tgname, g.tgrelid::regclass), 'it', f.proowner
          FROM t
          JOIN pg_catalog.pg_trigger g
            ON g.tgrelid = t.oid AND NOT g.tgisinternal AND g.tgtype & 16 <> 0 -- on UPDATE
          JOIN pg_catalog.pg_proc f ON f.oid = g.tgfoid) x
    WHERE NOT pg_has_role(x.owner, o.owner, 'MEMBER')
    ORDER BY x.rank -- a table's owner is the better reason
    LIMIT 1
$outbox$;
COMMENT ON FUNCTION @schema@._adopt_trusts(regclass) IS
    'why rows of a table cannot be marked by the owner of the outbox';
