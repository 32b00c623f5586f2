"""`--executor ray`: tasks of a Ray cluster, and the functions that they run on its nodes."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import socket
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
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
        with connected():
            arrivals = Arrivals(submission, progress)
            waiting, trials = list(arrivals.missing), _Trials(submission, arrivals, report)
            running: dict[str, Generator[None, None, str]] = {}
            failed: dict[str, str] = {}
            try:
                while waiting or running:
                    while waiting and len(running) < (submission.jobs or len(arrivals.todo)):
                        trial = waiting.pop(0)
                        running[trial.id] = trials.run(trial)
                    for id_, trial_run in list(running.items()):
                        try:
                            next(trial_run)
                        except StopIteration as end:
                            failed[id_] = end.value
                            del running[id_]
                    time.sleep(LOOK_S)
                    arrivals.look()
            except KeyboardInterrupt:
                return INTERRUPTED
            finally:
                for trial_run in running.values():
                    trial_run.close()
                trials.shared.unlink(missing_ok=True)
            return arrivals.conclude(report, lambda trial: failed[trial.id])


class _Trials:
    """Runs the trials of a submission. A node proves by the `token` in the file `shared` that it sees the results."""

    def __init__(self, submission: Submission, arrivals: Arrivals, report: Callable[[str], None]) -> None:
        self._submission, self._arrivals, self._report = submission, arrivals, report
        self.shared, self._token = submission.place / f"ray-{secrets.token_hex(8)}", secrets.token_hex(16)
        # Nodes of a trial know each other by a secret of this run's; Ray itself runs anything for who reaches it.
        self._variables = {name: value for name, value in os.environ.items() if name.startswith("HARNESS_")}
        self._variables.setdefault(VARIABLE, secrets.token_hex(32))
        self.shared.parent.mkdir(parents=True, exist_ok=True)
        self.shared.write_text(self._token)

    def run(self, trial: TrialConfig) -> Generator[None, None, str]:
        """Run a trial, and again if its runner is lost; return why it has no record, or "".

        It yields while there is something to wait for. When it is closed, it ends the runners.
        """
        need, why = Need.of(trial, self._submission.nodes), ""
        for number in range(1, TRIES + 1):
            if number > 1:
                self._report(f"try {number} of {TRIES}: {trial.label}: {why}")
            bundle = _bundle(need)
            if bundle is None:
                return f"no {need.nodes} nodes of the cluster have what it needs: {need}"
            with _placed(bundle, need.nodes) as (group, tasks):
                yield from _until([group.ready()])
                # Of a trial of several nodes the coordinator may have written how it ended without one: that is void.
                again = need.nodes > 1 and number > 1
                more = ["--retry", "error,timeout"] if again else ["--request", self._arrivals.request]
                if need.nodes > 1:
                    meeting = _remote(endpoint, group, 0, 0).remote()
                    yield from _until([meeting])
                    if isinstance(address := _result(meeting), Exception):
                        why = _why(address)
                        continue
                    more = ["--nnodes", str(need.nodes), "--rdzv", address, *more]
                logs = [self._submission.place / f"{trial.id}.{number}.{node}.log" for node in range(need.nodes)]
                command = self._submission.command([trial], *more)
                own = self.shared, self._token, self._variables
                for node, log in enumerate(logs):
                    task = _remote(run_on_node, group, node, bundle.get("GPU", 0))
                    tasks.append(task.remote(command, int(bundle["CPU"]), log, *own))
                # Of several nodes one that is lost ends the others, by what the coordinator knows.
                yield from _until(tasks)
                ends = [_result(task) for task in tasks]
            lost = [_why(end) for end in ends if isinstance(end, Exception)]
            codes = [end[1] for end in ends if not isinstance(end, Exception)]
            if None in codes:
                host = next(end[0] for end in ends if not isinstance(end, Exception) and end[1] is None)
                what = f"'{self._submission.store.root}' on {host} is not the directory that it is here"
                raise UserError(what, key="--results", fix="name a directory that all nodes share")
            self._arrivals.look_afresh()
            if trial.id in self._arrivals.statuses and not lost:
                return ""
            if USAGE in codes:
                return f"`harness run` ended with 2, see {logs[0]}"
            why = "; ".join(lost) or f"its runner ended with {codes}, see {logs[0]}"
        return f"lost {TRIES} times; {why}"


def _bundle(need: Need) -> dict[str, float] | None:
    """Return the resources of each of a trial's nodes; None if too few nodes have them.

    A trial that is timed takes all cores of its nodes, so that nothing else runs there: those with most cores.
    """
    sizes = [(has.get("CPU", 0.0), has.get("GPU", 0.0)) for has in _resources()]
    fitting = sorted(cpus for cpus, gpus in sizes if cpus >= (need.cpus or 1) and gpus >= need.gpus)
    if len(fitting) < need.nodes:
        return None
    cpus = fitting[-need.nodes] if need.alone else need.cpus or 1
    return {"CPU": cpus, "GPU": need.gpus} if need.gpus else {"CPU": cpus}


@contextlib.contextmanager
def _placed(bundle: dict[str, float], nodes: int) -> Iterator[tuple[PlacementGroup, list[ObjectRef[Any]]]]:
    """Ask for nodes; yield their group and a list for the tasks there, which end before the nodes are given back."""
    import ray
    from ray.util import placement_group, remove_placement_group

    group = placement_group([bundle] * nodes, "STRICT_PACK" if nodes == 1 else "STRICT_SPREAD")
    tasks: list[ObjectRef[Any]] = []
    try:
        yield group, tasks
    finally:
        for task in tasks:
            ray.cancel(task)
        if tasks:
            ray.wait(tasks, num_returns=len(tasks), timeout=10)
        remove_placement_group(group)


def _remote(function: Any, group: PlacementGroup, node: int, gpus: float) -> Any:
    """Return `function` as a task on a node of a placement group; its tasks share what the bundle has."""
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=node)
    # A node's task holds its GPUs, so that it sees no others; cores are held by the group.
    return ray.remote(function).options(num_cpus=1, num_gpus=gpus, max_retries=0, scheduling_strategy=strategy)


def _until(references: Sequence[ObjectRef[Any]]) -> Iterator[None]:
    """Yield until all are done."""
    import ray

    while ray.wait(list(references), num_returns=len(references), timeout=0)[1]:
        yield


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
        what, fix = f"no Ray cluster answers: {str(error).splitlines()[0]}", "`ray start` on each node"
        raise UserError(what, key=f"RAY_ADDRESS {address}", fix=f"{fix}, see docs/cluster.md") from error
    try:
        yield
    finally:
        ray.shutdown()


def _resources() -> list[dict[str, float]]:
    """Return the resources of each node of the cluster that is alive."""
    import ray

    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def run_on_node(
    command: Sequence[str], cpus: int, log: Path, shared: Path, token: str, variables: Mapping[str, str]
) -> tuple[str, int | None]:
    """Run in a Ray task: start the runner and wait for it; when the task is cancelled it ends the runner.

    `cpus` of the node's cores are the trial's; the runner chooses which, next to the runners that are there. Returns
    the node's name and the runner's exit code, None without a runner: the node does not see the results directory.
    """
    from ray import get_runtime_context

    host, node = socket.gethostname(), get_runtime_context().get_node_id()
    try:
        if shared.read_text() != token:
            return host, None
    except OSError:
        return host, None
    with log.open("ab") as out:
        env = {**os.environ, **variables, "HARNESS_JOB": f"ray node {node[:8]}"}
        share = ("--share", str(max(1, cores() // cpus)))
        child = start_runner([*command, *share], stdout=out, stderr=out, env=env)
    try:
        while (code := child.poll()) is None:
            time.sleep(0.1)
    except BaseException:  # KeyboardInterrupt is how Ray cancels
        stop_runner(child.pid)
        raise
    finally:
        child.poll()
    return host, code


def endpoint() -> str:
    """Run in a Ray task: return HOST:PORT of this node, the port free a moment ago."""
    from ray.util import get_node_ip_address

    with socket.socket() as probe:
        probe.bind(("", 0))
        return f"{get_node_ip_address()}:{probe.getsockname()[1]}"
