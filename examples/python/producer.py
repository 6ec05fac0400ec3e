#!/usr/bin/env python3
"""A producer: places orders, and emits an event for each in the transaction that writes it.

    python3 producer.py        $DATABASE_URL, or $PGHOST, $PGDATABASE and so on, say which database
"""
import os

import psycopg2
from psycopg2.extras import Json


class CardDeclined(Exception):
    pass


def place_order(db, customer, total, pay=lambda: None):
    """place_order writes an order and its event: both, or neither."""
    with db, db.cursor() as sql:  # one transaction: COMMIT at its end, ROLLBACK on an exception
        sql.execute("INSERT INTO shop_order (customer, total) VALUES (%s, %s) RETURNING id", (customer, total))
        order_id = sql.fetchone()[0]
        sql.execute("SELECT outbox.emit('order.created', 'order', %s, %s)",
                    (str(order_id), Json({"customer": customer, "total": total})))
        event_id = sql.fetchone()[0]
        pay()
    print(f"order {order_id} of {customer}: event {event_id}")


def import_order(db, customer, total):
    """import_order does the same with a plain INSERT, which is an event as well."""
    with db, db.cursor() as sql:
        sql.execute("INSERT INTO shop_order (customer, total) VALUES (%s, %s) RETURNING id", (customer, total))
        order_id = sql.fetchone()[0]
        sql.execute("INSERT INTO outbox.event (type, aggregate_type, aggregate_id, payload)"
                    " VALUES ('order.created', 'order', %s, %s)",
                    (str(order_id), Json({"customer": customer, "total": total})))
    print(f"order {order_id} of {customer}: imported")


def decline():
    raise CardDeclined("card declined")


def main():
    db = psycopg2.connect(os.environ.get("DATABASE_URL", ""))
    with db, db.cursor() as sql:
        sql.execute("CREATE TABLE IF NOT EXISTS shop_order"
                    " (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, customer text NOT NULL, total int NOT NULL)")
    place_order(db, "ada", 30)
    try:
        place_order(db, "bob", 50, pay=decline)
    except CardDeclined as e:
        print(f"order of bob: {e}; rolled back, and its event with it")
    import_order(db, "ada", 12)
    db.close()


if __name__ == "__main__":
    main()
