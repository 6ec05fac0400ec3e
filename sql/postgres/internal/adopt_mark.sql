-- _adopt_mark records that the rows of a table are to be marked in column col once a consumer has
-- had their events. Returns whether that is new; then the table's trigger has to be made anew.
CREATE OR REPLACE FUNCTION @schema@._adopt_mark(tab regclass, col text, consumer text)
RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $outbox$
DECLARE
    keys name[] := @schema@._adopt_keys(tab, col, consumer);
BEGIN
    INSERT INTO @schema@.marking AS m (tab, consumer, col, keys)
    VALUES (_adopt_mark.tab, _adopt_mark.consumer, _adopt_mark.col, keys)
    -- A table has one mark. A new one replaces the old, and what was wrong with that is forgotten.
    ON CONFLICT ON CONSTRAINT marking_tab_key DO UPDATE
    SET consumer = excluded.consumer, col = excluded.col, keys = excluded.keys,
        error = NULL, error_at = NULL
    WHERE (m.consumer, m.col, m.keys)
          IS DISTINCT FROM (excluded.consumer, excluded.col, excluded.keys);
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM @schema@._marks_kept();
    RETURN true;
END
$outbox$;
COMMENT ON FUNCTION @schema@._adopt_mark(regclass, text, text) IS
    'records that rows of a table are to be marked';

-- _adopt_unmark records that the rows of a table are no longer marked. Returns whether they were;
-- then the table's trigger has to be made anew.
CREATE OR REPLACE FUNCTION @schema@._adopt_unmark(tab regclass) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $outbox$
BEGIN
    DELETE FROM @schema@.adopted_row r USING @schema@.marking m
    WHERE m.tab = _adopt_unmark.tab AND r.marking = m.id;
    DELETE FROM @schema@.marking m WHERE m.tab = _adopt_unmark.tab;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM @schema@._marks_kept();
    RETURN true;
END
$outbox$;
COMMENT ON FUNCTION @schema@._adopt_unmark(regclass) IS
    'records that rows of a table are no longer marked';

-- _marks_kept keeps consumer.marks true: whether rows of any table are marked for that consumer. A
-- turn looks at that flag alone.
CREATE OR REPLACE FUNCTION @schema@._marks_kept() RETURNS void
LANGUAGE sql VOLATILE AS $outbox$
    UPDATE @schema@.consumer c
    SET marks = NOT c.marks
    WHERE c.marks <> EXISTS (SELECT 1 FROM @schema@.marking m WHERE m.consumer = c.name)
$outbox$;
COMMENT ON FUNCTION @schema@._marks_kept() IS 'tells consumers whether rows are marked for them';

-- _adopt_keys returns the columns that tell the rows of a table apart: its primary key, or else a
-- unique index whose columns are never null. Raises an error unless the rows can be marked in
-- column col for this consumer.
CREATE OR REPLACE FUNCTION @schema@._adopt_keys(tab regclass, col text, consumer text)
RETURNS name[]
LANGUAGE plpgsql STABLE AS $outbox$
DECLARE
    owner name := (SELECT pg_get_userbyid(c.relowner) FROM pg_catalog.pg_class c
                   WHERE c.oid = '@schema@.event'::regclass);
    why text := @schema@._adopt_trusts(tab);
    keys name[];
    stamp text;
BEGIN
    IF coalesce(consumer, '') !~ '^[A-Za-z0-9_.-]{1,63}$' THEN
        RAISE EXCEPTION 'to mark rows takes the name of the consumer whose delivery counts, '
                        'and "%" is none', consumer
            USING ERRCODE = 'OB004', HINT = '1 to 63 characters of A-Z a-z 0-9 _ . -';
    END IF;

    stamp := @schema@._adopt_stamp(tab, col);
    IF stamp IS NULL THEN
        RAISE EXCEPTION 'table % has no column %, which would be marked; its columns are %',
            tab, quote_ident(col),
            (SELECT string_agg(a.attname, ', ' ORDER BY a.attnum)
             FROM pg_catalog.pg_attribute a
             WHERE a.attrelid = tab AND a.attnum > 0 AND NOT a.attisdropped)
            USING ERRCODE = 'OB003';
    END IF;

    -- The turn that settles an event marks its row, with the rights of the outbox's owner.
    IF why IS NOT NULL THEN
        RAISE EXCEPTION 'rows of table % cannot be marked: %', tab, why
            USING ERRCODE = 'OB004',
                  HINT = format('give the table to "%s" (ALTER TABLE ... OWNER TO), or let its '
                                'owner act as that role (GRANT); or stop what delivered its rows, '
                                'and adopt it without a mark', owner);
    END IF;
    IF NOT has_table_privilege(owner, tab, 'SELECT')
       OR NOT has_table_privilege(owner, tab, 'UPDATE') THEN
        RAISE EXCEPTION 'rows of table % cannot be marked: the owner of the outbox, "%", '
                        'may not update it', tab, owner
            USING ERRCODE = 'insufficient_privilege',
                  HINT = format('GRANT SELECT, UPDATE ON %s TO %I', tab, owner);
    END IF;

    -- The primary key first, then the shortest unique index. Only whole, valid, immediate indexes
    -- on plain columns count, and of those only the key columns, not the included ones.
    SELECT array_agg(a.attname ORDER BY k.n)
    INTO keys
    FROM (SELECT i.indkey, i.indnkeyatts
          FROM pg_catalog.pg_index i
          WHERE i.indrelid = tab
            AND i.indisunique AND i.indimmediate AND i.indisvalid
            AND i.indpred IS NULL AND i.indexprs IS NULL
            AND NOT EXISTS (SELECT 1 FROM pg_catalog.pg_attribute x
                            WHERE x.attrelid = tab AND NOT x.attnotnull
                              AND x.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1]))
          ORDER BY i.indisprimary DESC, i.indnkeyatts, i.indexrelid
          LIMIT 1) u,
         unnest((u.indkey::int2[])[0:u.indnkeyatts - 1]) WITH ORDINALITY k (attnum, n)
    JOIN pg_catalog.pg_attribute a ON a.attrelid = tab AND a.attnum = k.attnum;
    IF keys IS NULL THEN
        RAISE EXCEPTION 'rows of table % cannot be marked: it has no primary key that tells them '
                        'apart', tab
            USING ERRCODE = 'OB004',
                  HINT = 'add one, or what is as good: a unique index on columns that are NOT NULL';
    END IF;
    RETURN keys;
END
$outbox$;
COMMENT ON FUNCTION @schema@._adopt_keys(regclass, text, text) IS
    'which columns tell the rows of a table apart';

-- _adopt_stamp returns, as SQL, what a column is set to in a row that was processed; NULL if there
-- is no such column. Raises an error if the column is of a type that cannot be marked.
CREATE OR REPLACE FUNCTION @schema@._adopt_stamp(tab regclass, col text) RETURNS text
LANGUAGE plpgsql STABLE AS $outbox$
DECLARE
    base oid;
    kind "char";
BEGIN
    SELECT a.atttypid, a.attgenerated
    INTO base, kind
    FROM pg_catalog.pg_attribute a
    WHERE a.attrelid = tab AND a.attname = col AND a.attnum > 0 AND NOT a.attisdropped;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;

    WHILE (SELECT t.typtype = 'd' FROM pg_catalog.pg_type t WHERE t.oid = base) LOOP
        -- A domain counts as the type it is made of, which may be a domain again.
        SELECT t.typbasetype INTO base FROM pg_catalog.pg_type t WHERE t.oid = base;
    END LOOP;

    -- A generated column (kind) cannot be set at all.
    IF base = 'boolean'::regtype AND kind = '' THEN
        RETURN 'true';
    END IF;
    IF base = ANY ('{timestamptz, timestamp, date}'::regtype[]) AND kind = '' THEN
        RETURN 'pg_catalog.clock_timestamp()';
    END IF;
    RAISE EXCEPTION 'column % of table % is %, which cannot be marked', quote_ident(col), tab,
        concat(CASE WHEN kind <> '' THEN 'a generated ' END, base::regtype)
        USING ERRCODE = 'OB004',
              HINT = 'it has to be a time (timestamptz, timestamp, date) or a boolean';
END
$outbox$;
COMMENT ON FUNCTION @schema@._adopt_stamp(regclass, text) IS
    'what a column of a processed row is set to';
