#!/bin/sh
# Usage: scripts/system_package.sh MANAGER=PACKAGE [MANAGER=PACKAGE ...]
# Installs the first PACKAGE that the system's own package manager has, as root or
# through a sudo that asks no password. Fails, without a word, where neither is at hand.
set -eu

if [ "$(id -u)" = 0 ]; then
    as_root=
elif command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
    as_root='sudo -n'
else
    as_root=none
fi

install() {
    case $1 in
    apt-get) $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$2" ;;
    dnf) $as_root dnf install -y -q "$2" ;;
    apk) $as_root apk add --quiet "$2" ;;
    brew) brew install --quiet "$2" ;;
    *) echo "$0: unknown package manager: $1" >&2; exit 2 ;;
    esac >&2 </dev/null
}

refreshed=
for choice in "$@"; do
    manager=${choice%%=*}
    package=${choice#*=}
    command -v "$manager" >/dev/null 2>&1 || continue
    # brew belongs to the user and refuses root; the others need root.
    if [ "$manager" != brew ] && [ "$as_root" = none ]; then continue; fi
    echo "==> $manager: installing $package" >&2
    if [ "$manager" = apt-get ] && [ -z "$refreshed" ]; then
        $as_root apt-get update -qq >&2 || true # an index that is out of date may still serve
        refreshed=yes
    fi
    if install "$manager" "$package"; then exit 0; fi
done
exit 1
