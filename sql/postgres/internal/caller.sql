-- _caller returns the role whose rights count. In a SECURITY DEFINER function current_user is the
-- function's owner, so _caller goes by the role that is logged in, or by the one it has SET ROLE
-- to. No such function can change either.
--
-- The server runs some functions as their owner by itself, such as those of an index. The session
-- around one of these may be a superuser's, and its role is returned: see _admit.
CREATE OR REPLACE FUNCTION @schema@._caller() RETURNS name
LANGUAGE sql STABLE
RETURN CASE WHEN current_setting('role') = 'none' THEN session_user
            ELSE current_setting('role')::name END;
COMMENT ON FUNCTION @schema@._caller() IS
    'whose rights count in a function that runs with its owner''s';
