-- parts returns the parts that a role was given. Each part is recognised by one right that the
-- others do not have. It must be a right that nobody grants by hand, with the tables or to read
-- everything: init gives the whole part again to whoever has it (see _give), and a reader must not
-- become an operator.
CREATE OR REPLACE FUNCTION @schema@.parts(role text) RETURNS SETOF text
LANGUAGE sql STABLE AS $outbox$
    SELECT p.part
    FROM pg_catalog.pg_roles g, (VALUES
        ('producer', (SELECT a.attacl FROM pg_catalog.pg_attribute a
                      WHERE a.attrelid = '@schema@.event'::regclass AND a.attname = 'type'),
                     'INSERT'),
        ('consumer', (SELECT f.proacl FROM pg_catalog.pg_proc f
                      WHERE f.oid = '@schema@._worker_report(text, text)'::regprocedure),
                     'EXECUTE'),
        ('operator', (SELECT f.proacl FROM pg_catalog.pg_proc f
                      WHERE f.oid = '@schema@._operator_pause(text, boolean)'::regprocedure),
                     'EXECUTE')
    ) AS p (part, acl, privilege)
    WHERE g.rolname = parts.role
      AND EXISTS (SELECT 1 FROM pg_catalog.aclexplode(p.acl) x
                  WHERE x.grantee = g.oid AND x.privilege_type = p.privilege)
$outbox$;
COMMENT ON FUNCTION @schema@.parts(text) IS 'which parts a role was given';

-- _operates says whether a role has the part of an operator, of its own or by what it inherits.
CREATE OR REPLACE FUNCTION @schema@._operates(who name) RETURNS boolean
LANGUAGE sql STABLE AS $outbox$
    SELECT has_function_privilege(who, '@schema@._operator_pause(text, boolean)'::regprocedure,
                                  'EXECUTE')
$outbox$;
COMMENT ON FUNCTION @schema@._operates(name) IS 'whether a role has the part of an operator';
