-- foreign_creators lists the roles that may create objects in schema $1, other than the owner of
-- the existing or future outbox. Their objects could be called in place of ours. No row: the schema
-- does not exist. NULL: no such role exists. Superusers are left out.
SELECT CASE WHEN EXISTS (SELECT 1 FROM pg_catalog.aclexplode(n.nspacl) x
                         WHERE x.grantee = 0 AND x.privilege_type = 'CREATE')
            THEN 'every role (PUBLIC)'
            ELSE (SELECT string_agg(quote_ident(r.rolname), ', ' ORDER BY r.rolname)
                  FROM (SELECT y.rolname
                        FROM pg_catalog.pg_roles y
                        WHERE NOT y.rolsuper AND y.rolname !~ '^pg_' AND y.oid <> o.owner
                          AND has_schema_privilege(y.oid, n.oid, 'CREATE')
                          AND NOT pg_has_role(y.oid, o.owner, 'MEMBER')
                        ORDER BY 1 LIMIT 5) r) END
FROM pg_catalog.pg_namespace n, LATERAL (
    SELECT coalesce(
        (SELECT c.relowner FROM pg_catalog.pg_class c
         WHERE c.relnamespace = n.oid AND c.relname = 'event' AND c.relkind IN ('r', 'p')),
        (SELECT u.oid FROM pg_catalog.pg_roles u WHERE u.rolname = current_user)) AS owner) o
WHERE n.nspname = $1
