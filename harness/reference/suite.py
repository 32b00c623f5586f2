"""The page of suite files, from the schema."""

from __future__ import annotations

from typing import Any

from harness.cli.list import default_text
from harness.data.catalog import DatasetInfo
from harness.data.registry import dataset_info, shipped_names
from harness.data.spec import DatasetSpec, PartitionSpec
from harness.models.spec import ModelSpec
from harness.reference.markdown import GENERATED, options_table, table
from harness.runtime.spec import TrainSpec
from harness.suite.claims import Claim, Expect
from harness.suite.network import NetworkSpec
from harness.suite.schema import DatasetSettings, Suite, Timeouts

SECTIONS: dict[str, tuple[type[Any], str]] = {
    "model": (
        ModelSpec,
        "Architecture, shared by every trial. Lists as values, or a list of mappings: a grid.",
    ),
    "train": (
        TrainSpec,
        "Training, the same for every method. Lists as values, or of mappings: a grid.",
    ),
    "partition": (PartitionSpec, "How the nodes are given to ranks. Lists as values: a grid."),
    "network": (
        NetworkSpec,
        "The network between ranks, shaped by the kernel (needs root): `none`, a rate, or a mapping of these "
        "keys. A list: a grid.",
    ),
    "timeouts": (Timeouts, "Limits of wall time."),
    "per_dataset": (DatasetSettings, "By a data set's name: what it has other values of."),
    "claims": (Claim, "Sentences that the results make true or false, see `harness check-claims`."),
    "claims.expect": (Expect, "What is expected of a claim's metric: exactly one of the first four."),
}


def suite_page() -> str:
    """Return the reference of suite files."""
    sections = "\n\n".join(
        f"## {name}\n\n{what}\n\n{options_table(spec.model_fields)}"
        for name, (spec, what) in SECTIONS.items()
    )
    return f"""{GENERATED}
# Suite files

A suite is a YAML file. Every combination of data set, model, training, partition, method, network and seed
is a trial; `harness plan FILE` lists them. Only `name`, `datasets` and `methods` are required; an unknown key
or a wrong value is refused with its line and the nearest known name. `harness schema` writes all this as a
JSON schema for editors.

{table(["key", "meaning"], _top())}

Methods and data sets are entries `name` or `name: {{option: value}}`. An option's list stands for a grid; of
an option that is a list itself (`fanouts`), a list of lists does. Options of methods:
[Methods](methods/index.md).

{sections}

## Data sets

{table(["name", "what it is", "options (default)"], [_dataset(info) for info in _shipped()])}
"""


def _top() -> list[tuple[str, str]]:
    """Return a row a key of the file; what has a section of its own links to it."""
    return [
        (f"[`{key}`](#{key})" if key in SECTIONS else f"`{key}`", field.description or "")
        for key, field in Suite.model_fields.items()
    ]


def _shipped() -> list[DatasetInfo]:
    return [dataset_info(DatasetSpec(name=name)) for name in shipped_names()]


def _dataset(info: DatasetInfo) -> tuple[str, str, str]:
    options = [f"`{key}` ({default_text(option.default)})" for key, option in info.options.items()]
    return f"`{info.name}`", info.summary, ", ".join(options)
