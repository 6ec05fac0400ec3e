-- adopt turns the rows of an existing table into events. The table stays as it is. The rows that
-- are not processed yet are copied in their old order. From then on a trigger makes an event of
-- every new row, in the transaction that inserts it. While adopt runs, writers to the table wait.
--
--     shape     'processed_at' (id, event_type, payload, created_at, processed_at), 'debezium' (id,
--               aggregatetype, aggregateid, type, payload) or 'auto'
--     columns   the names that differ from these, see _adopt_columns
--     existing  'copy' or 'skip'. The default is to copy. For a table that was adopted before there
--               is no default, because it is unknown which of its rows became events then.
--     mark      a column that is set in a row once `consumer` has had its event, see _mark_adopted;
--               NULL: none, or the one there is
--
-- adopted: the table is newly adopted. copied: how many rows were copied. changed:  that the table
-- was adopted already, and that its next rows go by other columns or another mark.
CREATE OR REPLACE FUNCTION @schema@.adopt(
    source text, shape text DEFAULT 'auto', columns jsonb DEFAULT '{}', existing text DEFAULT NULL,
    mark text DEFAULT NULL, consumer text DEFAULT NULL,
    OUT adopted boolean, OUT copied bigint, OUT changed boolean)
LANGUAGE plpgsql VOLATILE SET lock_timeout = '5s' AS $outbox$
DECLARE
    tab regclass := @schema@._adopt_source(source);
    marked boolean := false;
BEGIN
    -- What is read after the lock must be newer than the lock, which takes READ COMMITTED.
    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        RAISE EXCEPTION 'adopt works in READ COMMITTED, not in %',
            upper(current_setting('transaction_isolation')) USING ERRCODE = 'OB002';
    END IF;

    -- _adopt_source has looked at the table, but before the lock.
    EXECUTE format('LOCK TABLE %s IN SHARE ROW EXCLUSIVE MODE', tab);
    PERFORM @schema@._adopt_refuse(tab);

    -- Everything is checked before anything is done.
    copied := 0;
    adopted := @schema@._adopted(tab) IS NULL;
    PERFORM @schema@._adopt_decided(tab, NOT adopted, existing);
    PERFORM @schema@._adopt_columns(tab, shape, columns);
    IF mark IS NOT NULL THEN
        marked := @schema@._adopt_mark(tab, mark, consumer);
    END IF;
    IF NOT adopted THEN
        changed := @schema@._adopt_trigger(tab, shape, columns) OR marked;
        RETURN;
    END IF;

    changed := false;
    IF existing IS DISTINCT FROM 'skip' THEN
        copied := @schema@._adopt_copy(tab, shape, columns);
    END IF;
    PERFORM @schema@._adopt_trigger(tab, shape, columns);
    -- This is remembered even after unadopt: see `existing`.
    INSERT INTO @schema@.meta (name, value)
    VALUES (@schema@._adopted_name(tab), @schema@._clock()::text)
    ON CONFLICT DO NOTHING;
END
$outbox$;
REVOKE EXECUTE ON FUNCTION @schema@.adopt(text, text, jsonb, text, text, text) FROM PUBLIC;
COMMENT ON FUNCTION @schema@.adopt(text, text, jsonb, text, text, text) IS
    'turns the rows of an existing table into events';

-- _adopt_copy makes events of the rows that are in the table, in their order, and returns how many.
-- The caller holds the lock that adopt takes.
CREATE OR REPLACE FUNCTION @schema@._adopt_copy(tab regclass, shape text, columns jsonb)
RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    rows regclass := @schema@._adopt_rows(tab, shape, columns);
    marking int := (SELECT m.id FROM @schema@.marking m WHERE m.tab = _adopt_copy.tab);
    v record;
    copied bigint;
BEGIN
    SELECT * INTO v FROM @schema@._adopt_values(tab, shape, columns, 's');
    PERFORM set_config('outbox.keep_ids', 'on', true); -- see _keeps_id
    IF marking IS NULL THEN
        EXECUTE format('INSERT INTO %s (%s) SELECT %s FROM %s t ORDER BY t.row_nr',
                       '@schema@.event', v.targets, v.expressions, rows);
        GET DIAGNOSTICS copied = ROW_COUNT;
    ELSE
        -- Rows are to be marked. The ids are chosen here, which tells which row became which event.
        IF v.targets !~ '^id,' THEN
            v.targets := concat('id, ', v.targets);
            v.expressions := concat('@schema@._uuid7(), ', v.expressions);
        END IF;
        EXECUTE format('WITH r (%1$s, row_key) AS MATERIALIZED ('
                       'SELECT %2$s, t.row_key FROM %3$s t ORDER BY t.row_nr), '
                       'e AS (INSERT INTO %4$s (%1$s) SELECT %1$s FROM r RETURNING id, seq), '
                       'n AS (INSERT INTO %5$s (marking, seq, key) '
                       'SELECT $1, e.seq, r.row_key FROM e JOIN r USING (id) '
                       'ON CONFLICT DO NOTHING) '
                       'SELECT count(*) FROM e',
                       v.targets, v.expressions, rows, '@schema@.event', '@schema@.adopted_row')
        INTO copied USING marking;
    END IF;
    PERFORM set_config('outbox.keep_ids', '', true);
    EXECUTE format('DROP MATERIALIZED VIEW %s', rows);
    RETURN copied;
END
$outbox$;
REVOKE EXECUTE ON FUNCTION @schema@._adopt_copy(regclass, text, jsonb) FROM PUBLIC;

-- adopt_dry_run returns what adopt would do, without doing it or blocking other sessions. It takes
-- the parameters of adopt, and returns
--
--     what     'adopt', 'nothing', or 'change': the table is adopted, with other columns or another
--              mark
--     mapping  which column, or text in single quotes, becomes which field of an event
--     rows     how many rows would be copied now
CREATE OR REPLACE FUNCTION @schema@.adopt_dry_run(
    source text, shape text DEFAULT 'auto', columns jsonb DEFAULT '{}', existing text DEFAULT NULL,
    mark text DEFAULT NULL, consumer text DEFAULT NULL,
    OUT what text, OUT mapping jsonb, OUT rows bigint)
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    tab regclass := @schema@._adopt_source(source);
    old text;
BEGIN
    -- What would change? The first line of each of our trigger functions is its mapping, as a
    -- comment.
    SELECT jsonb_object_agg(x.field, x.col) INTO mapping
    FROM @schema@._adopt_columns(tab, shape, columns) x;
    SELECT substr(split_part(p.prosrc, E'\n', 1), 4) INTO old
    FROM pg_catalog.pg_trigger t JOIN pg_catalog.pg_proc p ON p.oid = t.tgfoid
    WHERE t.tgrelid = tab AND t.tgname = @schema@._adopted(tab);
    what := CASE WHEN NOT FOUND THEN 'adopt'
                 WHEN old = mapping::text THEN 'nothing'
                 ELSE 'change' END;
    IF mark IS NOT NULL THEN
        PERFORM @schema@._adopt_keys(tab, mark, consumer); -- refuses what cannot be marked
        IF what = 'nothing'
           AND NOT EXISTS (SELECT 1 FROM @schema@.marking m
                           WHERE m.tab = @schema@._adopt_source(source) AND m.col = mark
                             AND m.consumer = adopt_dry_run.consumer) THEN
            what := 'change';
        END IF;
    END IF;

    -- Rows are counted as adopt would copy them, in a view that is made for that.
    rows := 0;
    PERFORM @schema@._adopt_decided(tab, what <> 'adopt', existing);
    IF what = 'adopt' AND existing IS DISTINCT FROM 'skip' THEN
        BEGIN
            EXECUTE format('SELECT x.n FROM %s x', @schema@._adopt_rows(tab, shape, columns, true))
            INTO rows;
            -- Undoes the view in which they were counted.
            RAISE EXCEPTION 'that was all' USING ERRCODE = 'OB007';
        EXCEPTION WHEN SQLSTATE 'OB007' THEN
            NULL;
        END;
    END IF;
END
$outbox$;
REVOKE EXECUTE ON FUNCTION @schema@.adopt_dry_run(text, text, jsonb, text, text, text) FROM PUBLIC;
COMMENT ON FUNCTION @schema@.adopt_dry_run(text, text, jsonb, text, text, text) IS
    'what adopt would do';

-- unadopt undoes adopt: new rows of a table no longer become events. Existing events stay.
-- Returns whether the table was adopted.
CREATE OR REPLACE FUNCTION @schema@.unadopt(source text) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET lock_timeout = '5s' AS $outbox$
DECLARE
    tab regclass := @schema@._adopt_source(source);
    trigger_name text := @schema@._adopted(tab);
    f regprocedure;
BEGIN
    IF trigger_name IS NULL THEN
        RETURN false;
    END IF;
    -- The trigger's function belongs to this table alone, and is dropped with the trigger.
    SELECT t.tgfoid INTO f FROM pg_catalog.pg_trigger t
    WHERE t.tgrelid = tab AND t.tgname = trigger_name;
    EXECUTE format('DROP TRIGGER %I ON %s', trigger_name, tab);
    EXECUTE format('DROP FUNCTION %s', f);
    -- Without events of new rows there is nothing to mark either.
    PERFORM @schema@._adopt_unmark(tab);
    RETURN true;
END
$outbox$;
REVOKE EXECUTE ON FUNCTION @schema@.unadopt(text) FROM PUBLIC;
COMMENT ON FUNCTION @schema@.unadopt(text) IS 'undoes adopt';

-- drop_mark stops marking the rows of an adopted table. New rows become events as before. Returns
-- whether rows were being marked.
CREATE OR REPLACE FUNCTION @schema@.drop_mark(source text) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET lock_timeout = '5s' AS $outbox$
DECLARE
    tab regclass := @schema@._adopt_source(source);
BEGIN
    IF NOT @schema@._adopt_unmark(tab) THEN
        RETURN false;
    END IF;
    -- For the mark the trigger records which row became which event. It is made anew without that.
    PERFORM @schema@._adopt_anew(tab);
    RETURN true;
END
$outbox$;
REVOKE EXECUTE ON FUNCTION @schema@.drop_mark(text) FROM PUBLIC;
COMMENT ON FUNCTION @schema@.drop_mark(text) IS 'stops marking the rows of an adopted table';
