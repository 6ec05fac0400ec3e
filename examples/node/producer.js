#!/usr/bin/env node
// A producer: places orders, and emits an event for each in the transaction that writes it.
//
//     node producer.js        $DATABASE_URL, or $PGHOST, $PGDATABASE and so on, say which database
'use strict';
const { Client } = require('pg');

// Commits the work of `work`, or rolls it back if that throws.
async function transaction(db, work) {
  await db.query('BEGIN');
  try {
    const result = await work();
    await db.query('COMMIT');
    return result;
  } catch (error) {
    await db.query('ROLLBACK').catch(() => {}); // the first error is the one to report
    throw error;
  }
}

async function insertOrder(db, customer, total) {
  const done = await db.query('INSERT INTO shop_order (customer, total) VALUES ($1, $2) RETURNING id',
    [customer, total]);
  return done.rows[0].id;
}

// placeOrder writes an order and its event: both, or neither.
async function placeOrder(db, customer, total, pay = async () => {}) {
  const placed = await transaction(db, async () => {
    const id = await insertOrder(db, customer, total);
    const done = await db.query("SELECT outbox.emit('order.created', 'order', $1, $2) AS id",
      [id, { customer, total }]);
    await pay();
    return { id, event: done.rows[0].id };
  });
  console.log(`order ${placed.id} of ${customer}: event ${placed.event}`);
}

// importOrder does the same with a plain INSERT, which is an event as well.
async function importOrder(db, customer, total) {
  const id = await transaction(db, async () => {
    const id = await insertOrder(db, customer, total);
    await db.query(
      `INSERT INTO outbox.event (type, aggregate_type, aggregate_id, payload)
       VALUES ('order.created', 'order', $1, $2)`,
      [id, { customer, total }]);
    return id;
  });
  console.log(`order ${id} of ${customer}: imported`);
}

class CardDeclined extends Error {}

async function main() {
  const db = new Client({ connectionString: process.env.DATABASE_URL });
  await db.connect();
  await db.query(`CREATE TABLE IF NOT EXISTS shop_order
    (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, customer text NOT NULL, total int NOT NULL)`);
  await placeOrder(db, 'ada', 30);
  try {
    await placeOrder(db, 'bob', 50, async () => { throw new CardDeclined('card declined'); });
  } catch (error) {
    if (!(error instanceof CardDeclined)) throw error;
    console.log(`order of bob: ${error.message}; rolled back, and its event with it`);
  }
  await importOrder(db, 'ada', 12);
  await db.end();
}

main().catch((error) => { console.error(error); process.exit(1); });
