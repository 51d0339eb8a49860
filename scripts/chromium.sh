#!/bin/sh
# Prints the path of a Chromium, for the tests that open pages; failing that, installs one if it may.
# Without a browser, those tests are skipped.
set -eu
cd "$(dirname "$0")/.."

find_browser() {
    for name in chromium chromium-browser google-chrome; do
        if command -v "$name"; then return; fi
    done
    return 1
}

find_browser && exit
sh scripts/system_package.sh apt-get=chromium dnf=chromium apk=chromium >&2 && find_browser && exit
echo "==> There is no Chromium, and none could be installed: tests of pages will be skipped" >&2
exit 1
