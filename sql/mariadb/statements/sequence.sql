-- sequence.sql: giving events their seq, in the order of their commits. See outbox_order in
-- sql/mariadb/0001_outbox.sql for why this is exact.

-- probe (): what a turn asks first: the state of the sequencer, and whether any marker waits.
SELECT next, news, EXISTS (SELECT 1 FROM outbox_fresh) FROM outbox_sequencer WHERE one = 1;

-- lock_sequencer (): whoever has this row sequences, until it commits.
SELECT next, news FROM outbox_sequencer WHERE one = 1 FOR UPDATE;

-- give_seq (next int, max int): one statement with a read view of its own, after the lock. Under
-- READ COMMITTED it locks no marker, so it waits for nobody.
INSERT INTO outbox_order (seq, nr, marker)
SELECT :next - 1 + ROW_NUMBER() OVER (ORDER BY marker), nr, marker
  FROM (SELECT marker, nr FROM outbox_fresh ORDER BY marker LIMIT :max) fresh;

-- runs (next int, after int): which markers got these seq, as runs without a gap. Within one
-- give_seq both grow, so what has the same difference is one run. Markers that a signed number
-- cannot have are left out: nobody counts so far, but who may write there can choose one.
SELECT MIN(marker), COUNT(*) FROM outbox_order
 WHERE seq >= :next AND seq < :after AND marker <= 9223372036854775807
 GROUP BY CAST(marker AS SIGNED) - seq;

-- drop_run (first int, last int, n int): the markers of a run: all n of them from first to last are
-- ours, so nobody else's is among them. It stops with the last of them: without LIMIT the server
-- would lock the one behind it, too, and wait if that is not committed.
DELETE FROM outbox_fresh WHERE marker >= :first AND marker <= :last ORDER BY marker LIMIT :n;

-- drop_markers (next int, after int): exactly those that got a seq, one by one. A range with gaps
-- would wait for a marker in it that is not committed, and then swallow it.
DELETE f FROM outbox_order o STRAIGHT_JOIN outbox_fresh f ON f.marker = o.marker
 WHERE o.seq >= :next AND o.seq < :after;

-- set_next (next int): the seq that the next event gets.
UPDATE outbox_sequencer SET next = :next WHERE one = 1;

-- forget_reused (): if somebody emptied outbox_event, its numbers began again. What an earlier
-- event had under such a number is gone.
DELETE o FROM outbox_fresh f STRAIGHT_JOIN outbox_order o ON o.nr = f.nr;

-- doubled (max int): further markers of events that have one, which only a hand can have written.
SELECT marker
  FROM (SELECT marker, ROW_NUMBER() OVER (PARTITION BY nr ORDER BY marker) AS n FROM outbox_fresh) m
 WHERE n > 1 LIMIT :max;

-- ring (): tells relays that something changed that is no event.
UPDATE outbox_sequencer SET news = news + 1 WHERE one = 1;

-- wait (next int, news int, patience int, idle int): see outbox_wait in sql/mariadb/functions.sql.
CALL outbox_wait(:next, :news, :patience, :idle);
