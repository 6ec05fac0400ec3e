// pgx_emit emits with each Go type that people keep ids, payloads and headers in. Each line says what
// the event has to be: its key, its payload and its headers.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"

	"github.com/jackc/pgx/v5"
)

func main() {
	ctx := context.Background()
	db, err := pgx.Connect(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	ids := []struct {
		id         any
		cast, want string
	}{
		{int64(1) << 40, "::bigint", "1099511627776"},
		{7, "::bigint", "7"},
		{"abc", "", "abc"},
		{[16]byte{15: 1}, "::uuid", "00000000-0000-0000-0000-000000000001"},
	}
	values := []any{map[string]any{"a": "x"}, map[string]string{"a": "x"}, struct {
		A string `json:"a"`
	}{"x"}, []byte(`{"a":"x"}`), json.RawMessage(`{"a":"x"}`), `{"a":"x"}`}
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec} {
		for _, id := range ids {
			for _, payload := range values {
				for _, headers := range append(values, nil) {
					statement := "SELECT outbox.emit($1, $2, $3" + id.cast + ", $4::json, $5::json, version => $6)::text"
					var event string
					err := db.QueryRow(ctx, statement, mode, "t.e", "order", id.id, payload, headers, int64(5)).Scan(&event)
					if err != nil {
						log.Fatalf("%s: id %T, payload %T, headers %T: %v", mode, id.id, payload, headers, err)
					}
					fmt.Println(event, id.want, headers != nil)
				}
			}
		}
	}
	// Text needs no cast, nor do bytes that are sent as text.
	for _, payload := range []any{`{"a":"x"}`, []byte(`{"a":"x"}`)} {
		var event string
		if err := db.QueryRow(ctx, "SELECT outbox.emit($1, $2, $3, $4)::text", "t.e", "order", "abc", payload).Scan(&event); err != nil {
			log.Fatal(err)
		}
		fmt.Println(event, "abc", false)
	}
}
