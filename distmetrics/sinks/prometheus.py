"""The latest record for a Prometheus server to scrape."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from distmetrics.errors import InvalidValue, MissingPackage
from distmetrics.record import Record
from distmetrics.sinks.contract import Run
from distmetrics.sinks.described import Description, describe
from distmetrics.sinks.prometheus_names import NAMESPACE, metric_name
from distmetrics.sinks.scalars import scalars

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

PORT = 9464


@dataclass(frozen=True)
class _Latest:
    """The latest value of a key, and what the registry says of it."""

    value: float
    description: Description


class PrometheusSink:
    """The latest value of every key at ``http://<host>:<port>/metrics``.

    A key's metric has the name that `distmetrics.sinks.prometheus_names.metric_name` gives it, the
    registry's help text and unit as HELP, and the labels ``key``, the key itself, and ``run``. Keys
    that run on since the run began (`total`, `axis`) are counters, everything else is a gauge. Of
    the run itself there are, for each logger and child, ``distmetrics__step`` and
    ``distmetrics__record_time_seconds``, and ``distmetrics__world_size`` and
    ``distmetrics__attempt``. NaN and infinities are exposed as they are; integers beyond 2**53 are
    rounded to float64.

    The server ends with the run: a record that no scrape has seen is in metrics.jsonl alone.

    Args:
        port: where the server listens; 0 takes a free port, which `address` then tells.
        host: the address it is bound to. The default is for this machine alone; ``"0.0.0.0"``
            lets every machine of the network read the values, without a password.

    Example:
        >>> from urllib.request import urlopen
        >>> sink = PrometheusSink(port=0)
        >>> sink.open(Run(directory=None, name="exp1", registry=None))
        >>> sink.write(Record(step=9, first_step=0, window=9, time=0.0, values={"loss": 0.25}))
        >>> page = urlopen(f"http://{sink.address}/metrics").read().decode()
        >>> [line for line in page.splitlines() if line.startswith("distmetrics_loss")]
        ['distmetrics_loss{key="loss",run="exp1"} 0.25']
        >>> sink.close()
    """

    name = "prometheus"
    direct = True

    def __init__(self, port: int = PORT, host: str = "127.0.0.1") -> None:
        if not 0 <= port < 65536:
            raise InvalidValue(f"PrometheusSink: port={port!r} is no port; give 0 to 65535")
        self._port = port
        self._host = host
        self._run: Run | None = None
        self._server: Any = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()  # a scrape reads while the logger writes
        self._latest: dict[str, _Latest] = {}
        self._records: dict[str, Record] = {}

    @property
    def address(self) -> str | None:
        """Host and port, ``"127.0.0.1:9464"``; None if the sink is not open."""
        if self._server is None:
            return None
        host, port = self._server.server_address[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @property
    def handle(self) -> str | None:
        """The address."""
        return self.address

    def open(self, run: Run) -> None:
        """Begin to answer scrapes.

        Raises:
            MissingPackage: prometheus_client is not installed.
            InvalidValue: the port is taken, or the host is none of this machine's.
        """
        try:
            from prometheus_client import CollectorRegistry, start_http_server
        except ImportError as error:
            raise MissingPackage(
                f"the Prometheus sink needs prometheus_client ({error}); install it with: "
                "python -m pip install prometheus_client"
            ) from error
        self._run = run
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        try:
            self._server, self._thread = start_http_server(
                self._port, addr=self._host, registry=registry
            )
        except OSError as error:
            raise InvalidValue(
                f"PrometheusSink: {self._host}:{self._port} cannot be bound "
                f"({error.strerror or error}); give another port, or port=0 for a free one"
            ) from error

    def write(self, record: Record) -> None:
        """Take the record's numbers for the next scrape; a late one does not replace a newer."""
        assert self._run is not None, "write comes after open"
        with self._lock:
            for key, value in scalars(record).items():
                known = self._latest.get(key)
                if known is None:
                    description = describe(self._run.registry, key, record.logger)
                elif record.late:
                    continue
                else:
                    description = known.description
                self._latest[key] = _Latest(float(value), description)
            if not record.late:
                self._records[record.logger or ""] = record

    def collect(self) -> Iterator[Metric]:
        """What a scrape gets, for `prometheus_client`."""
        with self._lock:
            latest, records = dict(self._latest), dict(self._records)
        assert self._run is not None, "a scrape comes after open"
        for key, one in latest.items():
            yield _metric(metric_name(key), one, {"key": key, "run": self._run.name})
        yield from _run_metrics(self._run, records)

    def close(self) -> None:
        """Stop answering."""
        if self._server is not None and self._thread is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()
            self._server = self._thread = None


def _metric(name: str, one: _Latest, labels: dict[str, str]) -> Metric:
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

    kind = CounterMetricFamily if one.description.cumulative else GaugeMetricFamily
    metric = kind(name, one.description.text or labels["key"], labels=list(labels))
    metric.add_metric(list(labels.values()), one.value)
    return metric


def _run_metrics(run: Run, records: dict[str, Record]) -> Iterator[Metric]:
    from prometheus_client.metrics_core import GaugeMetricFamily

    labels = ["logger", "run"]
    step = GaugeMetricFamily(f"{NAMESPACE}_step", "last step of the latest record", labels=labels)
    time = GaugeMetricFamily(
        f"{NAMESPACE}_record_time_seconds", "when the latest record was made", labels=labels
    )
    for logger, record in records.items():
        step.add_metric([logger, run.name], record.step)
        time.add_metric([logger, run.name], record.time)
    yield step
    yield time
    for name, text, value in (
        ("world_size", "number of ranks", run.world_size),
        ("attempt", "0, and one more with every resume", run.attempt),
    ):
        metric = GaugeMetricFamily(f"{NAMESPACE}_{name}", text, labels=["run"])
        metric.add_metric([run.name], value)
        yield metric
