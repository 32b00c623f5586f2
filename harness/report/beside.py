"""Figures drawn in processes beside this one, for a report has many."""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.report.plot import Picture, Plot

MOST = 3  # processes; each takes a second to import what it draws with
Process = subprocess.Popen[bytes]


class Begun:
    """A figure that a process draws, or this one if none has begun it when all are asked for."""

    def __init__(self, painters: Painters, plot: Plot, drawn: Future[Picture]) -> None:
        self._painters, self._plot, self._drawn = painters, plot, drawn

    def get(self) -> Picture:
        """Return the figure; what drawing it raises is raised here."""
        self._painters.help()
        with contextlib.suppress(Exception):  # a process that was killed, or a mistake, which is raised below
            return self._drawn.result()
        return _figure(self._plot)

    def take(self) -> None:
        """Draw it here, unless a process has begun it."""
        if self._drawn.cancel():
            self._drawn = Future()
            self._drawn.set_result(_figure(self._plot))


class Painters:
    """Processes that draw figures."""

    def __init__(self, count: int) -> None:
        command = [sys.executable, "-P", "-m", __name__]
        pipe = subprocess.PIPE
        # Ctrl-C is for this process, which ends them.
        self._all = [subprocess.Popen(command, stdin=pipe, stdout=pipe, start_new_session=True) for _ in range(count)]
        self._idle: queue.SimpleQueue[Process] = queue.SimpleQueue()
        for process in self._all:
            self._idle.put(process)
        self._threads = ThreadPoolExecutor(count)
        self._begun: list[Begun] = []

    def begin(self, plot: Plot) -> Begun:
        """Let a process draw a figure in the style of here; TypeError and such if none can be told of it."""
        from harness.report.drawing import current_style

        task = pickle.dumps((plot, current_style()))
        self._begun.append(Begun(self, plot, self._threads.submit(self._ask, task)))
        return self._begun[-1]

    def help(self) -> None:
        """Draw what no process has begun, the last first."""
        while self._begun:
            self._begun.pop().take()

    def end(self) -> None:
        """End the processes, whatever they draw."""
        for process in self._all:
            process.kill()
        self._threads.shutdown(cancel_futures=True)
        for process in self._all:
            process.communicate()

    def _ask(self, task: bytes) -> Picture:
        process = self._idle.get()
        try:
            assert process.stdin
            assert process.stdout
            pickle.dump(task, process.stdin)
            process.stdin.flush()
            picture = pickle.load(process.stdout)
            if picture is None:
                raise RuntimeError("failed")
            return picture  # type: ignore[no-any-return]  # what `serve` pickles
        finally:
            self._idle.put(process)


def serve() -> None:
    """Draw what standard input asks for until it ends; see `Painters`."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    from harness.report import printing  # what takes long before anything is asked for
    from harness.report.drawing import style

    with contextlib.suppress(EOFError):
        while True:
            task = pickle.load(sys.stdin.buffer)
            try:
                plot, chosen = pickle.loads(task)
                with style(chosen):
                    answer = printing.draw_plot(plot)
            except Exception:  # whatever it is, it is raised where it can be seen
                answer = None
            pickle.dump(answer, answers)
            answers.flush()


def _figure(plot: Plot) -> Picture:
    from harness.report.drawing import style
    from harness.report.printing import draw_plot

    with style():
        return draw_plot(plot)


_PAINTERS: ContextVar[Painters | None] = ContextVar("painters", default=None)


@contextlib.contextmanager
def painters(count: int) -> Iterator[None]:
    """Let `count` processes, at most `MOST`, draw within this; they start now, and import while others read."""
    if count < 1:
        yield
        return
    own = Painters(min(count, MOST))
    token = _PAINTERS.set(own)
    try:
        yield
    finally:
        _PAINTERS.reset(token)
        own.end()


def draw(plot: Plot) -> Picture | Begun:
    """Return a figure drawn in the style of here, or where it will be if there are processes that draw it."""
    painters = _PAINTERS.get()
    if painters:
        with contextlib.suppress(pickle.PicklingError, AttributeError, TypeError):  # of a plugin's own series
            return painters.begin(plot)
    return _figure(plot)


if __name__ == "__main__":
    serve()
