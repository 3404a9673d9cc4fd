#!/bin/sh
# Makes or completes the virtual environment .venv with the extras named in $1 ("demo", "test,dev").
# Quick when that is done already; after an interruption it starts again where that is safe.
set -eu
cd "$(dirname "$0")/.."
extras=$1
venv=.venv
python=$venv/bin/python
done_mark=$venv/.extras-$(echo "$extras" | tr ',' '-')
busy_mark=$venv/.installing
accepted='import ensurepip, sys, venv; sys.exit(not (3, 10) <= sys.version_info < (3, 14))'

find_python() {
    # Each candidate is run: PATH also holds shims of absent versions and Pythons without venv.
    for candidate in ${PYTHON:-python3.11 python3.12 python3.13 python3.10 python3}; do
        if "$candidate" -c "$accepted" >/dev/null 2>&1; then
            echo "$candidate"
            return
        fi
    done
    echo "No Python 3.10 to 3.13 with venv and pip was found (looked for: ${PYTHON:-python3.11," \
        "python3.12, python3.13, python3.10, python3})." \
        "Install one, or name it: make PYTHON=/path/to/python3.11" >&2
    return 1
}

environment_works() {
    # A cut-off install can leave half a package, a moved checkout leaves scripts that point nowhere.
    [ ! -e "$busy_mark" ] &&
        "$python" -c "$accepted" >/dev/null 2>&1 &&
        "$python" -m pip --version >/dev/null 2>&1 &&
        { [ ! -e "$venv/.place" ] || [ "$(cat "$venv/.place")" = "$PWD" ]; }
}

make_environment() {
    base=$(find_python)
    echo "Making $venv with $base"
    "$base" -m venv --clear "$venv"
    echo "$PWD" >"$venv/.place"
}

choose_constraints() {
    if nvidia-smi -L 2>/dev/null | grep -q GPU; then
        grep -v '^torch==' constraints.txt
    else
        cat constraints.txt
    fi
}

install() {
    log=$venv/install.log
    echo "Installing into $venv (extras: $extras), a few minutes the first time; log: $log"
    : >"$busy_mark"
    status=0
    # The variables, not -c, so that the pins also hold for what builds a package; a relative path,
    # since pip splits the variable at spaces.
    PIP_CONSTRAINT=$1 PIP_BUILD_CONSTRAINT=$1 "$python" -m pip install \
        --disable-pip-version-check --editable ".[$extras]" >"$log" 2>&1 || status=$?
    rm -f "$busy_mark" # a failure that pip reports it has also undone
    if [ "$status" -ne 0 ]; then
        tail -n 40 "$log" >&2
        echo "The installation failed; the end of $log stands above" >&2
    fi
    return "$status"
}

environment_works || make_environment
choose_constraints >"$venv/constraints.txt"
state=$(cat pyproject.toml "$venv/constraints.txt" | cksum)
if [ ! -e "$done_mark" ] || [ "$(cat "$done_mark")" != "$state" ]; then
    install "$venv/constraints.txt"
    echo "$state" >"$done_mark"
fi
