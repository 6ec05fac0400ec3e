-- sequence.sql: giving events their seq, in the order of their commits. See outbox_order in
-- sql/mariadb/0001_outbox.sql for why this is exact.

-- probe (): what a turn asks first: the state of the sequencer, and whether any marker waits.
SELECT next, news, EXISTS (SELECT 1 FROM outbox_fresh) FROM outbox_sequencer WHERE one = 1;

-- lock_sequencer (): whoever has this row sequences, until it commits.
SELECT next, news FROM outbox_sequencer WHERE one = 1 FOR UPDATE;

-- give_seq (next int, max int): one statement with a read view of its own, after the lock. Under
-- READ COMMITTED it locks no marker, so it waits for nobody.
INSERT INTO outbox_order (seq, nr)
SELECT :next - 1 + ROW_NUMBER() OVER (ORDER BY nr), nr
  FROM (SELECT nr FROM outbox_fresh ORDER BY nr LIMIT :max) fresh;

-- runs (next int, after int): which numbers got these seq, as runs without a gap. Within one
-- give_seq both grow, so what has the same difference is one run. Numbers that a signed one cannot
-- have are left out: nobody counts so far, but a producer with all rights can choose one.
SELECT MIN(nr), COUNT(*) FROM outbox_order
 WHERE seq >= :next AND seq < :after AND nr <= 9223372036854775807
 GROUP BY CAST(nr AS SIGNED) - seq;

-- drop_run (first int, last int, n int): the markers of a run: all n numbers from first to last are
-- ours, so nobody else's is among them. It stops with the last of them: without LIMIT the server
-- would lock the one behind it, too, and wait if that is not committed.
DELETE FROM outbox_fresh WHERE nr >= :first AND nr <= :last ORDER BY nr LIMIT :n;

-- drop_markers (next int, after int): exactly those that got a seq, one by one. A range with gaps
-- would wait for a marker in it that is not committed, and then swallow it.
DELETE f FROM outbox_order o STRAIGHT_JOIN outbox_fresh f ON f.nr = o.nr
 WHERE o.seq >= :next AND o.seq < :after;

-- set_next (next int): the seq that the next event gets.
UPDATE outbox_sequencer SET next = :next WHERE one = 1;

-- forget_reused (): if somebody emptied outbox_event, its numbers began again. What an earlier
-- event had under such a number is gone.
DELETE o FROM outbox_fresh f STRAIGHT_JOIN outbox_order o ON o.nr = f.nr;

-- ring (): tells relays that something changed that is no event.
UPDATE outbox_sequencer SET news = news + 1 WHERE one = 1;

-- wait (next int, news int, patience int, idle int): see outbox_wait in sql/mariadb/functions.sql.
CALL outbox_wait(:next, :news, :patience, :idle);
