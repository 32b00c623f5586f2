"""Fixtures and the one place where skips are decided."""

from __future__ import annotations

import fcntl
import gc
import os
import shutil
import signal
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# Compiling on first use takes seconds; hypothesis would call that unreliable timing.
settings.register_profile("harness", deadline=None)
settings.load_profile("harness")


LOCKS = "HARNESS_TEST_LOCKS"  # environment variable: where the processes of pytest-xdist find their locks

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Take the share of the slow tests that is run."""
    parser.addoption(
        "--share", type=_share, metavar="I/N", help="of the files with slow tests, run every N-th, from the I-th on"
    )


def _share(text: str) -> tuple[int, int]:
    which, _, of = text.partition("/")
    return int(which) % int(of), int(of)


def pytest_configure(config: pytest.Config) -> None:
    """Make the locks, in the process that starts the others."""
    if LOCKS not in os.environ:
        os.environ[LOCKS] = tempfile.mkdtemp(prefix="harness-tests-")
        config.add_cleanup(lambda: shutil.rmtree(os.environ.pop(LOCKS), ignore_errors=True))
    # Workers share the cores: a thread that waits for others of its process is not to spin while they cannot run.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    # A GPU's kernels run on a CPU where there is none; triton reads this when it is imported.
    if not list(Path("/dev").glob("nvidia[0-9]*")):
        os.environ.setdefault("TRITON_INTERPRET", "1")
    if "PYTEST_XDIST_WORKER" in os.environ:
        import torch

        torch.set_num_threads(1)
    # Trials of different workers are timed side by side: what they measure is not what is tested.
    os.environ["HARNESS_LOCKS"] = os.path.join(os.environ[LOCKS], os.environ.get("PYTEST_XDIST_WORKER", "main"))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Leave modules and tests out of the collections of garbage, which took two seconds of each process."""
    gc.disable()
    try:
        result = yield
    finally:
        gc.freeze()
        gc.enable()
    if "PYTEST_XDIST_WORKER" in os.environ:
        from harness.graph.kernels import compile_once

        compile_once()  # or each process compiles what all of them begin with
    return result


@pytest.hookimpl(wrapper=True, tryfirst=True)  # waiting is no part of a test's time limit
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Let no other test run beside one that is marked `alone`."""
    # Who wants the second lock holds the first while waiting, so that others cannot keep it for ever.
    how = fcntl.LOCK_EX if item.get_closest_marker("alone") else fcntl.LOCK_SH
    with _locked("gate", fcntl.LOCK_EX) as gate, _locked("tests", how):
        fcntl.flock(gate, fcntl.LOCK_UN)
        return (yield)


@contextmanager
def _locked(name: str, how: int) -> Iterator[int]:
    file = os.open(Path(os.environ[LOCKS], name), os.O_CREAT | os.O_RDWR)
    try:
        fcntl.flock(file, how)
        yield file
    finally:
        os.close(file)


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Directory of the real graphs, or a skip that says how to give it."""
    path = os.environ.get("HARNESS_DATA")
    if not path or not Path(path).is_dir():
        pytest.skip("HARNESS_DATA names no directory of graphs (see docs/data.md)")
    return Path(path).resolve()


BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (extra `test`)")
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    with playwright.sync_playwright() as started:
        if not found and not Path(started.chromium.executable_path).is_file():
            pytest.skip("no Chromium on this machine: install one, or run `playwright install chromium`")
        launched = started.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture(autouse=True)
def _private_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep tests away from the user's cache, which a test session shares, and from the user's secret."""
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.setenv("HARNESS_SECRET", "known to all tests, and to nobody else")


@pytest.fixture(autouse=True, scope="session")
def _handlers_at_first() -> dict[signal.Signals, object]:
    return {each: signal.getsignal(each) for each in ENDING}


@pytest.fixture(autouse=True)
def _no_handler_is_left(_handlers_at_first: dict[signal.Signals, Any]) -> Iterator[None]:
    """Fail a test that leaves a handler of a signal that ends pytest, and put back the one that was there."""
    yield
    left = {each: now for each in ENDING if (now := signal.getsignal(each)) != _handlers_at_first[each]}
    for each in left:
        signal.signal(each, _handlers_at_first[each])
    assert not left, "the test, or a fixture that it began, left a signal's handler"


@pytest.hookimpl(tryfirst=True)  # before `-m` looks at the marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Take the share and the tiers apart; skip, with the reason, what needs a GPU or namespaces where none are."""
    seen: Counter[str] = Counter()
    for item in items:
        few = item.get_closest_marker("quick")
        if few and item.get_closest_marker("slow") is None:
            test = item.nodeid.partition("[")[0]
            seen[test] += 1
            if seen[test] > few.args[0]:
                item.add_marker("slow")
    if (share := config.getoption("share")) is not None:
        first, of = share
        files = sorted({item.path for item in items if item.get_closest_marker("slow")})[first::of]
        config.hook.pytest_deselected(items=[item for item in items if item.path not in files])
        items[:] = [item for item in items if item.path in files]
    # Of two processes neither is to end long after the other. Keywords would be those of the folders above, too.
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
    for marker, why_not in (("gpu", _no_gpu), ("root", _no_namespaces)):
        marked = [item for item in items if item.get_closest_marker(marker)]
        if marked and (reason := why_not()) is not None:
            for item in marked:
                item.add_marker(pytest.mark.skip(reason=reason))


def _no_gpu() -> str | None:
    import torch

    return None if torch.cuda.is_available() else "no CUDA device"


def _no_namespaces() -> str | None:
    from harness.launch.network import why_not
    from harness.suite.sections import NetworkSpec

    return why_not(NetworkSpec(rate="1gbit"))
