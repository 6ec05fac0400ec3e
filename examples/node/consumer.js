#!/usr/bin/env node
// A consumer: adds the orders to their customers' revenue, each exactly once.
//
//     node consumer.js [--drain]        $DATABASE_URL, or $PGHOST, $PGDATABASE and so on, say which database
//
// Start as many as you like. With --drain it ends when no event is due; otherwise it waits for
// more. Events emitted for later are left until they are due. A lost connection is reopened.
'use strict';
const { randomUUID } = require('crypto');
const { hostname } = require('os');
const { setTimeout: sleep } = require('timers/promises');
const { Client } = require('pg');

const CONSUMER = 'revenue';
const WORKER = `${hostname()}/${randomUUID()}`; // a new one for every start
const MAX_ATTEMPTS = 3;
const BACKOFF_MS = Number(process.env.BACKOFF_MS || 1000);
const POLL_MS = 200;
const RECONNECT_MS = 500;

// Includes the kind of error: a message alone may be meaningless.
function described(error) {
  return `${error.constructor.name}: ${error.message}`;
}

// A connection that is reopened after a server restart or an administrator closed it. Everything
// done here may be repeated: after a lost answer to a claim its events return, and handle_once and
// settle return false the second time.
class Database {
  async connect() {
    this.client = new Client({ connectionString: process.env.DATABASE_URL });
    this.client.on('error', () => {}); // while idle; the next query fails and reports it
    await this.client.connect();
  }

  async connectAgain(error) {
    console.error(`lost the database: ${described(error)}`);
    await this.client.end().catch(() => {});
    for (;;) {
      await sleep(RECONNECT_MS);
      try {
        return await this.connect();
      } catch {
        continue;
      }
    }
  }

  // Commits the work of `work`, and returns its result. If even ROLLBACK fails, the connection is
  // lost.
  async transaction(work) {
    for (;;) {
      try {
        await this.client.query('BEGIN');
        const result = await work((text, params) => this.client.query(text, params));
        await this.client.query('COMMIT');
        return result;
      } catch (error) {
        const lost = await this.client.query('ROLLBACK').then(() => false, () => true);
        if (!lost) throw error;
        await this.connectAgain(error);
      }
    }
  }

  async rows(text, params) {
    return (await this.transaction((query) => query(text, params))).rows;
  }
}

// Takes effect for one event, and records that in the same transaction: if the event is redelivered
// because we died before settling it, handle_once returns false.
async function handle(db, ev) {
  await db.transaction(async (query) => {
    const { rows } = await query('SELECT outbox.handle_once($1, $2) AS first', [CONSUMER, ev.inbox_key]);
    if (!rows[0].first) return;
    await query(
      `INSERT INTO revenue AS r (customer, total) VALUES ($1, $2)
       ON CONFLICT (customer) DO UPDATE SET total = r.total + excluded.total`,
      [ev.payload.customer, ev.payload.total]);
  });
}

// Returns the outcome of an event that could not be handled: retried later, or never.
function failure(ev, error) {
  const attempts = ev.attempts + 1;
  const text = described(error);
  console.error(`event ${ev.id}, attempt ${attempts}: ${text}`);
  if (attempts >= MAX_ATTEMPTS) return { kind: 'dead', attempts, error: text };
  return { kind: 'retry', attempts, delay_ms: Math.min(BACKOFF_MS * 2 ** ev.attempts, 300000), error: text };
}

// Handles a batch and returns the outcomes for its settlement: only events that were *not*
// delivered.
async function deliver(db, batch) {
  const outcomes = [];
  const waiting = new Set();
  for (const ev of batch) {
    const key = ev.aggregate_id === null ? ev.seq : JSON.stringify([ev.aggregate_type, ev.aggregate_id]);
    let outcome;
    if (ev.held || waiting.has(key)) outcome = { kind: 'behind', attempts: ev.attempts }; // its key waits: keep the order
    else if (ev.delayed) outcome = { kind: 'delay', attempts: ev.attempts }; // not due yet
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
  // Its own transaction: until the lease expires (30 s), these events are ours alone.
  return db.rows('SELECT * FROM outbox.claim($1, $2, max_events => 100, lease_ms => 30000)', [CONSUMER, WORKER]);
}

async function settle(db, epoch, outcomes) {
  const [{ ours }] = await db.rows('SELECT outbox.settle($1, $2, $3, $4) AS ours',
    [CONSUMER, WORKER, epoch, JSON.stringify(outcomes)]);
  if (!ours) console.error('already settled, or another worker took over after the lease expired');
}

// Returns whether no event is claimed or waits for a retry. Events that are not due yet do not
// count, nor those that wait behind one.
async function idle(db) {
  const [{ left }] = await db.rows(
    `SELECT EXISTS (SELECT 1 FROM outbox.claim WHERE consumer = $1) OR EXISTS (SELECT 1 FROM outbox.parked
       WHERE consumer = $1 AND due_at IS NOT NULL AND (NOT delayed OR due_at <= now())) AS left`, [CONSUMER]);
  return !left;
}

async function main() {
  const drain = process.argv.includes('--drain');
  const db = new Database();
  await db.connect();
  await db.rows('CREATE TABLE IF NOT EXISTS revenue (customer text PRIMARY KEY, total bigint NOT NULL)');
  await db.rows("SELECT outbox.register($1, events => 'order.*')", [CONSUMER]);
  for (;;) {
    const batch = await claim(db);
    if (batch.length > 0) await settle(db, batch[0].epoch, await deliver(db, batch));
    else if (drain && await idle(db)) break;
    else await sleep(POLL_MS);
  }
  await db.client.end();
}

main().catch((error) => { console.error(error); process.exit(1); });
