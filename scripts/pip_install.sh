#!/bin/sh
# Usage: scripts/pip_install.sh FOLDER [pip's OPTION ...] REQUIREMENT [REQUIREMENT ...]
# Installs into the virtual environment FOLDER, at the versions of constraints.txt. Each source archive (pyspark is
# one) is built with the tools that it asks for, not with those that happen to be in FOLDER, unless an option says so.
# With --require-hashes as the first option, only what the requirements name by version and hash.
set -eu
constraints="$(dirname "$0")/../constraints.txt"
python="${1:?usage: scripts/pip_install.sh FOLDER REQUIREMENT [REQUIREMENT ...]}/bin/python"
shift
# torch is named with its version because pip takes the build for the CPU that is at hand only if it is asked for this
# very release. It has no hash: see scripts/pin.py.
case ${1-} in
--require-hashes) ;;
*) set -- --constraint "$constraints" "torch==$(sed -n 's/^torch==//p' "$constraints")" "$@" ;;
esac

# pip's own output is a wall; a line a package is enough to see that it moves. If pip fails, what it said last follows:
# it explains some errors (a conflict of versions) where it reports progress. The shell reads the lines, not awk,
# because not every awk hands on a line before the next thousand have come.
progress() {
    unreported=
    while IFS= read -r line; do
        word=${line#"${line%%[! ]*}"}
        case $word in
        "pip failed") printf '%s' "$unreported" >&2; return 1 ;;
        "Downloading "*.metadata*) ;;
        "Downloading "* | "Using cached "*.whl* | "Using cached "*.gz* | "Processing "*.whl* | "Processing "*.gz*)
            word=${word#Using }
            word=${word#* }
            echo "    ${word##*/}" >&2
            unreported= ;;
        "Installing collected "*) echo "    writing the files" >&2; unreported= ;;
        "Collecting "* | "Requirement already "*) unreported= ;;
        *) unreported="$unreported$line
" ;;
        esac
    done
}

# An index in a folder lacks most packages, and pip says so for each of them. Other warnings and all errors stay.
warnings() {
    while IFS= read -r line; do
        case $line in
        "WARNING: Location "*" is ignored: it is neither a file nor a directory"*) ;;
        *) printf '%s\n' "$line" >&2 ;;
        esac
    done
}

# Descriptor 3 leads to `progress`, so that pip's two streams can go different ways. Plain sh has no `pipefail`: the
# last line of the first stream says whether pip failed.
{
    {
        PYTHONUNBUFFERED=1 "$python" -m pip install --disable-pip-version-check --progress-bar off \
            "$@" 2>&1 >&3 ||
            echo "pip failed" >&3
    } | warnings
} 3>&1 | progress
