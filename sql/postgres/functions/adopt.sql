-- Turns the rows of an existing table, which stays as it is, into events. Unprocessed rows are
-- copied in their order; from then on a trigger makes an event of every new row. Writers wait for
-- adopt.
--
--     shape     'processed_at' (id, event_type, payload, created_at, processed_at), 'debezium' (id,
--               aggregatetype, aggregateid, type, payload) or 'auto'
--     columns   the names that differ from these, see _adopt_columns
--     existing  'copy' (the default) or 'skip'; to be given for a table that was adopted before
--     mark      a column that is set in a row once `consumer` has had its event; NULL: no change
--
-- changed: it was adopted already, and its next rows are read or marked differently.
CREATE OR REPLACE FUNCTION @schema@.adopt(
    source text, shape text DEFAULT 'auto', columns jsonb DEFAULT '{}', existing text DEFAULT NULL,
    mark text DEFAULT NULL, consumer text DEFAULT NULL,
    OUT adopted boolean, OUT copied bigint, OUT changed boolean)
LANGUAGE plpgsql VOLATILE SET lock_timeout = '5s' AS $outbox$
DECLARE
    tab regclass := @schema@._adopt_source(source);
    marked boolean := false;
BEGIN
    -- Statements after the lock must see everything committed before it: that takes READ COMMITTED.
    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        RAISE EXCEPTION 'adopt requires READ COMMITTED, not %',
            upper(current_setting('transaction_isolation')) USING ERRCODE = 'OB002';
    END IF;

    -- _adopt_source checked the table before it was locked.
    EXECUTE format('LOCK TABLE %s IN SHARE ROW EXCLUSIVE MODE', tab);
    PERFORM @schema@._adopt_refuse(tab);

    -- All checks precede the first change.
    copied := 0;
    adopted := @schema@._adopted(tab) IS NULL;
    PERFORM @schema@._adopt_decided(tab, NOT adopted, existing);
    PERFORM @schema@._adopt_columns(tab, shape, columns);
    IF mark IS NOT NULL THEN marked := @schema@._adopt_mark(tab, mark, consumer); END IF;
    IF NOT adopted THEN
        changed := @schema@._adopt_trigger(tab, shape, columns) OR marked;
        RETURN;
    END IF;

    changed := false;
    IF existing IS DISTINCT FROM 'skip' THEN
        copied := @schema@._adopt_copy(tab, shape, columns);
    END IF;
    PERFORM @schema@._adopt_trigger(tab, shape, columns);
    -- This record stays even after unadopt: see `existing`.
    INSERT INTO @schema@.meta (name, value)
    VALUES (@schema@._adopted_name(tab), @schema@._clock()::text)
    ON CONFLICT DO NOTHING;
END $outbox$;
COMMENT ON FUNCTION @schema@.adopt(text, text, jsonb, text, text, text) IS 'adopts a table';

-- Makes events of the rows of a table, in their order, and returns how many.
CREATE OR REPLACE FUNCTION @schema@._adopt_copy(tab regclass, shape text, columns jsonb)
RETURNS bigint LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    rows regclass := @schema@._adopt_rows(tab, shape, columns);
    v record;
    copied bigint;
BEGIN
    SELECT * INTO v FROM @schema@._adopt_values(tab, shape, columns, 's');
    PERFORM set_config('outbox.keep_ids', 'on', true); -- see _keeps_id
    IF v.marking IS NULL THEN
        EXECUTE format('INSERT INTO %s (%s) SELECT %s FROM %s t ORDER BY t.row_nr',
                       '@schema@.event', v.targets, v.expressions, rows);
        GET DIAGNOSTICS copied = ROW_COUNT;
    ELSE
        -- Rows will be marked. The ids are chosen here, to record which row became which event.
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
        INTO copied USING v.marking;
    END IF;
    PERFORM set_config('outbox.keep_ids', '', true);
    EXECUTE format('DROP MATERIALIZED VIEW %s', rows);
    RETURN copied;
END $outbox$;

-- Reports the effect of adopt, without changing anything or blocking other sessions.
--
--     what     'adopt', 'nothing', or 'change': the table is adopted, with other columns or another
--              mark
--     mapping  which column, or text in single quotes, becomes which field of an event
--     rows     how many rows would be copied now
CREATE OR REPLACE FUNCTION @schema@.adopt_dry_run(
    source text, shape text DEFAULT 'auto', columns jsonb DEFAULT '{}', existing text DEFAULT NULL,
    mark text DEFAULT NULL, consumer text DEFAULT NULL,
    OUT what text, OUT mapping jsonb, OUT rows bigint) LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    target regclass := @schema@._adopt_source(source);
    old text;
BEGIN
    SELECT jsonb_object_agg(x.field, x.col) INTO mapping
    FROM @schema@._adopt_columns(target, shape, columns) x;
    SELECT a.mapping INTO old FROM @schema@._adoptions() a WHERE a.tab = target;
    what := CASE WHEN NOT FOUND THEN 'adopt'
                 WHEN old = mapping::text THEN 'nothing'
                 ELSE 'change' END;
    IF mark IS NOT NULL THEN
        PERFORM @schema@._adopt_keys(target, mark, consumer); -- raises an error if it cannot mark
        IF what = 'nothing'
           AND NOT EXISTS (SELECT 1 FROM @schema@.marking m
                           WHERE m.tab = target AND m.col = mark
                             AND m.consumer = adopt_dry_run.consumer) THEN
            what := 'change';
        END IF;
    END IF;

    -- The rows that adopt would copy are counted in a view, which the error below removes.
    rows := 0;
    PERFORM @schema@._adopt_decided(target, what <> 'adopt', existing);
    IF what = 'adopt' AND existing IS DISTINCT FROM 'skip' THEN
        BEGIN
            EXECUTE format('SELECT x.n FROM %s x',
                           @schema@._adopt_rows(target, shape, columns, true))
            INTO rows;
            RAISE EXCEPTION 'counted' USING ERRCODE = 'OB007';
        EXCEPTION WHEN SQLSTATE 'OB007' THEN
            NULL;
        END;
    END IF;
END $outbox$;
COMMENT ON FUNCTION @schema@.adopt_dry_run(text, text, jsonb, text, text, text) IS
    'what adopt would do';

-- Undoes adopt: new rows no longer become events. Returns whether the table was adopted.
CREATE OR REPLACE FUNCTION @schema@.unadopt(source text) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET lock_timeout = '5s' AS $outbox$
DECLARE
    target regclass := @schema@._adopt_source(source);
    a record;
BEGIN
    SELECT x.trigger_name, x.func INTO a FROM @schema@._adoptions() x WHERE x.tab = target;
    IF NOT FOUND THEN RETURN false; END IF;
    -- No other table uses the trigger's function.
    EXECUTE format('DROP TRIGGER %I ON %s', a.trigger_name, target);
    EXECUTE format('DROP FUNCTION %s', a.func);
    -- New rows no longer become events, so no rows have to be marked.
    PERFORM @schema@._adopt_unmark(target);
    RETURN true;
END $outbox$;
COMMENT ON FUNCTION @schema@.unadopt(text) IS 'undoes adopt';

-- Stops marking the rows of an adopted table. Returns whether they were being marked.
CREATE OR REPLACE FUNCTION @schema@.drop_mark(source text) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET lock_timeout = '5s' AS $outbox$
DECLARE
    tab regclass := @schema@._adopt_source(source);
BEGIN
    IF NOT @schema@._adopt_unmark(tab) THEN RETURN false; END IF;
    PERFORM @schema@._adopt_renew(tab);
    RETURN true;
END $outbox$;
COMMENT ON FUNCTION @schema@.drop_mark(text) IS 'stops marking the rows of an adopted table';
