"""The installed `harness` command in processes of its own, each with a time limit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

COMMAND = Path(sys.executable).with_name("harness")
PLUGINS = Path(__file__).with_name("plugins")
SUITES = Path(__file__).resolve().parents[2] / "suites"


@dataclass
class CommandLine:
    """Runs `harness` in `directory`, without data, with the methods of `plugins` in reach."""

    directory: Path
    cache: Path
    variables: dict[str, str] = field(default_factory=dict)
    prefix: tuple[str, ...] = ()  # a command that starts the command, say in a network namespace
    command: Path | None = COMMAND  # None: the prefix is all of it

    def run(self, *arguments: str, timeout_s: float = 120, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end; fails the test if that takes longer than `timeout_s`."""
        process = self.start(*arguments, **variables)
        try:
            out, err = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            raise AssertionError(f"no end within {timeout_s} s\n{out}\n{err}") from None
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def start(self, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        """Start a command as the leader of a process group of its own, as a terminal does."""
        return subprocess.Popen(
            [*self.prefix, *([self.command] if self.command else []), *arguments],
            cwd=self.directory,
            env=self._environment(variables),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def _environment(self, variables: dict[str, str]) -> dict[str, str]:
        # Its trials wait for those of the same process of tests, and for no others on the machine.
        kept = {k: value for k, value in os.environ.items() if k == "HARNESS_LOCKS" or not k.startswith("HARNESS_")}
        ours = {"HARNESS_CACHE": str(self.cache), "PYTHONPATH": str(PLUGINS), "COLUMNS": "200"}
        ours["HARNESS_SECRET"] = "a secret that these tests share"
        return kept | ours | self.variables | variables


def records(suite: Path) -> dict[str, dict[str, Any]]:
    """Return the records under a suite's results, by trial id; fails the test if one is not strict JSON."""
    paths = suite.glob("[!.]*/record.json")
    return {path.parent.name: json.loads(path.read_text(), parse_constant=_refuse) for path in paths}


def _refuse(constant: str) -> None:
    raise AssertionError(f"{constant} in a record")


def stamps(suite: Path) -> dict[str, tuple[int, bytes]]:
    """Return the time of change and the content of every file of every record."""
    files = [path for path in suite.glob("[!.]*/*") if path.is_file()]
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


def trains(suite: Path, epochs: int = 1) -> bool:
    """Whether a trial has got past so many epochs and has no record yet."""
    for progress in suite.glob(".staging/*/progress.jsonl"):
        trial = progress.parent.name.partition("-")[0]
        if progress.read_text().count('"event": "epoch"') >= epochs and not (suite / trial).exists():
            return True
    return False


def ranks_of(runner: subprocess.Popen[str]) -> list[psutil.Process]:
    """Return the ranks of the trial that a runner is at, by number: the processes that write to a rank's log."""
    children = psutil.Process(runner.pid).children(recursive=True)
    logs = {child.pid: os.readlink(f"/proc/{child.pid}/fd/1") for child in children}
    return sorted((child for child in children if "/log-" in logs[child.pid]), key=lambda child: logs[child.pid])


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[str], timeout_s: float = 40) -> None:
    """Wait for `condition` while `process` runs; fails the test with its output if either ends early."""
    end = time.monotonic() + timeout_s
    while not condition():
        if process.poll() is not None or time.monotonic() > end:
            process.kill()
            raise AssertionError(f"waited in vain\n{process.communicate()}")
        time.sleep(0.02)
