-- settings.sql: the settings a consumer has had.

-- put_first_setting (consumer text): the settings a consumer was created with are recorded when
-- they are first replaced. Most consumers never change theirs.
INSERT INTO outbox_setting (consumer, generation, events, predicate, ordering, lanes, since)
SELECT name, 1, events, predicate, ordering, lanes, created_at FROM outbox_consumer
 WHERE name = :consumer
   AND NOT EXISTS (SELECT 1 FROM outbox_setting WHERE consumer = :consumer);

-- put_setting (consumer text, generation int, events text, predicate text, ordering text,
-- lanes int, now int, by_whom text): the highest generation is the one in force.
INSERT INTO outbox_setting (consumer, generation, events, predicate, ordering, lanes, since,
                            by_whom)
VALUES (:consumer, :generation, :events, :predicate, :ordering, :lanes, :now, :by_whom);

-- drop_setting (consumer text, generation int): settings brought back get a new generation.
DELETE FROM outbox_setting WHERE consumer = :consumer AND generation = :generation;

-- drop_old_settings (consumer text, generation int): keeps the history of a consumer bounded.
DELETE FROM outbox_setting WHERE consumer = :consumer AND generation <= :generation;

-- count_settings (consumer text): how much room list_settings needs.
SELECT count(*) FROM outbox_setting WHERE consumer = :consumer;

-- list_settings (consumer text): newest first.
SELECT generation, events, predicate, ordering, lanes, since, by_whom FROM outbox_setting
 WHERE consumer = :consumer ORDER BY generation DESC;
