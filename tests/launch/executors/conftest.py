"""Real engines, each started once for all tests that need it, and suites that run on them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from launch.tiny import SUITE, write_suite
from support.ray_cluster import OwnRay
from support.slurm import OwnSlurm, missing

UNTIMED = 'timing: "off"\n'
HARNESS = (sys.executable, "-P", "-m", "harness")


@pytest.fixture(scope="session")
def slurm() -> Iterator[OwnSlurm]:
    """A Slurm of this machine with two nodes."""
    if (reason := missing()) is not None:
        pytest.skip(reason)
    own = OwnSlurm()
    yield own
    own.stop()


@pytest.fixture(scope="module")
def ray_cluster() -> Iterator[OwnRay]:
    """A Ray cluster of this machine with two nodes."""
    pytest.importorskip("ray", reason="ray is not installed")
    own = OwnRay()
    yield own
    own.stop()


@dataclass
class Suite:
    """A suite file of small trials that are not timed, and the commands that run it."""

    file: Path
    env: dict[str, str]
    process: subprocess.Popen[str] | None = None

    @property
    def home(self) -> Path:
        """Where its results are."""
        return self.file.parent / "results" / "tiny"

    @property
    def command(self) -> list[str]:
        """The command line, but for the executor."""
        data = str(self.file.parent / "data")
        return [*HARNESS, "run", str(self.file), "--results", str(self.home.parent), "--data-dir", data]

    def run(self, *options: str, before: Sequence[str] = ()) -> tuple[int, str]:
        """Run it to the end, started by the command `before`; return exit code and what was printed."""
        done = subprocess.run(
            [*before, *self.command, *options],
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=240,
            check=False,
        )
        return done.returncode, done.stdout + self.logs()

    def start(self, *options: str) -> subprocess.Popen[str]:
        """Start it, its output going to a file beside it."""
        with self.output.open("a") as stream:
            command = [*self.command, *options]
            self.process = subprocess.Popen(command, env=self.env, stdout=stream, stderr=stream, text=True)
        return self.process

    @property
    def output(self) -> Path:
        """The file that `start` writes to."""
        return self.file.parent / "output.txt"

    def logs(self) -> str:
        """Return what jobs wrote."""
        paths = sorted([*self.home.glob(".jobs/*.out"), *self.home.glob(".jobs/*.log")])
        return "".join(f"\n==== {path.name} ====\n{path.read_text(errors='replace')}" for path in paths)

    def records(self) -> dict[str, dict[str, Any]]:
        """Return the records by trial."""
        return {path.parent.name: json.loads(path.read_text()) for path in self.home.glob("*/record.json")}

    def runners(self) -> list[dict[str, Any]]:
        """Return what the runners say of themselves that are at work."""
        found = []
        for path in self.home.glob(".runners/*.json"):
            with suppress(FileNotFoundError):
                found.append(json.loads(path.read_text()))
        return found

    def ends(self) -> dict[str, int]:
        """Return how often a record was written, by trial."""
        words = {path: json.loads(path.read_text()) for path in self.home.glob(".leases/[!.]*")}
        return dict(Counter(path.name.rpartition(".")[0] for path, word in words.items() if word["done"]))

    def wait(self, true: Callable[[], Any], limit_s: float = 120) -> Any:
        """Wait until something is true, and return it; show all output if it does not become so."""
        deadline = time.monotonic() + limit_s
        while not (found := true()):
            said = self.output.read_text() if self.output.exists() else ""
            ended = self.process is not None and self.process.poll() is not None
            assert not ended, said + self.logs()
            assert time.monotonic() < deadline, said + self.logs()
            time.sleep(0.2)
        return found

    def training(self) -> bool:
        """Return whether a trial writes how far it is."""
        return any(path.stat().st_size for path in self.home.glob(".staging/*/progress.jsonl"))


MakeSuite = Callable[[Mapping[str, str], str], Suite]


@pytest.fixture
def make_suite(tmp_path: Path) -> MakeSuite:
    """Write the suite, changed by `text`, and return it with the environment of an engine."""

    def make(env: Mapping[str, str], text: str = SUITE) -> Suite:
        file = write_suite(tmp_path, text + UNTIMED)
        cache = {"HARNESS_CACHE": os.environ["HARNESS_CACHE"], "HARNESS_LOCKS": str(tmp_path / "locks")}
        return Suite(file, {**env, **cache})

    return make
