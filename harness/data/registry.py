"""Data sets by name: where they are, what they are, and how they are prepared."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

from harness.caches import cache_root
from harness.data.catalog import (
    NORMALIZERS,
    SPLITS,
    DatasetInfo,
    Published,
    normalize_features,
    published,
    with_normalize,
)
from harness.data.download import fetch, get_command
from harness.data.formats import neutral
from harness.data.graph import GraphData, check_graph, train_on_all_others
from harness.data.prepared import (
    FORMAT_VERSION,
    Report,
    damage,
    file_hashes,
    fill_graph,
    fingerprint,
    made_once,
    to_stderr,
)
from harness.errors import DataError, DataUnavailable, UserError, nearest, spelled
from harness.spec import DatasetSpec


@dataclass(frozen=True)
class DataSource:
    """Files to read a set from: a neutral file, or a directory of raw files."""

    format: str
    path: Path
    downloaded: bool = False  # the files are in the harness's own cache, so that damaged ones are removed


def data_directory(data_dir: Path | None) -> Path | None:
    """`data_dir`, else $HARNESS_DATA, else None."""
    given = data_dir or os.environ.get("HARNESS_DATA")
    return Path(given) if given else None


def neutral_files(data_dir: Path | None) -> dict[str, Path]:
    """The neutral files of a data directory by stem."""
    directory = data_directory(data_dir)
    if directory is None or not directory.is_dir():
        return {}
    return {path.stem: path for path in sorted(directory.glob("*.npz")) if not path.name.startswith(".")}


def find_source(name: str, entry: Published | None, data_dir: Path | None, raw: Path) -> DataSource | None:
    """Find the files of `name`: neutral file, raw files of the data directory, downloaded files in `raw`."""
    own = neutral_files(data_dir)
    for stem in (name, name.replace("-", "_")):
        if stem in own:
            return DataSource("neutral", own[stem])
    if entry is None:
        return None
    if (directory := data_directory(data_dir)) is not None:
        names = (name, name.replace("-", "_"), *entry.folders, f"{entry.format}_{name}")
        for path in (parent / folder for parent in (directory, directory / "raw") for folder in names):
            if (path / entry.marker).exists():
                return DataSource(entry.format, path)
    return DataSource(entry.format, raw, downloaded=True) if (raw / entry.marker).exists() else None


_READER_VERSION = 7
"""Raised when a reader's or generator's result changes, so that what is cached is made anew."""


def dataset_names(data_dir: Path | None = None) -> list[str]:
    """Names of all sets: published, generated, and the neutral files of `data_dir` (else $HARNESS_DATA)."""
    known = [*published(), *generators()]
    aliases = {name.replace("-", "_") for name in known}
    return known + [stem for stem in neutral_files(data_dir) if stem not in known and stem not in aliases]


def dataset_name(name: str, data_dir: Path | None = None) -> str:
    """Return the name of the set that is meant, see `spelled`; a neutral file's own name comes before others."""
    return name if name in neutral_files(data_dir) else spelled(name, dataset_names(data_dir))


def dataset_info(spec: DatasetSpec, data_dir: Path | None = None) -> DatasetInfo:
    """What is known of a set without having it; those of a generated set are computed from its options.

    Raises:
        UserError: an unknown set (with the nearest name), or an unknown or ill-typed option.
        DataError: a neutral file known only by its name is damaged.
    """
    given = {key: value for key, value in spec.options.items() if key != "normalize"}
    choices: list[tuple[str, Collection[str], str]]
    choices = [("normalize", NORMALIZERS, "normalisation"), ("split", SPLITS, "split")]
    for key, allowed, what in choices:
        value = spec.options.get(key, next(iter(allowed)))
        if not isinstance(value, str) or value not in allowed:
            known = nearest(value, allowed) if isinstance(value, str) else "known: " + ", ".join(allowed)
            raise UserError(f"{value!r} is no {what}", key=f"dataset {spec.name}: {key}", fix=known)
    if spec.name in generators():
        info = with_normalize(generators()[spec.name].info(given))
    else:
        if spec.name in published():
            info = published()[spec.name].info
        elif (path := neutral_files(data_dir).get(spec.name)) is not None:
            info = neutral.info(path, spec.name)
        else:
            fix = nearest(spec.name, dataset_names(data_dir))
            if not fix.startswith("did you mean"):
                fix = f"put {spec.name}.npz into the data directory, --data-dir or HARNESS_DATA; {fix}"
            raise UserError(f"unknown data set '{spec.name}'", key="datasets", fix=fix)
        for key in (key for key in given if key not in info.options):
            raise UserError(f"unknown option '{key}'", key=f"dataset {spec.name}", fix=nearest(key, info.options))
    return replace(info, normalize=spec.options.get("normalize", info.normalize))


def prepare(
    spec: DatasetSpec,
    *,
    data_dir: Path | None = None,
    cache: Path | None = None,
    download: bool = False,
    report: Report = to_stderr,
) -> Path:
    """Return the prepared directory of a set (for `open_graph`); built once, whole or not at all.

    Its files are held against their checksums. A damaged one is set aside and made again; `report` receives a line.

    Files are looked for in `data_dir` (else $HARNESS_DATA): `NAME.npz`, then raw files in `NAME` or
    `raw/NAME`; then among the downloads in `cache` (else `cache_root()`); `download` fetches what is missing.

    Raises:
        UserError: see `dataset_info`.
        DataUnavailable: there are no files, or (with `download`) no server.
        DataError: the files are damaged; nothing is cached. A download is removed if it is not what was received.
    """
    raw, info, source, target = _located(spec, data_dir, cache)

    def build(work: Path) -> None:
        nonlocal source
        source = source or obtained()
        if source is not None:
            graph = _read(source, spec.name, work)
            if spec.options.get("split") == "full":
                graph = train_on_all_others(graph)
        else:
            options = {key: value for key, value in spec.options.items() if key != "normalize"}
            graph = generators()[spec.name].make(**options, work=work)
        check_graph(graph, source.path if source else spec.name, symmetric=True)
        fill_graph(graph, work)
        normalize_features(work / "features.npy", info.normalize, graph.train_mask)
        fingerprint(work)

    def obtained() -> DataSource | None:
        if spec.name in generators():
            return None
        entry = published()[spec.name]  # a set that is neither generated nor published has a neutral file
        if not download:
            raise DataUnavailable(f"{spec.name} is not here", get_command(spec.name))
        return DataSource(entry.format, fetch(entry, raw), downloaded=True)

    try:
        if source is None and not (target / "meta.json").is_file():
            source = obtained()  # before anything is written
        return made_once(target, "meta.json", build, report)
    except DataError as error:
        if source is None or not source.downloaded or error.file == target:
            raise
        raise _of_download(source.path, spec.name, error) from error


def find_prepared(spec: DatasetSpec, *, data_dir: Path | None = None, cache: Path | None = None) -> Path | None:
    """Return what `prepare` would, if it is there already; else None. Nothing is fetched or built.

    Raises UserError and DataError as `dataset_info` does.
    """
    *_, target = _located(spec, data_dir, cache)
    return target if (target / "meta.json").is_file() else None


def prepared_name(spec: DatasetSpec, *, data_dir: Path | None = None, cache: Path | None = None) -> str | None:
    """Return the name that the prepared directory has or will have; None where there are no files to prepare it from.

    Two names are of two versions of the tool, sets of options, or files (by place and content).
    """
    *_, source, target = _located(spec, data_dir, cache)
    return target.name if source is not None or spec.name in generators() else None


def _located(
    spec: DatasetSpec, data_dir: Path | None, cache: Path | None
) -> tuple[Path, DatasetInfo, DataSource | None, Path]:
    """Return where a set's download lies, what is known of it, its files, and where it lies prepared.

    A graph prepared from a download stays usable when its raw files have been deleted.
    """
    cache = cache_root() if cache is None else Path(cache).absolute()
    raw, info, source = cache / "raw" / spec.name, dataset_info(spec, data_dir), None
    if spec.name not in generators():
        source = find_source(spec.name, published().get(spec.name), data_dir, raw)
    key = _key(spec, info, source, cache / "datasets" / f".{spec.name}.files.json")
    return raw, info, source, cache / "datasets" / f"{spec.name}-{key}"


def _read(source: DataSource, name: str, work: Path) -> GraphData:
    if source.format != "neutral":
        from harness.data.formats.published import READERS  # scipy: half a second

        return READERS[source.format](source.path, name, work)
    graph = neutral.read(source.path, name, work)
    if (entry := published().get(graph.name.replace("_", "-"))) is None:
        return graph
    # A neutral file that has a published set's name: its content may be anything.
    width, published_width = graph.features.shape[1], entry.info.features
    other = f", {width} features instead of {published_width}" if width != published_width else ""
    return replace(graph, note=f"from {source.path.name}{other}")


def _of_download(raw: Path, name: str, error: DataError) -> DataError:
    """Return what to say of a download that could not be read; it is removed if it is proven to be damaged.

    A disk that failed for a moment proves nothing, and no server would send other bytes than these again.
    """
    try:
        why = damage(raw)
    except OSError as unread:
        return DataError(f"cannot be read: {unread.strerror}", file=unread.filename, fix="try again")
    if why is None:
        fix = f"try again; to download it anew, remove {raw}"
        return DataError(error.message, file=error.file, key=error.key, fix=fix)
    shutil.rmtree(raw, ignore_errors=True)
    return DataError(f"damaged: {why}; removed", file=raw, fix=get_command(name))


def _key(spec: DatasetSpec, info: DatasetInfo, source: DataSource | None, kept: Path) -> str:
    defaults = {name: option[1] for name, option in info.options.items()}
    options = defaults | spec.options | {"normalize": info.normalize}
    files: list[Path] = []
    if source is not None and not source.downloaded:  # nobody changes a download
        files = [p for p in (source.path, *sorted(source.path.rglob("*"))) if p.is_file()]
    content = {
        "versions": [FORMAT_VERSION, _READER_VERSION],
        "options": options,
        "source": list(file_hashes(files, kept).items()),
    }
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def generators() -> Mapping[str, ModuleType]:
    """Return the modules that make data sets on the spot, by name."""
    from harness.data.generated import digits, kronecker, sbm, twin

    return {"digits": digits, "kronecker": kronecker, "sbm": sbm, "twin": twin}
