# shellcheck shell=bash disable=SC2034
# packages.sh: which Debian packages we need, and how to get them. Sourced by ./run and ./test.

# To build and to run the demo.
packages_run=(gcc libc6-dev meson ninja-build pkg-config libsqlite3-dev libpq-dev libsmartcols-dev
    libcurl4-openssl-dev libssl-dev libmicrohttpd-dev libhiredis-dev)
# Besides those, to test and to lint. The servers among them are run privately, from their binaries: what Debian sets up
# when they are installed is neither used nor touched.
packages_test=(g++ libcmocka-dev python3 sqlite3 postgresql-15 pgbouncer python3-psycopg2 redis-server openssl
    clang-format cppcheck faketime)
# Good to have: the tests that want them say so and are skipped without. Where Debian's own node is not the one installed,
# they cannot be.
packages_extra=(nodejs node-pg nghttp2-server)
packages_metrics=(prometheus) # for promtool
packages_model=(spin)         # for tests/model
packages_fuzz=(clang libclang-rt-14-dev) # for ./test --soak

packages_installed() {
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

# packages_need installs those of its arguments that are missing: as root, or through sudo. Where neither is possible it
# says what to run and exits 69 (unavailable). On a system without dpkg it does nothing: meson will say what it misses.
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

# packages_try installs those of its arguments that are missing, if that is possible without a word.
packages_try() {
    local missing=() package
    command -v dpkg-query >/dev/null && [ "$(id -u)" -eq 0 ] || return 0
    for package in "$@"; do
        packages_installed "$package" || missing+=("$package")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    apt-get install -s --no-install-recommends "${missing[@]}" >/dev/null 2>&1 </dev/null || return 0
    packages_quietly env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${missing[@]}" || true
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
