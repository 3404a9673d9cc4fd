"""Takes the pictures in dashboards/pictures: one of each ready template, of made-up trainings.

Run from the checkout with the extra `test`, and Chromium: python scripts/picture_dashboards.py
"""

from __future__ import annotations

import io
import math
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

import distmetrics as dm
from distmetrics.dashboard import arrange, load_template, subject_of
from distmetrics.dashboard.page import to_html
from distmetrics.testing import run_ranks_in_process

PICTURES = Path(__file__).parents[1] / "dashboards" / "pictures"
STEPS = 400


def falling(step: int, noise: random.Random, floor: float = 0.3, size: float = 0.08) -> float:
    """A loss: falls with the steps, and jitters."""
    return floor + 2.2 * math.exp(-step / 90) + size * noise.random()


def training(folder: Path) -> list[Path]:
    """A classifier with a validation every 40 steps."""
    registry = dm.Registry()
    registry.average("loss", "aux_loss", unit="nats", help="cross entropy of a sample")
    registry.ratio("accuracy", "num_correct", "num_samples", help="share of right answers")
    registry.same("lr", help="learning rate")
    registry.same("grad_norm", help="norm of the gradient before clipping")

    def outputs(step: int, noise: random.Random) -> dict[str, Any]:
        right = 64 * (0.95 - 0.85 * math.exp(-step / 90)) - 6 * noise.random()
        return {
            "loss": falling(step, noise),
            "aux_loss": 0.4 * falling(step, noise),
            "num_correct": max(0, round(right)),
            "num_samples": 64,
            "lr": 3e-4 * min(1, (step + 1) / 40) * (0.5 + 0.5 * math.cos(math.pi * step / STEPS)),
            "grad_norm": 3 * math.exp(-step / 60) + 0.3 + noise.expovariate(6),
        }

    return [write(folder / "run", registry, outputs, validated=("loss", "num_correct"))]


def language_model(folder: Path) -> list[Path]:
    """Loss and perplexity over steps and tokens."""
    registry = dm.Registry()
    registry.average("loss", unit="nats", help="negative log likelihood of a token")
    registry.same("ppl", help="exp of the loss")
    registry.total("tokens_seen", unit="tokens", help="tokens trained on so far")
    registry.same("tokens_per_second", unit="tokens/s", help="of all ranks together")
    registry.same("grad_norm", "lr")

    def outputs(step: int, noise: random.Random) -> dict[str, Any]:
        loss = 3 + 1.5 * falling(step, noise)
        batch = 2**15 if step < STEPS // 2 else 2**16  # the batch grows, so the axes differ
        return {
            "loss": loss,
            "ppl": math.exp(loss),
            "tokens_seen": batch,
            "tokens_per_second": batch * (10 - noise.random()),
            "grad_norm": 0.4 + 2 * math.exp(-step / 50) + 0.2 * noise.random(),
            "lr": 6e-4 * min(1, (step + 1) / 40),
        }

    return [write(folder / "run", registry, outputs)]


def detection(folder: Path) -> list[Path]:
    """Queries that are matched to instances, with the ratios declared."""
    registry = dm.Registry()
    dm.presets.matching_counts(registry)
    registry.ratio("unmatched_queries_ratio", "unmatched_queries", "queries_total")
    registry.ratio("unmatched_gt_ratio", "unmatched_gt", "gt_instances_total")
    registry.ratio("matched_gt_ratio", "num_pairs", "gt_instances_total")

    def outputs(step: int, noise: random.Random) -> dict[str, Any]:
        instances = noise.randint(40, 60)
        pairs = round(instances * (0.97 - 0.6 * math.exp(-step / 80)))
        return {
            "queries_total": 100,
            "gt_instances_total": instances,
            "num_pairs": pairs,
            "unmatched_queries": 100 - pairs,
            "unmatched_gt": instances - pairs,
        }

    return [write(folder / "run", registry, outputs)]


def health(folder: Path) -> list[Path]:
    """Four ranks of which one grows slow and another one's memory grows."""
    registry = dm.Registry()
    registry.same("memory*", unit="GiB", help="allocated on the device")
    registry.same("step_time*", unit="s", help="wall time of a step")
    registry.same("memory/argmax", "step_time/argmax", unit="rank", help="rank with the largest")
    registry.average("loss")
    registry.same("stats/*")

    def outputs(step: int, noise: random.Random) -> dict[str, Any]:
        slow = 0.25 if step > 250 else 0.0
        times = [0.5 + 0.05 * noise.random() + (slow if rank == 2 else 0) for rank in range(4)]
        memory = [18 + rank * 0.3 + (step / 100 if rank == 1 else 0) for rank in range(4)]
        bad = step in (180, 181, 300)
        return {
            **per_rank("memory", memory),
            **per_rank("step_time", times),
            "loss": [1.0, math.nan] if bad else [1.0, 1.0],
            "stats": {
                "queued": noise.randint(0, 3),
                "dropped": 0,
                "sink_errors": int(step > 320),
                "written": step // 4,
                "waited_s": step / 900,
            },
        }

    return [write(folder / "run", registry, outputs)]


def scaling_audit(folder: Path) -> list[Path]:
    """One training on 1, 2 and 4 ranks, with a loss that somebody summed over the ranks."""
    registry = dm.Registry()
    registry.average("loss", unit="nats", help="cross entropy of a sample")
    registry.count("summed_loss", unit="nats", help="a mean of each rank, registered as a count")
    registry.count("num_samples", unit="samples")

    def outputs(step: int, noise: random.Random) -> dict[str, Any]:
        losses = [falling(step, noise, size=0.4) for _ in range(8)]
        mine = losses[dm.get_rank() :: dm.get_world_size()]
        return {"loss": mine, "summed_loss": sum(mine) / len(mine), "num_samples": len(mine)}

    return [write(folder / f"ranks-{size}", registry, outputs, ranks=size) for size in (1, 2, 4)]


def per_rank(key: str, values: list[float]) -> dict[str, float]:
    """A value of each rank, as the reduction `per_rank` logs it."""
    named = {f"{key}/rank{rank}": value for rank, value in enumerate(values)}
    ends = {"min": min(values), "max": max(values), "argmax": values.index(max(values))}
    return named | {f"{key}/{name}": value for name, value in ends.items()}


def write(
    folder: Path,
    registry: dm.Registry,
    outputs: Callable[[int, random.Random], dict[str, Any]],
    ranks: int = 1,
    validated: tuple[str, ...] = (),
) -> Path:
    """A run of some ranks that log what `outputs` makes up."""

    def train() -> None:
        noise = random.Random(0)  # noqa: S311 - made-up curves
        with dm.Logger(registry, run_dir=folder, every=4) as logger:
            val = logger.child("val")
            for step in range(STEPS):
                made = outputs(step, noise)
                logger.log(made, step=step)
                if validated and step % 40 == 39:
                    val.log({key: made[key] for key in validated} | {"num_samples": 64})
                    val.flush(step=step)

    run_ranks_in_process(train, ranks, timeout=300)
    return folder


@contextmanager
def chromium() -> Iterator[Browser]:
    """Debian's browser, with no window."""
    found = shutil.which("chromium")
    if found is None:
        sys.exit("this needs Chromium (Debian: chromium)")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


def picture(browser: Browser, page: Path, target: Path) -> None:
    """The page as a small PNG, with all charts drawn."""
    window = browser.new_page(viewport={"width": 1360, "height": 3000})
    window.goto(f"file://{page}")
    window.wait_for_selector("html[data-ready]", state="attached")
    window.add_style_tag(content="main > h2, .wide { display: none }")
    height = window.evaluate("Math.ceil(document.querySelector('main').offsetHeight) + 20")
    image = Image.open(io.BytesIO(window.screenshot(clip=clip(1360, height))))
    image.convert("RGB").quantize(64).save(target, optimize=True)
    window.close()


def clip(width: int, height: int) -> Any:
    """The part of the window that is taken."""
    return {"x": 0, "y": 0, "width": width, "height": height}


def main() -> None:
    """Takes all pictures, or those of the templates that are named."""
    makers = {
        "training": training,
        "language-model": language_model,
        "detection": detection,
        "health": health,
        "scaling-audit": scaling_audit,
    }
    PICTURES.mkdir(exist_ok=True)
    with chromium() as browser, tempfile.TemporaryDirectory() as place:
        for name in sys.argv[1:] or makers:
            folder = Path(place) / name
            folder.mkdir()
            subject = subject_of(*makers[name](folder))
            page = folder / "page.html"
            board = arrange([load_template(name)], subject)
            page.write_text(to_html(board, subject), encoding="utf-8")
            picture(browser, page, PICTURES / f"{name}.png")
            print(f"{name}: {', '.join(board.problems) or 'all panels filled'}")


if __name__ == "__main__":
    main()
