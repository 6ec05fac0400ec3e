-- describe lists everything in a schema: kind, name, definition. Its parameters are
--
--     $1  the name of the schema
--     $2  the same as a quoted identifier
--     $3  that identifier as it stands in a literal
--
-- Two outboxes must compare equal regardless of the names of their schemas. The schema is first in
-- the search_path, so the server omits its name. In texts that we wrote, and in names derived from
-- it, @ replaces the name here.
SELECT d.kind, d.name, replace(replace(d.def, $3, '@'), $2, '@')
FROM pg_catalog.pg_namespace n, LATERAL (
    SELECT 'table' AS kind, c.relname::text AS name,
           concat_ws(' ', c.relkind, c.relpersistence, c.relrowsecurity, c.relforcerowsecurity,
                     c.reloptions) AS def
    FROM pg_class c WHERE c.relnamespace = n.oid AND c.relkind IN ('r', 'p', 'c')
    UNION ALL
    SELECT 'view',
           CASE c.relname WHEN n.nspname THEN '@' WHEN (n.nspname || '_dlq')::name THEN '@_dlq'
                          ELSE c.relname END,
           concat_ws(' ', c.reloptions, pg_get_viewdef(c.oid))
    FROM pg_class c WHERE c.relnamespace = n.oid AND c.relkind IN ('v', 'm')
    UNION ALL
    SELECT 'sequence', c.relname,
           concat_ws(' ', format_type(s.seqtypid, NULL), s.seqstart, s.seqincrement, s.seqmax,
                     s.seqmin, s.seqcycle)
    FROM pg_class c JOIN pg_sequence s ON s.seqrelid = c.oid WHERE c.relnamespace = n.oid
    UNION ALL
    SELECT 'column', c.relname || '.' || a.attname,
           concat_ws(' ', format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity,
                     a.attgenerated, pg_get_expr(x.adbin, x.adrelid))
    FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
    LEFT JOIN pg_attrdef x ON x.adrelid = c.oid AND x.adnum = a.attnum
    WHERE c.relnamespace = n.oid AND c.relkind IN ('r', 'p', 'c')
      AND a.attnum > 0 AND NOT a.attisdropped
    UNION ALL
    SELECT 'index', t.relname || '.' || c.relname,
           concat_ws(' ', i.indisunique, i.indisvalid,
                     substring(pg_get_indexdef(c.oid) FROM ' USING .*'))
    FROM pg_class c JOIN pg_index i ON i.indexrelid = c.oid JOIN pg_class t ON t.oid = i.indrelid
    WHERE c.relnamespace = n.oid
    UNION ALL
    SELECT 'constraint', c.relname || '.' || k.conname,
           replace(pg_get_constraintdef(k.oid, true), ' NOT VALID', '')
    FROM pg_constraint k JOIN pg_class c ON c.oid = k.conrelid
    WHERE c.relnamespace = n.oid AND k.contype <> 't'
    UNION ALL
    SELECT 'function', p.proname || '(' || pg_get_function_identity_arguments(p.oid) || ')',
           concat_ws(' ', pg_get_function_arguments(p.oid), pg_get_function_result(p.oid),
                     l.lanname, p.provolatile, p.proparallel, p.prosecdef, p.proisstrict,
                     replace(p.proconfig::text, quote_ident($1), '@'),
                     coalesce(pg_get_function_sqlbody(p.oid), p.prosrc))
    FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang WHERE p.pronamespace = n.oid
    UNION ALL
    SELECT 'trigger', c.relname || '.' || t.tgname,
           concat_ws(' ', pg_get_triggerdef(t.oid, true), t.tgenabled)
    FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
    WHERE c.relnamespace = n.oid AND NOT t.tgisinternal
    UNION ALL
    SELECT 'policy', c.relname || '.' || o.polname,
           concat_ws(' ', o.polcmd, o.polpermissive, o.polroles,
                     pg_get_expr(o.polqual, o.polrelid), '/',
                     pg_get_expr(o.polwithcheck, o.polrelid))
    FROM pg_policy o JOIN pg_class c ON c.oid = o.polrelid WHERE c.relnamespace = n.oid
) d
WHERE n.nspname = $1 ORDER BY d.kind COLLATE "C", d.name COLLATE "C"
