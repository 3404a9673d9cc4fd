#!/bin/sh
# Builds the wheel, installs it into a fresh environment and runs it there, outside the checkout.
# What it depends on is taken from .venv, so that only the wheel itself is new.
set -eu
cd "$(dirname "$0")/.."
fresh=build/wheel-environment
rm -rf build/wheel "$fresh"
.venv/bin/python -m build --wheel --no-isolation --outdir build/wheel .
.venv/bin/python -m venv --clear --without-pip "$fresh"
.venv/bin/python -m pip --python "$fresh/bin/python" install --quiet --no-deps --no-index \
    build/wheel/*.whl
# A line in a .pth file adds a folder, but not the editable install that the folder declares.
.venv/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))" \
    >"$("$fresh/bin/python" -c "import sysconfig; print(sysconfig.get_path('purelib'))")/others.pth"

command=$PWD/$fresh/bin
cd "$(mktemp -d)"
"$command/python" - <<'PYTHON'
import sys
from pathlib import Path

import distmetrics

home = Path(distmetrics.__file__).resolve().parent
assert home.is_relative_to(Path(sys.prefix).resolve()), f"imported from {home}, not from the wheel"
assert (home / "py.typed").exists(), "the wheel lacks py.typed"
missing = [name for name in distmetrics.__all__ if not hasattr(distmetrics, name)]
assert not missing, f"in __all__ but not there: {missing}"
PYTHON
"$command/distmetrics" --version
"$command/distmetrics" --help >/dev/null
echo "The wheel installs, imports and runs"
