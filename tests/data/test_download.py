"""Downloads from a server on this machine: what arrives whole is kept, everything else is a clear error."""

from __future__ import annotations

import io
import threading
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
from support import raw_formats as raw

from harness.data import download, registry
from harness.data.catalog import GRAPHSAINT_FILES, Published, file_name, published
from harness.data.download import fetch
from harness.data.graph import GraphData
from harness.data.prepared import open_graph
from harness.data.registry import prepare
from harness.errors import DataError, DataUnavailable
from harness.spec import DatasetSpec


class Server:
    """Serves `files` by path; `cut` says after how many bytes of a file the connection is dropped.

    With `version`, files have it as their ETag, and the rest of one can be asked for.
    """

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.cut: dict[str, int] = {}
        self.moved: dict[str, str] = {}  # redirects
        self.too_long = 0  # bytes that are announced and do not come
        self.requests: list[str] = []
        self.version = ""
        self.sent: list[int] = []  # bytes of each answer
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.requests.append(self.path)
                if (place := outer.moved.get(self.path)) is not None:
                    self.send_response(303)
                    self.send_header("Location", place)
                    self.end_headers()
                    return
                body = outer.files.get(self.path)
                if body is None:
                    self.send_error(404)
                    return
                begin, whole = 0, len(body)
                if outer.version and self.headers.get("If-Range") == outer.version:
                    begin = int(self.headers["Range"].removeprefix("bytes=").removesuffix("-"))
                if begin and begin >= whole:
                    self.send_error(416)
                    return
                self.send_response(206 if begin else 200)
                if outer.version:
                    self.send_header("ETag", outer.version)
                self.send_header("Content-Length", str(whole - begin + outer.too_long))
                self.end_headers()
                outer.sent.append(len(body[begin : outer.cut.get(self.path)]))
                self.wfile.write(body[begin : outer.cut.get(self.path)])

            def log_message(self, *_: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    thread = threading.Thread(target=server.http.serve_forever, args=(0.02,))
    thread.start()
    yield server
    server.http.shutdown()
    thread.join()
    server.http.server_close()


def zipped(directory: Path, prefix: str = "") -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(p for p in directory.rglob("*") if p.is_file()):
            archive.write(path, prefix + str(path.relative_to(directory)))
    return buffer.getvalue()


@pytest.fixture
def reddit(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Published:
    """The catalogue's Reddit, served from here and small; `prepare` sees it too."""
    server.files["/reddit.zip"] = zipped(raw.write_dgl_reddit(tmp_path / "made", raw.known(nodes=40)))
    entry = replace(published()["reddit"], urls=(f"{server.url}/reddit.zip",))
    monkeypatch.setattr(registry, "published", lambda: {"reddit": entry})
    monkeypatch.delenv("HARNESS_DATA", raising=False)
    return entry


def assert_nothing_cached(cache: Path) -> None:
    assert [p for p in cache.rglob("*") if not p.name.endswith(".lock") and p.is_file()] == []
    assert list((cache / "raw").glob("[!.]*")) == []


SPEC = DatasetSpec(name="reddit", options={"normalize": "none"})


def test_download_then_prepare_then_once(server: Server, reddit: Published, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    with pytest.raises(DataUnavailable, match="harness data get reddit"):
        prepare(SPEC, cache=cache)
    directory = prepare(SPEC, cache=cache, download=True)
    np.testing.assert_array_equal(open_graph(directory).features, raw.known(nodes=40).features)
    assert prepare(SPEC, cache=cache, download=True) == directory
    prepare(DatasetSpec(name="reddit"), cache=cache)
    assert server.requests == ["/reddit.zip"], "one download serves every later use"
    files = sorted(p.name for p in (cache / "raw" / "reddit").iterdir())
    assert files == ["checksums.json", "reddit_data.npz", "reddit_graph.npz"]


def test_a_prepared_set_outlives_its_raw_files(reddit: Published, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    directory = prepare(SPEC, cache=cache, download=True)
    for path in (cache / "raw" / "reddit").iterdir():
        path.unlink()
    (cache / "raw" / "reddit").rmdir()
    assert prepare(SPEC, cache=cache) == directory


def test_the_directory_an_archive_is_wrapped_in_is_dropped(server: Server, reddit: Published, tmp_path: Path) -> None:
    server.files["/reddit.zip"] = zipped(tmp_path / "made", prefix="some/")
    assert (fetch(reddit, tmp_path / "t") / "reddit_data.npz").is_file()


def test_ogb_keeps_raw_and_split(server: Server, tmp_path: Path) -> None:
    made = raw.write_ogb_csv(tmp_path / "made", raw.known())
    server.files["/arxiv.zip"] = zipped(made, prefix="arxiv/")
    entry = replace(published()["ogbn-arxiv"], urls=(f"{server.url}/arxiv.zip",))
    assert sorted(p.name for p in fetch(entry, tmp_path / "t").iterdir()) == ["checksums.json", "raw", "split"]


def test_planetoid_is_eight_files(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = raw.write_planetoid(tmp_path / "made", "cora", raw.known())
    server.files |= {f"/{path.name}": path.read_bytes() for path in made.iterdir()}
    entry = published()["cora"]
    entry = replace(entry, urls=tuple(f"{server.url}/{url.rsplit('/', 1)[1]}" for url in entry.urls))
    monkeypatch.setattr(registry, "published", lambda: {"cora": entry})
    monkeypatch.delenv("HARNESS_DATA", raising=False)
    graph = open_graph(prepare(DatasetSpec(name="cora"), cache=tmp_path / "cache", download=True))
    assert len(server.requests) == 8
    np.testing.assert_allclose(graph.features.sum(1), 1, rtol=1e-6)


def _zip_of(**members: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def _link() -> bytes:
    buffer = io.BytesIO()
    info = zipfile.ZipInfo("reddit_data.npz")
    info.external_attr = 0o120777 << 16
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(info, "/etc/passwd")
    return buffer.getvalue()


FOREIGN = {
    "web page": b"\n<!DOCTYPE html><html>Sign in</html>",
    "zip file": b"not a zip at all",
    "a zip": b"",
    "has no 'reddit_data.npz'": _zip_of(other=b"x"),
    "points out of the archive": _zip_of(**{"../evil": b"x"}),
    "'/evil' points out": _zip_of(**{"/evil": b"x"}),
    "'a/../../evil' points out": _zip_of(**{"a/../../evil": b"x"}),
    "'reddit_data.npz' points out": _link(),
}


@pytest.mark.parametrize("fault", FOREIGN)
def test_something_else_is_refused(server: Server, reddit: Published, tmp_path: Path, fault: str) -> None:
    server.files["/reddit.zip"] = FOREIGN[fault]
    with pytest.raises(DataError) as error:
        prepare(SPEC, cache=tmp_path / "cache", download=True)
    assert fault in str(error.value)
    assert f"{server.url}/reddit.zip".removeprefix("http:/") in str(error.value)
    assert_nothing_cached(tmp_path / "cache")
    assert not list(tmp_path.rglob("*evil*"))
    assert not Path("/evil").exists()


def test_not_found_and_truncated(server: Server, reddit: Published, tmp_path: Path) -> None:
    cache, whole = tmp_path / "cache", server.files.pop("/reddit.zip")
    with pytest.raises(DataError, match="404"):
        prepare(SPEC, cache=cache, download=True)
    assert_nothing_cached(cache)
    server.files["/reddit.zip"], server.cut["/reddit.zip"] = whole, len(whole) // 2
    with pytest.raises(DataError, match="before the end"):
        prepare(SPEC, cache=cache, download=True)
    assert_nothing_cached(cache)
    server.cut.clear()
    prepare(SPEC, cache=cache, download=True)


@pytest.mark.parametrize("later", ["same", "changed", "whole"])
def test_a_download_that_broke_off_is_gone_on_with(
    server: Server, reddit: Published, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, later: str
) -> None:
    """Only of the very same file: one that has changed since is downloaded from its beginning."""
    monkeypatch.setattr(download, "CHUNK", 64)
    cache, whole = tmp_path / "cache", len(server.files["/reddit.zip"])
    come = whole // 2 // 64 * 64
    server.version, server.cut["/reddit.zip"] = '"1"', whole // 2
    with pytest.raises(DataError, match=r"before the end.*it goes on from there"):
        prepare(SPEC, cache=cache, download=True)
    server.cut.clear()
    if later == "changed":
        server.version = '"2"'
    part = cache / "raw" / ".reddit.part" / "reddit.zip"
    assert part.stat().st_size == come
    if later == "whole":  # it came to its end, but was not taken over
        part.write_bytes(server.files["/reddit.zip"])
    prepare(SPEC, cache=cache, download=True)
    assert server.sent == [whole // 2, whole - come if later == "same" else whole]
    assert not part.parent.exists()


def test_damage_inside_the_archive_is_found(server: Server, reddit: Published, tmp_path: Path) -> None:
    cache, whole = tmp_path / "cache", server.files["/reddit.zip"]
    for position in (len(whole) // 3, len(whole) // 2):
        damaged = bytearray(whole)
        damaged[position] ^= 16
        server.files["/reddit.zip"] = bytes(damaged)
        with pytest.raises(DataError):
            prepare(SPEC, cache=cache, download=True)
        assert_nothing_cached(cache)


def test_a_whole_archive_of_unreadable_files_is_kept_and_told(
    server: Server, reddit: Published, tmp_path: Path
) -> None:
    """It is what the server sent: that it is damaged is not proven, and the server would send it again."""
    made, cache = tmp_path / "made", tmp_path / "cache"
    (made / "reddit_graph.npz").write_bytes(b"PK but no more")
    server.files["/reddit.zip"] = zipped(made)
    for _ in range(2):
        with pytest.raises(DataError, match=r"reddit_graph\.npz.*remove .*raw/reddit\)"):
            prepare(SPEC, cache=cache, download=True)
    assert (cache / "raw" / "reddit" / "reddit_graph.npz").read_bytes() == b"PK but no more"
    assert not list((cache / "datasets").glob("[!.]*"))
    assert server.requests == ["/reddit.zip"]


def test_no_server_is_unavailable(server: Server, reddit: Published, tmp_path: Path) -> None:
    closed = replace(reddit, urls=("http://127.0.0.1:9/reddit.zip",))
    with pytest.raises(DataUnavailable) as error:
        fetch(closed, tmp_path / "t")
    by_hand = (
        "Download from http://127.0.0.1:9/reddit.zip into $HARNESS_DATA/reddit; files needed: reddit.zip, unpacked"
    )
    assert str(error.value) == f"reddit: no server can be reached. {by_hand}"
    assert not (tmp_path / "t").exists()


WRITERS: dict[str, Callable[[Path], object]] = {
    "dgl_reddit": lambda folder: raw.write_dgl_reddit(folder, raw.known()),
    "ogb": lambda folder: raw.write_ogb_csv(folder, raw.known()),
    "graphsage": lambda folder: raw.write_graphsage(folder, raw.known()),
    "graphsaint": lambda folder: raw.write_graphsaint(folder, raw.known()),
    "mislove": lambda folder: raw.write_mislove(folder, raw.one_way(raw.known()).T + 1, raw.one_way(raw.known()).T + 1),
}


def play(server: Server, name: str, folder: Path) -> Published:
    """Serve a small set as its publishers do, each link under its own path; return the entry with the links."""
    entry = published()[name]
    folder.mkdir()
    if entry.format == "planetoid":
        raw.write_planetoid(folder, name, raw.known())
    elif name == "ogbn-papers100m":
        raw.write_ogb_binary(folder, raw.known())
    else:
        WRITERS[entry.format](folder)

    def served(url: str) -> str:
        parts = urlsplit(url)
        path, file = f"{parts.path}?{parts.query}" if parts.query else parts.path, file_name(url)
        server.files[path] = zipped(folder) if file.endswith(".zip") else (folder / file).read_bytes()
        return f"{server.url}{path}{f'#{parts.fragment}' if parts.fragment else ''}"

    mirrors = tuple(tuple(map(served, urls)) for urls in entry.mirrors)
    return replace(entry, urls=tuple(map(served, entry.urls)), mirrors=mirrors)


def trained_on(name: str, entry: Published, cache: Path, monkeypatch: pytest.MonkeyPatch) -> GraphData:
    monkeypatch.setattr(registry, "published", lambda: {name: entry})
    monkeypatch.delenv("HARNESS_DATA", raising=False)
    return open_graph(prepare(DatasetSpec(name=name, options={"normalize": "none"}), cache=cache, download=True))


@pytest.mark.parametrize("name", published())
def test_each_set_of_the_catalogue_arrives(
    server: Server, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = play(server, name, tmp_path / "made")
    graph = trained_on(name, entry, tmp_path / "cache", monkeypatch)
    assert graph.nodes == raw.known().features.shape[0]
    assert len(server.requests) == len(entry.urls)


QUOTA = b"<!DOCTYPE html><html><head><title>Google Drive - Quota exceeded</title>"


@pytest.mark.parametrize("fault", ["gone", "page", "moved", "short", "unreachable"])
def test_a_second_server_is_asked_where_the_first_fails(
    server: Server, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = play(server, "flickr", tmp_path / "made")
    (zip_path,) = (path for path in server.files if path.endswith(".zip"))
    whole = server.files[zip_path]
    if fault == "gone":
        del server.files[zip_path]
    elif fault == "page":
        server.files[zip_path] = QUOTA
    elif fault == "moved":
        server.moved[zip_path] = "/elsewhere"
        server.files["/elsewhere"] = QUOTA
    elif fault == "short":
        server.cut[zip_path] = len(whole) // 2
    else:
        entry = replace(entry, urls=("http://127.0.0.1:9/flickr.zip",))
    graph = trained_on("flickr", entry, tmp_path / "cache", monkeypatch)
    np.testing.assert_array_equal(graph.features, raw.known().features)
    assert sum("confirm=t" in path for path in server.requests) == len(GRAPHSAINT_FILES)


def test_a_redirect_is_followed_and_a_wrong_size_is_not_taken(
    server: Server, reddit: Published, tmp_path: Path
) -> None:
    server.moved["/reddit.zip"], server.files["/there"] = "/there", server.files["/reddit.zip"]
    prepare(SPEC, cache=tmp_path / "one", download=True)
    server.too_long = 7
    with pytest.raises(DataError, match="before the end"):
        prepare(SPEC, cache=tmp_path / "two", download=True)


def test_where_every_server_fails_a_line_says_what_to_do_by_hand(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = play(server, "flickr", tmp_path / "made")
    for path in server.files:
        server.files[path] = QUOTA
    with pytest.raises(DataError) as error:
        trained_on("flickr", entry, tmp_path / "cache", monkeypatch)
    said = str(error.value)
    assert "the server sent a web page instead of the file" in said
    for part in (entry.urls[0], *entry.mirrors[0], "$HARNESS_DATA/flickr", *GRAPHSAINT_FILES):
        assert part in said
    assert "\n" not in said
