-- _name_like returns what a name in a grant stands for, as patterns for LIKE ANY: mail stands for
-- itself and for mail.anything, mail* for all names that begin so. Of the characters that LIKE
-- treats specially, a name can have only the underscore.
CREATE OR REPLACE FUNCTION @schema@._name_like(granted text) RETURNS text[]
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN granted LIKE '%*' THEN ARRAY[left(replace(granted, '_', E'\\_'), -1) || '%']
            ELSE ARRAY[replace(granted, '_', E'\\_'), replace(granted, '_', E'\\_') || '.%'] END;
COMMENT ON FUNCTION @schema@._name_like(text) IS 'what a name stands for in a grant, for LIKE';

-- _sees returns patterns for LIKE of the consumers that a role may look at, or NULL for all. An
-- operator may look at all of them, and so may a role that was granted the tables by hand. A worker
-- may look at its own. The function runs with the rights of its caller: a role can ask about itself
-- (works_here), and about nobody else.
CREATE OR REPLACE FUNCTION @schema@._sees(who name) RETURNS text[]
LANGUAGE plpgsql STABLE AS $outbox$
DECLARE -- Every name has its schema.
    names pg_catalog.text[];
BEGIN
    IF who OPERATOR(pg_catalog.<>) current_user THEN
        RAISE EXCEPTION 'permission denied: a role may ask only what it may look at itself'
            USING ERRCODE = 'insufficient_privilege';
    END IF;
    -- Operators, and roles that were granted the tables, have this right. No worker has it.
    IF pg_catalog.has_table_privilege(who, '@schema@.idempotency'::pg_catalog.regclass,
                                      'SELECT') THEN
        RETURN NULL;
    END IF;
    SELECT pg_catalog.array_agg(n) INTO names
    FROM @schema@.works_here w, pg_catalog.unnest(@schema@._name_like(w.consumer)) AS n;
    RETURN CASE WHEN '%' OPERATOR(pg_catalog.=) ANY (names) THEN NULL ELSE names END;
END
$outbox$;
COMMENT ON FUNCTION @schema@._sees(name) IS 'which consumers a role may look at; NULL: all';
