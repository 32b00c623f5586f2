"""A suite at the size of this machine: published graphs become generated ones, parts, epochs and batches shrink."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, TypeVar

from harness.data.generated.twin import SHAPES
from harness.data.registry import dataset_info
from harness.errors import UserError
from harness.launch.hardware import cores
from harness.launch.planner import FLOPS_A_CORE, epoch_flops
from harness.runtime.run_config import MethodSpec
from harness.spec import DatasetSpec
from harness.suite.expand import expand
from harness.suite.schema import Suite
from harness.suite.sections import NetworkSpec

V = TypeVar("V")
SCALES = (1.0, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001)
EPOCH_S = 0.5  # of full-graph training on one core, by arithmetic: so much of a graph is taken
TOTAL_S = 510.0  # of all trials together; what a first run compiles, and the report, take a minute more
AROUND_S = 3.7  # of a trial, around its training: processes, graph, evaluations; and for further seeds of what arrives
LEAST_S = 2.0  # that a trial trains
FIRST_SEEDS = 2  # what reaches the target with neither gets no more
LEAST_SEEDS = 3  # of what reaches it
EVAL_EVERY = 3  # every second epoch takes a quarter of the time
RATE = "1gbit"
LEAST_LR = 0.01  # seconds of training have few steps
LEAST: Mapping[str, int] = {
    "batch_size": 128, "sizes": 128, "size": 256, "frontier": 32, "clusters": 20, "per_batch": 1,
}  # fmt: skip
"""Options that count nodes (or clusters) of a batch, which shrink with the graph, and what they stay at least."""


def suite_of_twins(suite: Suite, scale: float | None, seeds: int = LEAST_SEEDS) -> tuple[Suite, str]:
    """Return a suite on twins of its published graphs, sized for this machine, and one line that says what changed.

    `scale`: share of the nodes; None: as much of each graph as trains an epoch in `EPOCH_S`. Parts are at most the
    cores, each rank has an equal share of these, and the network has `RATE` unless the suite names one: methods differ
    in their bytes, which cost next to nothing on the loopback. Every trial trains for an equal share of `TOTAL_S`;
    options of `LEAST` are scaled with the graph; there are at least so many `seeds` (a run gives `FIRST_SEEDS` to all
    trials, the others and more to what reaches the target: `run_while_time_allows`). Claims are of the published
    graphs, and are left out.

    Raises:
        UserError: no graph of the suite has a twin, or several have and the suite distinguishes them by their names.
    """
    names = [each.name for each in suite.datasets if each.name in SHAPES]
    if not names:
        known = ", ".join(SHAPES)
        raise UserError("no data set of the suite has a twin", file=suite.source.file, key="--twin", fix=f"of: {known}")
    apart = {*suite.per_dataset, *(name for own in suite.per_method.values() for name in own.per_dataset)}
    apart |= {"dataset" for entry in suite.exclude if "dataset" in entry}
    if len({*names}) > 1 and apart:
        fix = f"choose one: --set 'datasets=[{names[0]}]'"
        raise UserError("the suite has settings for one of its graphs", file=suite.source.file, key="--twin", fix=fix)
    scales = {name: scale or _fitting(suite, name) for name in names}
    here = cores()
    parts = [each for each in suite.partition if each.parts <= here] or [
        suite.partition[0].model_copy(update={"parts": here})
    ]
    threads = max(1, here // max(each.parts for each in parts))
    share = max(scales.values())
    chosen = "network" in suite.model_fields_set
    fresh = (seed for seed in itertools.count() if seed not in suite.seeds)
    changed: dict[str, Any] = {
        "name": f"{suite.name}-twin",
        "description": f"{suite.description} (on generated twins of its graphs, at the size of one machine)",
        "datasets": tuple(_twin(each, scales) for each in suite.datasets),
        "partition": tuple(parts),
        "network": suite.network if chosen else (NetworkSpec(rate=RATE),),
        "shaping": suite.shaping if chosen else "optional",
        "seeds": (*suite.seeds, *itertools.islice(fresh, max(0, seeds - len(suite.seeds)))),
        "methods": tuple(_scaled(each, share) for each in suite.methods),
        "per_dataset": _renamed(suite.per_dataset, names[0]),
        "per_method": {
            name: own.model_copy(update={"per_dataset": _renamed(own.per_dataset, names[0])})
            for name, own in suite.per_method.items()
        },
        "exclude": tuple(
            entry | ({"dataset": "twin"} if entry.get("dataset") == names[0] else {}) for entry in suite.exclude
        ),
        "claims": (),
    }
    smaller = suite.model_copy(update=changed)
    seconds = round(max(LEAST_S, TOTAL_S / len(expand(smaller)) - AROUND_S), 1)
    how = {"seconds": seconds, "eval_every": EVAL_EVERY, "threads": threads}
    smaller = smaller.model_copy(
        update={"train": tuple(t.model_copy(update=how | {"lr": max(t.lr, LEAST_LR)}) for t in suite.train)}
    )
    twins = ", ".join(f"{name} at {share:g} of its nodes" for name, share in scales.items())
    said = "/".join(str(each.parts) for each in parts)
    return smaller, (
        f"generated twins: {twins}; P = {said} ({threads} thread{'s' * (threads > 1)} a rank), {seconds:g} s of "
        f"training a trial{'' if chosen else f'; {RATE} between ranks, where it can be shaped'}; batches, where the "
        f"suite gives them, x {share:g}"
    )


def _fitting(suite: Suite, name: str) -> float:
    """Return the largest scale of a graph at which one core trains an epoch of each model in `EPOCH_S`."""
    own = suite.per_dataset[name].model if name in suite.per_dataset else {}
    models = [model.model_copy(update=own) for model in suite.model]
    for scale in SCALES:
        try:
            info = dataset_info(DatasetSpec(name="twin", options={"of": name, "scale": scale}))
        except UserError:  # too few nodes for its classes
            break
        fitting = scale
        if max(epoch_flops(model, info) for model in models) <= EPOCH_S * FLOPS_A_CORE:
            break
    return fitting


def _twin(spec: DatasetSpec, scales: Mapping[str, float]) -> DatasetSpec:
    if spec.name not in scales:
        return spec
    kept = {key: value for key, value in spec.options.items() if key == "normalize"}
    return DatasetSpec(name="twin", options={"of": spec.name, "scale": scales[spec.name], **kept})


def _scaled(method: MethodSpec, scale: float) -> MethodSpec:
    def smaller(key: str, value: Any) -> Any:
        if isinstance(value, list):
            return [smaller(key, each) for each in value]
        if key not in LEAST or not isinstance(value, int) or value <= 0:  # 0, -1: all
            return value
        return min(value, max(LEAST[key], round(scale * value)))

    return method.model_copy(update={"options": {key: smaller(key, own) for key, own in method.options.items()}})


def _renamed(settings: Mapping[str, V], name: str) -> dict[str, V]:
    return {"twin": settings[name]} if name in settings else {}
