"""Commit records in processes that are killed; `test_store.py` runs this and looks at what is left.

killed_commits.py ROOT steps|times [old]

`steps`: for k = 1, 2, ... a process kills itself at its k-th file operation, until one gets through.
`times`: processes commit again and again and are killed after a random time. With `old` there is a record
before. Every attempt has a directory of its own, ROOT/<number>. Forked, so that imports are paid once.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness.results.frames  # noqa: F401 (so that no child imports it, which would be file operations)
from harness.results.record import Record
from harness.results.record_store import ResultStore

TRIAL = "0123456789ab"
OPERATIONS = ("open", "os.", "shutil.", "pathlib.")


def commit(root: Path, word: str) -> None:
    """Commit a record whose three files all say `word`."""
    pad = {"pad": "x" * 5000}
    record = Record(trial=TRIAL, suite="demo", status="ok", reason=word, started="", config=pad)
    store = ResultStore(root, "demo")
    (store.stage(TRIAL) / "rank0.json").write_text(word)
    store.commit(TRIAL, record, [{"epoch": i, "rank": 0, "word": word} for i in range(50)], word)


def fork(work: Callable[[], None]) -> int:
    """Run `work` in a child; return its pid."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    return pid


def die_at(k: int) -> None:
    """Kill this process at its k-th file operation from now."""
    seen = 0

    def hook(event: str, _arguments: tuple[Any, ...]) -> None:
        nonlocal seen
        if event.startswith(OPERATIONS):
            seen += 1
            if seen == k:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def main(root: Path, mode: str, old: bool) -> None:
    root.mkdir()
    before = root / "before"
    if old:
        os.waitpid(fork(lambda: commit(before, "old")), 0)
    rng = random.Random(0)
    attempts = 400 if mode == "steps" else 25
    for k in range(1, attempts + 1):
        here = root / str(k)
        if old:
            shutil.copytree(before, here)

        def step(here: Path = here, k: int = k) -> None:
            die_at(k)
            commit(here, "new")

        def again(here: Path = here) -> None:
            while True:
                commit(here, "new")

        pid = fork(step if mode == "steps" else again)
        if mode == "times":
            time.sleep(rng.uniform(0.005, 0.08))
            os.kill(pid, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if code == 0:
            break
        if code != -signal.SIGKILL:
            sys.exit(f"attempt {k} ended with {code}")
    shutil.rmtree(before, ignore_errors=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], "old" in sys.argv[3:])
