-- claim.sql: the statements of turns that are specific to MariaDB, and those that assign events
-- their place in the order of commits.

-- places: the places of the events after a position.
SELECT seq, nr FROM outbox_order WHERE seq > :position ORDER BY seq LIMIT :max;

-- events_between: events in table order: the columns of fresh_events, but nr for seq.
SELECT e.nr, @chunk_columns_of_e@ FROM outbox_event e
 WHERE e.nr BETWEEN :first AND :last ORDER BY e.nr;

-- move_position: records how far events have been handed out.
UPDATE outbox_lane SET position = :position WHERE consumer = :consumer AND lane = :lane;

-- move_others: MariaDB has no claims of all lanes.
NONE;

-- list_taken: parked rows name the epoch of their claim.
NONE;

-- take_listed: makes rows part of a claim. seqs is a JSON array of their numbers.
UPDATE JSON_TABLE(:seqs, '$[*]' COLUMNS (seq BIGINT PATH '$')) taken
       STRAIGHT_JOIN outbox_parked p ON p.consumer = :consumer AND p.seq = taken.seq
   SET p.claim = :epoch;

-- promote: makes the first event of a key due, but not before its own retry.
UPDATE outbox_parked p
  JOIN (SELECT min(seq) AS seq FROM outbox_parked
         WHERE consumer = :consumer AND `key` = :key) first ON p.seq = first.seq
   SET p.due_at = greatest(:now, coalesce(p.failed_at + p.wait, 0))
 WHERE p.consumer = :consumer AND p.claim IS NULL AND p.due_at IS NULL;

-- probe: the first query of a turn: the state of the sequencer, and whether there is any marker.
SELECT next, news, EXISTS (SELECT 1 FROM outbox_fresh) FROM outbox_sequencer WHERE one = 1;

-- lock_sequencer: the session that locks this row assigns numbers until it commits.
SELECT next, news FROM outbox_sequencer WHERE one = 1 FOR UPDATE;

-- give_seq: one statement with its own read view. READ COMMITTED: it waits for no session.
INSERT INTO outbox_order (seq, nr, marker)
SELECT :next - 1 + ROW_NUMBER() OVER (ORDER BY marker), nr, marker
  FROM (SELECT marker, nr FROM outbox_fresh ORDER BY marker LIMIT :max) fresh;

-- runs: which markers were assigned these seqs, as runs without a gap. Within one give_seq both
-- grow, so markers with the same difference form one run. Markers beyond a signed number are left
-- out: no counter reaches this, but a session with write access can choose any value.
SELECT MIN(marker), COUNT(*) FROM outbox_order
 WHERE seq >= :next AND seq < :after AND marker <= 9223372036854775807
 GROUP BY CAST(marker AS SIGNED) - seq;

-- drop_run: all markers of a run belong to this session. Without LIMIT the server would also lock
-- the marker after the last one, and wait if it is not committed.
DELETE FROM outbox_fresh WHERE marker >= :first AND marker <= :last ORDER BY marker LIMIT :n;

-- drop_markers: exactly those that were assigned a seq, one by one. A range with gaps would wait
-- for a marker in it that is not committed, and then delete it.
DELETE f FROM outbox_order o STRAIGHT_JOIN outbox_fresh f ON f.marker = o.marker
 WHERE o.seq >= :next AND o.seq < :after;

-- set_next: the seq of the next event.
UPDATE outbox_sequencer SET next = :next WHERE one = 1;

-- forget_reused: if outbox_event was emptied by hand, its numbers restarted: drops old places.
DELETE o FROM outbox_fresh f STRAIGHT_JOIN outbox_order o ON o.nr = f.nr;

-- doubled: further markers of events that have one, which can only have been written by hand.
SELECT marker
  FROM (SELECT marker, ROW_NUMBER() OVER (PARTITION BY nr ORDER BY marker) AS n FROM outbox_fresh) m
 WHERE n > 1 LIMIT :max;

-- notify: makes relays notice a change other than an event.
UPDATE outbox_sequencer SET news = news + 1 WHERE one = 1;

-- wait: see outbox_wait in sql/mariadb/functions.sql.
CALL outbox_wait(:next, :news, :patience, :idle);

-- forget_letters: this claim delivered the events of retried dead letters.
DELETE d FROM outbox_parked p STRAIGHT_JOIN outbox_dead d
          ON d.consumer = p.consumer AND d.seq = p.seq
 WHERE p.consumer = :consumer AND p.claim = :epoch AND d.retrying = 1;

-- promote_behind: promotes the first event behind each delivered one, while that still has its row.
UPDATE outbox_parked p
  JOIN (SELECT min(f.seq) AS seq
          FROM (SELECT DISTINCT `key` FROM outbox_parked
                 WHERE consumer = :consumer AND claim = :epoch AND `key` <> 0) k
          STRAIGHT_JOIN outbox_parked f FORCE INDEX (by_key)
             ON f.consumer = :consumer AND f.`key` = k.`key`
         WHERE f.claim IS NULL OR f.claim <> :epoch
         GROUP BY f.`key`) first ON p.seq = first.seq
   SET p.due_at = greatest(:now, coalesce(p.failed_at + p.wait, 0))
 WHERE p.consumer = :consumer AND p.claim IS NULL AND p.due_at IS NULL;

-- put_mark: a stream's high-water mark never moves back. MariaDB sets columns one after the other,
-- so those that decide are set last.
INSERT INTO outbox_mark (stream, consumer, hi, lo, at)
VALUES (:stream, :consumer, :hi, :lo, :now)
    ON DUPLICATE KEY UPDATE
       at = IF((VALUES(hi), VALUES(lo)) > (hi, lo), VALUES(at), at),
       lo = IF(VALUES(hi) > hi OR (VALUES(hi) = hi AND VALUES(lo) > lo), VALUES(lo), lo),
       hi = greatest(hi, VALUES(hi));

-- clock: the time by the server's clock.
SELECT @server_clock@;
