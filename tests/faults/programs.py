"""Programs of their own, for what happens at the end of a process: signals, exits, children."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PATIENCE = 60.0

HEAD = """
import os, signal, sys, threading, time
import distmetrics as dm
import torch
torch.set_num_threads(1)
run_dir = sys.argv[1]
registry = dm.Registry()
registry.count("n")

def say(text):
    print(text, flush=True)

"""


class Ended(NamedTuple):
    """How a program has ended.

    Attributes:
        code: its exit code, or minus the signal.
        output: what it had printed since it was last read.
        errors: what it had printed to stderr.
        seconds: since the last thing that the test did to it.
    """

    code: int
    output: str
    errors: str
    seconds: float


class Program:
    """A program that runs.

    Args:
        text: of the program, after `HEAD`.
        run_dir: its argument.
        environ: more variables.
        name: tells it from others with the same run directory.
    """

    def __init__(
        self, text: str, run_dir: Path, environ: Mapping[str, str] | None = None, name: str = ""
    ) -> None:
        self.run_dir = run_dir
        path = run_dir.with_suffix(f"{name}.py")  # a file, so that children find its functions
        path.write_text(HEAD + text, encoding="utf-8")
        self._errors = run_dir.with_suffix(f"{name}.err")
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-W", "always", str(path), str(run_dir)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=run_dir.parent,
                env={**os.environ, "PYTHONPATH": str(ROOT), **(environ or {})},
            )
        self._at = time.monotonic()

    def expect(self, line: str) -> None:
        """Wait until the program prints this line next."""
        assert self._process.stdout is not None
        said = self._process.stdout.readline().decode().strip()
        assert said == line, f"expected {line!r}: {said!r}\n{self._errors.read_text()}"

    def send(self, number: int) -> None:
        """Send a signal."""
        self._at = time.monotonic()
        self._process.send_signal(number)

    def tell(self) -> None:
        """Give it a line to read."""
        assert self._process.stdin is not None
        self._at = time.monotonic()
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()

    def end(self) -> Ended:
        """Wait for its end."""
        output, _ = self._process.communicate(timeout=PATIENCE)
        seconds = time.monotonic() - self._at
        errors = self._errors.read_text()
        return Ended(self._process.returncode, output.decode(), errors, seconds)

    def stop(self) -> None:
        """End it, whatever it does."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(10)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
