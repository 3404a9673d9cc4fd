from __future__ import annotations

import math
import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

import distmetrics as dm
from distmetrics.errors import InvalidValue
from distmetrics.registry import Registry
from distmetrics.sinks import PrometheusSink, Run
from distmetrics.sinks.prometheus_names import NAMESPACE, metric_name
from tests.dashboard.runs import ODD_KEYS
from tests.sinks.records import record


@pytest.fixture
def sink() -> Iterator[PrometheusSink]:
    """An open sink on a free port, with a registry."""
    registry = Registry()
    registry.average("loss", unit="nats", help="cross entropy\nof a \\sample")
    registry.total("tokens_seen", unit="tokens")
    registry.count("queries_total")
    made = PrometheusSink(port=0)
    made.open(Run(directory=None, name='run "1"', registry=registry, world_size=4))
    yield made
    made.close()


def scraped(sink: PrometheusSink) -> dict[tuple[str, str], float]:
    """Metric and key (or logger) to value, as a scrape reads them."""
    text = urlopen(f"http://{sink.address}/metrics", timeout=10).read().decode()
    return {
        (sample.name, sample.labels.get("key", sample.labels.get("logger", ""))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def page(sink: PrometheusSink) -> str:
    """What a scrape gets."""
    return str(urlopen(f"http://{sink.address}/metrics", timeout=10).read().decode())


def test_the_latest_values_are_exposed(sink: PrometheusSink) -> None:
    """A later record replaces the keys it has; the others stay."""
    sink.write(record(1, {"loss": 2.0, "tokens_seen": 10}))
    sink.write(record(2, {"loss": 1.0}))
    sink.write(record(2, {"val/loss": 3.0}, logger="val"))
    found = scraped(sink)
    assert found["distmetrics_loss", "loss"] == 1.0
    assert found["distmetrics_val_x2f_loss", "val/loss"] == 3.0
    assert found["distmetrics_tokens_seen_total", "tokens_seen"] == 10
    assert found["distmetrics__step", ""] == found["distmetrics__step", "val"] == 2
    assert found["distmetrics__world_size", ""] == 4


def test_help_and_type_come_from_the_registry(sink: PrometheusSink) -> None:
    """Totals are counters, everything else is a gauge; texts are escaped."""
    sink.write(record(1, {"loss": 2.0, "tokens_seen": 10, "queries_total": 3}))
    text = page(sink)
    assert "# HELP distmetrics_loss cross entropy\\nof a \\\\sample [nats]\n" in text
    assert "# TYPE distmetrics_loss gauge\n" in text
    assert "# TYPE distmetrics_tokens_seen_total counter\n" in text
    assert "# TYPE distmetrics_queries__total gauge\n" in text
    assert 'run="run \\"1\\""' in text


def test_a_late_record_does_not_replace_a_newer_one(sink: PrometheusSink) -> None:
    """What was logged late is older than what is there; a new key is taken."""
    sink.write(record(5, {"loss": 1.0}))
    sink.write(record(3, {"loss": 9.0, "other": 2.0}, late=True))
    found = scraped(sink)
    assert found["distmetrics_loss", "loss"] == 1.0
    assert found["distmetrics_other", "other"] == 2.0
    assert found["distmetrics__step", ""] == 5


def test_non_finite_and_huge_values_are_exposed(sink: PrometheusSink) -> None:
    """Prometheus knows NaN and infinities; integers are rounded to float64."""
    sink.write(record(1, {"a": math.nan, "b": math.inf, "c": 10**400, "d": 2**53 + 1}))
    found = scraped(sink)
    assert math.isnan(found["distmetrics_a", "a"])
    assert found["distmetrics_b", "b"] == found["distmetrics_c", "c"] == math.inf
    assert found["distmetrics_d", "d"] == 2.0**53


def test_odd_keys_are_told_apart(sink: PrometheusSink) -> None:
    """Each has a name that Prometheus takes, and its own text as a label."""
    sink.write(record(1, {key: place for place, key in enumerate(ODD_KEYS)}))
    found = {key: value for (_, key), value in scraped(sink).items() if key in ODD_KEYS}
    assert found == {key: place for place, key in enumerate(ODD_KEYS)}


def test_the_server_is_for_this_machine_alone(sink: PrometheusSink) -> None:
    """It is bound to loopback unless told otherwise, and gone after the run."""
    address = sink.address
    assert address is not None
    assert address.startswith("127.0.0.1:")
    sink.close()
    assert sink.address is None
    with pytest.raises(URLError):
        urlopen(f"http://{address}/metrics", timeout=5)
    assert not any("serve_forever" in thread.name for thread in threading.enumerate())


def test_a_taken_port_is_an_error_with_a_remedy() -> None:
    """Two runs on one machine need two ports."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InvalidValue, match=rf"127\.0\.0\.1:{port} cannot be bound.*port=0"):
            PrometheusSink(port=port).open(Run(directory=None, name="run", registry=Registry()))


@pytest.mark.parametrize("port", [-1, 65536])
def test_no_port_is_an_error(port: int) -> None:
    """The rule is named at once."""
    with pytest.raises(InvalidValue, match="is no port"):
        PrometheusSink(port=port)


def test_a_logger_exposes_its_values_by_name(tmp_path: Path) -> None:
    """The sink goes by the name "prometheus", or as an object with options."""
    sink = PrometheusSink(port=0)
    with dm.Logger(run_dir=tmp_path / "run", sinks=[sink]) as logger:
        logger.log({"loss": 0.5}, step=3)
        logger.flush(wait=True)
        assert logger.sink("prometheus") == sink.address
        assert scraped(sink)["distmetrics_loss", "loss"] == 0.5


def original(name: str) -> str:
    """The key that a metric's name was made of."""
    text = name.removeprefix(NAMESPACE)
    if not re.search(r"__|_x[0-9a-f]+_", text):
        return text
    return re.sub(r"__|_x([0-9a-f]+)_", lambda one: chr(int(one[1], 16)) if one[1] else "_", text)


@given(st.text(min_size=1, max_size=20) | st.from_regex(r"[ab/_x2f]{1,12}", fullmatch=True))
def test_a_name_tells_its_key(key: str) -> None:
    """Names are one to one, valid, and never those of a counter or of the run itself."""
    name = metric_name(key)
    assert re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", name)
    assert original(name) == key
    assert not re.search(r"[^_]_total$", name)
    assert name not in (f"{NAMESPACE}_step", f"{NAMESPACE}_world_size", f"{NAMESPACE}_attempt")
