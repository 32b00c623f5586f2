"""A world of two data sets and three methods, so that these tests depend on no loader and no method."""

from __future__ import annotations

import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytest
from pydantic import Field

from harness.errors import UserError, nearest
from harness.registry import PluginKey
from harness.runtime.method import METHODS as REGISTERED
from harness.runtime.run_config import MethodOptions
from harness.spec import DatasetSpec, PluginSource


class Option(NamedTuple):
    type: type
    default: Any
    summary: str = ""


DATASETS = {
    "digits": {"normalize": Option(str, "none")},
    "twin": {"of": Option(str, "reddit"), "scale": Option(float, 1.0)},
}


class FullOptions(MethodOptions):
    precompute: bool = False
    transform_before_exchange: bool = False


class BoundaryOptions(MethodOptions):
    rate: float = Field(0.1, ge=0, le=1)
    sampler: Literal["bernoulli", "fixed"] = "bernoulli"
    precompute: bool = False
    codec: str = Field("none", exclude_if=lambda codec: codec == "none")


class NeighbourOptions(MethodOptions):
    fanouts: int | list[int] = 10
    batch_size: int = Field(1024, ge=0)
    prefetch: int = Field(0, ge=0, repr=False)


METHODS = {"full": FullOptions, "bns-gcn": BoundaryOptions, "graphsage": NeighbourOptions}


def dataset_info(spec: DatasetSpec, data_dir: Path | None = None) -> types.SimpleNamespace:
    if spec.name not in DATASETS:
        raise UserError(f"unknown data set '{spec.name}'", fix=nearest(spec.name, DATASETS))
    known = DATASETS[spec.name]
    for key, value in spec.options.items():
        if key not in known:
            raise UserError(f"unknown option '{key}'", key=f"dataset {spec.name}", fix=nearest(key, known))
        if known[key].type is str and not isinstance(value, str):
            raise UserError(f"bad value {value!r}: must be text", key=f"dataset {spec.name}: {key}")
    multilabel = spec.options.get("of") == "youtube"
    return types.SimpleNamespace(
        options=known, inductive=spec.name == "twin", multilabel=multilabel, nodes=1000, validates=True
    )


def load_method(name: str, source: PluginSource | None = None) -> types.SimpleNamespace:
    if name not in METHODS:
        raise UserError(f"unknown method '{name}'", fix=nearest(name, METHODS))
    known = {"Options": METHODS[name], "within_nodes": (), "model_of": lambda options, model: None}
    return types.SimpleNamespace(**known, metrics_by_column=dict, memory=lambda options, case: {})


def find_method(name: str, plugins: Mapping[PluginKey, PluginSource]) -> types.SimpleNamespace:
    return types.SimpleNamespace(value=load_method(name), source=None)


def loaded_method(name: str, source: PluginSource | None) -> types.SimpleNamespace | None:
    return load_method(name) if name in METHODS else None


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the fakes in the registries' places."""
    registry = types.ModuleType("harness.data.registry")
    registry.dataset_info = dataset_info
    monkeypatch.setitem(sys.modules, "harness.data.registry", registry)
    monkeypatch.setattr(REGISTERED, "load", load_method)
    monkeypatch.setattr(REGISTERED, "find", find_method)
    monkeypatch.setattr(REGISTERED, "loaded", loaded_method)
    monkeypatch.setattr(REGISTERED, "names", lambda plugins=None: list(METHODS))
