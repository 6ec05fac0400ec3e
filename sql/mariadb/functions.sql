-- functions.sql: triggers, procedures and views. `outbox init` makes them anew whenever they are
-- not those of its own build, so they need no migration.

DELIMITER //

-- An event gets its marker with the statement that inserts it. In a session without strict mode the
-- server changes what does not fit, and only warns: then nothing is stored.
CREATE OR REPLACE TRIGGER outbox_event_inserted AFTER INSERT ON outbox_event FOR EACH ROW
BEGIN
    DECLARE warnings, code INT DEFAULT 0;
    DECLARE what TEXT;
    GET DIAGNOSTICS warnings = NUMBER;
    WHILE warnings > 0 DO
        GET DIAGNOSTICS CONDITION warnings code = MYSQL_ERRNO, what = MESSAGE_TEXT;
        IF code IN (1048, 1264, 1265, 1292, 1300, 1364, 1366, 1406) THEN
            SET what = LEFT(CONCAT('outbox_event: refused, because this session would store ',
                'something else than it was given (sql_mode is not strict): ', what), 128);
            SIGNAL SQLSTATE '22000' SET MYSQL_ERRNO = 1366, MESSAGE_TEXT = what;
        END IF;
        SET warnings = warnings - 1;
    END WHILE;
    INSERT INTO outbox_fresh (nr) VALUES (NEW.nr);
END//

-- Events are never changed: a consumer may have had them.
CREATE OR REPLACE TRIGGER outbox_event_updated BEFORE UPDATE ON outbox_event FOR EACH ROW
BEGIN
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'outbox_event: events are never changed';
END//

-- A dead letter that is deleted, by whatever way, was dropped, unless it had been sent back and is
-- being settled.
CREATE OR REPLACE TRIGGER outbox_dead_deleted AFTER DELETE ON outbox_dead FOR EACH ROW
BEGIN
    IF OLD.retrying = 0 AND EXISTS (SELECT 1 FROM outbox_order WHERE seq = OLD.seq) THEN
        REPLACE INTO outbox_ended (seq, consumer, state) VALUES (OLD.seq, OLD.consumer, 'dropped');
    END IF;
END//

-- outbox_emit stores one event, in the caller's transaction. NULL for what it has not.
CREATE OR REPLACE PROCEDURE outbox_emit(type VARCHAR(256), aggregate_type VARCHAR(1025),
    aggregate_id VARCHAR(1025), payload LONGTEXT) SQL SECURITY INVOKER
BEGIN
    INSERT INTO outbox_event (type, aggregate_type, aggregate_id, payload)
    VALUES (type, aggregate_type, aggregate_id, COALESCE(payload, 'null'));
END//

-- outbox_emit_once is outbox_emit with an idempotency key: under a key that is known it stores
-- nothing, and says so. event_id is that of the first event with this key.
CREATE OR REPLACE PROCEDURE outbox_emit_once(type VARCHAR(256), aggregate_type VARCHAR(1025),
    aggregate_id VARCHAR(1025), payload LONGTEXT, idempotency_key VARBINARY(1025),
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
    SET duplicate = FALSE;
    INSERT INTO outbox_event (type, aggregate_type, aggregate_id, payload, idempotency_key)
    VALUES (type, aggregate_type, aggregate_id, COALESCE(payload, 'null'), idempotency_key);
    SELECT e.id INTO event_id FROM outbox_event e WHERE e.nr = LAST_INSERT_ID();
END//

-- outbox_wait returns when there is something new: a marker to sequence, or a change of the
-- sequencer since the caller read it; else after `patience` ms. It looks every millisecond while
-- somebody has an event in flight or there was one lately, and less often the longer nothing comes.
-- The session is READ UNCOMMITTED, so it sees events before they are committed.
CREATE OR REPLACE PROCEDURE outbox_wait(known_next BIGINT, known_news BIGINT UNSIGNED,
    patience INT) SQL SECURITY INVOKER
wait: BEGIN
    DECLARE began, active, last_look DATETIME(6) DEFAULT SYSDATE(6);
    DECLARE newest, seen BIGINT UNSIGNED DEFAULT 0;
    DECLARE nap DOUBLE;
    LOOP
        IF EXISTS (SELECT 1 FROM outbox_sequencer WHERE next <> known_next OR news <> known_news)
        THEN
            LEAVE wait;
        END IF;
        SET newest = (SELECT nr FROM outbox_fresh ORDER BY nr DESC LIMIT 1);
        IF newest IS NOT NULL AND EXISTS (SELECT nr FROM outbox_fresh LIMIT 1
                                          LOCK IN SHARE MODE SKIP LOCKED) THEN
            LEAVE wait;
        END IF;
        SET last_look = SYSDATE(6);
        IF newest IS NOT NULL AND newest <> seen THEN
            SET active = last_look, seen = newest;
        END IF;
        IF TIMESTAMPDIFF(MICROSECOND, began, last_look) > patience * 1000 THEN
            LEAVE wait;
        END IF;
        SET nap = CASE WHEN TIMESTAMPDIFF(MICROSECOND, active, last_look) < 100000 THEN 0.001
                       WHEN TIMESTAMPDIFF(MICROSECOND, active, last_look) < 2000000 THEN 0.005
                       ELSE 0.02 END;
        DO SLEEP(nap);
    END LOOP;
END//

DELIMITER ;

-- The events in the order in which they are handed out. One that was committed a moment ago has no
-- seq yet, and comes once a relay or a command of `outbox` has looked.
CREATE OR REPLACE SQL SECURITY INVOKER VIEW outbox_sequenced AS
SELECT o.seq, e.id, e.type, e.aggregate_type, e.aggregate_id, e.version, e.payload, e.headers,
       e.tenant, e.not_before, e.created_at, CONVERT(e.idempotency_key USING utf8mb4)
       AS idempotency_key
  FROM outbox_order o STRAIGHT_JOIN outbox_event e ON e.nr = o.nr;
