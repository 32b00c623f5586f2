"""RankReport: the report of a rank to the launcher, however it ends."""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.deferred import dist, torch
from harness.errors import UserError
from harness.files import write_whole
from harness.registry import line_in
from harness.runtime.audit import describe
from harness.runtime.method import Method, case_of

if TYPE_CHECKING:
    from harness.runtime.worker import Worker

MEMORY_WORDS = ("out of memory", "not enough memory", "can't allocate memory", "cannot allocate memory")

MADE = ("setup_s", "compile_s", "spans", "found", "setup")  # of the set-up that the training followed
KEEP_S = 1.0  # between two writes of the epochs so far


class TrialError(Exception):
    """Ends a trial with a status of its own."""

    def __init__(self, status: str, reason: str) -> None:
        self.status, self.reason = status, reason
        super().__init__(reason)


class RankReport:
    """Collects a rank's metrics and writes them to `rank{r}.json`, whole or not at all."""

    def __init__(self, out: Path, rank: int) -> None:
        self._out, self._rank = out, rank
        self.epochs: list[dict[str, Any]] = []  # one row an epoch
        self._data: dict[str, Any] = {"rank": rank, "status": "error", "reason": None, "summary": {}}
        self._data["epochs"] = self.epochs
        self.plugins: list[Path] = []  # files that a line of an error may be in
        self.flags: dict[tuple[str, str], None] = {}  # key and text of each
        self._worker: Worker | None = None
        self.method: Method[Any] | None = None  # a rehearsal's has to be gone before the training's is made
        self._option_warnings: list[str] = []
        self._progress = (out / "progress.jsonl").open("a", buffering=1)
        self._ended = (out / f"epochs-{rank}.jsonl").open("a")
        self._kept, self._kept_at = 0, time.monotonic()
        self._started, self._earlier_s = time.monotonic(), 0.0
        self._since = 0  # the first epoch of this process
        self._resumed: list[dict[str, Any]] = []

    @property
    def exit_code(self) -> int:
        """0 if the rank ended well, else 3."""
        return 0 if self._data["status"] == "ok" else 3

    @property
    def precompute_s(self) -> float:
        """Seconds in which set-up computed what epochs then need not: they count as training."""
        seconds: float = self._data.get("spans", {}).get("setup", {}).get("precompute", 0.0)
        return seconds

    def setup(
        self, worker: Worker, method: Method[Any], seconds: Mapping[str, float], metrics: Mapping[str, float | None]
    ) -> None:
        """Record what is known once the method is made: seconds by span, and the method's `setup_metrics`."""
        partition = worker.partition
        self._worker, self.method = worker, method
        self._data |= {
            "setup_s": (setup_s := sum(seconds.values())),
            "compile_s": None,
            "spans": {"setup": dict(seconds)},
            "found": worker.found.copy(),
            "backend": dist.get_backend() if worker.world > 1 else None,
            "link": describe(worker.interface) if worker.interface else None,
            "inner": partition.num_inner,
            "boundary": partition.num_boundary,
            "edges": int(partition.meta["table"][worker.rank]["edges"]),
            "train_nodes": worker.train_counts[worker.rank],
            "memory_model": method.memory_components(),
            "setup": dict(metrics),
        }
        self._option_warnings = method.option_warnings(method.options, case_of(worker))
        self.progress(event="setup", setup_s=setup_s)

    def rehearsed(self, method: Method[Any], seconds: float) -> None:
        """Record the seconds of a rehearsal, after which the training has another `method`."""
        self.method, self._data["compile_s"] = method, seconds

    def keep_epochs(self) -> None:
        """Write the rows so far, at most once in `KEEP_S`: they outlive a rank that is killed."""
        if time.monotonic() - self._kept_at >= KEEP_S:
            self._ended.write("".join(json.dumps(each) + "\n" for each in self.epochs[self._kept :]))
            self._ended.flush()
            self._kept, self._kept_at = len(self.epochs), time.monotonic()

    def progress(self, *, any_rank: bool = False, **event: Any) -> None:
        """Report to the launcher how far the trial is; rank 0 does, or `any_rank`."""
        if any_rank or self._rank == 0:
            self._progress.write(json.dumps(event) + "\n")  # appended in one piece: ranks share the file

    def stage(self, text: str) -> None:
        """Report how far work before the first epoch is, from any rank."""
        self.progress(any_rank=True, event="stage", text=text)

    def flag(self, key: str, text: str) -> None:
        """Flag the trial once, with a word for the kind and a line with the numbers: they are not what they seem."""
        self.flags[key, text] = None

    def state(self) -> dict[str, Any]:
        """Return the report so far, for a checkpoint."""
        self._take_loads()
        return {
            "epochs": json.dumps(self.epochs),
            "flags": list(self.flags),
            "made": {name: self._data[name] for name in MADE if name in self._data},
            "resumed": self._resumed,
            "elapsed_s": self._earlier_s + time.monotonic() - self._started,
        }

    def restore(self, state: dict[str, Any], done: int) -> None:
        """Go on from the `state` of another process; its set-up is the trial's, and this one's is noted."""
        own = {name: self._data.get(name) for name in ("setup_s", "compile_s")}
        self.epochs[:] = json.loads(state["epochs"])
        self._since = len(self.epochs)
        self.flags |= dict.fromkeys(state["flags"])
        self._data |= state["made"]
        self._resumed = [*state["resumed"], {"epochs": done, **own}]
        self._earlier_s = state["elapsed_s"]
        self.flag("resumed", f"went on from a checkpoint after {done} epochs")
        self.stage(f"goes on after {done} epochs, from a checkpoint")

    def _take_loads(self) -> None:
        """Add the load of the cores to the rows of this process's epochs; the last may not have ended."""
        if self._worker is not None:
            for row, load in zip(self.epochs[self._since :], self._worker.meters.loads(), strict=False):
                row |= load

    def finish(self, summary: dict[str, Any], eval_s: float, **parts: Any) -> None:
        """Record the metrics of a trial that ran to its end, `parts` by name."""
        self._data |= {"summary": summary, "eval_s": eval_s, **parts}

    @contextmanager
    def concluding(self) -> Iterator[None]:
        """Give the enclosed work its status, and write the report."""
        try:
            yield
            self._data["status"] = "ok"
        except TrialError as failure:
            self._data |= {"status": failure.status, "reason": failure.reason}
        except UserError as error:
            self._data["reason"] = str(error)
        except (MemoryError, torch.OutOfMemoryError) as error:
            self._data |= {"status": "oom", "reason": _first_line(error)}
        except Exception as error:
            traceback.print_exc()
            places = ((file, line_in(file, error)) for file in self.plugins)
            place = next((f"{file}:{line}: " for file, line in places if line), "")
            text = place + _first_line(error)
            self._data |= {"status": "oom" if any(w in text.lower() for w in MEMORY_WORDS) else "error", "reason": text}
        finally:
            self._write()

    def _write(self) -> None:
        self._data["flags"] = list(self.flags)
        self._data |= {"resumed": self._resumed, "earlier_s": self._earlier_s}
        if self._worker is not None:
            worker = self._worker
            warnings = [*self._option_warnings, *(self.method.warnings if self.method else [])]
            if worker.check is not None and worker.check.why_not is not None:
                warnings.append(worker.check.why_not)
            self._data |= {
                "peak_memory_bytes": worker.meters.memory.bytes(),
                "peak_memory_source": worker.meters.memory.source,
                "base_memory_bytes": worker.meters.memory.base,
                "mapped_bytes": worker.meters.memory.mapped(),
                "meters": worker.meters.report(),
                "remarks": warnings,
                "traffic": worker.traffic.rows(),
                "spans": self._data.get("spans", {})
                | {"between": worker.spans.seconds, "beside": worker.clock.background},
            }
            self._take_loads()
            worker.meters.close()
            if worker.check is not None:
                self._data["traffic_check"] = worker.check.report()
        write_whole(self._out / f"rank{self._rank}.json", json.dumps(self._data))


def _first_line(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    return f"{type(error).__name__}: {text.splitlines()[0]}"
