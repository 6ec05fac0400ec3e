# shellcheck shell=bash disable=SC2034
# packages.sh: which Debian packages we need, and how to get them. Sourced by ./run and ./test.

# To build and to run the demo.
packages_run=(gcc libc6-dev meson ninja-build pkg-config libsqlite3-dev libsmartcols-dev)
# Besides those, to test and to lint.
packages_test=(g++ libcmocka-dev python3 sqlite3 clang-format cppcheck)

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

packages_quietly() {
    local said
    said=$("$@" 2>&1 </dev/null) || { printf '%s\n' "$said" >&2; return 1; }
}

packages_refuse() {
    echo "packages are missing, and could not be installed from here. As root, run:" >&2
    echo "    apt-get update && $1" >&2
    exit 69
}
