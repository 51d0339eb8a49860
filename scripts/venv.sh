#!/bin/sh
# Usage: scripts/venv.sh FOLDER
# Makes a virtual environment in FOLDER (an existing one that works is kept) and
# installs this project with its development tools, at the versions of constraints.txt.
set -eu
cd "$(dirname "$0")/.."
venv=${1:?usage: scripts/venv.sh FOLDER}

say() { echo "==> $*" >&2; }

is_recent() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

find_python() {
    for candidate in ${PYTHON:+"$PYTHON"} python3 python3.13 python3.12 python3.11 python; do
        if is_recent "$candidate"; then
            command -v "$candidate"
            return
        fi
    done
    say "Python 3.11 or newer is needed, and none was found (python3 is" \
        "$(python3 --version 2>/dev/null || echo missing)). Install one, or name it: make PYTHON=/path/to/python3.12 …"
    exit 1
}

# Debian and its kin ship `venv` without what it needs, in a package of its own.
ensure_venv_module() {
    "$1" -c 'import ensurepip, venv' 2>/dev/null && return
    version=$("$1" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
    say "$version lacks the venv module; installing it"
    sh scripts/system_package.sh apt-get="$version-venv" && "$1" -c 'import ensurepip, venv' 2>/dev/null && return
    say "Install the package $version-venv (Debian, Ubuntu: apt-get install $version-venv), then call make again."
    exit 1
}

if is_recent "$venv/bin/python" && "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    say "Using $venv ($("$venv/bin/python" --version))"
else
    python=$(find_python)
    ensure_venv_module "$python"
    say "Making $venv with $("$python" --version), $python"
    "$python" -m venv --clear "$venv"
fi

# pip's own output is a wall; a line a package is enough to see that it moves. If pip fails, what it said last follows:
# it explains some errors (a conflict of versions) where it reports progress. The shell reads the lines, not awk,
# because not every awk hands on a line before the next thousand have come.
progress() {
    last_words=
    while IFS= read -r line; do
        word=${line#"${line%%[! ]*}"}
        case $word in
        "pip failed") printf '%s' "$last_words" >&2; return 1 ;;
        "Downloading "*.metadata*) ;;
        "Downloading "* | "Using cached "*.whl* | "Using cached "*.gz* | "Processing "*.whl* | "Processing "*.gz*)
            word=${word#Using }
            word=${word#* }
            echo "    ${word##*/}" >&2
            last_words= ;;
        "Installing collected "*) echo "    writing the files" >&2; last_words= ;;
        "Collecting "* | "Requirement already "*) last_words= ;;
        *) last_words="$last_words$line
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

# Descriptor 3 leads to `progress`, so that pip's two streams can go different ways. Plain sh has no `pipefail`:
# the last line of the first stream says whether pip failed.
install() {
    {
        {
            PYTHONUNBUFFERED=1 "$venv/bin/python" -m pip install --disable-pip-version-check \
                --progress-bar off --constraint constraints.txt "$@" 2>&1 >&3 || echo "pip failed" >&3
        } | warnings
    } 3>&1 | progress
}

say "Installing the packages of constraints.txt (some minutes the first time)"
# Each source archive (pyspark is one) is built with the tools that it asks for itself, not with those of $venv.
install "torch==$(sed -n 's/^torch==//p' constraints.txt)" --editable '.[dev]' || {
    say "The packages could not be installed: see pip's words above. Call make again when that is mended."
    exit 1
}
say "Packages are installed"
