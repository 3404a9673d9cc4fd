"""Records as metrics of an MLflow run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from distmetrics.errors import InvalidValue, MissingPackage
from distmetrics.record import Record
from distmetrics.sinks.contract import Run
from distmetrics.sinks.described import describe
from distmetrics.sinks.mlflow_names import metric_name
from distmetrics.sinks.scalars import flat, scalars

if TYPE_CHECKING:
    from mlflow import MlflowClient

_BATCH = 1000  # what MLflow takes in one request
_PARAMETERS = 100
_PARAMETER = 6000  # characters
_TAG = 5000


class MlflowSink:
    """Each record as one batch of metrics of an MLflow run, at the record's step and time.

    Without a tracking URI, from the argument or ``MLFLOW_TRACKING_URI``, the store is the file
    ``<run_dir>/mlflow.db`` (SQLite), to be looked at by ``mlflow ui`` of the whole package; writing
    needs only ``mlflow-skinny`` with SQLAlchemy, or no more than the former for a server's URI. The
    configuration becomes the run's parameters, help texts and units its tags ``about.<key>``. A
    resumed run goes on in the same MLflow run.

    NaN is kept; a SQL store turns infinities into the largest float64. Characters that MLflow
    refuses in names are written as `distmetrics.sinks.mlflow_names.metric_name` says.

    Args:
        tracking_uri: where MLflow's store is, ``"sqlite:///mlflow.db"``, ``"http://host:5000"``.
        experiment: the experiment that the run belongs to; made where it does not exist.
        run_name: the run's name; None takes that of the run directory.

    Example:
        >>> sink = MlflowSink("sqlite:///mlflow.db", experiment="digits")
        >>> sink.name, sink.needs_directory  # to be given to dm.Logger(sinks=[sink])
        ('mlflow', False)
    """

    name = "mlflow"
    close_timeout = 60.0  # its first use makes a database

    def __init__(
        self,
        tracking_uri: str | None = None,
        *,
        experiment: str = "distmetrics",
        run_name: str | None = None,
    ) -> None:
        self._uri = tracking_uri
        self._experiment = experiment
        self._run_name = run_name
        self._client: MlflowClient | None = None
        self._id: str | None = None
        self._run: Run | None = None
        self._described: set[str] = set()

    @property
    def needs_directory(self) -> bool:
        """Whether the store's place follows from the run directory."""
        return self._uri is None and not os.environ.get("MLFLOW_TRACKING_URI")

    @property
    def handle(self) -> tuple[MlflowClient, str] | None:
        """MLflow's client and the run's id, for artifacts and models; None if not open."""
        return None if self._client is None or self._id is None else (self._client, self._id)

    def open(self, run: Run) -> None:
        """Begin the MLflow run, or go on with the one that `state` named.

        Raises:
            MissingPackage: MLflow, or what its SQL stores need, is not installed.
            InvalidValue: neither the sink nor the run has a place for the store.
        """
        client = _client(self._store(run))
        self._run = run
        found = run.state.get("id")
        if found:
            self._id = str(found)
            client.update_run(self._id, status="RUNNING")
        else:
            self._id = self._begin(client, run)
        self._client = client

    def write(self, record: Record) -> None:
        """Write the record's numbers in batches."""
        from mlflow.entities import Metric, RunTag

        if self._client is None or self._id is None or self._run is None:
            raise InvalidValue("this MlflowSink is not open; call open(run) before it is used")
        numbers = scalars(record)
        clock = int(record.time * 1000)
        metrics = [
            Metric(metric_name(key), float(value), clock, record.step)
            for key, value in numbers.items()
        ]
        new = [key for key in numbers if key not in self._described]
        texts = {key: describe(self._run.registry, key, record.logger).text for key in new}
        tags = [
            RunTag(f"about.{metric_name(key)}", text[:_TAG]) for key, text in texts.items() if text
        ]
        for start in range(0, len(metrics), _BATCH):
            self._client.log_batch(self._id, metrics=metrics[start : start + _BATCH])
        for start in range(0, len(tags), _PARAMETERS):
            self._client.log_batch(self._id, tags=tags[start : start + _PARAMETERS])
        self._described.update(new)

    def state(self) -> dict[str, str]:
        """The run's id, with which a resumed run goes on."""
        return {} if self._id is None else {"id": self._id}

    def close(self) -> None:
        """Mark the run as finished."""
        if self._client is not None and self._id is not None:
            self._client.set_terminated(self._id)
            self._client = None

    def _store(self, run: Run) -> str | None:
        """The URI of the store; None where MLflow finds it by itself."""
        if self._uri is not None or not self.needs_directory:
            return self._uri
        if run.directory is None:
            raise InvalidValue(
                "MlflowSink has no place for its store: give the logger a run_dir, or write "
                'MlflowSink("sqlite:///mlflow.db")'
            )
        run.directory.mkdir(parents=True, exist_ok=True)
        return f"sqlite:///{(run.directory / 'mlflow.db').resolve()}"

    def _begin(self, client: MlflowClient, run: Run) -> str:
        from mlflow.entities import Param, RunTag

        experiment = client.get_experiment_by_name(self._experiment)
        number = (
            client.create_experiment(self._experiment, artifact_location=_artifacts(run))
            if experiment is None
            else experiment.experiment_id
        )
        tags = {"world_size": str(run.world_size)}
        begun = client.create_run(number, run_name=self._run_name or run.name, tags=tags)
        identity = str(begun.info.run_id)
        parameters = _parameters(run.config)
        for start in range(0, len(parameters), _PARAMETERS):
            part = [Param(*one) for one in parameters[start : start + _PARAMETERS]]
            client.log_batch(identity, params=part)
        if run.directory is not None:
            client.log_batch(identity, tags=[RunTag("run_dir", str(run.directory)[:_TAG])])
        return identity


def _client(uri: str | None) -> MlflowClient:
    try:
        from mlflow import MlflowClient

        return MlflowClient(tracking_uri=uri)
    except ImportError as error:
        raise MissingPackage(
            f"the MLflow sink needs mlflow-skinny, and for SQL stores SQLAlchemy and alembic "
            f"({error}); install them with: "
            "python -m pip install mlflow-skinny sqlalchemy alembic"
        ) from error


def _artifacts(run: Run) -> str | None:
    return None if run.directory is None else str((run.directory / "mlflow-artifacts").resolve())


def _parameters(config: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(metric_name(key), str(value)[:_PARAMETER]) for key, value in flat(config).items()]
