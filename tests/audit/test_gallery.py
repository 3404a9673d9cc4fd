"""The gallery of faults: a real training at several world sizes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch.distributed as dist
from click.testing import CliRunner, Result

from distmetrics.audit.commands import audit
from distmetrics.audit.compare import Report, compare
from distmetrics.runs import open_run
from distmetrics.testing import run_ranks
from tests.audit.gallery import train as gallery

SCRIPT = Path(gallery.__file__)
EXPECTED = {
    "count_averaged": "shrinks_with_ranks",
    "mean_summed": "grows_with_ranks",
    "mean_of_means": "weighting",
    "rank_local": "rank_local",
    "floored_weight": "weighting",
    "replicas_counted": "constant_factor",
    "shard_norm": "shrinks_with_sqrt",
    "padded_samples": "weighting",
    "accumulated_sum": "shrinks_with_ranks",
}
REMEDY = {
    "count_averaged": 'registry.count("num_pairs")',
    "mean_summed": 'registry.average("loss/summed")',
    "mean_of_means": 'registry.average("loss/mean_of_means", weight="num_samples")',
    "rank_local": 'registry.average("loss/rank0", weight="num_samples")',
    "floored_weight": 'registry.average("loss/floored", weight="num_tokens")',
    "replicas_counted": 'registry.count("num_tokens/replicas", replicated_over=("tensor",))',
    "shard_norm": 'registry.l2_norm("grad_norm/shard")',
    "padded_samples": 'registry.average("acc/padded", weight="num_samples")',
    "accumulated_sum": 'registry.average("loss/accumulated")',
}


def trained(folder: Path, size: int, seeds: int, epochs: int, faults: set[str]) -> None:
    """Trains on `size` ranks, once for each seed, and writes CSV files."""

    def on_each_rank() -> None:
        for seed in range(seeds):
            place = folder / f"w{size}-{seed}"
            writer = gallery.Writer("csv", place) if dist.get_rank() == 0 else None
            gallery.train(seed, epochs, faults, writer)

    run_ranks(on_each_rank, size, timeout=100)


def compared(folder: Path, seed: int = 0) -> Report:
    """The audit of one seed's runs."""
    return compare([open_run(f"{size}={folder / f'w{size}-{seed}'}") for size in (1, 2, 4)])


def test_each_planted_fault_is_named_with_its_remedy(tmp_path: Path) -> None:
    """All faults of the gallery get their verdicts, and the clean keys none."""
    for size in (1, 2, 4):
        trained(tmp_path, size, 1, 10, set(gallery.FAULTS))
    report = compared(tmp_path)
    for fault, key in gallery.FAULTS.items():
        found = report.verdicts[key]
        assert found.kind.value == EXPECTED[fault], found
        assert found.remedy.startswith(REMEDY[fault]), found
    clean = [report.verdicts[key] for key in gallery.CLEAN]
    assert not any(one.is_fault() for one in clean), clean


@pytest.mark.heavy
def test_the_clean_script_raises_no_alarm_over_20_seeds(tmp_path: Path) -> None:
    """Without a fault no key of any seed fails the audit."""
    for size in (1, 2, 4):
        trained(tmp_path, size, 20, 6, set())
    for seed in range(20):
        report = compared(tmp_path, seed)
        assert report.exit_code == 0, (seed, [str(one) for one in report.faults])


def call(*arguments: object) -> Result:
    """What `distmetrics audit run` does with these arguments."""
    return CliRunner().invoke(audit, ["run", *map(str, arguments)])


@pytest.mark.heavy
@pytest.mark.parametrize("writer", ["tensorboard", "wandb", "jsonl"])
def test_the_script_is_launched_and_compared(tmp_path: Path, writer: str) -> None:
    """Under torchrun at each world size, whatever it writes."""
    out = tmp_path / "audit"
    done = call(
        "--world-sizes", "1,2", "--out", out, "--json", tmp_path / "a.json", "--timeout", 90,
        "--", SCRIPT, "--writer", writer, "--faults", "mean_summed,count_averaged",
    )  # fmt: skip
    assert done.exit_code == 1, done.output
    found = json.loads((tmp_path / "a.json").read_text())["keys"]
    assert found["loss/summed"]["verdict"] == "grows_with_ranks"
    assert found["num_pairs"]["verdict"] == "shrinks_with_ranks"
    clean = {found[key]["verdict"] for key in gallery.CLEAN}
    assert clean <= {"identical", "close", "drift"}
    assert (out / "w2" / "output.log").exists()


def test_a_script_that_fails_is_reported_with_its_output(tmp_path: Path) -> None:
    """With one world size left there is nothing to compare: exit code 2, and why."""
    done = call(
        "--world-sizes", "1,2", "--out", tmp_path / "audit", "--timeout", 90,
        "--", SCRIPT, "--epochs", "1", "--fail-at", "2",
    )  # fmt: skip
    assert done.exit_code == 2, done.output
    assert "world size 2 has no run: exit code 1" in done.output
    assert "cannot train on 2 ranks" in done.output


@pytest.mark.heavy
def test_the_other_world_sizes_are_compared_all_the_same(tmp_path: Path) -> None:
    """A failure is in the report and its exit code, beside the verdicts on the others."""
    done = call(
        "--world-sizes", "1,2,3", "--out", tmp_path / "audit", "--json", tmp_path / "a.json",
        "--timeout", 90, "--", SCRIPT, "--epochs", "1", "--fail-at", "2",
    )  # fmt: skip
    assert done.exit_code == 2, done.output
    found = json.loads((tmp_path / "a.json").read_text())
    assert found["world_sizes"] == [1, 3]
    assert "cannot train" in found["failures"]["2"]
    assert found["keys"]["loss"]["verdict"] in {"identical", "close"}


@pytest.mark.heavy
def test_a_hanging_script_is_ended_in_time(tmp_path: Path) -> None:
    """A time limit ends each run, and what it leaves is said."""
    script = tmp_path / "hang.py"
    script.write_text("import time\nprint('hanging', flush=True)\ntime.sleep(1000)\n")
    done = call("--world-sizes", "1,2", "--out", tmp_path / "audit", "--timeout", 8, "--", script)
    assert done.exit_code == 2, done.output
    assert "time limit" in done.output


@pytest.mark.heavy
def test_a_run_is_ended_after_the_wanted_steps(tmp_path: Path) -> None:
    """A script that trains for ever is stopped once it has logged enough, and compared."""
    script = tmp_path / "endless.py"
    script.write_text(
        "import itertools, json, os, time\n"
        "place = 'log.jsonl' if os.environ['RANK'] == '0' else os.devnull\n"
        "with open(place, 'w', buffering=1) as file:\n"
        "    for step in itertools.count():\n"
        "        row = {'step': step, 'loss': 1 / (step + 1)}\n"
        "        file.write(json.dumps(row) + '\\n')\n"
        "        time.sleep(0.02)\n"
    )
    done = call(
        "--world-sizes", "1,2", "--out", tmp_path / "audit", "--json", tmp_path / "a.json",
        "--steps", 20, "--timeout", 100, "--", script,
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert json.loads((tmp_path / "a.json").read_text())["keys"]["loss"]["steps"] == 20


@pytest.mark.heavy
def test_files_written_elsewhere_are_found(tmp_path: Path) -> None:
    """A script with a fixed folder of its own is audited too: its files are taken over."""
    script = tmp_path / "fixed.py"
    place = tmp_path / "elsewhere"
    script.write_text(
        "import os\n"
        "from torch.utils.tensorboard import SummaryWriter\n"
        "if os.environ['RANK'] == '0':\n"
        f"    writer = SummaryWriter({str(place)!r})\n"
        "    for step in range(30):\n"
        "        writer.add_scalar('loss', int(os.environ['WORLD_SIZE']) / (step + 1), step)\n"
        "    writer.close()\n"
    )
    done = call(
        "--world-sizes", "1,2", "--out", tmp_path / "audit", "--json", tmp_path / "a.json",
        "--timeout", 90, "--", script, place,
    )  # fmt: skip
    assert done.exit_code == 1, done.output
    found = json.loads((tmp_path / "a.json").read_text())["keys"]
    assert found["loss"]["verdict"] == "grows_with_ranks"
