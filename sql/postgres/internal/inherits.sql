-- _inherits says whether the role `who` has what was granted to `role`. A role that no longer
-- exists passes on nothing.
CREATE OR REPLACE FUNCTION @schema@._inherits(who name, role text) RETURNS boolean
LANGUAGE sql STABLE
RETURN coalesce(pg_has_role(who, to_regrole(quote_ident(role))::oid, 'USAGE'), false);
COMMENT ON FUNCTION @schema@._inherits(name, text) IS
    'whether a role has what was given to another';
