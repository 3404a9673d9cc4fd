"""The console sink: one copy of each line, grouped and with units, beside progress bars."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
from collections.abc import Sequence

import pytest
import tqdm
from rich.console import Console
from rich.progress import Progress

import distmetrics as dm
from distmetrics.record import Record, Value
from distmetrics.sinks import ConsoleSink, Run
from distmetrics.testing import run_ranks


def record(
    step: int, values: dict[str, Value], at: float = 0.0, logger: str | None = None
) -> Record:
    """A record of one step."""
    return Record(step, step, step, at, values, logger=logger)


def printed(
    records: Sequence[Record],
    terminal: bool = False,
    registry: dm.Registry | None = None,
    **options: object,
) -> str:
    """What a sink that shows some records writes."""
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=80, legacy_windows=False)
    sink = ConsoleSink(console=console, **options)  # type: ignore[arg-type]
    sink.open(Run(None, "run", registry or dm.Registry()))
    for each in records:
        sink.write(each)
    sink.close()
    return file.getvalue()


def test_a_line_groups_keys_and_shows_units() -> None:
    """Keys without a group come first, each group has its name, each value its unit."""
    registry = dm.Registry()
    registry.average("loss", unit="nats")
    registry.count("*num_pairs", unit="pairs", group="matching")
    values: dict[str, Value] = {"num_pairs": 1234567, "loss": 0.123456, "acc": 0.5}
    assert printed([record(9, values)], registry=registry) == (
        "step 9 | loss 0.12346 nats, acc 0.5 | matching: num_pairs 1234567 pairs\n"
    )


def test_a_childs_line_bears_its_name_and_bare_keys() -> None:
    """``val/loss`` of the child ``val`` reads ``val: ... loss``, with the unit of ``loss``."""
    registry = dm.Registry()
    registry.average("loss", unit="nats")
    text = printed([record(9, {"val/loss": 0.5}, logger="val")], registry=registry)
    assert text == "val: step 9 | loss 0.5 nats\n"


def test_lines_come_at_most_once_in_so_many_seconds() -> None:
    """Records in between are not shown, but what they changed is; the last ones are at the end."""
    records = [record(step, {"loss": float(step)}, at=step) for step in range(12)]
    records.insert(3, record(2, {"extra": 7}, at=2.5))
    lines = printed(records, every=5.0).splitlines()
    assert lines == [
        "step 0 | loss 0",
        "step 5 | loss 5, extra 7",
        "step 10 | loss 10, extra 7",
        "step 11 | loss 11, extra 7",
    ]


def test_a_child_is_shown_at_its_own_pace() -> None:
    """An evaluation is shown although the training was a moment before."""
    records = [
        record(0, {"loss": 1.0}, at=0.0),
        record(0, {"val/loss": 2.0}, at=1.0, logger="val"),
    ]
    assert printed(records, every=60.0).splitlines() == ["step 0 | loss 1", "val: step 0 | loss 2"]


def test_only_the_keys_asked_for_are_shown() -> None:
    """Patterns choose keys; a record with none of them shows nothing."""
    records = [record(0, {"loss": 1.0, "n": 3}), record(1, {"n": 3})]
    assert printed(records, every=0, keys=["lo*"]) == "step 0 | loss 1\n"


def test_text_that_looks_like_markup_is_shown_as_it_is() -> None:
    """A key with brackets is no style."""
    assert printed([record(0, {"[red]acc[/red]": 1})]) == "step 0 | [red]acc[/red] 1\n"


def test_a_file_gets_no_escape_sequences() -> None:
    """Where the output is no terminal, lines and tables are plain text."""
    records = [record(step, {"loss": step / 3}) for step in range(3)]
    for style in ("line", "table"):
        assert "\x1b" not in printed(records, every=0, style=style)


def test_a_table_stays_in_place_on_a_terminal() -> None:
    """It is drawn over itself: the cursor goes up before each new state."""
    text = printed(
        [record(s, {"loss": s / 3}) for s in range(3)], terminal=True, every=0, style="table"
    )
    assert text.count("\x1b[1A") >= 2
    assert "0.66667" in text


def test_lines_stand_above_a_bar_of_tqdm() -> None:
    """The bar is cleared, the line written whole, the bar drawn again below it."""
    file = io.StringIO()
    sink = ConsoleSink(every=0, console=Console(file=file))
    sink.open(Run(None, "run", dm.Registry()))
    with tqdm.tqdm(total=3, file=file, ncols=60) as bar:
        for step in range(3):
            bar.update()
            sink.write(record(step, {"loss": 0.5}))
    sink.close()
    drawn = [line.rsplit("\r", 1)[-1] for line in file.getvalue().split("\n")]
    assert drawn[:3] == [f"step {step} | loss 0.5" for step in range(3)]


def test_lines_stand_above_a_bar_of_rich() -> None:
    """On the console of a `rich.progress.Progress` each line is printed once, as text."""
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=80, legacy_windows=False)
    for style in ("line", "table"):
        sink = ConsoleSink(every=0, style=style, console=console)  # type: ignore[arg-type]
        sink.open(Run(None, "run", dm.Registry()))
        with Progress(console=console) as progress:
            task = progress.add_task("training", total=3)
            for step in range(3):
                progress.advance(task)
                sink.write(record(step, {"loss": 0.5}))
        sink.close()
    assert file.getvalue().count("| loss 0.5\n") == 3


def _train() -> None:
    with dm.Logger(sinks=[ConsoleSink(every=0)]) as logger:
        for step in range(3):
            logger.log({"loss": dm.Average(1.0 + dm.get_rank())}, step=step)


def test_every_line_comes_once_whatever_the_number_of_ranks(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Only rank 0 has a console: two ranks print each line once."""
    run_ranks(_train, 2)
    out, err = capfd.readouterr()
    assert out.splitlines() == [f"step {step} | loss 1.5" for step in range(3)]
    assert not err


_SCRIPT = """
import tqdm, distmetrics as dm
with dm.Logger(sinks=[dm.sinks.ConsoleSink(every=0)]) as logger:
    for step in tqdm.trange(4, ncols=40):
        logger.log({"loss": dm.Average(0.5)}, step=step)
        logger.flush(wait=True)
"""


def test_a_terminal_shows_whole_lines_and_one_bar() -> None:
    """On a real terminal no line is torn by the bar, nor repeated."""
    main, end = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", _SCRIPT], stdin=end, stdout=end, stderr=end, close_fds=True
    ) as process:
        os.close(end)
        chunks = []
        while True:
            try:
                chunk = os.read(main, 4096)
            except OSError:  # the other end is closed
                break
            if not chunk:
                break
            chunks.append(chunk)
        assert process.wait(60) == 0
    os.close(main)
    text = b"".join(chunks).decode()
    rows = [row.rsplit("\r", 1)[-1] for row in text.replace("\r\n", "\n").split("\n")]
    lines = [row for row in rows if row.startswith("step")]
    assert lines == [f"step {step} | loss 0.5" for step in range(4)]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"every": -1}, "every="),
        ({"style": "graph"}, "style="),
        ({"keys": "loss"}, "keys="),
    ],
)
def test_wrong_options_are_refused(options: dict[str, object], said: str) -> None:
    """The message names the option."""
    with pytest.raises(dm.DistmetricsError, match=said):
        ConsoleSink(**options)  # type: ignore[arg-type]
