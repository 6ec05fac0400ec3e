-- _inherits: whether a role has what was given to another, `role`. One that is gone gives nothing to anybody.
CREATE OR REPLACE FUNCTION @schema@._inherits(who name, role text) RETURNS boolean
LANGUAGE sql STABLE
RETURN coalesce(pg_has_role($1, to_regrole(quote_ident($2))::oid, 'USAGE'), false);
COMMENT ON FUNCTION @schema@._inherits(name, text) IS 'whether a role has what was given to another';
