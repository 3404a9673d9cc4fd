"""Records on rank 0's terminal: a line, or a table that stays in place, beside a progress bar."""

from __future__ import annotations

import fnmatch
import io
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, get_args

from distmetrics.errors import InvalidType, InvalidValue
from distmetrics.record import Record, Value
from distmetrics.sinks.contract import Run
from distmetrics.sinks.described import describe

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live
    from rich.table import Table

Style = Literal["line", "table"]
_WIDTH = 100
"""Columns of a table where there is no terminal."""


class ConsoleSink:
    """The latest values on the terminal, every few seconds.

    The logger and each child have their own turns; what came last is shown when the sink closes.
    Keys stand under the groups that the registry gives them, with their units. A line looks like
    ``step 1230 | loss 0.25 nats, acc 0.91 | matching: num_pairs 128 pairs``.

    *Progress bars.* Lines and tables go above a bar of tqdm, and above one of rich that is on
    `console` (by default rich's global one). On a terminal without a bar of tqdm, and where rich
    shows nothing else, a table stays in place and is drawn again; elsewhere each is printed below
    the one before. Where the output is no terminal it is plain text.

    Args:
        every: seconds; 0 shows every record.
        style: ``"line"`` or ``"table"``.
        keys: patterns of the keys to show, with a child's prefix (``"val/*"``); by default all.
        console: a `rich.console.Console` to print on, e.g. that of a progress bar.

    Example:
        >>> from rich.console import Console
        >>> sink = ConsoleSink(every=0, console=Console(file=sys.stdout))
        >>> sink.open(Run(directory=None, name="example", registry=None))
        >>> sink.write(Record(step=9, first_step=0, window=9, time=0.0, values={"loss": 0.25}))
        step 9 | loss 0.25
        >>> sink.close()
    """

    name = "console"

    def __init__(
        self,
        every: float = 5.0,
        style: Style = "line",
        *,
        keys: Iterable[str] | None = None,
        console: Console | None = None,
    ) -> None:
        if isinstance(every, bool) or not every >= 0:
            raise InvalidValue(f"ConsoleSink: every= is a number of seconds from 0, not {every!r}")
        if style not in get_args(Style):
            raise InvalidValue(f"ConsoleSink: style= is 'line' or 'table', not {style!r}")
        if isinstance(keys, str):
            raise InvalidType(f"ConsoleSink: keys= is a list of patterns; write [{keys!r}]")
        self._every = every
        self._style = style
        self._keys = None if keys is None else tuple(keys)
        self._console = console
        self._run: Run | None = None
        self._shown: dict[str | None, float] = {}
        self._waiting: dict[str | None, Record] = {}
        self._latest: dict[str | None, tuple[int, dict[str, Value]]] = {}
        self._live: Live | None = None

    @property
    def handle(self) -> Console | None:
        """The `rich.console.Console`; None before the first record."""
        return self._console

    def open(self, run: Run) -> None:
        """Find the terminal."""
        import rich

        self._run = run
        if self._console is None:
            self._console = rich.get_console()

    def write(self, record: Record) -> None:
        """Take the record's values, and show them if it is time."""
        if self._run is None:
            raise InvalidValue("this ConsoleSink is not open; call open(run) before it is used")
        values = {key: value for key, value in record.values.items() if self._is_shown(key)}
        if not values:
            return
        step, latest = self._latest.get(record.logger, (-1, {}))
        self._latest[record.logger] = (max(step, record.step), latest | values)
        before = self._shown.get(record.logger)
        if before is not None and record.time - before < self._every:
            self._waiting[record.logger] = record
            return
        self._waiting.pop(record.logger, None)
        self._shown[record.logger] = record.time
        self._show(record.logger)

    def close(self) -> None:
        """Show what came last."""
        for logger in list(self._waiting):
            self._show(logger)
        self._waiting.clear()
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _is_shown(self, key: str) -> bool:
        return self._keys is None or any(fnmatch.fnmatchcase(key, p) for p in self._keys)

    # --- lines and tables ---

    def _groups(self, logger: str | None) -> dict[str, list[tuple[str, str, str]]]:
        """For each group its keys, without the child's prefix, with value and unit as text."""
        assert self._run is not None
        prefix = f"{logger}/" if logger else ""
        found: dict[str, list[tuple[str, str, str]]] = {"": []}
        for key, value in self._latest[logger][1].items():
            said = describe(self._run.registry, key, logger)
            row = (key.removeprefix(prefix), shown(value), said.unit)
            found.setdefault(said.group, []).append(row)
        return {group: rows for group, rows in found.items() if rows}

    def _line(self, logger: str | None) -> str:
        parts = [f"step {self._latest[logger][0]}"]
        for group, rows in self._groups(logger).items():
            text = ", ".join(" ".join(filter(None, row)) for row in rows)
            parts.append(f"{group}: {text}" if group else text)
        return (f"{logger}: " if logger else "") + " | ".join(parts)

    def _table(self) -> Table:
        from rich.table import Table
        from rich.text import Text

        table = Table(show_header=False, pad_edge=False, box=None)
        columns: tuple[Literal["left", "right"], ...] = ("left", "right", "left")
        for justify in columns:
            table.add_column(justify=justify)
        for logger, (step, _) in self._latest.items():
            table.add_row(Text(logger or "step", style="bold"), Text(str(step), style="bold"), "")
            for group, rows in self._groups(logger).items():
                if group:
                    table.add_row(Text(f"  {group}", style="dim"), "", "")
                for key, value, unit in rows:
                    table.add_row(Text(f"  {key}"), Text(value), Text(unit, style="dim"))
        return table

    # --- the terminal ---

    def _show(self, logger: str | None) -> None:
        assert self._console is not None
        bar = _tqdm_bar()
        if self._style == "line":
            self._print(self._line(logger), bar)
        elif self._console.is_terminal and bar is None and self._redraw():
            return
        else:
            self._print(self._table(), bar)

    def _redraw(self) -> bool:
        """Whether the table could be drawn in place: nothing else of rich is."""
        from rich.errors import LiveError
        from rich.live import Live

        if self._live is None:
            live = Live(self._table(), console=self._console, auto_refresh=False)
            try:
                live.start(refresh=True)
            except LiveError:
                return False
            self._live = live
        self._live.update(self._table(), refresh=True)
        return True

    def _print(self, what: Any, bar: Any) -> None:
        assert self._console is not None
        if self._live is not None:  # a bar of tqdm has come up
            self._live.stop()
            self._live = None
        if bar is None:
            plain: Mapping[str, Any] = {"markup": False, "highlight": False, "soft_wrap": True}
            self._console.print(what, **(plain if isinstance(what, str) else {}))
            return
        bar.write(what if isinstance(what, str) else self._drawn(what), file=self._console.file)

    def _drawn(self, table: Table) -> str:
        from rich.console import Console

        assert self._console is not None
        terminal = self._console.is_terminal
        page = Console(
            file=io.StringIO(),
            force_terminal=terminal,
            width=self._console.width if terminal else _WIDTH,
        )
        with page.capture() as capture:
            page.print(table)
        return capture.get().rstrip("\n")


def shown(value: Value) -> str:
    """A value for people: whole numbers in full, others with five digits.

    >>> shown(1234567), shown(0.123456), shown({"edges": [0, 1, 2], "counts": [3, 4]})
    ('1234567', '0.12346', '7 in 2 bins')
    """
    if isinstance(value, dict):
        counts = value.get("counts", [])
        return f"{sum(counts)} in {len(counts)} bins"
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def _tqdm_bar() -> Any:
    """The class of the bars that tqdm shows now; None where it shows none."""
    tqdm = sys.modules.get("tqdm.std")
    return None if tqdm is None or not getattr(tqdm.tqdm, "_instances", ()) else tqdm.tqdm
