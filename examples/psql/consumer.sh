#!/bin/sh
# Runs consumer.sql repeatedly.
#
#     ./consumer.sh [--drain]        $PGHOST, $PGDATABASE and so on say which database
#
# Start as many as you like. With --drain it ends when no event is due; otherwise it waits for more.
# Events emitted for later are left until they are due. A lost connection (psql's exit status 2) is
# reopened.
set -u
here=$(dirname "$0")
idle="SELECT NOT EXISTS (SELECT 1 FROM outbox.claim WHERE consumer = 'revenue')
    AND NOT EXISTS (SELECT 1 FROM outbox.parked
        WHERE consumer = 'revenue' AND due_at IS NOT NULL AND (NOT delayed OR due_at <= now()))"

while :; do
    psql -Xq -v backoff_ms="${BACKOFF_MS:-1000}" -f "$here/consumer.sql" >/dev/null
    status=$?
    if [ "$status" -eq 2 ]; then
        echo "lost the database; trying again" >&2
    elif [ "$status" -ne 0 ]; then
        exit "$status"
    elif [ "${1-}" = --drain ] && [ "$(psql -XAtc "$idle")" = t ]; then
        exit 0
    fi
    sleep 0.2
done
