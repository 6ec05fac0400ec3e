-- Whether a payload matches a predicate, exactly as a relay decides it (src/event/filter.h; a test
-- compares the two). NULL if SQL cannot decide: the predicate is not valid, or asks for a NUL
-- character, or the encoding is not UTF8 and the predicate or payload is not ASCII.
--
-- It is read from left to right. Each level of parentheses has an element in each array: any_before
-- (an alternative before the last "or" holds), all_since (all factors since then hold), and
-- negated.
CREATE OR REPLACE FUNCTION @schema@._wants(predicate text, payload json) RETURNS boolean
LANGUAGE plpgsql STABLE AS $outbox$
DECLARE
    -- [1] and, or, not; [2] a parenthesis; [3] the path of `exists path`; [4] the path of `path
    -- exists`; [5] to [7] the path, operator and literal of a comparison; [8] anything else
    tokens CONSTANT text := replace(replace(replace(
        '(and|or|not)(?!W)|([()])|exists(?!W)[ \t-\r]*(PATH)|(PATH)[ \t-\r]*exists(?!W)|'
        '(PATH)[ \t-\r]*(!?=)[ \t-\r]*(''[^'']*''|"(?:[^"\\]|\\.)*"|[A-Za-z0-9_.+-]+)|([^ \t-\r])',
        'PATH', '(?!(?:and|or|not|exists)(?!W))(?:W+|"(?:[^"\\]|\\.)*")'
                '(?:\.(?:W+|"(?:[^"\\]|\\.)*"))*'),
        'W+', '[A-Za-z0-9_-]+'), 'W', '[A-Za-z0-9_-]');
    t text[];
    any_before boolean[] := '{f}';
    all_since boolean[] := '{t}';
    negated boolean[] := '{f}';
    depth int := 1;
    factor boolean;             -- value of the factor just read; NULL: the token is not a factor
    after_factor boolean := false;
    found json;
BEGIN
    IF predicate = '' THEN RETURN true; END IF;
    IF predicate ~* '\\u(0000|fdd0)|\uFDD0' -- see _plain_json
       OR getdatabaseencoding() <> 'UTF8' AND concat(predicate, payload) ~ '[^\x01-\x7f]|\\u' THEN
        RETURN NULL;
    END IF;
    payload := @schema@._plain_json(payload::text);

    FOR t IN SELECT regexp_matches(predicate, tokens, 'g') LOOP
        factor := NULL;
        IF t[2] = ')' AND after_factor AND depth > 1 THEN
            factor := any_before[depth] OR all_since[depth];
            depth := depth - 1;
        ELSIF t[1] IN ('and', 'or') AND after_factor THEN
            IF t[1] = 'or' THEN
                any_before[depth] := any_before[depth] OR all_since[depth];
                all_since[depth] := true;
            END IF;
            after_factor := false;
            CONTINUE;
        ELSIF after_factor OR t[8] IS NOT NULL OR t[2] = ')' OR t[1] IN ('and', 'or') THEN
            RETURN NULL;
        ELSIF t[1] = 'not' THEN
            negated[depth] := NOT negated[depth];
            CONTINUE;
        ELSIF t[2] = '(' THEN
            depth := depth + 1;
            any_before[depth] := false;
            all_since[depth] := true;
            negated[depth] := false;
            CONTINUE;
        ELSE
            found := @schema@._at_path(payload, coalesce(t[3], t[4], t[5]));
            IF t[5] IS NULL THEN
                factor := found IS NOT NULL;
            ELSE
                factor := @schema@._equals(found, t[7]);
                IF factor IS NULL THEN RETURN NULL; END IF;
                factor := factor = (t[6] = '=');
            END IF;
        END IF;
        all_since[depth] := all_since[depth] AND factor <> negated[depth];
        negated[depth] := false;
        after_factor := true;
    END LOOP;
    IF depth > 1 OR NOT after_factor THEN RETURN NULL; END IF;
    -- A relay rejects JSON that is nested too deeply.
    RETURN (any_before[1] OR all_since[1]) AND NOT @schema@._too_deep(payload::text);
END $outbox$;

-- The value at a path of a predicate, or NULL. Only an unquoted number indexes an array.
CREATE OR REPLACE FUNCTION @schema@._at_path(payload json, path text) RETURNS json
LANGUAGE plpgsql IMMUTABLE AS $outbox$
DECLARE
    segment text[]; -- a bare name, or a quoted one
BEGIN
    FOR segment IN SELECT regexp_matches(path, '([A-Za-z0-9_-]+)|("(?:[^"\\]|\\.)*")', 'g') LOOP
        payload := CASE json_typeof(payload)
            WHEN 'object' THEN
                payload -> coalesce(segment[1], @schema@._plain_json(segment[2]) #>> '{}')
            WHEN 'array' THEN
                CASE WHEN segment[1] ~ '^[0-9]{1,9}$' THEN payload -> segment[1]::int END
            END;
        EXIT WHEN payload IS NULL;
    END LOOP;
    RETURN payload;
END $outbox$;

-- Whether a value equals a literal of a predicate; NULL if the literal is not valid. Strings are
-- compared after unescaping, numbers by value. Values of different types are never equal.
CREATE OR REPLACE FUNCTION @schema@._equals(value json, literal text) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE AS $outbox$
DECLARE
    type text := CASE
        WHEN literal ~ '^[''"]' THEN 'string'
        WHEN literal IN ('true', 'false') THEN 'boolean'
        WHEN literal = 'null' THEN 'null'
        WHEN literal ~ '^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?$' THEN 'number' END;
BEGIN
    IF type IS NULL THEN RETURN NULL; END IF;
    RETURN coalesce(json_typeof(value) = type AND CASE
        WHEN type = 'number'
            THEN @schema@._normal_number(value::text) = @schema@._normal_number(literal)
        WHEN type <> 'string' THEN value::text = literal
        WHEN literal LIKE '''%' THEN value #>> '{}' = substr(literal, 2, length(literal) - 2)
        ELSE value #>> '{}' = @schema@._plain_json(literal) #>> '{}' END, false);
END $outbox$;

-- A JSON number in a normal form: digits without leading or trailing zeros, and an exponent. Only
-- the first 16 digits of an exponent count, as in src/base/num.c.
CREATE OR REPLACE FUNCTION @schema@._normal_number(number text) RETURNS text
LANGUAGE sql IMMUTABLE AS $outbox$
    SELECT CASE WHEN d.digits = '' THEN '0'
                ELSE concat(n.m[1], rtrim(d.digits, '0'), 'e',
                            CASE n.m[4] WHEN '-' THEN -1 ELSE 1 END
                            * coalesce(nullif(left(ltrim(n.m[5], '0'), 16), ''), '0')::bigint
                            - coalesce(length(n.m[3]), 0)
                            + length(d.digits) - length(rtrim(d.digits, '0'))) END
    FROM regexp_match(number, '^(-?)([0-9]+)(?:\.([0-9]+))?(?:[eE]([+-]?)([0-9]+))?$') AS n (m),
         LATERAL (SELECT ltrim(concat(n.m[2], n.m[3]), '0') AS digits) d
$outbox$;

-- Replaces the escapes in JSON text that PostgreSQL cannot decode: a lone surrogate becomes U+FFFD,
-- as in a relay, and a NUL character becomes U+FDD0, which _wants accepts in no predicate.
CREATE OR REPLACE FUNCTION @schema@._plain_json(text text) RETURNS json
LANGUAGE plpgsql IMMUTABLE AS $outbox$
BEGIN
    IF text !~* '\\u(0000|d[89a-f])' THEN RETURN text::json; END IF;
    -- First hide escaped backslashes, and write surrogate pairs as \P, which JSON does not have.
    text := replace(text, '\\', '\u005c');
    text := regexp_replace(text, '\\u(d[89ab]..)\\u(d[c-f]..)', '\\P\1\2', 'gi');
    text := regexp_replace(text, '\\ud[89a-f]..', '\\ufffd', 'gi');
    text := regexp_replace(text, '\\P(.{4})(.{4})', '\\u\1\\u\2', 'g');
    RETURN replace(text, '\u0000', '\ufdd0')::json;
END $outbox$;

-- Whether JSON is nested more than 256 levels deep, which a relay rejects. Strings are removed
-- first, then the innermost pairs of brackets.
CREATE OR REPLACE FUNCTION @schema@._too_deep(document text) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE AS $outbox$
BEGIN
    IF length(document) - length(translate(document, '[{', '')) <= 256 THEN RETURN false; END IF;
    document := regexp_replace(document, '"(?:[^"\\]|\\.)*"', '', 'g');
    document := regexp_replace(document, '[^][{}]', '', 'g');
    FOR level IN 1 .. 256 LOOP
        EXIT WHEN document = '';
        document := regexp_replace(document, '\[\]|\{\}', '', 'g');
    END LOOP;
    RETURN document <> '';
END $outbox$;
