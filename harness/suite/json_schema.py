"""The suite file as a JSON schema, for editors: completion, hints, and most mistakes as they are typed.

What a schema cannot say (sets in a data directory, what options agree with each other) `harness plan` says.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.data.catalog import Option
from harness.data.registry import dataset_info, dataset_names
from harness.errors import DataError
from harness.models.layer import ModelSpec
from harness.registry import Registry
from harness.runtime.method import METHODS
from harness.runtime.run_config import TrainSpec
from harness.spec import DatasetSpec, PartitionSpec
from harness.suite.expand import takes_list
from harness.suite.schema import OwnModel, Suite, named_in
from harness.suite.sections import NetworkSpec

Json = dict[str, Any]
DIALECT = "https://json-schema.org/draft/2020-12/schema"
JSON_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean"}
GRIDS: Mapping[str, type[Any]] = {"model": ModelSpec, "train": TrainSpec, "partition": PartitionSpec}


def suite_schema() -> Json:
    """Return the schema of a suite file, with the options of every installed method and data set.

    Lists stand for grids where a suite takes them. A method that does not import has no options; names that
    are not installed (plugins, graphs of a data directory) are allowed, with any options.
    """
    schema = Suite.model_json_schema()
    sections: Json = schema["properties"]
    entries = {name: _grid_of(_section(name, spec)) for name, spec in GRIDS.items()} | {
        "network": {"anyOf": [{"type": ["string", "null"]}, _grid_of(NetworkSpec.model_json_schema())]},
        "methods": _entries(_options_by_name(METHODS)),
        "datasets": _entries(_datasets()),
        "plugins": {"type": "string"},
    }
    for name, entry in entries.items():
        sections[name] = {"description": sections[name]["description"]} | _one_or_more(entry)
    partial = {name: _closed(_section(name, GRIDS[name])["properties"]) for name in ("model", "train")}
    sections["per_dataset"]["additionalProperties"] = _closed(partial)
    own = {
        "options": {"type": "object"},
        "model": _closed(OwnModel.model_json_schema()["properties"]),
        "train": partial["train"],
    }
    on_it = {"type": "object", "additionalProperties": _closed(own)}
    sections["per_method"]["additionalProperties"] = _closed(own | {"per_dataset": on_it})
    schema["$defs"]["Range"] = {
        "anyOf": [schema["$defs"]["Range"], {"type": "array", "minItems": 1}]
    }  # short: a choice
    _drop_unused(schema)
    return {"$schema": DIALECT, "title": "harness suite", **{k: v for k, v in schema.items() if k != "title"}}


def _one_or_more(entry: Json) -> Json:
    return {"anyOf": [entry, {"type": "array", "items": entry, "minItems": 1}]}


def _closed(properties: Json) -> Json:
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _grid_of(schema: Json) -> Json:
    """Allow every key of a section to hold a list of values, too."""
    return _closed({key: _or_list(value) for key, value in schema["properties"].items()})


def _section(name: str, spec: type[Any]) -> Json:
    """Return the schema of a section that names what is registered, with options of its own or without."""
    schema: Json = spec.model_json_schema()
    for registry, key, own in named_in(name):
        properties = schema["properties"]
        del properties[own]
        about = {k: properties[key][k] for k in ("description", "default") if k in properties[key]}
        properties[key] = about | _entries(_options_by_name(registry))
    return schema


def _or_list(value: Json) -> Json:
    about = {key: item for key, item in value.items() if key in ("description", "default")}
    own = {key: item for key, item in value.items() if key not in ("description", "default", "title")}
    return about | _one_or_more(own)


def _entries(options: Mapping[str, Json | None]) -> Json:
    """Return what an entry of `datasets` or `methods` may be: a name, or one with options."""
    known = {name: own for name, own in options.items() if own is not None}
    others = {name: {"type": ["object", "null"]} for name in options if name not in known}
    with_options = {
        "type": "object",
        "properties": {name: {"anyOf": [own, {"type": "null"}]} for name, own in known.items()} | others,
        "additionalProperties": {"type": ["object", "null"]},
        "minProperties": 1,
        "maxProperties": 1,
    }
    name = {"anyOf": [{"enum": sorted(options)}, {"type": "string"}]}
    return {"anyOf": [name, with_options]}


def _options_by_name(registry: Registry[Any]) -> dict[str, Json | None]:
    found: dict[str, Json | None] = {}
    for name in registry.names():
        try:
            found[name] = _options_of(registry.load(name).Options)
        except Exception:  # a broken package must not take the schema away
            found[name] = None
    return found


def _options_of(options: type[Any]) -> Json:
    """Return the schema of a method's options as a grid: where a value is a list, a list of lists is one."""
    schema = options.model_json_schema()
    definitions: Json = schema.get("$defs", {})
    listed = {name for name, field in options.model_fields.items() if takes_list(field.annotation)}
    properties: Json = {}
    for key, value in schema.get("properties", {}).items():
        properties[key] = _or_list(_inlined(value, definitions))
        if key in listed:
            properties[key]["anyOf"].append({"type": "array", "minItems": 1})
    return _closed(properties)


def _inlined(value: Any, definitions: Mapping[str, Any]) -> Any:
    # Definitions (`$ref`) of an option do not reach the suite's: they are put in place.
    if isinstance(value, list):
        return [_inlined(item, definitions) for item in value]
    if not isinstance(value, dict):
        return value
    if "$ref" in value:
        return _inlined(definitions[value["$ref"].rpartition("/")[2]], definitions)
    return {key: _inlined(item, definitions) for key, item in value.items()}


def _datasets() -> dict[str, Json | None]:
    found: dict[str, Json | None] = {}
    for name in dataset_names():
        try:
            options = dataset_info(DatasetSpec(name=name)).options
            found[name] = _closed({key: _or_list(_option(option)) for key, option in options.items()})
        except DataError:  # a damaged graph of the data directory
            found[name] = None
    return found


def _option(option: Option) -> Json:
    types = [JSON_TYPES[option.type], *(["null"] if option.default is None else [])]
    return {"description": option.summary, "default": option.default, "type": types}


def _drop_unused(schema: Json) -> None:
    """Leave out definitions that nothing names any more."""
    definitions: Json = schema.get("$defs", {})
    while unused := [name for name in definitions if f"#/$defs/{name}'" not in repr(schema)]:
        for name in unused:
            del definitions[name]
