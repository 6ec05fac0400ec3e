-- adopt_dry_run says what adopt would do, without doing it or keeping anybody waiting. It takes the
-- parameters of adopt, and returns
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
    -- What would change? The first line of a trigger function of ours is its mapping, as a comment.
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
