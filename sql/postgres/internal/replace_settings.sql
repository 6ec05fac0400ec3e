-- _replace_settings records that consumer c gets other settings than it has. by_whom is for people
-- to read. The last 100 generations are remembered. Under _lock_consumer.
--
-- Settings that were replaced before are refused unless somebody wants them back on purpose
-- (how = 'purpose'). Otherwise a worker that starts with an old configuration would put its old
-- filter in place of a newer one, and events that only the newer one lets through would be skipped
-- for good.
CREATE OR REPLACE FUNCTION @schema@._replace_settings(
    c @schema@.consumer, events text, predicate text, ordering text, lanes int,
    by_whom text, how text) RETURNS void
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    old @schema@.setting;  -- the generation that had these settings
    last @schema@.setting; -- the present one
BEGIN
    -- The settings it was made with are written down only when they are first replaced.
    INSERT INTO @schema@.setting
    SELECT c.name, 1, c.events, c.predicate, c.ordering, c.lanes, c.created_at, NULL
    WHERE NOT EXISTS (SELECT 1 FROM @schema@.setting x WHERE x.consumer = c.name);
    SELECT * INTO last FROM @schema@.setting x
    WHERE x.consumer = c.name ORDER BY x.generation DESC LIMIT 1;
    SELECT * INTO old FROM @schema@.setting x
    WHERE x.consumer = c.name
      AND (@schema@._normal_events(x.events), x.predicate, x.ordering, x.lanes) =
          (_replace_settings.events, _replace_settings.predicate, _replace_settings.ordering,
           _replace_settings.lanes);

    IF FOUND AND how <> 'purpose' THEN
        RAISE EXCEPTION 'consumer "%" was given other settings at % by %: %', c.name,
            to_char(last.since AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'),
            coalesce(left(last.by_whom, 60), 'somebody'),
            concat_ws(', ',
                      CASE WHEN last.events <> old.events
                           THEN format('events "%s"',
                                       coalesce(nullif(left(last.events, 60), ''), '*')) END,
                      CASE WHEN last.predicate <> old.predicate
                           THEN format('where "%s"', left(last.predicate, 60)) END,
                      CASE WHEN last.ordering <> old.ordering
                           THEN format('order %s', last.ordering) END,
                      CASE WHEN last.lanes <> old.lanes
                           THEN format('lanes %s', last.lanes) END)
            USING ERRCODE = 'OB001',
                  HINT = format('the ones here were replaced, and come back only on purpose: '
                                'outbox consumers revert %s --to %s', c.name, old.generation);
    END IF;

    -- Each set of settings is kept once, under its last generation.
    DELETE FROM @schema@.setting x
    WHERE x.consumer = c.name
      AND (x.generation = old.generation OR x.generation <= last.generation - 99);
    INSERT INTO @schema@.setting
    VALUES (c.name, last.generation + 1, _replace_settings.events, _replace_settings.predicate,
            _replace_settings.ordering, _replace_settings.lanes, @schema@._clock(),
            _replace_settings.by_whom);
    PERFORM @schema@._bell_ring_all(); -- for workers that sleep with the old settings
END
$outbox$;
COMMENT ON FUNCTION @schema@._replace_settings(
    @schema@.consumer, text, text, text, int, text, text) IS
    'notes other settings of a consumer, and refuses those that were replaced';
