"""Figures drawn in processes beside this one, for they are most of what a report takes."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import queue
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.report.drawing import Picture
    from harness.report.sections import Section
    from harness.report.views import ReportView

MOST = 3  # processes; each takes a second to import what it draws with
Process = subprocess.Popen[bytes]


class Begun:
    """A figure that a process draws, or this one if none has begun it when all are asked for."""

    def __init__(self, painters: Painters, view: ReportView, drawn: Future[Picture | None]) -> None:
        self._painters, self._view, self._drawn = painters, view, drawn

    def get(self) -> Picture | None:
        """Return the figure; what the view raises is raised here."""
        self._painters.help()
        with contextlib.suppress(Exception):  # a process that was killed, or a mistake, which is raised below
            return self._drawn.result()
        return _figure(self._view)

    def take(self) -> None:
        """Draw it here, unless a process has begun it."""
        if self._drawn.cancel():
            self._drawn = Future()
            self._drawn.set_result(_figure(self._view))


class Painters:
    """Processes that draw views' figures."""

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
        self._sections: dict[int, tuple[Section, bytes]] = {}  # by identity, which holds while they are kept here
        self._sent: dict[int, set[int]] = {process.pid: set() for process in self._all}

    def begin(self, view: ReportView) -> Begun:
        """Let a process draw a view's figure in the style of here."""
        from harness.report.drawing import current_style

        task, sections = self._pickle((view, current_style()))
        self._begun.append(Begun(self, view, self._threads.submit(self._ask, task, sections)))
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

    def _pickle(self, task: object) -> tuple[bytes, list[int]]:
        """Return a task with keys in the place of sections, which are large and of many tasks, and these keys."""
        written = io.BytesIO()
        pickler = _Pickler(written)
        pickler.dump(task)
        for key, section in pickler.sections.items():
            if key not in self._sections:
                self._sections[key] = section, pickle.dumps(section)
        return written.getvalue(), list(pickler.sections)

    def _ask(self, task: bytes, sections: list[int]) -> Picture | None:
        process = self._idle.get()
        try:
            assert process.stdin
            assert process.stdout
            sent = self._sent[process.pid]
            pickle.dump(({key: self._sections[key][1] for key in sections if key not in sent}, task), process.stdin)
            process.stdin.flush()
            sent.update(sections)
            drawn, picture = pickle.load(process.stdout)
            if not drawn:
                raise RuntimeError("failed")
            return picture  # type: ignore[no-any-return]  # what `serve` pickles
        finally:
            self._idle.put(process)


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO) -> None:
        from harness.report.sections import Section

        super().__init__(file)
        self.kind, self.sections = Section, dict[int, Section]()

    def persistent_id(self, each: Any) -> int | None:
        if not isinstance(each, self.kind):
            return None
        self.sections[id(each)] = each
        return id(each)


class _Unpickler(pickle.Unpickler):
    def __init__(self, task: bytes, sections: dict[int, Section]) -> None:
        super().__init__(io.BytesIO(task))
        self.sections = sections

    def persistent_load(self, key: int) -> Section:
        return self.sections[key]


def serve() -> None:
    """Draw what standard input asks for until it ends; see `Painters`."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    from harness.report.drawing import style
    from harness.report.views import VIEWS

    for name in VIEWS.names():
        VIEWS.loaded(name)
    sections: dict[int, Section] = {}
    with contextlib.suppress(EOFError):
        while True:
            new, task = pickle.load(sys.stdin.buffer)
            sections |= {key: pickle.loads(pickled) for key, pickled in new.items()}
            try:
                view, chosen = _Unpickler(task, sections).load()
                with style(chosen):
                    answer = True, _figure(view)
            except Exception:  # whatever it is, it is raised where it can be seen
                answer = False, None
            pickle.dump(answer, answers)
            answers.flush()


def _figure(view: ReportView) -> Picture | None:
    from harness.report.drawing import style

    with style():
        return view.figure()


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


def draw(view: ReportView) -> Picture | Begun | None:
    """Return a view's figure in the style of here, or where it will be if there are processes that draw it."""
    painters = _PAINTERS.get()
    if painters and type(view).__module__.startswith("harness."):  # a plugin's class may not be found by name
        return painters.begin(view)
    return _figure(view)


if __name__ == "__main__":
    serve()
