"""Data sets by name: what is known of each, and how it becomes a prepared directory."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.data.catalog import (
    SPLITS,
    DatasetInfo,
    Option,
    Published,
    normalize_option,
    published,
    with_normalize,
)
from harness.data.download import fetch, get_command
from harness.data.formats import neutral
from harness.data.graph import GraphData, check_graph, train_on_all_others
from harness.data.normalize import NORMALIZERS, normalize_features
from harness.data.sources import Source, find_source, neutral_files
from harness.data.spec import DatasetSpec
from harness.data.store import FORMAT_VERSION, atomic_directory, cache_root, fill_graph, locked
from harness.errors import DataError, DataUnavailable, UserError, nearest

if TYPE_CHECKING:  # generators import DatasetInfo from here
    from harness.data.generated.options import Generator

__all__ = ["DatasetInfo", "Option", "dataset_info", "dataset_names", "find_prepared", "prepare"]

_READER_VERSION = 4
"""Raised when a reader's or generator's result changes, so that what is cached is made anew."""

LATER: Mapping[str, Mapping[str, Any]] = {"kronecker": {"train": 0.6}}
"""Options that a set was given later, and their defaults, at which what is cached keeps its name."""


def shipped_names() -> list[str]:
    """Names of the published and the generated sets."""
    return [*published(), *_generators()]


def dataset_names(data_dir: Path | None = None) -> list[str]:
    """Names of all sets: published, generated, and the neutral files of `data_dir` (else $HARNESS_DATA)."""
    known = shipped_names()
    aliases = {name.replace("-", "_") for name in known}
    return known + [stem for stem in neutral_files(data_dir) if stem not in known and stem not in aliases]


def dataset_info(spec: DatasetSpec, data_dir: Path | None = None) -> DatasetInfo:
    """Figures of a set without having it; those of a generated set are computed from its options.

    Raises:
        UserError: an unknown set (with the nearest name), or an unknown or ill-typed option.
        DataError: a neutral file known only by its name is damaged.
    """
    given = _given(spec)
    _check_choice(spec, "normalize", NORMALIZERS, "normalisation")
    _check_choice(spec, "split", SPLITS, "split")
    generator = _generators().get(spec.name)
    if generator is not None:
        info = with_normalize(generator.info(given))
    else:
        info = _read_info(spec.name, data_dir)
        for key in (key for key in given if key not in info.options):
            raise UserError(
                f"unknown option '{key}'", key=f"dataset {spec.name}", fix=nearest(key, info.options)
            )
    return replace(info, normalize=spec.options.get("normalize", info.normalize))


def prepare(
    spec: DatasetSpec, *, data_dir: Path | None = None, cache: Path | None = None, download: bool = False
) -> Path:
    """Return the prepared directory of a set (for `open_graph`); built once, whole or not at all.

    Files are looked for in `data_dir` (else $HARNESS_DATA): `NAME.npz`, then raw files in `NAME` or
    `raw/NAME`; then among the downloads in `cache` (else `cache_root()`); `download` fetches what is missing.

    Raises:
        UserError: see `dataset_info`.
        DataUnavailable: there are no files, or (with `download`) no server.
        DataError: the files are damaged; nothing is cached, and a damaged download is removed.
    """
    cache = cache_root() if cache is None else Path(cache).absolute()
    info = dataset_info(spec, data_dir)
    generator, entry = _generators().get(spec.name), published().get(spec.name)
    source = _source(spec, data_dir, cache)
    # A graph prepared from a download stays usable when its raw files have been deleted.
    target = _target(spec, info, source, cache)
    if not (target / "meta.json").is_file():
        if generator is None and source is None:
            source = _obtain(spec.name, entry, cache, download)
        with locked(target):
            if not (target / "meta.json").is_file():
                _build(spec, info, source, generator, target)
    return target


def find_prepared(
    spec: DatasetSpec, *, data_dir: Path | None = None, cache: Path | None = None
) -> Path | None:
    """Return what `prepare` would, if it is there already; else None. Nothing is fetched or built.

    Raises UserError and DataError as `dataset_info` does.
    """
    cache = cache_root() if cache is None else Path(cache).absolute()
    target = _target(spec, dataset_info(spec, data_dir), _source(spec, data_dir, cache), cache)
    return target if (target / "meta.json").is_file() else None


def _source(spec: DatasetSpec, data_dir: Path | None, cache: Path) -> Source | None:
    if spec.name in _generators():
        return None
    return find_source(spec.name, published().get(spec.name), data_dir, cache / "raw" / spec.name)


def _target(spec: DatasetSpec, info: DatasetInfo, source: Source | None, cache: Path) -> Path:
    return cache / "datasets" / f"{spec.name}-{_key(spec, info, source)}"


def _build(
    spec: DatasetSpec, info: DatasetInfo, source: Source | None, generator: Generator | None, target: Path
) -> None:
    try:
        with atomic_directory(target) as work:
            if source is not None:
                graph = _with_note(source.read(spec.name, work), source)
                if spec.options.get("split") == "full":
                    graph = train_on_all_others(graph)
            else:
                assert generator is not None
                graph = generator.make(**_given(spec), work=work)
            check_graph(graph, source.path if source else spec.name, symmetric=True)
            fill_graph(graph, work)
            normalize_features(work / "features.npy", info.normalize, graph.train_mask)
    except DataError:
        if source is not None and source.downloaded:
            shutil.rmtree(source.path, ignore_errors=True)
        raise


def _obtain(name: str, entry: Published | None, cache: Path, download: bool) -> Source:
    assert entry is not None, "a set that is neither generated nor published has a neutral file"
    if download:
        return Source(entry.format, fetch(entry, cache / "raw" / name), downloaded=True)
    if not entry.urls:
        raise DataUnavailable(
            f"{name} is not here: {entry.manual}", f"put its files into $HARNESS_DATA/{name}"
        )
    raise DataUnavailable(f"{name} is not here", get_command(name))


def _with_note(graph: GraphData, source: Source) -> GraphData:
    """Say so when a published set's name is borne by a neutral file, whose content nobody vouches for."""
    entry = published().get(graph.name.replace("_", "-"))
    if entry is None or source.format != "neutral":
        return graph
    width = graph.features.shape[1]
    note = f"from {source.path.name}"
    if width != entry.info.features:
        note += f", {width} features instead of {entry.info.features}"
    return replace(graph, note=note)


def _key(spec: DatasetSpec, info: DatasetInfo, source: Source | None) -> str:
    defaults = {name: option[1] for name, option in info.options.items()}
    options = defaults | spec.options | {"normalize": info.normalize}
    later = LATER.get(spec.name, {})
    content = {
        "versions": [FORMAT_VERSION, _READER_VERSION],
        "options": {key: value for key, value in options.items() if (key, value) not in later.items()},
        "source": [] if source is None else source.identity(),
    }
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _read_info(name: str, data_dir: Path | None) -> DatasetInfo:
    entry = published().get(name)
    if entry is not None:
        return entry.info
    path = neutral_files(data_dir).get(name)
    if path is None:
        fix = nearest(name, dataset_names(data_dir))
        if not fix.startswith("did you mean"):
            fix = f"put {name}.npz into the data directory, --data-dir or HARNESS_DATA; {fix}"
        raise UserError(f"unknown data set '{name}'", key="datasets", fix=fix)
    found = neutral.figures(path)
    return DatasetInfo(
        name=name,
        nodes=found.nodes,
        edges=found.edges,
        features=found.features,
        classes=found.classes,
        multilabel=found.multilabel,
        inductive=False,
        origin="real",
        normalize="none",
        options={"normalize": normalize_option("none")},
        source=f"your file {path}",
        size_bytes=0,
        summary="a graph in the neutral format",
    )


def _check_choice(spec: DatasetSpec, key: str, allowed: Collection[str], what: str) -> None:
    value = spec.options.get(key, next(iter(allowed)))
    if not isinstance(value, str) or value not in allowed:
        known = nearest(value, allowed) if isinstance(value, str) else "known: " + ", ".join(allowed)
        raise UserError(f"{value!r} is no {what}", key=f"dataset {spec.name}: {key}", fix=known)


def _given(spec: DatasetSpec) -> dict[str, Any]:
    return {key: value for key, value in spec.options.items() if key != "normalize"}


def _generators() -> Mapping[str, Generator]:
    from harness.data.generated import GENERATORS

    return GENERATORS
