#!/usr/bin/env node
// A consumer: adds the orders to their customers' revenue, each exactly once.
//
//     node consumer.js [--drain]        $DATABASE_URL, or $PGHOST, $PGDATABASE and so on, say which database
//
// Start as many as you like. With --drain it ends when nothing is left to do; without, it waits for more.
'use strict';
const { randomUUID } = require('crypto');
const { hostname } = require('os');
const { setTimeout: sleep } = require('timers/promises');
const { Client } = require('pg');

const CONSUMER = 'revenue';
const WORKER = `${hostname()}/${randomUUID()}`; // another one with every start
const MAX_ATTEMPTS = 3;
const BACKOFF_MS = Number(process.env.BACKOFF_MS || 1000);
const POLL_MS = 200;

// handle takes effect for one event. That it did is recorded in the same transaction: should the event come again,
// because we died before we could settle it, handle_once says no.
async function handle(db, ev) {
  await db.query('BEGIN');
  try {
    const { rows } = await db.query('SELECT outbox.handle_once($1, $2) AS first', [CONSUMER, ev.id]);
    if (rows[0].first) {
      await db.query(
        `INSERT INTO revenue AS r (customer, total) VALUES ($1, $2)
         ON CONFLICT (customer) DO UPDATE SET total = r.total + excluded.total`,
        [ev.payload.customer, ev.payload.total]);
    }
    await db.query('COMMIT');
  } catch (error) {
    await db.query('ROLLBACK').catch(() => {}); // the first error is the one to tell
    throw error;
  }
}

// failure says what becomes of an event that could not be handled: it is tried again later, or never.
function failure(ev, error) {
  const attempts = ev.attempts + 1;
  console.error(`event ${ev.id}, attempt ${attempts}: ${error.message}`);
  if (attempts >= MAX_ATTEMPTS) return { kind: 'dead', attempts, error: error.message };
  return { kind: 'retry', attempts, delay_ms: Math.min(BACKOFF_MS * 2 ** ev.attempts, 300000), error: error.message };
}

// deliver handles a batch and gives the outcomes to settle it with: only what was *not* delivered.
async function deliver(db, batch) {
  const outcomes = [];
  const waiting = new Set();
  for (const ev of batch) {
    const key = ev.aggregate_id === null ? ev.seq : JSON.stringify([ev.aggregate_type, ev.aggregate_id]);
    let outcome;
    if (ev.held || waiting.has(key)) outcome = { kind: 'behind', attempts: ev.attempts }; // its key waits: order
    else if (ev.delayed) outcome = { kind: 'delay', attempts: ev.attempts }; // its time has not come
    else {
      try {
        await handle(db, ev);
        continue;
      } catch (error) {
        outcome = failure(ev, error);
      }
    }
    if (outcome.kind !== 'dead') waiting.add(key);
    outcomes.push({ seq: ev.seq, ...outcome });
  }
  return outcomes;
}

async function claim(db) {
  // A transaction of its own: until the lease is over (30 s), these are ours alone.
  const done = await db.query('SELECT * FROM outbox.claim($1, $2, max_events => 100, lease_ms => 30000)',
    [CONSUMER, WORKER]);
  return done.rows;
}

async function settle(db, epoch, outcomes) {
  const done = await db.query('SELECT outbox.settle($1, $2, $3, $4) AS ours',
    [CONSUMER, WORKER, epoch, JSON.stringify(outcomes)]);
  if (!done.rows[0].ours) console.error('the lease ran out: somebody else has the batch now');
}

// idle says whether nothing waits for a retry, for its time, or in another worker's hands.
async function idle(db) {
  const done = await db.query('SELECT parked + inflight = 0 AS idle FROM outbox.consumer_status WHERE name = $1',
    [CONSUMER]);
  return done.rows[0].idle;
}

async function main() {
  const drain = process.argv.includes('--drain');
  const db = new Client({ connectionString: process.env.DATABASE_URL });
  await db.connect();
  await db.query('CREATE TABLE IF NOT EXISTS revenue (customer text PRIMARY KEY, total bigint NOT NULL)');
  await db.query("SELECT outbox.register($1, events => 'order.*')", [CONSUMER]);
  for (;;) {
    const batch = await claim(db);
    if (batch.length > 0) await settle(db, batch[0].epoch, await deliver(db, batch));
    else if (drain && await idle(db)) break;
    else await sleep(POLL_MS);
  }
  await db.end();
}

main().catch((error) => { console.error(error); process.exit(1); });
