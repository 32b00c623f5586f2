"""Raw files from their publishers' servers, whole or not at all; a download that breaks off is gone on with.

All sets but ppi have direct links, some at a second server, too. OGB's own loader is not used: it asks questions on
standard input and caches its result as a pickle. pooch starts a broken download of gigabytes from the beginning.
"""

from __future__ import annotations

import shutil
import stat
import zipfile
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from harness.data.catalog import Bounds, Published, file_name
from harness.data.formats import reading
from harness.data.prepared import atomic_directory, locked, seal
from harness.errors import DataError, DataUnavailable, UserError
from harness.files import size_text

_TIMEOUT_S = 60
CHUNK = 1 << 18  # bytes that are written at a time, and lost where a connection breaks
MOST_MEMBERS = 10_000  # of an archive; the published ones have up to 30


def get_command(name: str) -> str:
    """Return the command line that downloads the set `name`."""
    return f"harness data get {name}"


def fetch(entry: Published, target: Path) -> Path:
    """Download the files of a published set to the directory `target`, unpacked; nothing if it is there.

    Raises:
        DataUnavailable: no server can be reached.
        DataError: the first server has no such file, sent part of it, or sent something else, and no other had it.
        UserError: the disk is too small.
    """
    name = entry.info.name
    with locked(target):
        if target.is_dir():
            return target
        parts = target.with_name(f".{target.name}.part")
        parts.mkdir(parents=True, exist_ok=True)
        failed = list[DataError | DataUnavailable]()
        for urls in (entry.urls, *entry.mirrors):
            try:
                _fetch_from(urls, entry, target, parts)
            except (DataError, DataUnavailable) as error:
                failed.append(error)
            else:
                shutil.rmtree(parts)
                return target
    first = next((error for error in failed if isinstance(error, DataError)), None)
    if first is None:
        raise DataUnavailable(f"{name}: no server can be reached", entry.by_hand) from failed[0]
    fixes = (first.fix, f"by hand: {entry.by_hand}")
    raise DataError(first.message, file=first.file, fix="; ".join(filter(None, fixes))) from first


def _fetch_from(urls: Sequence[str], entry: Published, target: Path, parts: Path) -> None:
    with atomic_directory(target) as work:
        for url in urls:
            _fetch_one(url, work, entry.info.name, parts)
        if not (work / entry.marker).exists():
            raise DataError(f"has no '{entry.marker}', which {entry.info.name} should have", file=urls[0])
        seal(work, "*")  # not every publisher gives checksums: later the files are compared with these


def _fetch_one(url: str, work: Path, name: str, parts: Path) -> None:
    file = work / file_name(url)
    _request(url, parts / file.name, name).rename(file)
    with file.open("rb") as stream:
        head = stream.read(256).lstrip().lower()
    if head.startswith((b"<!doctype", b"<html")):
        raise DataError("the server sent a web page instead of the file", file=url)
    if file.suffix == ".zip":
        unpacked = work / "unpacked"
        unpack(file, unpacked, url, Bounds.of(name).unpacked)
        file.unlink()
        # Without the one directory that an archive often wraps its files in.
        entries = [path for path in unpacked.iterdir() if path.name != "__MACOSX"]
        wrapped = len(entries) == 1 and entries[0].is_dir() and entries[0].name != "raw"
        for path in list((entries[0] if wrapped else unpacked).iterdir()):
            path.rename(work / path.name)
        shutil.rmtree(unpacked)


def _request(url: str, part: Path, name: str) -> Path:
    """Download to `part`, and return it; what came before is kept if the server says that it is of the same file."""
    import requests

    version = part.with_name(f"{part.name}.version")  # as the server names it; without, nobody knows what a part is of
    had = part.stat().st_size if part.is_file() and version.is_file() else 0
    headers = {"Accept-Encoding": "identity"}
    headers |= {"Range": f"bytes={had}-", "If-Range": version.read_text()} if had else {}
    bar, reached, kept = _Bar(f"{name}: {part.name}", url, Bounds.of(name).unpacked), False, had > 0
    try:
        with requests.get(url, headers=headers, stream=True, timeout=_TIMEOUT_S) as answer:
            if had and answer.status_code == requests.codes.requested_range_not_satisfiable:
                version.unlink()  # all of it had come, or more
                return _request(url, part, name)
            answer.raise_for_status()
            tag, changed = (answer.headers.get(key, "") for key in ("ETag", "Last-Modified"))
            named = changed if tag.startswith("W/") else tag or changed  # a weak tag says nothing of single bytes
            version.write_text(named)
            reached, kept, partial = True, bool(named), answer.status_code == requests.codes.partial_content
            bar.start(had if partial else 0, int(answer.headers.get("Content-Length", 0)))
            with part.open("ab" if partial else "wb") as stream:
                for chunk in answer.iter_content(CHUNK):
                    bar.update(len(chunk))
                    stream.write(chunk)
        kept = True
        version.unlink()
    except requests.HTTPError as error:
        raise DataError(f"the server refused ({error})", file=url, fix="it may have moved") from error
    except requests.RequestException as error:
        if isinstance(error, requests.ConnectionError | requests.Timeout) and not reached:
            raise DataUnavailable(f"{name}: cannot reach {urlsplit(url).netloc}", get_command(name)) from error
        fix = "try again: it goes on from there" if kept else "try again"
        raise DataError("the connection broke before the end", file=url, fix=fix) from error
    except DataError:
        kept = False
        raise
    finally:
        bar.close()
        if not kept:
            part.unlink(missing_ok=True)
            version.unlink(missing_ok=True)
    return part


def unpack(archive: Path, target: Path, url: str, most: int) -> None:
    """Unpack a zip file into `target`; every member's checksum is verified.

    Raises:
        DataError: not a zip file, damaged, more than `most` bytes, or a member that points out of `target`.
        UserError: the disk is too small.
    """
    target.mkdir(parents=True)
    with reading(Path(url), "a zip file"), zipfile.ZipFile(archive) as content:
        members = content.infolist()
        if len(members) > MOST_MEMBERS:
            raise DataError(f"has {len(members)} members, at most {MOST_MEMBERS} are unpacked", file=url)
        size, free = sum(m.file_size for m in members), shutil.disk_usage(target).free
        if size > most:  # a member is never unpacked beyond the size that it says
            what = f"unpacks to {size_text(size)}, the published files have at most {size_text(most)}"
            raise DataError(what, file=url)
        if size > free:
            raise UserError(
                f"needs {size / 1e9:.1f} GB, {free / 1e9:.1f} GB are free", file=target, fix="set HARNESS_CACHE"
            )
        for member in members:
            path = target / member.filename
            outside = not path.resolve().is_relative_to(target.resolve())
            if outside or "\\" in member.filename or stat.S_ISLNK(member.external_attr >> 16):
                raise DataError(f"member '{member.filename}' points out of the archive", file=url)
            content.extract(member, target)


class _Bar:
    """A progress bar of one file, on standard error."""

    def __init__(self, label: str, url: str, most: int) -> None:
        from rich.console import Console  # nothing else here needs it, and all commands read what there is to download
        from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

        columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
        self._progress = Progress("{task.description}", *columns, console=Console(stderr=True))
        self._task = self._progress.add_task(label, total=None)
        self._url, self._most, self._come = url, most, 0

    def start(self, had: int, left: int) -> None:
        """Show the bar; `had` bytes are here, `left` (0: not known) are still to come."""
        self._come = had
        self._progress.update(self._task, completed=had, total=had + left if left else None)
        self._progress.start()

    def update(self, size: int) -> None:
        self._come += size
        if self._come > self._most:  # a server that does not end
            raise DataError(f"the server sent more than {size_text(self._most)}", file=self._url)
        self._progress.update(self._task, advance=size)

    def close(self) -> None:
        self._progress.stop()
