// A producer in Go, with pgx: places orders, and emits an event for each in the transaction that
// writes it.
//
//	go run producer.go    $DATABASE_URL, or $PGHOST, $PGDATABASE and so on, say which database
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"

	"github.com/jackc/pgx/v5"
)

type order struct {
	Customer string `json:"customer"`
	Total    int    `json:"total"`
}

var errDeclined = errors.New("card declined")

// insertOrder writes an order, and returns its number.
func insertOrder(ctx context.Context, tx pgx.Tx, o order) (id int64, err error) {
	err = tx.QueryRow(ctx, "INSERT INTO shop_order (customer, total) VALUES ($1, $2) RETURNING id",
		o.Customer, o.Total).Scan(&id)
	return id, err
}

// placeOrder writes an order and its event: both, or neither. pgx asks the server for the types of
// parameters, so the casts say what an int64 and a struct (or a map, or []byte) are sent as.
func placeOrder(ctx context.Context, db *pgx.Conn, o order, pay func() error) error {
	var id int64
	var event string
	err := pgx.BeginFunc(ctx, db, func(tx pgx.Tx) (err error) {
		if id, err = insertOrder(ctx, tx, o); err != nil {
			return err
		}
		err = tx.QueryRow(ctx, "SELECT outbox.emit($1, $2, $3::bigint, $4::json, $5::json)::text",
			"order.created", "order", id, o, map[string]string{"source": "shop"}).Scan(&event)
		if err != nil {
			return err
		}
		return pay()
	})
	if err == nil {
		fmt.Printf("order %d of %s: event %s\n", id, o.Customer, event)
	}
	return err
}

// importOrder does the same with a plain INSERT, which is an event as well.
func importOrder(ctx context.Context, db *pgx.Conn, o order) error {
	payload, err := json.Marshal(o)
	if err != nil {
		return err
	}
	var id int64
	err = pgx.BeginFunc(ctx, db, func(tx pgx.Tx) (err error) {
		if id, err = insertOrder(ctx, tx, o); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `INSERT INTO outbox.event (type, aggregate_type, aggregate_id, payload)
			VALUES ('order.created', 'order', $1::bigint, $2::json)`, id, payload)
		return err
	})
	if err == nil {
		fmt.Printf("order %d of %s: imported\n", id, o.Customer)
	}
	return err
}

func run(ctx context.Context) error {
	db, err := pgx.Connect(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	defer db.Close(ctx)
	_, err = db.Exec(ctx, `CREATE TABLE IF NOT EXISTS shop_order
		(id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, customer text NOT NULL, total int NOT NULL)`)
	if err != nil {
		return err
	}

	if err = placeOrder(ctx, db, order{"ada", 30}, func() error { return nil }); err != nil {
		return err
	}
	err = placeOrder(ctx, db, order{"bob", 50}, func() error { return errDeclined })
	if !errors.Is(err, errDeclined) {
		return fmt.Errorf("bob's order: %w", err)
	}
	fmt.Printf("order of bob: %v; rolled back, and its event with it\n", err)
	return importOrder(ctx, db, order{"ada", 12})
}

func main() {
	if err := run(context.Background()); err != nil {
		log.Fatal(err)
	}
}
