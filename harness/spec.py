"""What a suite configures: the base, data sets and partitions; and where the code of a plugin is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self, get_args

from pydantic import BaseModel, ByteSize, ConfigDict, Field, ValidationInfo, field_validator, model_validator

RowType = Literal["float32", "float16", "bfloat16"]  # of features in files


def later(default: Any, description: str, **limits: Any) -> Any:
    """Return the field of an option that came later: keys and labels of trials with its default leave it out."""
    return Field(default, description=description, exclude_if=lambda value: bool(value == default), **limits)


class Spec(BaseModel):
    """Base of everything a suite file configures: immutable, unknown keys refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_value_is_a_number(cls, value: Any, info: ValidationInfo) -> Any:
        given = value if isinstance(value, list | tuple) else [value]
        if any(isinstance(each, bool) for each in given):
            kinds = _kinds(cls.model_fields[str(info.field_name)].annotation)
            if bool not in kinds and kinds & {int, float}:
                raise ValueError("must be a number")
        return value


def _kinds(annotation: Any) -> set[Any]:
    """Return what an annotation is made of: int and None of `int | None`, bool of `Literal[True]`."""
    members = get_args(annotation)
    return {annotation, type(annotation)}.union(*map(_kinds, members)) if members else {annotation, type(annotation)}


class PluginSource(Spec):
    """Where the code is of what did not come with the tool."""

    file: Path = Field(description="absolute path of the file")
    module: str | None = Field(description="what it is imported as; null: from the file itself")
    cls: str = Field(description="what it is called there")
    sha256: str = Field(description="hash of the file's content when the suite was read")


Presets = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""By option and its value, what other options are then, where they are not given."""


def of_presets(presets: Presets, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the presets that `options` name say of other options."""
    found: dict[str, Any] = {}
    for key, sets in presets.items():
        chosen = options.get(key)
        found |= sets.get(chosen, {}) if isinstance(chosen, str) else {}
    return found


def with_options(data: Any, key: str, options: str) -> Any:
    """Turn `{key: {name: {option: value}}}` into `{key: name, options: {option: value}}`; ValueError if it cannot."""
    if not isinstance(data, dict) or not isinstance(data.get(key), dict):
        return data  # for pydantic to refuse
    if len(data[key]) != 1:
        raise ValueError(f"{key}: name one thing, with its options: `{key}: {{NAME: {{option: value}}}}`")
    [(name, given)] = data[key].items()
    if given is not None and not isinstance(given, dict):
        raise ValueError(f"{key}: write the options of {name} as `{{{name}: {{option: value}}}}`")
    return data | {key: name, options: given or {}}


class DatasetSpec(Spec):
    """A data set by name, with the options of its loader or generator."""

    name: str = Field(description="a name of `harness list datasets`")
    options: dict[str, Any] = Field(default_factory=dict, description="loader or generator options")


class PartitionSpec(Spec):
    """How the nodes are given to ranks."""

    parts: int = Field(1, ge=1, le=1 << 16, description="number of parts = number of ranks")
    method: str = Field("metis", description="partitioner: a name of `harness list partitioners`")
    objective: Literal["volume", "cut"] = Field("cut", description="what METIS minimises")
    balance: str = Field(
        "nodes", description="what parts have equally much of: nodes, edges; METIS also train, nodes+train"
    )
    order: Literal["none", "rcm", "metis"] = Field(
        "none", description="order of a part's rows: of the data's nodes, reverse Cuthill-McKee, or clusters of METIS"
    )
    seed: int = Field(0, ge=0, description="seed of the partitioner")
    file: Path | None = Field(None, description="for `file`: the part of each node, as .npy, text, or DGL's .json")
    options: dict[str, Any] = Field(
        default_factory=dict, description="the partitioner's own; write `method: {NAME: {option: value}}`"
    )

    memory: ByteSize | None = later(
        None, "memory that partitioning may take, e.g. `16GB`, in place of `method`: chooses the first, of metis, "
        "kaminpar, coarsened and stream, that takes no more", gt=0,
    )  # fmt: skip

    @model_validator(mode="before")
    @classmethod
    def _method_with_options(cls, data: Any) -> Any:
        return with_options(data, "method", "options")

    @model_validator(mode="after")
    def _one_chooses(self) -> Self:
        if self.memory is not None and self.method != "metis":
            raise ValueError("memory: it chooses the partitioner; leave out method, or memory")
        return self

    @field_validator("balance")
    @classmethod
    def _known_balance(cls, balance: str, info: ValidationInfo) -> str:
        several = info.data.get("method") in ("metis", "file")
        known = ("nodes", "edges", "train") if several else ("nodes", "edges")
        if not set(balance.split("+") if several else [balance]) <= set(known):
            more = "nor several: nodes+train" if several else "and METIS alone balances more"
            raise ValueError(f"'{balance}' is none of {', '.join(known)}, {more}")
        return balance
