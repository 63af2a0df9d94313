"""Metrics for Prometheus.

takes: requests, batches; gives: text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily

from .models import Model

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_SECONDS = tuple(base * 10**power for power in range(-4, 2) for base in (1, 2.5, 5))
_SIZES = tuple(1 << k for k in range(0, 17, 2))


class _Drifts:
    """What the models' monitors have observed, in the form that Prometheus' client reads."""

    def __init__(self, models: Iterable[Model]) -> None:
        self._models = models

    def describe(self) -> list[GaugeMetricFamily]:
        """Return no gauges: which ones there are depends on the models when they are collected."""
        return []

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the gauges of all models that have a monitor."""
        families = dict[str, GaugeMetricFamily]()
        for model in self._models:
            gauges = () if model.monitor is None else model.monitor.report().metrics()
            for name, text, values in gauges:
                labels = ["model", "version", "column"]
                family = families.setdefault(name, GaugeMetricFamily(name, text, labels=labels))
                for column, value in values.items():
                    family.add_metric([model.name, model.version, column], value)
        yield from families.values()


class Metrics:
    """Counters of one server."""

    def __init__(self, queue_length: Callable[[], float], models: Iterable[Model]) -> None:
        """Count from zero; `queue_length` is called when Prometheus reads the metrics."""
        self._registry = registry = CollectorRegistry()
        prefix, of_model = "tvm_forest", ["model", "version"]
        self._requests = Counter(
            f"{prefix}_requests", "Answers, by status.", [*of_model, "status"], registry=registry
        )
        self._seconds = Histogram(
            f"{prefix}_request_seconds",
            "Time from the head of a request for predictions to its answer.",
            of_model,
            buckets=_SECONDS,
            registry=registry,
        )
        self._rows = Counter(f"{prefix}_rows", "Rows predicted.", of_model, registry=registry)
        self._batch_rows = Histogram(
            f"{prefix}_batch_rows",
            "Rows of a call of the predictor.",
            of_model,
            buckets=_SIZES,
            registry=registry,
        )
        self._batch_requests = Histogram(
            f"{prefix}_batch_requests",
            "Requests that are joined in a call of the predictor.",
            of_model,
            buckets=_SIZES,
            registry=registry,
        )
        length = Gauge(f"{prefix}_queue_length", "Requests that wait.", registry=registry)
        length.set_function(queue_length)
        registry.register(_Drifts(models))

    def observe_batch(self, name: str, version: str) -> Callable[[int, int], None]:
        """Return a function that counts a batch of a model: (requests, rows) -> None."""
        rows = self._rows.labels(name, version)
        sizes, requests = (
            x.labels(name, version) for x in (self._batch_rows, self._batch_requests)
        )

        def observe(n_requests: int, n_rows: int) -> None:
            rows.inc(n_rows)
            sizes.observe(n_rows)
            requests.observe(n_requests)

        return observe

    def count_answer(self, name: str, version: str, status: int, seconds: float | None) -> None:
        """Count an answer.

        Args:
            name, version: those of the model; "" if the request named none, or an unknown one.
            status: HTTP status.
            seconds: time that the answer took; None for one that is not timed.
        """
        self._requests.labels(name, version, status).inc()
        if seconds is not None:
            self._seconds.labels(name, version).observe(seconds)

    def write(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self._registry)
