-- _caller returns the role whose rights count. In a SECURITY DEFINER function current_user is the
-- function's owner, so it is the role that is logged in, or that it has SET ROLE to, which no such
-- function can do.
--
-- The server runs some functions as their owner by itself, such as those of an index. Around one of
-- these there may be a superuser's session, whose name this returns: see _admit.
CREATE OR REPLACE FUNCTION @schema@._caller() RETURNS name
LANGUAGE sql STABLE
RETURN CASE WHEN current_setting('role') = 'none' THEN session_user
            ELSE current_setting('role')::name END;
COMMENT ON FUNCTION @schema@._caller() IS
    'whose rights count in a function that runs with its owner''s';
