-- functions.sql: triggers, procedures and views. `outbox init` replaces them whenever they differ
-- from those of its build, so they need no migration.

DELIMITER //

-- outbox_refuse_changed fails if the current statement has altered a value because it did not fit,
-- or if that is unknown: the server keeps at most max_error_count warnings, and does not count the
-- others.
CREATE OR REPLACE PROCEDURE outbox_refuse_changed() SQL SECURITY INVOKER
BEGIN
    DECLARE warnings, code INT DEFAULT 0;
    DECLARE what TEXT CHARACTER SET utf8mb4;
    GET DIAGNOSTICS warnings = NUMBER;
    IF NOT @@check_constraint_checks THEN
        SET what = 'outbox_event: not stored: its limits need check_constraint_checks = 1';
    ELSEIF warnings >= @@max_error_count THEN
        SET what = 'outbox_event: not stored: telling whether a value was changed needs a higher '
                   'max_error_count';
    END IF;
    WHILE what IS NULL AND warnings > 0 DO
        GET DIAGNOSTICS CONDITION warnings code = MYSQL_ERRNO, what = MESSAGE_TEXT;
        SET what = IF(code IN (1048, 1260, 1264, 1265, 1292, 1300, 1301, 1364, 1365, 1366, 1406,
                               1411, 1441, 1977),
                      CONCAT('outbox_event: not stored (sql_mode is not strict): ', what), NULL);
        SET warnings = warnings - 1;
    END WHILE;
    IF what IS NOT NULL THEN
        SET what = LEFT(what, 128);
        SIGNAL SQLSTATE '22000' SET MYSQL_ERRNO = 1366, MESSAGE_TEXT = what;
    END IF;
END//

-- An event's marker is inserted once the event is in the table: see outbox_fresh for why not
-- before. In a session without strict mode the server changes what does not fit, and only warns:
-- then nothing is stored. The trigger declares no variables: setting them up for each event takes
-- longer than the marker.
CREATE OR REPLACE TRIGGER outbox_event_inserted AFTER INSERT ON outbox_event FOR EACH ROW
BEGIN
    IF @@warning_count > 0 OR @@max_error_count = 0 OR NOT @@check_constraint_checks THEN
        CALL outbox_refuse_changed();
    END IF;
    INSERT INTO outbox_fresh (nr) VALUES (NEW.nr);
END//

-- Any session can set insert_id, and so choose the number of its next event, or of its marker. That
-- is how a log of statements is replayed, so ordinary numbers are accepted. A number close to the
-- end of the range is refused before the row is written: a rollback does not set the table's
-- counter back. 2^62 is half of where doctor reports a problem (NUMBERS_ENOUGH), so no producer
-- reaches it.
CREATE OR REPLACE TRIGGER outbox_event_numbered BEFORE INSERT ON outbox_event FOR EACH ROW
IF @@insert_id > 4611686018427387904 THEN
    SIGNAL SQLSTATE '22003' SET MYSQL_ERRNO = 1264, MESSAGE_TEXT =
        'outbox_event: not stored: insert_id is above 4611686018427387904 (2^62), and would leave '
        'too few numbers';
END IF//

-- Events stay as they were inserted: a statement that would change, delete or replace one is
-- refused as a whole. REPLACE deletes, and ON DUPLICATE KEY UPDATE changes. trim sets the variable
-- for its DELETE; an owner who has to erase an event does the same (docs/operations.md). TRUNCATE
-- runs no trigger: outbox_guard prevents that.
CREATE OR REPLACE TRIGGER outbox_event_deleted BEFORE DELETE ON outbox_event FOR EACH ROW
BEGIN
    IF NOT @outbox_change_events <=> 'on' THEN
        SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT =
            'outbox_event: events are insert-only, and none was deleted or replaced: see outbox '
            'trim, idempotency_key';
    END IF;
END//

CREATE OR REPLACE TRIGGER outbox_event_updated BEFORE UPDATE ON outbox_event FOR EACH ROW
BEGIN
    IF NOT @outbox_change_events <=> 'on' THEN
        SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT =
            'outbox_event: events are insert-only, and none was changed: give an idempotency_key '
            'and use INSERT IGNORE';
    END IF;
END//

-- A deleted dead letter was dropped, unless it was retried and is being settled.
CREATE OR REPLACE TRIGGER outbox_dead_deleted AFTER DELETE ON outbox_dead FOR EACH ROW
BEGIN
    IF OLD.retrying = 0 AND EXISTS (SELECT 1 FROM outbox_order WHERE seq = OLD.seq) THEN
        REPLACE INTO outbox_ended (seq, consumer, state) VALUES (OLD.seq, OLD.consumer, 'dropped');
    END IF;
END//

-- outbox_emit stores one event, in the caller's transaction. NULL for a missing field. A session
-- without strict mode also changes what does not fit into a parameter.
CREATE OR REPLACE PROCEDURE outbox_emit(type VARCHAR(256) CHARACTER SET utf8mb4,
    aggregate_type VARCHAR(1025) CHARACTER SET utf8mb4,
    aggregate_id VARCHAR(1025) CHARACTER SET utf8mb4,
    payload LONGTEXT CHARACTER SET utf8mb4) SQL SECURITY INVOKER
BEGIN
    IF @@warning_count > 0 THEN
        CALL outbox_refuse_changed();
    END IF;
    INSERT INTO outbox_event (type, aggregate_type, aggregate_id, payload)
    VALUES (type, aggregate_type, aggregate_id, COALESCE(payload, 'null'));
END//

-- outbox_emit_once is outbox_emit with an idempotency key: under a known key it stores nothing, and
-- reports so. event_id is that of the first event with this key.
CREATE OR REPLACE PROCEDURE outbox_emit_once(type VARCHAR(256) CHARACTER SET utf8mb4,
    aggregate_type VARCHAR(1025) CHARACTER SET utf8mb4,
    aggregate_id VARCHAR(1025) CHARACTER SET utf8mb4,
    payload LONGTEXT CHARACTER SET utf8mb4, idempotency_key VARBINARY(1025),
    OUT event_id CHAR(36), OUT duplicate BOOLEAN) SQL SECURITY INVOKER
BEGIN
    DECLARE same BOOLEAN;
    DECLARE wanted VARBINARY(1025) DEFAULT idempotency_key;
    DECLARE EXIT HANDLER FOR 1062
    BEGIN
        SELECT e.id, (e.type, e.aggregate_type <=> aggregate_type, e.aggregate_id <=> aggregate_id,
                      e.payload) = (type, TRUE, TRUE, COALESCE(payload, 'null'))
          INTO event_id, same FROM outbox_event e WHERE e.idempotency_key = wanted
          LOCK IN SHARE MODE;
        SET duplicate = TRUE;
        IF NOT same THEN
            SIGNAL SQLSTATE '23000' SET MYSQL_ERRNO = 1062, MESSAGE_TEXT =
                'outbox_emit_once: the key was used before with another type, aggregate or payload';
        END IF;
    END;
    IF @@warning_count > 0 THEN
        CALL outbox_refuse_changed();
    END IF;
    SET duplicate = FALSE;
    INSERT INTO outbox_event (type, aggregate_type, aggregate_id, payload, idempotency_key)
    VALUES (type, aggregate_type, aggregate_id, COALESCE(payload, 'null'), idempotency_key);
    SELECT e.id INTO event_id FROM outbox_event e WHERE e.nr = LAST_INSERT_ID();
END//

-- outbox_handle_once is the inbox for programs that receive events: TRUE the first time that a
-- handler handles this key. The record commits with the effect, in the caller's transaction. The
-- recorded payload hash is that of an empty payload, as in outbox_handle_once_mariadb.
CREATE OR REPLACE PROCEDURE outbox_handle_once(handler VARCHAR(1025) CHARACTER SET utf8mb4,
    event_key VARCHAR(1025) CHARACTER SET utf8mb4, OUT is_first BOOLEAN) SQL SECURITY INVOKER
BEGIN
    DECLARE no_payload, known BIGINT DEFAULT -2861623774831464346;
    IF @@warning_count > 0 THEN
        CALL outbox_refuse_changed();
    END IF;
    IF NOT COALESCE(OCTET_LENGTH(handler) BETWEEN 1 AND 1024
                    AND OCTET_LENGTH(event_key) BETWEEN 1 AND 1024
                    AND CONCAT(handler, event_key) NOT REGEXP '[\\x{0}-\\x{1f}\\x{7f}-\\x{9f}]',
                    FALSE) THEN
        SIGNAL SQLSTATE '23000' SET MYSQL_ERRNO = 4025, MESSAGE_TEXT =
            'outbox_handle_once: handler and key: 1 to 1024 bytes each, no control character';
    END IF;
    IF @@autocommit AND NOT @@in_transaction THEN
        SIGNAL SQLSTATE '25000' SET MESSAGE_TEXT =
            'outbox_handle_once: no transaction is open: the record must commit with the effect';
    END IF;
    SET is_first = TRUE;
    BEGIN
        DECLARE CONTINUE HANDLER FOR 1062 SET is_first = FALSE;
        INSERT INTO outbox_handled (handler, `key`, hash, at)
        VALUES (CAST(handler AS BINARY), CAST(event_key AS BINARY), no_payload,
                TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000);
    END;
    IF NOT is_first THEN
        SELECT h.hash INTO known FROM outbox_handled h
         WHERE h.handler = CAST(handler AS BINARY) AND h.`key` = CAST(event_key AS BINARY)
          LOCK IN SHARE MODE;
    END IF;
    IF known <> no_payload THEN
        SIGNAL SQLSTATE '23000' SET MYSQL_ERRNO = 1062, MESSAGE_TEXT =
            'outbox_handle_once: this handler has handled this key before with another payload';
    END IF;
END//

-- Predicates, evaluated exactly as a relay does: src/event/filter.h has the grammar, and a test
-- compares the two. outbox_json_text returns the characters of a quoted JSON string; half of a
-- surrogate pair becomes U+FFFD.
CREATE OR REPLACE FUNCTION outbox_json_text(
    quoted LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin)
    RETURNS LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin DETERMINISTIC NO SQL
    SQL SECURITY INVOKER
BEGIN
    DECLARE text LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin DEFAULT '';
    DECLARE rest LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
        DEFAULT SUBSTR(quoted, 2, CHAR_LENGTH(quoted) - 2);
    DECLARE place, code INT;
    IF quoted IS NULL THEN
        RETURN NULL;
    END IF;
    LOOP
        SET place = LOCATE('\\', rest);
        IF place = 0 THEN
            RETURN CONCAT(text, rest);
        END IF;
        SET text = CONCAT(text, LEFT(rest, place - 1));
        SET code = CASE SUBSTR(rest, place + 1, 1)
                       WHEN 'u' THEN CONV(SUBSTR(rest, place + 2, 4), 16, 10)
                       WHEN 'b' THEN 8 WHEN 'f' THEN 12 WHEN 'n' THEN 10 WHEN 'r' THEN 13
                       WHEN 't' THEN 9 ELSE ORD(SUBSTR(rest, place + 1, 1)) END;
        SET rest = SUBSTR(rest, place + IF(SUBSTR(rest, place + 1, 1) = 'u', 6, 2));
        IF code BETWEEN 0xD800 AND 0xDBFF AND rest REGEXP '^\\\\u[dD][c-fC-F]' THEN
            SET code = 0x10000 + (code - 0xD800) * 1024 + CONV(SUBSTR(rest, 3, 4), 16, 10) - 0xDC00;
            SET rest = SUBSTR(rest, 7);
        ELSEIF code BETWEEN 0xD800 AND 0xDFFF THEN
            SET code = 0xFFFD;
        END IF;
        SET text = CONCAT(text, CONVERT(CONVERT(UNHEX(LPAD(HEX(code), 8, '0')) USING utf32)
                                        USING utf8mb4));
    END LOOP;
END//

-- outbox_json_number writes a JSON number as digits without a zero at either end and an exponent,
-- so that equal numbers are equal texts. Only 16 digits of an exponent count, as in src/base/num.c.
CREATE OR REPLACE FUNCTION outbox_json_number(
    number LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin)
    RETURNS LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin DETERMINISTIC NO SQL
    SQL SECURITY INVOKER
BEGIN
    DECLARE mantissa LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
        DEFAULT REGEXP_SUBSTR(number, '[0-9.]+');
    DECLARE digits, bare LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
    DECLARE exponent BIGINT DEFAULT 0;
    IF number REGEXP '[eE]' THEN
        SET exponent = CAST(CONCAT('0', LEFT(REGEXP_SUBSTR(number, '[eE][-+]?0*\\K[0-9]*'), 16))
                            AS SIGNED) * IF(number REGEXP '[eE]-', -1, 1);
    END IF;
    SET digits = TRIM(LEADING '0' FROM REPLACE(mantissa, '.', ''));
    SET bare = TRIM(TRAILING '0' FROM digits);
    IF CHAR_LENGTH(bare) = 0 THEN
        RETURN '0';
    END IF;
    IF LOCATE('.', mantissa) > 0 THEN
        SET exponent = exponent - CHAR_LENGTH(mantissa) + LOCATE('.', mantissa);
    END IF;
    RETURN CONCAT(IF(LEFT(number, 1) = '-', '-', ''), bare, 'e',
                  exponent + CHAR_LENGTH(digits) - CHAR_LENGTH(bare));
END//

-- outbox_json_at returns the text of the value at a path of a predicate; NULL: there is none. The
-- last of several members of the same name counts, and only a bare name of digits indexes an array.
CREATE OR REPLACE FUNCTION outbox_json_at(
    payload LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    path LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin)
    RETURNS LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin DETERMINISTIC NO SQL
    SQL SECURITY INVOKER
BEGIN
    DECLARE value, rest, segment, name, one LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
    DECLARE n, wanted INT;
    SET value = REGEXP_REPLACE(payload, '^[ \\t\\n\\r]+', '');
    WHILE CHAR_LENGTH(path) > 0 AND value IS NOT NULL DO
        SET segment = REGEXP_SUBSTR(path, '^(?:[A-Za-z0-9_-]+|"(?:[^"\\\\]++|\\\\.)*+")');
        SET path = SUBSTR(path, CHAR_LENGTH(segment) + 2);
        SET wanted = IF(segment REGEXP '^[0-9]{1,9}$', segment, -1);
        IF LEFT(segment, 1) = '"' THEN
            SET segment = outbox_json_text(segment);
        END IF;

        SET rest = IF(LEFT(value, 1) IN ('{', '['), SUBSTR(value, 2), '');
        SET wanted = IF(LEFT(value, 1) = '[', wanted, NULL);
        SET value = NULL, n = 0;
        walk: LOOP
            SET rest = REGEXP_REPLACE(rest, '^[ \\t\\n\\r,]+', '');
            IF rest REGEXP '^(?:[]}]|$)' THEN
                LEAVE walk;
            END IF;
            IF wanted IS NULL THEN
                SET name = REGEXP_SUBSTR(rest, '^"(?:[^"\\\\]++|\\\\.)*+"');
                SET rest = REGEXP_REPLACE(SUBSTR(rest, CHAR_LENGTH(name) + 1),
                                          '^[ \\t\\n\\r]*:[ \\t\\n\\r]*', '');
            END IF;
            SET one = REGEXP_SUBSTR(rest, CONCAT(
                '^(?:"(?:[^"\\\\]++|\\\\.)*+"|[-+.0-9A-Za-z]++|',
                '(?<b>[[{](?:[^][{}"]++|"(?:[^"\\\\]++|\\\\.)*+"|(?&b))*+[]}]))'));
            IF CHAR_LENGTH(one) = 0 OR one IS NULL THEN
                SIGNAL SQLSTATE '22000'
                    SET MESSAGE_TEXT = 'outbox_json_at: cannot read the payload';
            END IF;
            SET rest = SUBSTR(rest, CHAR_LENGTH(one) + 1);
            IF n = wanted OR wanted IS NULL AND BINARY outbox_json_text(name) = BINARY segment THEN
                SET value = one;
            END IF;
            SET n = n + 1;
        END LOOP;
    END WHILE;
    RETURN value;
END//

-- outbox_wants returns whether a payload passes a predicate, which registration has validated. Each
-- open parenthesis has a digit at the front of three texts: whether an alternative before the last
-- "or" holds, whether all factors since then hold, and whether a "not" is waiting for its factor.
CREATE OR REPLACE FUNCTION outbox_wants(
    predicate LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    payload LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin)
    RETURNS BOOLEAN DETERMINISTIC NO SQL SQL SECURITY INVOKER
BEGIN
    DECLARE rest, token, found LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
    DECLARE any_before, all_since, negated VARCHAR(80) DEFAULT '';
    DECLARE factor, asks, differs BOOLEAN;
    SET rest = CONCAT('(', predicate, ')');
    WHILE CHAR_LENGTH(rest) > 0 DO
        SET factor = NULL;
        SET token = REGEXP_SUBSTR(rest, '^(?:(?:and|or|not|exists)(?![A-Za-z0-9_-])|[()])');
        SET rest = REGEXP_REPLACE(SUBSTR(rest, CHAR_LENGTH(token) + 1), '^[ \\t-\\r]+', '');
        CASE token
        WHEN '(' THEN
            SET any_before = CONCAT('0', any_before), all_since = CONCAT('1', all_since),
                negated = CONCAT('0', negated);
        WHEN ')' THEN
            SET factor = LEFT(any_before, 1) = '1' OR LEFT(all_since, 1) = '1';
            SET any_before = SUBSTR(any_before, 2), all_since = SUBSTR(all_since, 2),
                negated = SUBSTR(negated, 2);
        WHEN 'and' THEN
            DO 0;
        WHEN 'or' THEN
            IF LEFT(all_since, 1) = '1' THEN
                SET any_before = CONCAT('1', SUBSTR(any_before, 2));
            END IF;
            SET all_since = CONCAT('1', SUBSTR(all_since, 2));
        WHEN 'not' THEN
            SET negated = CONCAT(IF(LEFT(negated, 1) = '1', '0', '1'), SUBSTR(negated, 2));
        ELSE
            SET asks = token = 'exists';
            SET token = REGEXP_SUBSTR(rest, CONCAT(
                '^(?:[A-Za-z0-9_-]+|"(?:[^"\\\\]++|\\\\.)*+")',
                '(?:\\.(?:[A-Za-z0-9_-]+|"(?:[^"\\\\]++|\\\\.)*+"))*'));
            IF CHAR_LENGTH(token) = 0 THEN
                RETURN NULL; -- no predicate
            END IF;
            SET rest = REGEXP_REPLACE(SUBSTR(rest, CHAR_LENGTH(token) + 1), '^[ \\t-\\r]+', '');
            SET found = outbox_json_at(payload, token);
            IF NOT asks AND rest REGEXP '^exists(?![A-Za-z0-9_-])' THEN
                SET asks = TRUE, rest = SUBSTR(rest, 7);
            END IF;
            IF asks THEN
                SET factor = found IS NOT NULL;
            ELSE
                SET differs = LEFT(rest, 1) = '!';
                SET rest = REGEXP_REPLACE(rest, '^!?=[ \\t-\\r]*', '');
                SET token = REGEXP_SUBSTR(
                    rest, '^(?:''[^'']*''|"(?:[^"\\\\]++|\\\\.)*+"|[A-Za-z0-9_.+-]+)');
                SET rest = SUBSTR(rest, CHAR_LENGTH(token) + 1);
                SET factor = IFNULL(CASE
                    WHEN LEFT(token, 1) IN ('"', '''') THEN
                        LEFT(found, 1) = '"' AND BINARY outbox_json_text(found) = BINARY
                        IF(LEFT(token, 1) = '"', outbox_json_text(token),
                           SUBSTR(token, 2, CHAR_LENGTH(token) - 2))
                    WHEN token IN ('true', 'false', 'null') THEN BINARY found = BINARY token
                    ELSE found REGEXP '^[-0-9]'
                         AND outbox_json_number(found) = outbox_json_number(token) END,
                    FALSE) <> differs;
            END IF;
            SET rest = REGEXP_REPLACE(rest, '^[ \\t-\\r]+', '');
        END CASE;
        IF factor IS NOT NULL AND CHAR_LENGTH(negated) = 0 THEN
            RETURN factor;
        END IF;
        IF factor IS NOT NULL THEN
            SET all_since = CONCAT(
                    IF(LEFT(all_since, 1) = '1' AND factor <> (LEFT(negated, 1) = '1'), '1', '0'),
                    SUBSTR(all_since, 2)),
                negated = CONCAT('0', SUBSTR(negated, 2));
        END IF;
    END WHILE;
    RETURN NULL;
END//

-- Functions that convert columns of adopted tables to fields of an event. outbox_row_uuid returns
-- an id that is a UUID, NULL for any other; outbox_row_headers keeps the others, and records a UUID
-- that is not a UUIDv7 as the row's id.
CREATE OR REPLACE FUNCTION outbox_row_uuid(id LONGTEXT CHARACTER SET utf8mb4)
    RETURNS CHAR(36) CHARACTER SET ascii DETERMINISTIC NO SQL SQL SECURITY INVOKER
RETURN IF(id REGEXP '^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$', LOWER(id), NULL)//

CREATE OR REPLACE FUNCTION outbox_row_headers(id LONGTEXT CHARACTER SET utf8mb4)
    RETURNS TEXT CHARACTER SET utf8mb4 DETERMINISTIC NO SQL SQL SECURITY INVOKER
RETURN IF(id IS NULL OR outbox_row_uuid(id) REGEXP '^.{14}7.{4}[89ab]', NULL,
          JSON_OBJECT('source_id', COALESCE(outbox_row_uuid(id), LEFT(id, 1000))))//

-- outbox_row_type: white space becomes _, and a long type is truncated, by bytes if it is ASCII.
CREATE OR REPLACE FUNCTION outbox_row_type(type LONGTEXT CHARACTER SET utf8mb4)
    RETURNS VARCHAR(255) CHARACTER SET utf8mb4 DETERMINISTIC NO SQL SQL SECURITY INVOKER
BEGIN
    DECLARE fit LONGTEXT CHARACTER SET utf8mb4 DEFAULT REGEXP_REPLACE(type, '[ \\t\\r\\n]', '_');
    IF OCTET_LENGTH(fit) > 255 THEN
        SET fit = LEFT(fit, IF(fit REGEXP '^[!-~]*$', 255, 63));
    END IF;
    RETURN IF(fit IS NULL OR fit = '' OR fit REGEXP CONCAT(
                  '[\\x{0}-\\x{20}\\x{7f}-\\x{a0}\\x{1680}\\x{2000}-\\x{200a}',
                  '\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}]'), 'unknown', fit);
END//

-- outbox_row_payload converts text to JSON: text that is not JSON becomes a string.
-- outbox_row_bytes does the same for bytes: bytes that are not text become a string in base64.
CREATE OR REPLACE FUNCTION outbox_row_payload(payload LONGTEXT CHARACTER SET utf8mb4)
    RETURNS LONGTEXT CHARACTER SET utf8mb4 DETERMINISTIC NO SQL SQL SECURITY INVOKER
RETURN CASE WHEN payload IS NULL THEN 'null'
            WHEN JSON_VALID(payload) THEN payload
            ELSE JSON_QUOTE(payload) END//

CREATE OR REPLACE FUNCTION outbox_row_bytes(payload LONGBLOB)
    RETURNS LONGTEXT CHARACTER SET utf8mb4 DETERMINISTIC NO SQL SQL SECURITY INVOKER
BEGIN
    DECLARE EXIT HANDLER FOR 1300
        RETURN CONCAT('"', REPLACE(TO_BASE64(payload), '\n', ''), '"');
    RETURN outbox_row_payload(CONVERT(payload USING utf8mb4));
END//

-- outbox_row_time converts seconds or milliseconds to milliseconds, at most now; NULL: now.
CREATE OR REPLACE FUNCTION outbox_row_time(at DECIMAL(30, 6))
    RETURNS BIGINT NOT DETERMINISTIC NO SQL SQL SECURITY INVOKER
BEGIN
    DECLARE now BIGINT DEFAULT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000;
    RETURN GREATEST(0, LEAST(now, COALESCE(ROUND(IF(at > 100000000000, at, at * 1000)), now)));
END//

-- outbox_wait returns once a marker waits for its seq, or the sequencer has changed since the
-- caller read it; otherwise after `patience` ms. It polls every millisecond while a producer has an
-- uncommitted event or had one lately, and less often the longer nothing arrives; nothing has
-- arrived for `idle` ms when it is called. The session is READ UNCOMMITTED, so it sees events
-- before they are committed. A second query, of committed rows, tells whether one is. Neither may
-- take or even request a lock: a request makes the server materialize the implicit lock of an
-- uncommitted marker, which remains as a lock on the gap behind it when its producer rolls back to
-- a savepoint, and blocks all other inserts. So each poll is a separate SELECT: within IF or SET it
-- would lock what it reads.
CREATE OR REPLACE PROCEDURE outbox_wait(known_next BIGINT, known_news BIGINT UNSIGNED,
    patience INT, idle INT) SQL SECURITY INVOKER
wait: BEGIN
    DECLARE began, looking, looked DATETIME(6) DEFAULT SYSDATE(6);
    DECLARE active DATETIME(6) DEFAULT began - INTERVAL idle * 1000 MICROSECOND;
    DECLARE changed, newest, seen, committed BIGINT UNSIGNED;
    DECLARE quiet BIGINT;
    LOOP
        SET looking = SYSDATE(6);
        SELECT next <> known_next OR news <> known_news,
               (SELECT marker FROM outbox_fresh ORDER BY marker DESC LIMIT 1)
          INTO changed, newest FROM outbox_sequencer WHERE one = 1;
        IF newest IS NOT NULL THEN
            SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
            SELECT marker INTO committed FROM outbox_fresh LIMIT 1;
        END IF;
        IF changed OR committed IS NOT NULL THEN
            LEAVE wait;
        END IF;
        SET looked = SYSDATE(6);
        IF NOT newest <=> seen THEN
            SET active = looked, seen = newest;
        END IF;
        IF TIMESTAMPDIFF(MICROSECOND, began, looked) > patience * 1000 THEN
            LEAVE wait;
        END IF;
        SET quiet = TIMESTAMPDIFF(MICROSECOND, active, looked);
        DO SLEEP(GREATEST(CASE WHEN quiet < 100000 THEN 0.001
                               WHEN quiet < 2000000 THEN 0.005
                               WHEN quiet < 10000000 THEN 0.02
                               WHEN quiet < 60000000 THEN 0.1
                               ELSE 0.2 END,
                          TIMESTAMPDIFF(MICROSECOND, looking, looked) / 100000));
    END LOOP;
END//

DELIMITER ;

-- The events in the order in which they are handed out. An event that was committed a moment ago
-- has no seq yet, and appears once a relay or a command of `outbox` has polled.
CREATE OR REPLACE SQL SECURITY INVOKER VIEW outbox_sequenced AS
SELECT o.seq, e.id, e.type, e.aggregate_type, e.aggregate_id, e.version, e.payload, e.headers,
       e.tenant, e.not_before, e.created_at, CONVERT(e.idempotency_key USING utf8mb4)
       AS idempotency_key
  FROM outbox_order o STRAIGHT_JOIN outbox_event e ON e.nr = o.nr;

-- The idempotency keys that are known: each is kept with its event.
CREATE OR REPLACE SQL SECURITY INVOKER VIEW outbox_idempotency AS
SELECT CONVERT(idempotency_key USING utf8mb4) AS idempotency_key, id AS event_id, created_at AS at
  FROM outbox_event WHERE idempotency_key IS NOT NULL;

-- The state of every kept event for every consumer whose type patterns match it, or did when it was
-- handed out. SQL cannot compute the lane of a key. Where the lane matters, the state is `unknown`:
-- with several lanes, of an event that some lanes are past and others are not, or that a claim of
-- some lane spans; `outbox events` can always tell. An expired claim counts as none: its events are
-- pending, or failed if they had failed before.
CREATE OR REPLACE SQL SECURITY INVOKER VIEW outbox_delivery AS
SELECT v.seq, v.event_id, v.type, v.consumer,
       CASE
           WHEN v.retrying = 0 THEN 'expired'
           WHEN v.parked AND v.parked_live THEN 'in-flight'
           WHEN v.parked_attempts > 0 OR v.failing_since IS NOT NULL THEN 'failed'
           WHEN v.parked THEN 'pending'
           WHEN v.seq > v.high AND v.now_predicate <> ''
                AND NOT outbox_wants(v.now_predicate, v.payload) THEN 'skipped'
           WHEN v.seq > v.high THEN 'pending'
           WHEN v.seq <= v.start THEN 'before-start'
           WHEN v.seq > v.low THEN 'unknown'
           WHEN v.ended IS NULL AND v.seq > v.former_low THEN 'unknown'
           WHEN v.ended IS NULL AND NOT v.was_wanted THEN 'skipped'
           WHEN v.ended IS NULL AND v.predicate <> ''
                AND NOT outbox_wants(v.predicate, v.payload) THEN 'skipped'
           WHEN v.claim_live IS NOT NULL AND NOT v.lane_known THEN 'unknown'
           WHEN v.claim_live = 1 THEN 'in-flight'
           WHEN v.claim_live = 0 THEN 'pending'
           WHEN v.ended IS NOT NULL THEN v.ended
           ELSE 'delivered'
       END AS state,
       v.attempts, v.due_at, v.error
  FROM (SELECT o.seq, e.id AS event_id, e.type, c.name AS consumer, c.start, d.retrying,
               x.state AS ended, p.seq IS NOT NULL AS parked, p.attempts AS parked_attempts,
               p.failing_since, p.due_at, coalesce(p.attempts, d.attempts, 0) AS attempts,
               coalesce(p.error, d.error) AS error,
               EXISTS (SELECT 1 FROM outbox_claim k
                        WHERE k.consumer = c.name AND k.epoch = p.claim
                          AND k.locked_until > TIMESTAMPDIFF(MICROSECOND, '1970-01-01',
                                                             UTC_TIMESTAMP(3)) DIV 1000)
                   AS parked_live,
               c.lanes = 1 OR e.aggregate_id IS NULL AS lane_known,
               (SELECT min(l.position) FROM outbox_lane l
                 WHERE l.consumer = c.name
                   AND (e.aggregate_id IS NOT NULL OR l.lane = o.seq % c.lanes)) AS low,
               (SELECT max(l.position) FROM outbox_lane l
                 WHERE l.consumer = c.name
                   AND (e.aggregate_id IS NOT NULL OR l.lane = o.seq % c.lanes)) AS high,
               (SELECT max(k.locked_until > TIMESTAMPDIFF(MICROSECOND, '1970-01-01',
                                                          UTC_TIMESTAMP(3)) DIV 1000)
                  FROM outbox_claim k
                 WHERE k.consumer = c.name AND k.parked = 0
                   AND o.seq > k.from_seq AND o.seq <= k.to_seq
                   AND (c.lanes = 1 OR e.aggregate_id IS NOT NULL OR k.lane = o.seq % c.lanes))
                   AS claim_live,
               h.low AS former_low, coalesce(h.predicate, c.predicate) AS predicate,
               c.predicate AS now_predicate, e.payload,
               c.events = '' OR e.type REGEXP
                   CONCAT('^(?:\\Q', REPLACE(REPLACE(c.events, '*', '\\E.*\\Q'), ',', '\\E|\\Q'),
                          '\\E)$') AS wanted,
               coalesce(h.events, c.events) = '' OR e.type REGEXP
                   CONCAT('^(?:\\Q', REPLACE(REPLACE(coalesce(h.events, c.events), '*',
                                                     '\\E.*\\Q'), ',', '\\E|\\Q'), '\\E)$')
                   AS was_wanted
          FROM outbox_order o
          STRAIGHT_JOIN outbox_event e ON e.nr = o.nr
          JOIN outbox_consumer c
          LEFT JOIN outbox_parked p ON p.consumer = c.name AND p.seq = o.seq
          LEFT JOIN outbox_dead d ON d.consumer = c.name AND d.seq = o.seq
          LEFT JOIN outbox_ended x ON x.consumer = c.name AND x.seq = o.seq
          LEFT JOIN outbox_former_filter h ON h.consumer = c.name AND h.lane = 0
                AND h.n = (SELECT min(g.n) FROM outbox_former_filter g
                            WHERE g.consumer = c.name AND g.lane = 0 AND o.seq <= g.high)) v
 WHERE v.wanted OR (v.seq <= v.high AND v.was_wanted) OR v.parked OR v.retrying IS NOT NULL
    OR v.ended IS NOT NULL;

-- Events that a worker would claim: pending, even in an expired claim, or failed and due again.
CREATE OR REPLACE SQL SECURITY INVOKER VIEW outbox_find_unprocessed AS
SELECT d.consumer, e.seq, e.id, e.type, e.aggregate_type, e.aggregate_id, e.payload, d.attempts,
       d.due_at, d.error, e.created_at
  FROM outbox_delivery d JOIN outbox_sequenced e ON e.seq = d.seq
 WHERE d.state = 'pending'
    OR d.state = 'failed'
       AND d.due_at <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000;

-- Events that a worker holds: those in a live claim.
CREATE OR REPLACE SQL SECURITY INVOKER VIEW outbox_find_processing AS
SELECT d.consumer, e.seq, e.id, e.type, e.aggregate_type, e.aggregate_id, e.payload, d.attempts,
       k.owner AS worker, k.epoch, k.locked_until, e.created_at
  FROM outbox_delivery d
  JOIN outbox_sequenced e ON e.seq = d.seq
  JOIN outbox_consumer c ON c.name = d.consumer
  LEFT JOIN outbox_parked p ON p.consumer = d.consumer AND p.seq = d.seq
  JOIN outbox_claim k ON k.consumer = d.consumer AND k.epoch = coalesce(p.claim,
       (SELECT max(x.epoch) FROM outbox_claim x
         WHERE x.consumer = d.consumer AND x.parked = 0 AND d.seq > x.from_seq
           AND d.seq <= x.to_seq AND (c.lanes = 1 OR x.lane = d.seq % c.lanes)))
 WHERE d.state = 'in-flight';

-- Events that failed and will be retried at due_at; NULL: once the event before it is delivered.
CREATE OR REPLACE SQL SECURITY INVOKER VIEW outbox_find_failed AS
SELECT d.consumer, e.seq, e.id, e.type, e.aggregate_type, e.aggregate_id, e.payload, d.attempts,
       d.due_at, d.error, e.created_at
  FROM outbox_delivery d JOIN outbox_sequenced e ON e.seq = d.seq
 WHERE d.state = 'failed';

-- Events that were given up: dead letters that are not being retried.
CREATE OR REPLACE SQL SECURITY INVOKER VIEW outbox_find_abandoned AS
SELECT consumer, seq, id, type, aggregate_type, aggregate_id, payload, attempts, error, dead_at,
       created_at
  FROM outbox_dead WHERE retrying = 0;

-- Delivered events that are still stored; if SQL cannot tell the lane, those with a receipt.
CREATE OR REPLACE SQL SECURITY INVOKER VIEW outbox_find_published AS
SELECT d.consumer, e.seq, e.id, e.type, e.aggregate_type, e.aggregate_id, e.payload, e.created_at
  FROM outbox_delivery d JOIN outbox_sequenced e ON e.seq = d.seq
 WHERE d.state = 'delivered'
    OR d.state = 'unknown' AND EXISTS (SELECT 1 FROM outbox_receipt r
                                        WHERE r.consumer = d.consumer AND r.seq = d.seq
                                          AND r.event_id = e.id);

-- Names known from other outboxes (docs/coming-from.md). last_processed_id: the consumer is done
-- with everything up to it. The retry is that of the first event that failed and waits.
CREATE OR REPLACE SQL SECURITY INVOKER VIEW outbox_listeners AS
SELECT c.name AS listener_id,
       least((SELECT min(l.position) FROM outbox_lane l WHERE l.consumer = c.name),
             coalesce((SELECT min(k.from_seq) FROM outbox_claim k
                        WHERE k.consumer = c.name AND k.parked = 0), 9223372036854775807),
             coalesce((SELECT min(w.seq) - 1 FROM outbox_parked w
                        WHERE w.consumer = c.name
                          AND NOT EXISTS (SELECT 1 FROM outbox_dead d
                                           WHERE d.consumer = w.consumer AND d.seq = w.seq)),
                      9223372036854775807)) AS last_processed_id,
       r.at AS last_processed_at, coalesce(p.attempts, 0) AS retry_count, p.due_at AS retry_after,
       p.error AS last_error, c.created_at,
       greatest(c.created_at, coalesce(r.at, 0), coalesce(p.failed_at, 0),
                coalesce(c.report_at, 0)) AS updated_at
  FROM outbox_consumer c
  LEFT JOIN outbox_receipt r ON r.consumer = c.name
       AND r.seq = (SELECT max(x.seq) FROM outbox_receipt x WHERE x.consumer = c.name)
  LEFT JOIN outbox_parked p ON p.consumer = c.name
       AND p.seq = (SELECT min(x.seq) FROM outbox_parked x
                     WHERE x.consumer = c.name AND x.failed_at IS NOT NULL);

CREATE OR REPLACE SQL SECURITY INVOKER VIEW outbox_dead_letters AS
SELECT consumer AS listener_id, seq AS outbox_event_id, error, dead_at AS failed_at
  FROM outbox_dead WHERE retrying = 0;

CREATE OR REPLACE SQL SECURITY INVOKER VIEW outbox_dlq AS
SELECT consumer, id AS original_outbox_id, type AS topic, aggregate_type AS aggregate_kind,
       aggregate_id, version AS source_entity_version, payload, headers AS telemetry_envelope,
       tenant AS tenant_id, attempts AS publish_attempts, error AS final_error, created_at,
       dead_at AS failed_at
  FROM outbox_dead WHERE retrying = 0;

CREATE OR REPLACE SQL SECURITY INVOKER VIEW outbox_event_handled AS
SELECT CONVERT(handler USING utf8mb4) AS handler_name,
       CONVERT(`key` USING utf8mb4) AS idempotency_key, at AS handled_at
  FROM outbox_handled;

CREATE OR REPLACE SQL SECURITY INVOKER VIEW outbox_consumed_events AS
SELECT CONVERT(`key` USING utf8mb4) AS event_id, CONVERT(handler USING utf8mb4) AS consumer,
       at AS consumed_at
  FROM outbox_handled;
