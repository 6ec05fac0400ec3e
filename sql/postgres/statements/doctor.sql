-- The checks of `outbox doctor` (src/store/postgres/doctor.c), in the order in which they are made.
-- The line above a check has its name, and what is reported if the check finds nothing. Each row
-- is a finding: its level, its text, what to do about it, and an age in ms, for which @age@ stands
-- in the text. $1 is the age from which a transaction or an expired claim is worth a warning.

-- server:
SELECT 'problem', 'this server is a standby: nothing can be emitted or claimed here',
       'connect to the primary'
WHERE pg_is_in_recovery()
UNION ALL
SELECT 'ok', 'PostgreSQL ' || current_setting('server_version'), NULL

-- connections:
-- pg_stat_database counts all sessions; pg_stat_activity hides most of them from an ordinary role.
SELECT CASE WHEN c.used * 100 >= c.most * 90 THEN 'warning' ELSE 'ok' END,
       format('%s of %s connections are in use', c.used, c.most),
       'raise max_connections, close idle connections, or use a connection pooler'
FROM (
    SELECT sum(numbackends) AS used,
           current_setting('max_connections')::int
               - current_setting('superuser_reserved_connections')::int AS most
    FROM pg_stat_database
) c

-- transaction: no transaction is open
-- The oldest transaction holds back VACUUM. An ordinary role sees that other sessions have a
-- transaction open, but not since when.
WITH t AS (
    SELECT a.*, (extract(epoch FROM clock_timestamp() - xact_start) * 1000)::bigint AS ms
    FROM pg_stat_activity a
    WHERE pid <> pg_backend_pid()
      AND coalesce(backend_type, 'client backend') IN ('client backend', 'background worker')
      AND (backend_xid IS NOT NULL OR backend_xmin IS NOT NULL)
)
(SELECT CASE WHEN ms > $1 THEN 'warning' ELSE 'ok' END,
        format('the oldest transaction is @age@ old: pid %s, database "%s", role "%s", '
               'application "%s", %s, %s%s',
               pid, datname, usename, application_name, state,
               CASE WHEN backend_xid IS NOT NULL THEN 'has written' ELSE 'has only read' END,
               CASE WHEN ms > $1 THEN '; until it ends, dead rows are not removed and its '
                                      'events are not delivered' END),
        format('end it: SELECT pg_terminate_backend(%s)', pid), ms
 FROM t
 WHERE xact_start IS NOT NULL
 ORDER BY xact_start
 LIMIT 1)
UNION ALL
SELECT 'note',
       format('%s transactions of other roles are open, and this role may not see since when',
              count(*)),
       'grant this role pg_read_all_stats', NULL
FROM t
WHERE xact_start IS NULL
HAVING count(*) > 0

-- prepared-transaction: no transaction is prepared
SELECT CASE WHEN p.ms > $1 THEN 'problem' ELSE 'note' END,
       format('%s prepared, the oldest @age@ ago: "%s" in database "%s" by role "%s"%s',
              CASE WHEN p.n = 1 THEN 'a transaction is' ELSE 'transactions are' END,
              p.gid, p.database, p.owner,
              CASE WHEN p.ms > $1 THEN '; it survives every restart, and its events wait until '
                                       'it is ended' END),
       CASE WHEN p.ms > $1 THEN 'in that database: COMMIT PREPARED or ROLLBACK PREPARED '
                                || quote_literal(p.gid) END, p.ms
FROM (
    SELECT *, count(*) OVER () AS n,
           (extract(epoch FROM clock_timestamp() - prepared) * 1000)::bigint AS ms
    FROM pg_prepared_xacts
    ORDER BY prepared
    LIMIT 1
) p

-- wraparound:
-- A warning long before the server runs out of transaction ids and refuses writes.
SELECT CASE WHEN d.xids > 1500000000 THEN 'problem' ELSE 'ok' END,
       CASE WHEN d.xids > 1500000000
            THEN format('database "%s" is %s transactions away from its last freeze; at 2.1 '
                        'billion the server refuses writes', d.datname, d.xids)
            ELSE format('%s transactions since the last freeze', d.xids) END,
       'end old and prepared transactions, drop unused replication slots, then VACUUM that database'
FROM (SELECT datname, age(datfrozenxid) AS xids FROM pg_database ORDER BY 2 DESC LIMIT 1) d

-- durability: a commit is on disk when it returns (synchronous_commit)
-- Only the worst finding. roles: those for which synchronous_commit is off.
SELECT f.level, f.text, f.advice
FROM (
    SELECT current_setting('fsync') AS fsync, current_setting('full_page_writes') AS pages,
           (SELECT string_agg(c.relname, ', ')
            FROM pg_class c
            WHERE c.relnamespace = to_regnamespace('@schema@')
              AND c.relpersistence = 'u' AND c.relkind = 'r') AS unlogged,
           (SELECT string_agg(CASE WHEN s.setrole = 0 THEN 'every role'
                                   ELSE 'role "' || pg_get_userbyid(s.setrole) || '"' END
                              || CASE WHEN s.setdatabase = 0 THEN ''
                                      ELSE ' in this database' END, ', ')
            FROM pg_db_role_setting s
            WHERE s.setdatabase IN (
                      0, (SELECT oid FROM pg_database WHERE datname = current_database()))
              AND EXISTS (SELECT 1 FROM unnest(s.setconfig) c
                          WHERE c ~* '^synchronous_commit=(off|false|no|0)$')) AS roles,
           CASE WHEN current_setting('synchronous_commit') = 'off' THEN 'this role' END AS here
) s, LATERAL (VALUES
    (1, s.fsync = 'off' OR s.pages = 'off', 'warning',
     format('fsync is %s, full_page_writes is %s: if the machine crashes, committed data may be '
            'lost or corrupted, including events, some of which may have been delivered already',
            s.fsync, s.pages),
     'set fsync and full_page_writes to on, and restart the server'),
    (2, s.unlogged IS NOT NULL, 'problem',
     'tables are unlogged, and empty after a crash: ' || s.unlogged, 'ALTER TABLE ... SET LOGGED'),
    (3, coalesce(s.roles, s.here) IS NOT NULL, 'warning',
     format('synchronous_commit is off for %s: if the server crashes, its last commits are lost, '
            'including events (none that was delivered: relays commit to disk before they deliver)',
            coalesce(s.roles, s.here)),
     'set synchronous_commit to on for roles that emit')
) f (nth, holds, level, text, advice)
WHERE f.holds
ORDER BY f.nth
LIMIT 1

-- grants:
-- Without the right to use the schema, the role cannot call _rights: the next check is left out.
SELECT 'problem', format('schema %s is closed to role "%s"', '@schema@', current_user),
       '`outbox grant consumer ROLE`'
WHERE NOT has_schema_privilege('@schema@'::regnamespace, 'USAGE')

-- grants: this role has all rights that relays and operators need
-- The rights that a part needs and the role does not have. A right may be for some columns only.
SELECT g.level,
       format('role "%s" cannot work as %s, it lacks %s', current_user, g.part,
              string_agg(m.p[1] || ' on ' || r.object, ', ')),
       g.advice
FROM (VALUES
    (1, 'consumer', 'problem', '`outbox grant consumer ROLE`'),
    (2, 'operator', 'note', '`outbox grant operator ROLE`, if it is to trim')
) g (nth, part, level, advice),
LATERAL @schema@._rights(g.part) r,
LATERAL regexp_matches(r.privilege, '([A-Z]+)(?: [(]([^)]*)[)])?', 'g') m(p)
WHERE r.kind <> 'SCHEMA'
  AND NOT CASE
      WHEN r.kind = 'FUNCTION' THEN has_function_privilege(to_regproc(r.object), m.p[1])
      WHEN r.kind = 'SEQUENCE' THEN has_sequence_privilege(r.object, m.p[1])
      WHEN m.p[2] IS NULL THEN has_table_privilege(r.object, m.p[1])
      ELSE (SELECT bool_and(has_column_privilege(r.object, c, m.p[1]))
            FROM regexp_split_to_table(m.p[2], ', ') c)
      END
GROUP BY g.nth, g.part, g.level, g.advice
ORDER BY g.nth

-- wakeup: a commit wakes sleeping relays
SELECT f.level, f.text, f.advice
FROM (
    SELECT @schema@.wakeup_works() AS works,
           current_setting('outbox.wakeup', true) = 'off' AS switched_off,
           (pg_notification_queue_usage() * 100)::int AS used
) s, LATERAL (VALUES
    (1, pg_is_in_recovery(), 'warning', 'relays cannot be woken on a standby',
     'connect to the primary'),
    (2, NOT s.works AND s.switched_off, 'note',
     'switched off by the setting outbox.wakeup: relays poll every few milliseconds instead',
     'reset the setting outbox.wakeup'),
    (3, NOT s.works, 'note',
     format('max_prepared_transactions is %s, and a transaction that has notified cannot be '
            'prepared: relays poll every few milliseconds instead',
            current_setting('max_prepared_transactions')),
     'set max_prepared_transactions to 0, or outbox.wakeup to on if no client prepares a '
     'transaction that emits'),
    (4, s.used >= 50, 'warning',
     format('the queue of notifications is %s %% full; once it is, emits fail', s.used),
     'end the oldest transaction of a session that listens')
) f (nth, holds, level, text, advice)
WHERE f.holds
ORDER BY f.nth
LIMIT 1

-- dead-rows:
WITH t AS (
    SELECT c.relname, pg_stat_get_dead_tuples(c.oid) AS dead,
           pg_stat_get_live_tuples(c.oid) AS live, pg_size_pretty(pg_table_size(c.oid)) AS size
    FROM pg_class c
    WHERE c.relnamespace = '@schema@'::regnamespace
      AND c.relname IN ('lane', 'claim', 'parked', 'event')
    ORDER BY 2 DESC
),
many AS (SELECT * FROM t WHERE dead > 50000 AND dead >= live / 5)
SELECT 'warning',
       format('table %s has %s dead rows beside %s live ones (%s)', relname, dead, live, size),
       format('end the transaction that keeps them alive, if one is named here; VACUUM %s.%s',
              '@schema@', relname)
FROM many
UNION ALL
SELECT 'warning', 'autovacuum is off: dead rows are not removed', 'turn autovacuum on'
WHERE current_setting('autovacuum') = 'off'
UNION ALL
SELECT 'ok', format('%s dead rows', sum(dead)), NULL
FROM t
HAVING NOT EXISTS (SELECT 1 FROM many) AND current_setting('autovacuum') <> 'off'

-- claim: no claim is left behind
SELECT 'warning',
       format('consumer "%s": %s claim%s of workers that vanished, and no relay takes them over; '
              'the oldest expired @age@ ago (%s)',
              c.consumer, c.n, CASE WHEN c.n > 1 THEN 's' END, c.owner),
       'start a relay that runs this consumer, to take them over', c.ms
FROM (
    SELECT consumer, count(*) AS n, (array_agg(owner ORDER BY locked_until))[1] AS owner,
           (extract(epoch FROM @schema@._clock() - min(locked_until)) * 1000)::bigint AS ms
    FROM @schema@.claim
    WHERE locked_until <= @schema@._clock()
    GROUP BY consumer
) c
WHERE c.ms > $1
ORDER BY c.consumer

-- position: every consumer has its position
-- Rows of table lane may have been deleted by hand.
SELECT 'problem',
       format('consumer "%s" has lost its position, and receives nothing: %s of its %s rows in '
              'table lane are left', c.name, count(x.lane), c.lanes + 1),
       format('restore the rows, or run `outbox consumers remove %s` and start the consumer '
              'again where you want it to begin', c.name)
FROM @schema@.consumer c
LEFT JOIN LATERAL @schema@._lanes(c.name, c.lanes) x ON true
GROUP BY c.name, c.lanes
HAVING count(x.lane) <= c.lanes
ORDER BY c.name

-- restore:
-- Positions consist of transaction ids, which mean nothing in another cluster.
SELECT f.level, f.text, f.advice
FROM (
    SELECT concat_ws('; ', t.moved, t.numbers) AS trouble, t.sequence,
           (SELECT value FROM @schema@.meta WHERE name = 'rebaselined_at') AS rebaselined_at,
           (SELECT value FROM @schema@.meta WHERE name = 'renumbered_at') AS renumbered_at,
           (SELECT value FROM @schema@.meta WHERE name = 'renumbered_why') AS why
    FROM @schema@._trouble() t
) s, LATERAL (VALUES
    (1, s.renumbered_at IS NOT NULL, 'note',
     format('event numbers had restarted, or came from elsewhere, and were repaired at %s: %s',
            s.renumbered_at, s.why), NULL),
    (2, s.sequence IS NOT NULL, 'warning',
     s.sequence || ': consumers continue, but read more than they need to',
     'run `outbox status` as the outbox''s owner: it repairs the sequence'),
    (3, s.trouble <> '', 'problem',
     'this is not the outbox its consumers know, and nothing is handed out until it is repaired: '
     || s.trouble,
     'run `outbox status` as the outbox''s owner: it repairs that; some events may be delivered '
     'again'),
    (4, s.trouble = '' AND s.rebaselined_at IS NOT NULL, 'note',
     'the outbox was restored elsewhere, and its positions were corrected, at '
     || s.rebaselined_at, NULL),
    (5, s.trouble = '' AND s.rebaselined_at IS NULL, 'ok',
     'this outbox is in the cluster where it was created', NULL)
) f (nth, holds, level, text, advice)
WHERE f.holds
ORDER BY f.nth

-- lock: no lock blocks the relays
-- Unrelated sessions that hold a wake-up lock, and transactions that lock a consumer. A worker
-- locks its consumer only for a moment.
SELECT 'warning',
       'an unrelated session holds a wake-up lock, so relays poll every second instead of being '
       'woken: ' || w,
       'end that session, and find out why its role took the lock', NULL
FROM @schema@._wakeup_foreign_holders() w
WHERE w IS NOT NULL
UNION ALL
(SELECT 'warning', format('consumer "%s" has been locked for @age@ by %s', c.name, h.who),
        'end that transaction: no worker of this consumer can claim until then', h.ms
 FROM @schema@.consumer c,
 LATERAL (SELECT who, floor(extract(epoch FROM clock_timestamp() - since) * 1000)::bigint AS ms
          FROM @schema@._holder(c.xmax)) h
 WHERE h.ms > $1
 ORDER BY c.name)

-- marked:
-- The events of these rows are still delivered, so no other check reports it.
SELECT 'problem',
       format('rows of table %s are not marked, though consumer %s has received them, since %s: %s',
              m.tab, m.consumer,
              to_char(m.error_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS "UTC"'), m.error),
       'fix the cause; or run `outbox adopt TABLE --drop-mark`, and stop what delivered these rows '
       'before'
FROM @schema@.marking m
WHERE m.error IS NOT NULL
ORDER BY m.id

-- insert-only:
SELECT 'problem',
       'the trigger insert_only on table event is off: UPDATE, DELETE and TRUNCATE can lose events '
       'silently',
       'ALTER TABLE event ENABLE TRIGGER insert_only, or create it again with the output of '
       '`outbox migrate gen`'
WHERE NOT EXISTS (
    SELECT 1
    FROM pg_catalog.pg_trigger t
    WHERE t.tgrelid = '@schema@.event'::regclass
      AND t.tgname = 'insert_only'
      AND t.tgenabled IN ('O', 'A'))

-- lost:
-- Events that wait for a retry, and were deleted: trim never deletes those, and a dead letter that
-- was sent back has its own copy. Other early deletions cannot be detected: sequences have gaps.
SELECT 'problem',
       format('consumer "%s": %s events waiting for it were deleted; the first is %s',
              p.consumer, count(*), min(p.seq)),
       'restore them from a backup, or emit them again'
FROM (SELECT x.consumer, x.seq FROM @schema@.parked x LIMIT 10000) p
WHERE NOT EXISTS (SELECT 1 FROM @schema@.event e WHERE e.seq = p.seq)
  AND NOT EXISTS (SELECT 1 FROM @schema@.dead d WHERE d.consumer = p.consumer AND d.seq = p.seq)
GROUP BY p.consumer
ORDER BY p.consumer
