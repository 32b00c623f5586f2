"""`--executor ray`: tasks of a Ray cluster, and the functions that they run on its nodes."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.errors import UserError
from harness.launch.executors import Arrivals, Executor, Need, Submission
from harness.launch.hardware import Capacity, cores
from harness.launch.runner_process import INTERRUPTED, USAGE, start_runner, stop_runner
from harness.runtime.channel import VARIABLE

if TYPE_CHECKING:
    from ray import ObjectRef
    from ray.util.placement_group import PlacementGroup

    from harness.launch.runner import TrialProgress
    from harness.suite.schema import TrialConfig

TRIES = 3  # of a trial whose runner was lost
LOOK_S = 0.5


@dataclass
class Attempt:
    """A trial on its way: it waits for its placement group, then for `endpoint` if it has several nodes, then runs."""

    trial: TrialConfig
    number: int
    group: PlacementGroup
    ready: ObjectRef[Any]
    meeting: ObjectRef[Any] | None = None
    tasks: list[ObjectRef[Any]] = field(default_factory=list)


class Ray(Executor):
    """A placement group of a Ray cluster for each trial, all of its nodes or none, with a runner on each."""

    name = "ray"

    def capacity(self, nodes: int) -> Capacity:
        """Return the memory that `nodes` nodes of the cluster have, the largest of it; UserError if it has fewer."""
        with connected():
            sizes = sorted((int(has.get("memory", 0)) for has in _resources()), reverse=True)
        if len(sizes) < nodes:
            raise UserError(f"{nodes} nodes, the Ray cluster has {len(sizes)}", key="--nnodes", fix="see `ray status`")
        return Capacity(sizes[nodes - 1], where="a node of the Ray cluster", nodes=nodes)

    def run(self, submission: Submission, progress: TrialProgress, report: Callable[[str], None]) -> int:
        """See `Executor`."""
        with connected(), ExitStack() as stack:
            arrivals = Arrivals(submission, progress)
            tasks = stack.enter_context(Tasks(submission, arrivals.request, report))
            try:
                waiting = list(arrivals.missing)
                while waiting or tasks.running:
                    while waiting and len(tasks.running) < (submission.jobs or len(arrivals.todo)):
                        tasks.start(waiting.pop(0))
                    time.sleep(LOOK_S)
                    arrivals.look()
                    tasks.step(arrivals)
            except KeyboardInterrupt:
                return INTERRUPTED
            return arrivals.conclude(report, lambda trial: tasks.given_up[trial.id])


class Tasks:
    """The attempts at a submission's trials on a Ray cluster; to be used in a `with` block, which ends them."""

    def __init__(self, submission: Submission, request: str, report: Callable[[str], None]) -> None:
        self._submission, self._request, self._report = submission, request, report
        self._shared, self._token = submission.place / f"ray-{secrets.token_hex(8)}", secrets.token_hex(16)
        # Nodes of a trial know each other by a secret of this run's; Ray itself runs anything for who reaches it.
        self._variables = {name: value for name, value in os.environ.items() if name.startswith("HARNESS_")}
        self._variables.setdefault(VARIABLE, secrets.token_hex(32))
        self._sizes = node_sizes()
        self.running: dict[str, Attempt] = {}
        self.given_up: dict[str, str] = {}

    def __enter__(self) -> Tasks:
        self._shared.parent.mkdir(parents=True, exist_ok=True)
        self._shared.write_text(self._token)
        return self

    def __exit__(self, *error: object) -> None:
        for attempt in self.running.values():
            self._end(attempt)
        self._shared.unlink(missing_ok=True)

    def start(self, trial: TrialConfig, number: int = 1) -> None:
        """Ask for what `trial` needs; a trial that no nodes of the cluster can hold is given up."""
        from ray.util import placement_group

        need = Need.of(trial, self._submission.nodes)
        bundle = self._bundle(need)
        if bundle is None:
            self.given_up[trial.id] = f"no {need.nodes} nodes of the cluster have what it needs: {need}"
            return
        strategy = "STRICT_PACK" if need.nodes == 1 else "STRICT_SPREAD"
        group = placement_group([bundle] * need.nodes, strategy)
        self.running[trial.id] = Attempt(trial, number, group, group.ready())

    def step(self, arrivals: Arrivals) -> None:
        """Go on with what has come: start tasks whose nodes are there, judge those that have ended."""
        for attempt in list(self.running.values()):
            if attempt.tasks:
                self._judge(attempt, arrivals)
            elif attempt.meeting is not None:
                self._meet(attempt, attempt.meeting)
            elif _done([attempt.ready]):
                self._launch(attempt)

    def _bundle(self, need: Need) -> dict[str, float] | None:
        """Return the resources of each of the trial's nodes; None if too few nodes have them.

        A trial that is timed takes all cores of its nodes, so that nothing else runs there: those with most cores.
        """
        fitting = sorted((cpus for cpus, gpus in self._sizes if cpus >= (need.cpus or 1) and gpus >= need.gpus))
        if len(fitting) < need.nodes:
            return None
        cpus = fitting[-need.nodes] if need.alone else need.cpus or 1
        return {"CPU": cpus, "GPU": need.gpus} if need.gpus else {"CPU": cpus}

    def _launch(self, attempt: Attempt) -> None:
        if self._submission.nodes == 1:
            attempt.tasks = [self._task(attempt, 0)]
        else:
            attempt.meeting = _remote(endpoint, attempt.group, 0, 0).remote()

    def _meet(self, attempt: Attempt, meeting: ObjectRef[Any]) -> None:
        if not _done([meeting]):
            return
        end = _result(meeting)
        if isinstance(end, Exception):
            self._again(attempt, _why(end))
            return
        more = ("--nnodes", str(self._submission.nodes), "--rdzv", str(end))
        attempt.tasks = [self._task(attempt, node, *more) for node in range(self._submission.nodes)]

    def _task(self, attempt: Attempt, node: int, *more: str) -> ObjectRef[Any]:
        submission, trial = self._submission, attempt.trial
        log = submission.place / f"{trial.id}.{attempt.number}.{node}.log"
        # Of a trial of several nodes the coordinator may have written how it ended without one: that was not it.
        again = more and attempt.number > 1
        request = ("--retry", "error,timeout") if again else ("--request", self._request)
        command = submission.command([trial], *more, *request)
        bundle = attempt.group.bundle_specs[node]
        job = NodeJob(command, int(bundle["CPU"]), log, self._shared, self._token, self._variables)
        task: ObjectRef[Any] = _remote(run_on_node, attempt.group, node, bundle.get("GPU", 0)).remote(job)
        return task

    def _judge(self, attempt: Attempt, arrivals: Arrivals) -> None:
        """Take a trial whose tasks have ended off the list, and try it again if its runner was lost.

        Of several nodes one that is lost ends the others, by what the coordinator knows.
        """
        if not _done(attempt.tasks):
            return
        ends = [_result(task) for task in attempt.tasks]
        lost = [_why(end) for end in ends if isinstance(end, Exception)]
        codes = [end.code for end in ends if isinstance(end, NodeEnd)]
        if None in codes:
            host = next(end.host for end in ends if isinstance(end, NodeEnd) and end.code is None)
            what = f"'{self._submission.store.root}' on {host} is not the directory that it is here"
            raise UserError(what, key="--results", fix="name a directory that all nodes share")
        arrivals.look_afresh()
        if attempt.trial.id in arrivals.statuses and not lost:
            self._end(attempt)
            del self.running[attempt.trial.id]
        elif USAGE in codes:
            self._give_up(attempt, f"`harness run` ended with 2, see {self._log(attempt)}")
        else:
            self._again(attempt, "; ".join(lost) or f"its runner ended with {codes}, see {self._log(attempt)}")

    def _again(self, attempt: Attempt, why: str) -> None:
        label = attempt.trial.label
        if attempt.number == TRIES:
            self._give_up(attempt, f"lost {TRIES} times; {why}")
            return
        self._report(f"try {attempt.number + 1} of {TRIES}: {label}: {why}")
        self._end(attempt)
        self._sizes = node_sizes()
        del self.running[attempt.trial.id]
        self.start(attempt.trial, attempt.number + 1)

    def _give_up(self, attempt: Attempt, why: str) -> None:
        self.given_up[attempt.trial.id] = why
        self._end(attempt)
        del self.running[attempt.trial.id]

    def _log(self, attempt: Attempt) -> Path:
        return self._submission.place / f"{attempt.trial.id}.{attempt.number}.0.log"

    def _end(self, attempt: Attempt) -> None:
        """End the runners of an attempt, and give its nodes back."""
        import ray
        from ray.util import remove_placement_group

        for task in attempt.tasks:
            ray.cancel(task)
        if attempt.tasks:
            ray.wait(attempt.tasks, num_returns=len(attempt.tasks), timeout=10)
        remove_placement_group(attempt.group)


def _remote(function: Any, group: PlacementGroup, node: int, gpus: float) -> Any:
    """Return `function` as a task on a node of a placement group; its tasks share what the bundle has."""
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=node)
    # A node's task holds its GPUs, so that it sees no others; cores are held by the group.
    return ray.remote(function).options(num_cpus=1, num_gpus=gpus, max_retries=0, scheduling_strategy=strategy)


def _done(references: Sequence[ObjectRef[Any]]) -> bool:
    import ray

    return len(ray.wait(list(references), num_returns=len(references), timeout=0)[0]) == len(references)


def _result(reference: ObjectRef[Any]) -> Any:
    """Return what a task returned, or the exception of one that Ray lost."""
    import ray

    try:
        return ray.get(reference)
    except ray.exceptions.RayError as error:
        return error


def _why(error: Exception) -> str:
    from ray.exceptions import RayTaskError

    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[-1 if isinstance(error, RayTaskError) else 0]}"


@contextlib.contextmanager
def connected() -> Iterator[None]:
    """Be a driver of the cluster that RAY_ADDRESS names, or that this machine is part of; UserError without one."""
    try:
        import ray
    except ModuleNotFoundError:
        raise UserError("ray is not installed", key="--executor", fix="pip install 'gnn-harness[ray]'") from None
    address = os.environ.get("RAY_ADDRESS") or "auto"
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError) as error:
        what = f"no Ray cluster answers: {str(error).splitlines()[0]}"
        raise UserError(
            what, key=f"RAY_ADDRESS {address}", fix="`ray start` on each node, see docs/cluster.md"
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


def node_sizes() -> list[tuple[float, float]]:
    """Return the cores and GPUs of each node of the cluster that is alive."""
    return [(has.get("CPU", 0), has.get("GPU", 0)) for has in _resources()]


def _resources() -> list[dict[str, float]]:
    """Return what each node of the cluster that is alive has."""
    import ray

    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


@dataclass(frozen=True)
class NodeJob:
    """What a task runs on its node: `command`, its output to `log`, with `variables` of the submitter's.

    `cpus` of the node's cores are the trial's; the runner chooses which, next to the runners that are there.
    The runner of a node that does not read `token` in the file `shared` is not started.
    """

    command: tuple[str, ...]
    cpus: int
    log: Path
    shared: Path
    token: str
    variables: Mapping[str, str]


@dataclass(frozen=True)
class NodeEnd:
    """Says how a runner ended; `code` None: the node does not see the results directory."""

    host: str
    code: int | None


def run_on_node(job: NodeJob) -> NodeEnd:
    """Run in a Ray task: start the runner and wait for it; when the task is cancelled it ends the runner."""
    from ray import get_runtime_context

    host, node = socket.gethostname(), get_runtime_context().get_node_id()
    try:
        shared = job.shared.read_text() == job.token
    except OSError:
        shared = False
    if not shared:
        return NodeEnd(host, None)
    with job.log.open("ab") as log:
        env = {**os.environ, **job.variables, "HARNESS_JOB": f"ray node {node[:8]}"}
        share = ("--share", str(max(1, cores() // job.cpus)))
        child = start_runner([*job.command, *share], stdout=log, stderr=log, env=env)
    try:
        while (code := child.poll()) is None:
            time.sleep(0.1)
    except BaseException:  # KeyboardInterrupt is how Ray cancels
        stop_runner(child.pid)
        raise
    finally:
        child.poll()
    return NodeEnd(host, code)


def endpoint() -> str:
    """Run in a Ray task: return HOST:PORT of this node, the port free a moment ago."""
    from ray.util import get_node_ip_address

    with socket.socket() as probe:
        probe.bind(("", 0))
        return f"{get_node_ip_address()}:{probe.getsockname()[1]}"
