# shellcheck shell=bash
# server.sh: a database server for ./run, which sources this: private, unprivileged, in a short
# subfolder of the temporary folder, reachable only through a socket there, and ended with the
# process that started it. A system server of the same name is never used.

server_dir=
server_pid=

# server_start starts a server of that kind (postgres or mariadb) with an empty database `shop`, and
# sets server_url. On failure it prints the reason.
server_start() {
    server_dir=$(mktemp -d "${TMPDIR:-/tmp}/obXXXXXX") || return 1
    server_log=$server_dir/log
    : >"$server_log"
    # Ignore settings meant for other servers; ~/.my.cnf may have a password.
    unset "${!PG@}" "${!MYSQL_@}" OUTBOX_MARIADB_PASSWORD
    export HOME=$server_dir
    if [ "$(id -u)" -eq 0 ]; then chown -R nobody: "$server_dir" || return 1; fi
    if ! "server_start_$1"; then
        tail -n 20 "$server_log" >&2
        return 1
    fi
}

# server_as replaces the calling shell with a command: run as the user nobody if we are root, else
# as ourselves; it receives that signal when we end. The user nobody may have no access to our
# temporary folder, so the server has its own.
server_as() { # signal, command
    local drop=()
    [ "$(id -u)" -ne 0 ] || drop=(--reuid=nobody --regid=nogroup --clear-groups)
    cd / || exit 1
    exec setpriv --pdeathsig "$1" "${drop[@]}" env LC_ALL=C.UTF-8 TMPDIR="$server_dir" "${@:2}" \
        >>"$server_log" 2>&1 9>&-
}

# server_await retries a command until it succeeds, as long as the server is running.
server_await() {
    until "$@" >>"$server_log" 2>&1; do
        kill -0 "$server_pid" 2>/dev/null || return 1
        sleep 0.05
    done
}

server_start_postgres() {
    local bin
    bin=$(printf '%s\n' /usr/lib/postgresql/*/bin | sort -V | tail -n 1)
    (server_as KILL "$bin/initdb" -D "$server_dir/data" -U shop --auth=trust -E UTF8 --no-locale \
        --no-sync --no-instructions) || return 1
    server_as INT setsid "$bin/postgres" -D "$server_dir/data" -c listen_addresses= \
        -c "unix_socket_directories=$server_dir" &
    server_pid=$!
    server_await "$bin/createdb" -h "$server_dir" -U shop shop || return 1
    server_url="postgres:///shop?host=$server_dir&user=shop"
}

server_start_mariadb() {
    (server_as KILL mariadb-install-db --no-defaults --datadir="$server_dir/data" \
        --auth-root-authentication-method=normal --skip-test-db --skip-name-resolve) || return 1
    server_as KILL setsid mariadbd --no-defaults --datadir="$server_dir/data" \
        --socket="$server_dir/s" --pid-file="$server_dir/pid" --skip-networking \
        --innodb-buffer-pool-size=64M --performance-schema=OFF &
    server_pid=$!
    server_await mariadb --no-defaults --socket="$server_dir/s" --user=root \
        -e 'CREATE DATABASE IF NOT EXISTS shop' || return 1
    server_url="mariadb://root@/shop?socket=$server_dir/s"
}

# server_end ends the server and removes its folder; it may be called twice.
server_end() {
    if [ -n "$server_pid" ]; then
        kill -INT "$server_pid" 2>/dev/null
        kill -TERM "$server_pid" 2>/dev/null
        while kill -0 "$server_pid" 2>/dev/null; do sleep 0.05; done
        server_pid=
    fi
    [ -z "$server_dir" ] || rm -rf "$server_dir"
    server_dir=
}
