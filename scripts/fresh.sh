#!/bin/sh
# Usage: scripts/fresh.sh TARGET [TARGET ...]
# Runs `make TARGET ...` as on a machine that has never seen this project: in a clone of what is
# committed, with an empty home folder and without pip's cache, where a package that was built once
# would hide a set-up that can't build it.
set -eu
: "${1:?usage: scripts/fresh.sh TARGET [TARGET ...]}"
cd "$(dirname "$0")/.."

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
trap 'exit 130' INT TERM
mkdir "$folder/home"
git clone --quiet . "$folder/project"
# By its own path: what comes first on the PATH may be a shim that looks into the home folder.
python=$("${PYTHON:-python3}" -c 'import sys; print(sys.executable)')

start=$(date +%s)
cd "$folder/project"
env -u VIRTUAL_ENV -u PYTHONPATH -u PYTHONHOME -u SPARK_HOME -u PYSPARK_PYTHON -u PYSPARK_DRIVER_PYTHON \
    HOME="$folder/home" XDG_CACHE_HOME="$folder/home/.cache" PIP_NO_CACHE_DIR=1 PYTHON="$python" make "$@"
echo "make $* in a fresh clone, with an empty home and no cache of pip: $(($(date +%s) - start)) s"
