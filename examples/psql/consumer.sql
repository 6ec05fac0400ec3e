-- A consumer in pure SQL: it adds each order to its customer's revenue, exactly once.
--
--     psql -f consumer.sql        $PGHOST, $PGDATABASE and so on say which database
--
-- It handles the events due now, and ends. To continue, run it again: from cron, or with
-- consumer.sh, which also survives a lost connection.
-- psql -v backoff_ms=100 makes the first retry due after 100 ms instead of a second.
\set ON_ERROR_STOP on
\if :{?backoff_ms}
\else
\set backoff_ms 1000
\endif
SET client_min_messages = warning;

CREATE TABLE IF NOT EXISTS revenue (customer text PRIMARY KEY, total bigint NOT NULL);
SELECT outbox.register('revenue', events => 'order.*') AS new_consumer;

-- handle_order takes effect for one event, and records that in the same transaction: if the event
-- is redelivered because the connection broke before it was settled, handle_once returns false.
CREATE OR REPLACE PROCEDURE pg_temp.handle_order(inbox_key text, payload json)
LANGUAGE plpgsql AS $$
BEGIN
    IF outbox.handle_once('revenue', inbox_key) THEN
        INSERT INTO revenue AS r (customer, total)
        VALUES (payload ->> 'customer', (payload ->> 'total')::bigint)
        ON CONFLICT (customer) DO UPDATE SET total = r.total + excluded.total;
    END IF;
END
$$;

-- deliver_orders claims, handles and settles until nothing is due. A failed event is retried later,
-- three attempts in all; events not named in outcomes were delivered.
CREATE OR REPLACE PROCEDURE pg_temp.deliver_orders(worker text, backoff_ms bigint)
LANGUAGE plpgsql AS $$
DECLARE
    ev record;
    claim bigint;
    key text;
    waiting text[];  -- keys with an event that waits: later events of the key must wait, too
    outcomes jsonb;
    outcome jsonb;
BEGIN
    LOOP
        claim := NULL; outcomes := '[]'; waiting := '{}';
        FOR ev IN
            SELECT * FROM outbox.claim('revenue', worker, max_events => 100, lease_ms => 30000)
        LOOP
            -- First the claim, which must be durable before anything happens; then each event by
            -- itself.
            COMMIT;
            claim := ev.epoch;
            key := coalesce(ev.aggregate_type || '/' || ev.aggregate_id, ev.seq::text);
            outcome := NULL;
            IF ev.held OR key = ANY (waiting) THEN
                outcome := jsonb_build_object('kind', 'behind', 'attempts', ev.attempts);
            ELSIF ev.delayed THEN
                outcome := jsonb_build_object('kind', 'delay', 'attempts', ev.attempts);
            ELSE
                BEGIN
                    CALL pg_temp.handle_order(ev.inbox_key, ev.payload);
                EXCEPTION WHEN OTHERS THEN
                    outcome := jsonb_build_object(
                        'kind', CASE WHEN ev.attempts < 2 THEN 'retry' ELSE 'dead' END,
                        'attempts', ev.attempts + 1,
                        'delay_ms', backoff_ms * 2 ^ ev.attempts,
                        'error', SQLSTATE || ': ' || SQLERRM);
                END;
            END IF;
            IF outcome IS NOT NULL THEN
                outcomes := outcomes || (outcome || jsonb_build_object('seq', ev.seq));
                IF outcome ->> 'kind' <> 'dead' THEN
                    waiting := waiting || key;
                END IF;
            END IF;
        END LOOP;
        EXIT WHEN claim IS NULL;
        IF NOT outbox.settle('revenue', worker, claim, outcomes) THEN
            RAISE WARNING 'the lease expired: another worker has the batch now';
        END IF;
        COMMIT;
    END LOOP;
END
$$;

SELECT 'psql/' || gen_random_uuid() AS worker \gset
CALL pg_temp.deliver_orders(:'worker', :backoff_ms);
