"""Where the files of a named set are on this machine."""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from harness.data.catalog import Published
from harness.data.graph import GraphData


@dataclass(frozen=True)
class Source:
    """Files to read a set from: a neutral file, or a directory of raw files."""

    format: str
    path: Path
    downloaded: bool = False
    """The files are in the harness's own cache, so that damaged ones are removed."""

    def identity(self) -> list[tuple[str, int, int]]:
        """Name, size and time of change of each file; empty for downloads, which are never changed."""
        if self.downloaded:
            return []
        files = [self.path] if self.path.is_file() else sorted(p for p in self.path.rglob("*") if p.is_file())
        return [(str(p.resolve()), p.stat().st_size, p.stat().st_mtime_ns) for p in files]

    def read(self, name: str, work: Path) -> GraphData:
        """Read the files; see `harness.data.formats`."""
        graph: GraphData = import_module(f"harness.data.formats.{self.format}").read(self.path, name, work)
        return graph


def data_directory(data_dir: Path | None) -> Path | None:
    """`data_dir`, else $HARNESS_DATA, else None."""
    given = data_dir or os.environ.get("HARNESS_DATA")
    return Path(given) if given else None


def neutral_files(data_dir: Path | None) -> dict[str, Path]:
    """The neutral files of a data directory by stem."""
    directory = data_directory(data_dir)
    if directory is None or not directory.is_dir():
        return {}
    return {path.stem: path for path in sorted(directory.glob("*.npz"))}


def find_source(name: str, entry: Published | None, data_dir: Path | None, raw: Path) -> Source | None:
    """Find the files of `name`: neutral file, raw files of the data directory, downloaded files in `raw`."""
    neutral = neutral_files(data_dir)
    for stem in (name, name.replace("-", "_")):
        if stem in neutral:
            return Source("neutral", neutral[stem])
    if entry is None:
        return None
    directory = data_directory(data_dir)
    if directory is not None:
        names = (name, name.replace("-", "_"), *entry.folders, f"{entry.format}_{name}")
        for path in (parent / folder for parent in (directory, directory / "raw") for folder in names):
            if (path / entry.marker).exists():
                return Source(entry.format, path)
    return Source(entry.format, raw, downloaded=True) if (raw / entry.marker).exists() else None
