#!/bin/sh
# Usage: scripts/venv.sh FOLDER
# Makes a virtual environment in FOLDER (an existing one that works is kept) and
# installs this project with its development tools: the files that requirements-*.txt name by their hashes, at the
# versions of constraints.txt.
set -eu
cd "$(dirname "$0")/.."
venv=${1:?usage: scripts/venv.sh FOLDER}

say() { echo "==> $*" >&2; }

# What pyproject.toml asks for; pip itself would only say so after the download.
is_supported() { "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' >/dev/null 2>&1; }

find_python() {
    for candidate in ${PYTHON:+"$PYTHON"} python3 python3.13 python3.12 python3.11 python; do
        if is_supported "$candidate"; then
            command -v "$candidate"
            return
        fi
    done
    say "Python 3.11, 3.12 or 3.13 is needed, and none was found (python3 is" \
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

if is_supported "$venv/bin/python" && "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    say "Using $venv ($("$venv/bin/python" --version))"
else
    python=$(find_python)
    ensure_venv_module "$python"
    say "Making $venv with $("$python" --version), $python"
    "$python" -m venv --clear "$venv"
fi

pip_install() { sh scripts/pip_install.sh "$venv" "$@"; }

# What builds source archives comes first. After torch, which has no hash, nothing is fetched any more: a package that
# the files with hashes lack is an error.
install() {
    pip_install --require-hashes --no-deps --requirement requirements-build.txt &&
        pip_install --require-hashes --no-deps --no-build-isolation --requirement requirements-dev.txt &&
        pip_install &&
        pip_install --no-index --no-build-isolation --editable '.[dev]'
}

say "Installing the packages of constraints.txt (some minutes the first time)"
install || {
    say "The packages could not be installed: see pip's words above. Call make again when that is fixed."
    exit 1
}
say "Packages are installed"
