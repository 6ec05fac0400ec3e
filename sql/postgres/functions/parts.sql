-- parts: which parts a role was given, by the one right that tells each from the others.
CREATE OR REPLACE FUNCTION @schema@.parts(role text) RETURNS SETOF text
LANGUAGE sql STABLE AS $outbox$
    SELECT p.part FROM pg_catalog.pg_roles g, (VALUES
        ('producer', (SELECT a.attacl FROM pg_catalog.pg_attribute a
                      WHERE a.attrelid = '@schema@.event'::regclass AND a.attname = 'type'), 'INSERT'),
        ('consumer', (SELECT c.relacl FROM pg_catalog.pg_class c WHERE c.oid = '@schema@.worker'::regclass), 'SELECT'),
        ('operator', (SELECT c.relacl FROM pg_catalog.pg_class c WHERE c.oid = '@schema@.idempotency'::regclass), 'SELECT'))
        AS p (part, acl, privilege)
    WHERE g.rolname = $1 AND EXISTS (SELECT 1 FROM pg_catalog.aclexplode(p.acl) x
                                     WHERE x.grantee = g.oid AND x.privilege_type = p.privilege)
$outbox$;
COMMENT ON FUNCTION @schema@.parts(text) IS 'which parts a role was given';
