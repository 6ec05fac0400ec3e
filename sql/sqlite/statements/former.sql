-- former.sql: filters a consumer had before. PostgreSQL: keep_filter.sql.

-- last_former (consumer text): filters are numbered in the order in which they were replaced.
SELECT max(n) FROM outbox_former_filter WHERE consumer = :consumer;

-- moved_since_former (consumer text, n int): a filter that has judged nothing since the last one
-- was kept need not be kept.
SELECT EXISTS (SELECT 1 FROM outbox_lane l JOIN outbox_consumer c ON c.name = l.consumer
                WHERE l.consumer = :consumer
                  AND NOT EXISTS (SELECT 1 FROM outbox_former_filter f
                                   WHERE f.consumer = :consumer AND f.n = :n AND f.lane = l.lane
                                     AND f.lanes = c.lanes AND f.position = l.position));

-- put_former (consumer text, n int): keeps the present filter under the next number, with how far
-- each lane has come by it.
INSERT INTO outbox_former_filter (consumer, n, lane, lanes, position, low, high, epoch, events,
                                  predicate)
SELECT c.name, :n + 1, l.lane, c.lanes, l.position,
       (SELECT min(position) FROM outbox_lane WHERE consumer = :consumer),
       (SELECT max(position) FROM outbox_lane WHERE consumer = :consumer),
       c.epoch, c.events, c.predicate
  FROM outbox_consumer c JOIN outbox_lane l ON l.consumer = c.name
 WHERE c.name = :consumer;

-- former_of_claim (consumer text, epoch int): the filter a claim was made with, if it was replaced
-- since.
SELECT events, predicate FROM outbox_former_filter
 WHERE consumer = :consumer AND epoch >= :epoch ORDER BY n, lane LIMIT 1;

-- taken_over_events (from_seq int, to_seq int, max int): the events of a fresh claim; not
-- range_events, which may be in use at the same time.
SELECT @event_columns@ FROM outbox_event
 WHERE seq > :from_seq AND seq <= :to_seq ORDER BY seq LIMIT :max;

-- put_ended (consumer text, seq int, state text): records the end of an event about which the
-- former filter would say something wrong.
INSERT OR IGNORE INTO outbox_ended (seq, consumer, state) VALUES (:seq, :consumer, :state);
