-- _home: which cluster this is; NULL where the role may not know. A session stays in its cluster, so it asks once.
CREATE OR REPLACE FUNCTION @schema@._home() RETURNS text
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    known text := nullif(current_setting('outbox.cluster', true), '');
BEGIN
    IF known IS NULL THEN
        BEGIN
            SELECT s.system_identifier::text INTO known FROM pg_catalog.pg_control_system() s;
        EXCEPTION WHEN insufficient_privilege THEN
            known := '?';
        END;
        PERFORM set_config('outbox.cluster', known, false);
    END IF;
    RETURN nullif(known, '?');
END
$outbox$;
COMMENT ON FUNCTION @schema@._home() IS 'which cluster this is';

-- _here: the cluster, and the sequence that event numbers come from with the file it is in. Each lane remembers it (lane.home):
-- one that finds another is in another place, or the sequence was changed under it. ALTER SEQUENCE, whatever it alters, and
-- TRUNCATE ... RESTART IDENTITY give a sequence a new file, and make sessions forget the numbers they had cached.
CREATE OR REPLACE FUNCTION @schema@._here() RETURNS text
LANGUAGE sql VOLATILE
RETURN concat(coalesce(@schema@._home(), '?'), '/', '@schema@.event_seq_seq'::regclass::oid, '/',
                  pg_relation_filenode('@schema@.event_seq_seq'::regclass));
COMMENT ON FUNCTION @schema@._here() IS 'the place that lanes remember: cluster, sequence, file';

-- _at_home: whether a lane that remembers `home` is at home in `here`. A role that may not know the cluster goes by the rest.
CREATE OR REPLACE FUNCTION @schema@._at_home(home text, here text) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN coalesce($1 = $2 OR ($2 LIKE '?/%' AND substr($1, strpos($1, '/')) = substr($2, 2)), false);
COMMENT ON FUNCTION @schema@._at_home(text, text) IS 'whether a lane is at home here';

-- _always_here: whether nothing of it is known to come from another cluster.
CREATE OR REPLACE FUNCTION @schema@._always_here() RETURNS boolean
LANGUAGE sql VOLATILE AS $outbox$
    SELECT NOT EXISTS (SELECT 1 FROM @schema@.consumer c, LATERAL @schema@._lanes(c.name, c.lanes) l
                       WHERE l.home IS NOT NULL AND split_part(l.home, '/', 1) NOT IN ('?', @schema@._home()))
       AND EXISTS (SELECT 1 FROM @schema@.meta m WHERE m.name = 'system_identifier' AND m.value = @schema@._home())
$outbox$;
COMMENT ON FUNCTION @schema@._always_here() IS 'whether nothing of the outbox comes from another cluster';

-- _moved: whether the outbox came here from another cluster: then the transaction numbers in it mean nothing here, and must be
-- made anew (rebaseline) before anybody reads.
CREATE OR REPLACE FUNCTION @schema@._moved() RETURNS boolean
LANGUAGE sql VOLATILE AS $outbox$ SELECT t.moved IS NOT NULL FROM @schema@._trouble() t $outbox$;
COMMENT ON FUNCTION @schema@._moved() IS 'whether the outbox was restored from another cluster and not re-baselined yet';
