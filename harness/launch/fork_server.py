"""Warm start: ranks are forked by a process that has imported what they need, instead of each importing it anew.

The runner starts the server, which imports, loads the compiled kernels, and waits with one thread and no device. For
each rank it forks a child that forks the rank and ends: the kernel then hands the rank to the runner (its nearest
"child subreaper" at that moment), which watches, signals and reaps it like one that it started itself. See
docs/design/processes.md.
"""

from __future__ import annotations

import atexit
import ctypes
import errno
import gc
import json
import mmap
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from harness.launch.namespaces import enter, libc
from harness.runtime import BRAND

if TYPE_CHECKING:
    from harness.graph.kernels import Versions
    from harness.launch.process import Placement

# Each rank has its own; of the second line, read when a process group is made, and when a device is used first.
_OF_A_RANK = frozenset(("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GLOO_SOCKET_IFNAME")) | frozenset(
    ("NCCL_SOCKET_IFNAME", "NCCL_HOSTID", "NCCL_NET", "CUDA_VISIBLE_DEVICES", BRAND)
)
_SET_NAME, _SUBREAPER, _IS_SUBREAPER = 15, 36, 37  # <linux/prctl.h>
_POPULATE_READ, _POPULATE_WRITE = 22, 23  # <asm-generic/mman-common.h>
_MESSAGE_BYTES = 1 << 20
ANSWER_S = 60.0  # imports and compiled kernels take seconds; a server that takes this long was stopped
_SHARING = frozenset(("harness.runtime.speed_reference",))  # modules that make all that they time anew
Page = tuple[int, int, int]  # address, bytes, advice, of some
_TURN = threading.Lock()  # of the threads that run groups in this process: one asks, and reads what it asked for


class NoWarmStart(Exception):  # noqa: N818 - ranks then start cold
    """Ranks cannot be forked here; the message says why."""


class ForkServer:
    """The runner's end of a server whose ranks run the module `worker` in an environment like `env`.

    Any module of harness can be the `worker` of the next ranks where one was. The server has loaded `kernels`, as far
    as they are compiled; None: all that are. Raises NoWarmStart on a system where ranks cannot be forked.
    """

    def __init__(self, worker: str, env: Mapping[str, str], kernels: Versions | None = None) -> None:
        if sys.platform != "linux":
            raise NoWarmStart(f"a process that has imported torch is not forked on {sys.platform}")
        self.worker, self.env, self.kernels = worker, shared(env), kernels
        self._ready = False
        self._why_not: NoWarmStart | None = None
        self._channel, remote = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel.settimeout(ANSWER_S)
        with remote:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__, str(remote.fileno()), worker],
                # OpenBLAS starts its threads when it is loaded; a rank sets their number when it is forked.
                env={**self.env, "OPENBLAS_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # what libraries say when they are imported; ranks write to their logs
                stderr=subprocess.DEVNULL,
                pass_fds=(remote.fileno(),),
                start_new_session=True,
            )
        self._channel.send(json.dumps({"load": kernels}).encode())

    def serves(self, worker: str, env: Mapping[str, str]) -> bool:
        """Whether the server lives, or could never fork, and its ranks are such."""
        usable = self._why_not is not None or self._process.poll() is None
        return usable and (_needs(self.worker), self.env) == (_needs(worker), shared(env))

    def wait(self) -> None:
        """Wait until the server can fork. Raises NoWarmStart if it cannot, at once where that is known."""
        with _TURN:
            if self._why_not is None and not self._ready:
                try:
                    self._answer()
                    self._ready = True
                except NoWarmStart as why:
                    self._why_not = why
            if self._why_not is not None:
                raise self._why_not

    def load(self, kernels: Versions | None) -> bool:
        """Have the server load these compiled kernels (None: all), too; False if it cannot."""
        try:
            self.wait()
            with _TURN:
                self._channel.send(json.dumps({"load": kernels}).encode())
                self._answer()
        except (NoWarmStart, OSError):
            return False
        self.kernels = kernels
        return True

    def fork(self, argument: str, env: Mapping[str, str], placement: Placement, log: int, stdin: int) -> int:
        """Start a rank with this environment and descriptors, as this process's child; NoWarmStart if it cannot."""
        handed = [stdin, log] if placement.namespace is None else [stdin, log, placement.namespace]
        where = {"cores": placement.cores, "cwd": os.getcwd()}
        request = {"worker": self.worker, "argument": argument, "env": dict(env), **where}
        try:
            self.wait()
            with _adopting():
                socket.send_fds(self._channel, [json.dumps(request).encode()], handed)
                pid = int(self._answer()["pid"])
            try:
                os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                os.kill(pid, signal.SIGKILL)  # another takes its place
                self._why_not = NoWarmStart("the kernel hands orphans to another process than the runner")
                raise self._why_not from None
        except BaseException as error:
            # An answer that was not read would be taken for the next one's.
            self.close()
            if isinstance(error, OSError):
                raise NoWarmStart(f"the process that forks ranks is gone: {error.strerror}") from None
            raise
        return pid

    def _answer(self) -> dict[str, Any]:
        said = b""
        try:
            said = self._channel.recv(_MESSAGE_BYTES)
        except TimeoutError:
            self._process.kill()
            raise NoWarmStart(f"the process that forks ranks did not answer for {ANSWER_S:g} s") from None
        except ConnectionResetError:  # it ended before it read what it was sent
            pass
        if not said:
            raise NoWarmStart(f"the process that forks ranks ended with code {self._process.wait()}")
        answer: dict[str, Any] = json.loads(said)
        if "why_not" in answer:
            raise NoWarmStart(answer["why_not"])
        return answer

    def close(self) -> None:
        """End the server; ranks that it forked run on."""
        self._channel.close()
        self._process.kill()
        self._process.wait()


_server: ForkServer | None = None
_kernels: Versions | None = None


def fork_server(worker: str, env: Mapping[str, str]) -> ForkServer:
    """Return this process's server for such ranks; another's is ended. Raises NoWarmStart, see `ForkServer`."""
    global _server
    if _server is None or not _server.serves(worker, env):
        end_fork_server()
        _server = ForkServer(worker, env, _kernels)
    _server.worker = worker
    return _server


def preload(kernels: Versions | None) -> None:
    """Have servers of this process load these compiled kernels (None: all); one that loaded others is ended."""
    global _kernels
    if kernels != _kernels and not (_server is not None and _kernels == {} and _server.load(kernels)):
        end_fork_server()
    _kernels = kernels


@atexit.register
def end_fork_server() -> None:
    """End the server of this process, if there is one."""
    global _server
    if _server is not None:
        _server.close()
        _server = None


def shared(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that all ranks of a trial have in common; libraries read many of them when loaded."""
    return {name: value for name, value in env.items() if name not in _OF_A_RANK}


def import_for_ranks() -> None:
    """Import what a rank of harness's own needs; starts no thread and touches no device."""
    import numba  # noqa: F401 - first, so that no kernel is deferred
    import threadpoolctl  # noqa: F401 - a rank gives OpenBLAS its threads with it
    from numba.core.registry import cpu_target

    import harness.models.gnn
    import harness.runtime.trainer  # noqa: F401
    from harness.graph.kernels import compile_once
    from harness.runtime.method import METHODS

    METHODS.load_own()
    compile_once()
    # What a process needs before its first kernel, compiled or loaded: a third of a second in each rank otherwise.
    cpu_target.typing_context.refresh()
    cpu_target.target_context.refresh()


def _needs(worker: str) -> str:
    # All modules of harness need the same imports, so that one server forks the ranks of any of them.
    return "harness" if worker.startswith("harness.") else worker


def main(arguments: list[str]) -> NoReturn:
    """Be the server: channel's file descriptor, worker."""
    channel = socket.socket(fileno=int(arguments[0]))
    os.set_inheritable(channel.fileno(), False)
    pages: Sequence[Page] = []
    answer: dict[str, Any]
    if is_own := _needs(arguments[1]) == "harness":  # of another module it is not known what it needs
        often = gc.get_threshold()
        gc.set_threshold(100_000, 50, 100)  # imports make little garbage: looking for it takes a fifth of the time
        import_for_ranks()
        gc.set_threshold(*often)
    while True:
        said, descriptors, _, _ = socket.recv_fds(channel, _MESSAGE_BYTES, 3)
        if not said:
            os._exit(0)
        request = json.loads(said)
        try:
            if "load" in request:
                pages, answer = _load(request["load"] if is_own else {}), {"ready": True}
            else:
                answer = {"pid": _fork(channel, request, descriptors, pages)}
        except NoWarmStart as why:
            channel.send(json.dumps({"why_not": str(why)}).encode())
            os._exit(1)
        for descriptor in descriptors:
            os.close(descriptor)
        channel.send(json.dumps(answer).encode())


def _load(kernels: Versions | None) -> list[Page]:
    """Load compiled kernels, and return the pages that ranks are to have; NoWarmStart if none can be forked."""
    if kernels != {}:
        from harness.graph.kernels import load_compiled

        load_compiled(kernels)
    if (threads := len(os.listdir("/proc/self/task"))) > 1:
        raise NoWarmStart(f"importing started {threads - 1} threads, which a fork would lose")
    pages = list(own_pages())
    for page in pages[:1]:
        _advise(*page)  # the kernel knows it, or ranks start cold
    return pages


def _fork(channel: socket.socket, request: Mapping[str, Any], descriptors: list[int], pages: Sequence[Page]) -> int:
    """Fork a rank whose parent has ended, and return its process id."""
    read, write = os.pipe()
    if (middle := os.fork()) == 0:
        if (rank := os.fork()) == 0:
            os.close(read)
            os.close(write)
            channel.close()
            _be_rank(request, descriptors, pages)
        os.write(write, str(rank).encode())
        os._exit(0)
    os.close(write)
    os.waitpid(middle, 0)
    with open(read) as stream:
        return int(stream.read())


def _be_rank(request: Mapping[str, Any], descriptors: list[int], pages: Sequence[Page]) -> NoReturn:
    """Be what `python -P -m worker argument` is to a process that was started for it alone."""
    code = 1
    try:
        os.setsid()
        _prctl(_SET_NAME, f"harness-rank-{request['env']['RANK']}".encode())
        signal.signal(signal.SIGINT, signal.default_int_handler)
        stdin, log, *namespace = descriptors
        for number, descriptor in enumerate((stdin, log, log)):
            os.dup2(descriptor, number)
        os.close(stdin)
        os.close(log)
        for descriptor in namespace:
            enter(descriptor)
        if request["cores"] is not None:
            os.sched_setaffinity(0, request["cores"])
        os.chdir(request["cwd"])
        os.environ.clear()
        os.environ.update(request["env"])
        if request["worker"] not in _SHARING:
            for page in pages:
                _advise(*page)
        # A fresh interpreter has a generator of its own: with the server's a plugin that forgets to seed would draw the
        # same on all ranks. The server loaded OpenBLAS with one thread, because threads do not survive a fork.
        sys.modules["numpy"].random.seed()
        threads = int(os.environ.get("OPENBLAS_NUM_THREADS", "1"))
        if threads > 1 and "threadpoolctl" in sys.modules:
            sys.modules["threadpoolctl"].threadpool_limits(threads, "blas")
        sys.argv = [request["worker"], request["argument"]]
        runpy.run_module(request["worker"], run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def own_pages(proc: Path = Path("/proc/self")) -> Iterator[Page]:
    """Yield this process's pages for a child to have as if it had made them; NoWarmStart if Linux shows them not."""
    import numpy as np

    # A fork shares pages that are written to when they are written to, and does not map files at all until they are
    # read: a rank's resident and proportional sets would be smaller than those of one that started cold, and its first
    # epochs would copy pages.
    page = mmap.PAGESIZE
    try:
        with (proc / "pagemap").open("rb", buffering=0) as pagemap:
            for line in (proc / "maps").read_text().splitlines():
                span, rights, _, _, _, *name = line.split(maxsplit=5)
                if rights[0] != "r" or rights[3] != "p" or (name and name[0].startswith("[") and name[0] != "[heap]"):
                    continue
                start, end = (int(edge, 16) for edge in span.split("-"))
                entries = os.pread(pagemap.fileno(), (end - start) // page * 8, start // page * 8)
                bits = np.frombuffer(entries, np.uint64) >> np.uint64(61)  # bit 63: present, 61: a file's or shared
                kind = np.where(bits & 4, 1 + (bits & 1), 0).astype(np.int8)
                edges = np.flatnonzero(np.diff(kind, prepend=np.int8(0), append=np.int8(0)))
                for first, last in pairwise(map(int, edges)):
                    if kind[first]:
                        advice = _POPULATE_READ if kind[first] == 2 or rights[1] != "w" else _POPULATE_WRITE
                        yield start + first * page, (last - first) * page, advice
    except OSError as error:
        raise NoWarmStart(f"{error.filename}: {error.strerror}") from None


@contextmanager
def _adopting() -> Iterator[None]:
    # The kernel hands an orphan to the nearest ancestor that is a subreaper: the rank becomes this process's child.
    before = ctypes.c_int()
    with _TURN:
        _prctl(_IS_SUBREAPER, ctypes.byref(before))
        _prctl(_SUBREAPER, 1)
        try:
            yield
        finally:
            _prctl(_SUBREAPER, before.value)


def _prctl(option: int, value: Any) -> None:
    try:
        libc("prctl", option, value, 0, 0, 0)
    except OSError as error:
        raise NoWarmStart(str(error)) from None


def _advise(start: int, length: int, advice: int) -> None:
    try:
        libc("madvise", ctypes.c_void_p(start), ctypes.c_size_t(length), advice)
    except OSError as error:
        if error.errno != errno.ENOMEM:  # libc has given pages at the end of its heap back since they were listed
            raise NoWarmStart(f"{error} (Linux 5.14 or newer fills pages ahead)") from None


if __name__ == "__main__":
    main(sys.argv[1:])
