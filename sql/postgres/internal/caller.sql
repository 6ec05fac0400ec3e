-- _caller: whose rights count. In a function that runs with its owner's rights current_user is the owner, so it is whoever is
-- logged in, or has SET ROLE, which no such function can do. A function of somebody else's that the server runs as its owner (an
-- index's, say) may have a superuser's session around it: see admit.
CREATE OR REPLACE FUNCTION @schema@._caller() RETURNS name
LANGUAGE sql STABLE
RETURN CASE WHEN current_setting('role') = 'none' THEN session_user ELSE current_setting('role')::name END;
COMMENT ON FUNCTION @schema@._caller() IS 'whose rights count in a function that runs with its owner''s';
