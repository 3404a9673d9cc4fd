"""Prints the confusion matrix of the audit's judge over simulated runs with planted faults.

Run: python benchmarks/audit_confusion.py [--set tuning|testing|fresh] [--seeds 20] [--no-counts]

Rules and thresholds were set on the settings called `tuning`; those called `testing` have other
world sizes, step counts, batch sizes, noise levels and drifts, and were only looked at afterwards.
(Two earlier sets of that kind led to changes, and belong to `tuning` since.) Those called `fresh`
were run once, after the last change.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from distmetrics.audit.aligned import align
from distmetrics.audit.finding import Context
from distmetrics.audit.judge import judge
from distmetrics.audit.verdict import Kind, Verdict
from distmetrics.runs import Series
from tests.audit import planted
from tests.audit.planted import Setting

SETTINGS = {
    "tuning": [
        Setting(),
        Setting(ragged=True),
        Setting(steps=120, batch=64, sigma=1.0, ragged=True, drift=1e-3),
        Setting(steps=40, batch=16, sigma=0.3, drift=1e-2),
        Setting(sizes=(2, 4, 8), steps=80, batch=64, ragged=True),
        Setting(sizes=(1, 2), steps=100, batch=24, ragged=True),
        Setting(sizes=(1, 3, 6), steps=90, batch=48, sigma=0.4, ragged=True),
        Setting(sizes=(1, 2, 4, 8), steps=50, batch=96, sigma=0.8, ragged=True, drift=3e-3),
        Setting(sizes=(1, 4), steps=150, batch=40, sigma=0.6, ragged=True, drift=1e-4),
        Setting(sizes=(1, 2, 4), steps=30, batch=20, sigma=0.25, ragged=True),
        Setting(sizes=(1, 2, 4), steps=500, batch=256, sigma=1.2, drift=3e-2),
        Setting(sizes=(2, 4, 16), steps=70, batch=128, sigma=0.5, ragged=True, drift=1e-3),
        Setting(sizes=(1, 2, 4), steps=75, batch=36, sigma=0.45, ragged=True, drift=5e-4),
        Setting(sizes=(1, 2, 5), steps=100, batch=50, sigma=0.7, ragged=True),
        Setting(sizes=(1, 2, 4, 8), steps=45, batch=64, sigma=0.35, drift=2e-2),
        Setting(sizes=(1, 3), steps=120, batch=30, sigma=0.9, ragged=True, drift=1e-4),
        Setting(sizes=(2, 6, 12), steps=90, batch=144, sigma=0.6, ragged=True, drift=2e-3),
        Setting(sizes=(1, 2, 4), steps=1000, batch=512, sigma=1.5, ragged=True, drift=1e-2),
    ],
    "testing": [
        Setting(sizes=(1, 2, 4), steps=65, batch=40, sigma=0.55, ragged=True, drift=2e-4),
        Setting(sizes=(1, 2, 3), steps=110, batch=28, sigma=0.4, ragged=True),
        Setting(sizes=(1, 4, 8), steps=55, batch=80, sigma=0.65, drift=8e-3),
        Setting(sizes=(1, 5), steps=140, batch=45, sigma=0.8, ragged=True, drift=5e-5),
        Setting(sizes=(2, 4, 8), steps=85, batch=112, sigma=0.5, ragged=True, drift=1e-3),
        Setting(sizes=(1, 2, 4, 8), steps=700, batch=384, sigma=1.1, ragged=True, drift=6e-3),
    ],
    "fresh": [
        Setting(sizes=(1, 2, 4), steps=35, batch=24, sigma=0.7, ragged=True),
        Setting(sizes=(1, 2, 4), steps=250, batch=56, sigma=0.35, ragged=True, drift=4e-3),
        Setting(sizes=(1, 2, 3), steps=95, batch=72, sigma=0.9, drift=2e-4),
        Setting(sizes=(2, 4, 8), steps=160, batch=64, sigma=0.6, ragged=True, drift=3e-2),
        Setting(sizes=(1, 4), steps=400, batch=100, sigma=0.5, ragged=True, drift=1e-3),
        Setting(sizes=(1, 2), steps=60, batch=20, sigma=0.8, ragged=True),
    ],
}


def verdict_on(name: str, setting: Setting, seed: int, *, with_counts: bool) -> Verdict:
    """The judge's verdict on one simulated comparison."""
    found = planted.simulate(name, setting, seed)
    steps = np.arange(setting.steps)
    ones = np.ones(setting.steps, np.int64)
    integer = name in planted.INTEGER
    series = [Series(steps, values, ones, integer=integer) for values in found.values()]
    key = {"norm": "grad_norm", "count": "num_samples", "tokens": "num_tokens"}.get(
        name.split(maxsplit=1)[0], "metric"
    )
    counts = planted.counts(setting, seed) if with_counts and setting.sizes[0] == 1 else {}
    return judge(align(key, series, list(found)), Context(counts=counts))


def main() -> None:
    """Simulates, judges, counts and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--set", choices=SETTINGS, default="testing")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--no-counts", action="store_true")
    parser.add_argument("--wrong", action="store_true", help="print each wrong verdict")
    options = parser.parse_args()
    table: dict[str, Counter[str]] = defaultdict(Counter)
    right = total = false_alarms = clean = missed = faulty = 0
    for name in planted.CLEAN | planted.FAULTY:
        for place, setting in enumerate(SETTINGS[options.set]):
            if name in planted.NEEDS_RAGGED and not setting.ragged:
                continue
            for seed in range(options.seeds):
                found = verdict_on(
                    name, setting, 1000 * place + seed, with_counts=not options.no_counts
                )
                table[name][found.kind.value] += 1
                total += 1
                good = found.kind.value in planted.expected(name, setting)
                right += good
                if name in planted.CLEAN:
                    clean += 1
                    false_alarms += found.is_fault()
                else:
                    faulty += 1
                    missed += not found.is_fault()
                if options.wrong and not good:
                    print(f"{name} {setting} {seed}: {found}")
    columns = [kind.value for kind in Kind if any(kind.value in row for row in table.values())]
    print(f"{'planted':32} {'expected':20}" + "".join(f"{column[:12]:>13}" for column in columns))
    for name, row in table.items():
        expected = (planted.CLEAN | planted.FAULTY)[name][0]
        cells = "".join(f"{row[column] or '.':>13}" for column in columns)
        print(f"{name:32} {expected:20}{cells}")
    print(f"named right: {right} of {total} ({right / total:.1%})")
    print(
        f"false alarms: {false_alarms} of {clean} clean series; faults passed: {missed} of {faulty}"
    )


if __name__ == "__main__":
    main()
