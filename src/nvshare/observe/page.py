"""Samples as the text that Prometheus scrapes."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from prometheus_client.core import Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from nvshare.observe.families import FAMILIES
from nvshare.observe.figures import Sample

CONTENT_TYPE = CONTENT_TYPE_LATEST
_ORDER = {family: number for number, family in enumerate(FAMILIES)}


class _Fixed(Collector):
    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> list[Metric]:
        return self._metrics


def render(samples: Iterable[Sample]) -> bytes:
    """One page, with families in the order of their list."""
    metrics = []
    for family, members in groupby(sorted(samples, key=lambda one: _ORDER[one.family]), lambda one: one.family):
        metric = Metric(family.name.removesuffix("_total"), family.help, family.kind)
        for sample in members:
            labels = dict(zip(family.labels, sample.labels, strict=True))
            if sample.bound is not None:
                labels["le"] = sample.bound
            metric.add_sample(family.name + sample.suffix, labels, sample.value)
        metrics.append(metric)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Fixed(metrics))
    return generate_latest(registry)
