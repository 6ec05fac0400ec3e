-- _home returns the system identifier of this cluster; NULL if the role may not know it. A session
-- stays in its cluster, so it asks once and remembers the answer in the setting outbox.cluster.
CREATE OR REPLACE FUNCTION @schema@._home() RETURNS text
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    known text := nullif(current_setting('outbox.cluster', true), '');
BEGIN
    IF known IS NULL THEN
        BEGIN
            SELECT s.system_identifier::text INTO known FROM pg_catalog.pg_control_system() s;
        EXCEPTION WHEN insufficient_privilege THEN -- remembered as well
            known := '?';
        END;
        PERFORM set_config('outbox.cluster', known, false);
    END IF;
    RETURN nullif(known, '?');
END
$outbox$;
COMMENT ON FUNCTION @schema@._home() IS 'which cluster this is';

-- _here returns the place that a lane remembers (lane.home): cluster/sequence/file, where the
-- sequence is the one that event numbers come from. A lane that finds another place was brought
-- elsewhere, or the sequence was changed under it: ALTER SEQUENCE, whatever it alters, and
-- TRUNCATE ... RESTART IDENTITY give a sequence a new file, and make sessions forget the numbers
-- they had cached.
CREATE OR REPLACE FUNCTION @schema@._here() RETURNS text
LANGUAGE sql VOLATILE
RETURN concat(coalesce(@schema@._home(), '?'), '/',
              '@schema@.event_seq_seq'::regclass::oid, '/',
              pg_relation_filenode('@schema@.event_seq_seq'::regclass));
COMMENT ON FUNCTION @schema@._here() IS 'the place that lanes remember: cluster, sequence, file';

-- _at_home says whether a lane that remembers home is at home in here (see _here). A role that may
-- not know the cluster goes by the sequence and its file.
CREATE OR REPLACE FUNCTION @schema@._at_home(home text, here text) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN coalesce(home = here
                OR (here LIKE '?/%' AND substr(home, strpos(home, '/')) = substr(here, 2)), false);
COMMENT ON FUNCTION @schema@._at_home(text, text) IS 'whether a lane is at home here';

-- _always_here says whether the outbox is known to have been in this cluster always: no lane
-- remembers another one, and neither does meta.
CREATE OR REPLACE FUNCTION @schema@._always_here() RETURNS boolean
LANGUAGE sql VOLATILE AS $outbox$
    SELECT NOT EXISTS (SELECT 1
                       FROM @schema@.consumer c, LATERAL @schema@._lanes(c.name, c.lanes) l
                       WHERE l.home IS NOT NULL
                         AND split_part(l.home, '/', 1) NOT IN ('?', @schema@._home()))
       AND EXISTS (SELECT 1 FROM @schema@.meta m
                   WHERE m.name = 'system_identifier' AND m.value = @schema@._home())
$outbox$;
COMMENT ON FUNCTION @schema@._always_here() IS
    'whether nothing of the outbox comes from another cluster';

-- _moved says whether the outbox came here from another cluster. Then the transaction numbers in it
-- mean nothing here, and have to be replaced (rebaseline) before anybody reads.
CREATE OR REPLACE FUNCTION @schema@._moved() RETURNS boolean
LANGUAGE sql VOLATILE AS $outbox$
    SELECT t.moved IS NOT NULL FROM @schema@._trouble() t
$outbox$;
COMMENT ON FUNCTION @schema@._moved() IS
    'whether the outbox was restored from another cluster and not re-baselined yet';
