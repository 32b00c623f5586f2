"""Fixtures and the one place where skips are decided."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

# Compiling on first use takes seconds; hypothesis would call that unreliable timing.
settings.register_profile("harness", deadline=None)
settings.load_profile("harness")


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Directory of the real graphs, or a skip that says how to give it."""
    path = os.environ.get("HARNESS_DATA")
    if not path or not Path(path).is_dir():
        pytest.skip("HARNESS_DATA names no directory of graphs (see README, Data)")
    return Path(path).resolve()


@pytest.fixture(autouse=True)
def _private_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep tests away from the user's cache; one cache is shared by a test session."""
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a GPU, or root, where there is none, with the reason; begin with what takes long."""
    # Of two processes neither is to end long after the other.
    items.sort(key=lambda item: "slow" not in item.keywords)
    for marker, why_not in (("gpu", _no_gpu), ("root", _no_namespaces)):
        marked = [item for item in items if marker in item.keywords]
        if marked and (reason := why_not()) is not None:
            for item in marked:
                item.add_marker(pytest.mark.skip(reason=reason))


def _no_gpu() -> str | None:
    import torch

    return None if torch.cuda.is_available() else "no CUDA device"


def _no_namespaces() -> str | None:
    from harness.launch.network import why_not
    from harness.suite.network import NetworkSpec

    return why_not(NetworkSpec(rate="1gbit"))
