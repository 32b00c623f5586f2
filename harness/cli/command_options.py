"""The options that commands share; `SuiteOptions` are those of commands that take a suite."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import wraps
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_type_hints

import typer
from typer.core import TyperCommand

from harness.errors import UserError, nearest

if TYPE_CHECKING:
    from harness.launch.rendezvous import Cluster
    from harness.launch.slots import RunOptions
    from harness.suite.schema import Suite, TrialConfig


def option(usage: str, help: str, **others: Any) -> Any:
    """Return an option, its flags and metavar as the help shows them: `option("-o --out FILE", "...")`."""
    *flags, metavar = usage.split()
    return typer.Option(*flags, metavar=metavar, help=help, **others)


def suite_path(asked: Path | None) -> Path | None:
    """Return the file of a suite that is asked for by its path or its name."""
    from harness.suite.suite_file import suite_file  # it imports pydantic, which help does without

    return suite_file(asked)


SUITE_HELP = "A suite's file (YAML), or the name of a shipped one (`harness suites`)."
SuiteFile = Annotated[Path, typer.Argument(metavar="SUITE", help=SUITE_HELP, callback=suite_path)]
Results = Annotated[Path, option("--results DIR", "Where records are kept.")]
DataDir = Annotated[
    Path | None, option("--data-dir DIR", "Where graphs of your own are looked up.", envvar="HARNESS_DATA")
]
ResultDirs = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="DIR...", help="Results directories, or single suites' directories in them.", show_default="results"
    ),
]
ClaimingSuite = Annotated[
    Path | None,
    option(
        "--suite SUITE",
        "Take the claims of this suite (its file, or a shipped one's name), not those kept with the results.",
        callback=suite_path,
    ),
]
Printed = Annotated[Literal["table", "csv"], option("--format table|csv", "How to print.")]
Device = Annotated[str | None, option("--device cpu|cuda|auto", "Overrides the suite's device.")]
Only = Annotated[
    str | None,
    option("--only EXPR", "Only the trials that match, e.g. 'method=bns-gcn|full,parts=2,rate=0.1' (comma: and)."),
]
Shard = Annotated[
    str | None,
    option("--shard I/N", "Only every N-th of the trials, from the I-th on: for machines that share no results."),
]
Set = Annotated[
    list[str] | None, option("--set KEY=VALUE", "Override a key of the suite, e.g. train.epochs=10; may be repeated.")
]
Parts = Annotated[
    str | None, option("--parts N,...", "Numbers of parts, in place of the suite's (--set partition.parts=[N,...]).")
]
Repeat = Annotated[int | None, option("--repeat N", "Runs of each trial, in place of the suite's `repeat`.", min=1)]
Interleave = Annotated[
    bool,
    typer.Option(
        "--interleave/--no-interleave",
        help="Seeds and repeats in rounds: all trials once, then all again in the reverse order.",
    ),
]
Plugin = Annotated[
    list[str] | None,
    option("--plugin FILE", "Methods of a file (or of a module) that are not installed; may be repeated."),
]
TrustPlugins = Annotated[
    bool,
    typer.Option("--trust-plugins", help="Import the plugins that the suite names: they are code, read them first."),
]
Retry = Annotated[str, option("--retry STATUS,...", "Run trials again that ended so, e.g. error,timeout.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Run all selected trials again.")]
Warm = Annotated[
    bool,
    typer.Option(
        "--warm/--cold",
        help="Fork ranks from a process that has imported what they need (Linux), or start an interpreter for each.",
    ),
]
DatasetOption = Annotated[
    list[str] | None, option("--option -o KEY=VALUE", "Option of the data set, e.g. of=reddit; may be repeated.")
]
Jobs = Annotated[
    str,
    option(
        "--jobs N|auto",
        "How many trials may run at once. On one machine those that are not timed; auto: as many as it has room for.",
    ),
]
Executor = Annotated[
    str,
    option(
        "--executor local|slurm|ray",
        "Who runs trials: this machine, Slurm's jobs, a Ray cluster's tasks, or a plugin's executor.",
    ),
]
SlurmSettings = Annotated[
    list[str] | None,
    option(
        "--slurm --executor-option KEY=VALUE",
        "Option of the executor: of sbatch, e.g. partition=gpu, time=2:00:00, account=x; may be repeated.",
    ),
]
Nodes = Annotated[
    str | None,
    option(
        "--nnodes N",
        "A trial runs on N machines: the same command on each of them, or one with --executor; see docs/cluster.md.",
        envvar="PET_NNODES",
    ),
]
Rendezvous = Annotated[
    str | None,
    option(
        "--rdzv HOST[:PORT]",
        "Where the nodes meet; HOST is the node that keeps the results.",
        envvar="PET_RDZV_ENDPOINT",
    ),
]
RendezvousTimeout = Annotated[float, option("--rdzv-timeout S", "How long to wait for the nodes of a trial.", min=1)]
NodeTimeout = Annotated[float, option("--node-timeout S", "A node that is silent for so long is lost.", min=1)]

Twin = Annotated[
    str | None,
    option(
        "--twin [SCALE]",
        "Train generated twins of the published graphs, sized for this machine (or SCALE of their nodes); results "
        "are kept under NAME-twin.",
    ),
]

DEVICES = ("cpu", "cuda", "auto")
TWIN = "--twin"


def scale_of(text: str) -> float | None:
    """Parse `--twin`; None for `fit`."""
    if text == "fit":
        return None
    with suppress(ValueError):
        if 0 < float(text) <= 1:
            return float(text)
    raise UserError(f"'{text}' is no share of a graph's nodes", key=TWIN, fix="above 0 and at most 1, e.g. 0.05")


def device_of(text: str | None) -> str | None:
    """Check a device the user named, and return it; gpu is another word for cuda."""
    from harness.suite.schema import cuda_for_gpu

    text = cuda_for_gpu(text)
    if text is not None and text not in DEVICES:
        raise UserError(f"unknown device '{text}'", key="--device", fix=nearest(text, DEVICES))
    return text


def shard_of(text: str) -> tuple[int, int]:
    """Parse `--shard`: which trial is the first (from 0), and how many to the next."""
    number, _, count = text.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise UserError(f"'{text}' is no part of a whole", key="--shard", fix="e.g. 1/4, 2/4, 3/4 and 4/4")
    return int(number) - 1, int(count)


def jobs_of(text: str) -> int | None:
    """Parse `--jobs`; None for auto."""
    if text == "auto":
        return None
    if not text.isdecimal() or int(text) < 1:
        raise UserError(f"'{text}' is not a number of jobs", key="--jobs", fix="e.g. 4, or auto")
    return int(text)


def statuses_of(text: str) -> frozenset[str]:
    """Parse `--retry`."""
    from harness.results.record import Status

    known = get_args(Status)
    asked = frozenset(part.strip() for part in text.split(",") if part.strip())
    for status in sorted(asked):
        if status not in known:
            raise UserError(f"unknown status '{status}'", key="--retry", fix=nearest(status, known))
    return asked


def cluster_of(
    nodes: str | None,
    rdzv: str | None,
    rdzv_timeout_s: float,
    node_timeout_s: float,
    variables: Mapping[str, str] = os.environ,
) -> Cluster | None:
    """Return the cluster that the options name, or else the Slurm step this is; None for one machine."""
    from harness.launch.executors.slurm import this_step
    from harness.launch.rendezvous import Cluster

    step = this_step(variables) if rdzv is None else None
    count = node_count(nodes) if nodes else step.nodes if step else None
    if count is None and rdzv is not None:
        raise UserError(f"'{rdzv}' without a number of nodes", key="--rdzv", fix="add --nnodes N")
    if count is None or count == 1:
        return None
    if step is not None and step.nodes != count:
        raise UserError(f"{count}, the Slurm step has {step.nodes} nodes", key="--nnodes", fix="srun -N")
    if step is not None:
        return replace(step, rdzv_timeout_s=rdzv_timeout_s, node_timeout_s=node_timeout_s)
    if rdzv is None:
        raise UserError(f"{nodes} needs a rendezvous address", key="--nnodes", fix="add --rdzv HOST:PORT")
    host, port = _endpoint(rdzv)
    return Cluster(count, host, port, None, rdzv_timeout_s, node_timeout_s)


def node_count(text: str) -> int:
    """Parse N, or torchrun's MIN:MAX where both are the same."""
    least, _, most = text.partition(":")
    if not least.isdecimal() or int(least) < 1 or most not in ("", least):
        fix = "one number of nodes, the same for all trials"
        raise UserError(f"'{text}' is not a number of nodes", key="--nnodes (or PET_NNODES)", fix=fix)
    return int(least)


def _endpoint(text: str) -> tuple[str, int]:
    from urllib.parse import urlsplit

    from harness.launch.rendezvous import DEFAULT_PORT

    try:
        parts = urlsplit(f"//{text}")
        if parts.hostname and not (parts.path or parts.query or parts.username) and parts.port != 0:
            return parts.hostname, parts.port or DEFAULT_PORT
    except ValueError:
        pass  # a port that is none: said below
    raise UserError(f"'{text}' is not HOST:PORT", key="--rdzv (or PET_RDZV_ENDPOINT)", fix="e.g. node1:29400")


def dataset_options(pairs: list[str] | None) -> dict[str, Any]:
    """Parse `--option key=value`; values are read as YAML."""
    from harness.suite.document import parse

    options: dict[str, Any] = {}
    for pair in pairs or []:
        key, equals, value = pair.partition("=")
        if not (key and equals):
            raise UserError(f"'{pair}' is not KEY=VALUE", key="--option", fix="e.g. --option scale=0.02")
        options[key] = parse(value, f"--option {pair}").data
    return options


def use_data_dir(path: Path | None) -> Path | None:
    """Check a data directory and make it this process's and its ranks'; return it.

    Names of data sets, labels and identities of trials depend on it, so it is said once for all of them.
    """
    if path is None:
        return None
    if not path.is_dir():
        raise UserError(f"'{path}' is not a directory", key="--data-dir (or HARNESS_DATA)")
    os.environ["HARNESS_DATA"] = str(path.resolve())
    return path.resolve()


class Command(TyperCommand):
    """A command: `--twin` alone is `--twin=fit`; where it has `--set`, a suite's key given as an option is refused."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """See click; with `resilient_parsing` the shell asks how a command may go on."""
        known = {name for each in self.get_params(ctx) for name in (*each.opts, *each.secondary_opts)}
        args = [  # typer has no option whose value may be left out
            f"{TWIN}=fit" if given == TWIN and not re.fullmatch(r"[0-9.eE+-]+", following) else given
            for given, following in pairwise([*args, ""])
        ]
        for given, following in pairwise([*args, ""]) if "--set" in known and not ctx.resilient_parsing else ():
            name, equals, value = given.partition("=")
            if name.startswith("--") and name not in {"--", *known}:
                _refuse_key(name, value if equals else following, known)
        return super().parse_args(ctx, args)


def _refuse_key(name: str, text: str, known: Collection[str]) -> None:
    """Raise a UserError if an option that is not `known` names a key of a suite; `text` is what stands behind it."""
    from harness.suite.document import parse
    from harness.suite.suite_file import place_of, put

    plain = name.removeprefix("--").replace("-", "_")
    place = place_of(plain, [each.removeprefix("--").replace("-", "_") for each in known])
    if place is not None:
        given = "VALUE" if text.startswith("-") else text or "VALUE"
        value = parse(f"[{given}]" if "," in given and given[0] not in "[{" else given, name).data
        raise UserError("no option, but a key of the suite", key=name, fix=put(place, value, option=True))


@dataclass
class SuiteOptions:
    """A suite as a user asks for it, and which of its trials.

    See `suite_command`. `suite` may be a mapping with the content of a file in place of a path (`harness.run`).
    """

    suite: SuiteFile
    results: Results = Path("results")
    device: Device = None
    only: Only = None
    set_: Set = None
    parts: Parts = None
    plugin: Plugin = None
    trust_plugins: TrustPlugins = False
    retry: Retry = ""
    fresh: Fresh = False
    data_dir: DataDir = None
    warm: Warm = True
    shard: Shard = None
    repeat: Repeat = None
    interleave: Interleave = True
    twin: Twin = None

    def __post_init__(self) -> None:
        self.data_dir = use_data_dir(self.data_dir)
        self.device = device_of(self.device)

    @property
    def overrides(self) -> list[str]:
        """Overrides of the suite's keys, those of --set first."""
        parts = [] if self.parts is None else [f"partition.parts=[{self.parts}]"]
        repeats = [] if self.repeat is None else [f"repeat={self.repeat}"]
        return [*(self.set_ or []), *parts, *repeats, *([] if self.interleave else ["interleave=false"])]

    @property
    def seeds_chosen(self) -> bool:
        """Whether the command says with which seeds."""
        return any(each.startswith("seeds=") for each in self.overrides)

    def run_options(self, **others: Any) -> RunOptions:
        """Return the options of a run; `others`: fields that are not the suite's."""
        from harness.launch.slots import RunOptions

        return RunOptions(statuses_of(self.retry), self.fresh, self.data_dir, warm=self.warm, **others)

    def read(self) -> Suite:
        """Read the suite with its overrides and plugins."""
        from harness.suite.suite_file import read_suite

        suite = read_suite(self.suite, self.overrides, self.plugin or [], trusted=self.trust_plugins)
        said: list[str] = []
        if suite.shaping == "optional":
            from harness.launch.network import shaped_if_possible

            suite = shaped_if_possible(suite, said.append)
        if self.twin is not None:
            from harness.launch.twins import LEAST_SEEDS, suite_of_twins

            suite, twins = suite_of_twins(suite, scale_of(self.twin), 0 if self.seeds_chosen else LEAST_SEEDS)
            said.append(twins)
        for line in said:
            typer.echo(f"note: {line}", err=True)
        return suite

    def select(self, *, with_results: bool = True, build: bool = True) -> tuple[Suite, list[TrialConfig]]:
        """Return the suite with the trials that are asked for, at least one.

        Args:
            with_results: a trial that has a record of other data in `results` is another trial on today's.
            build: prepare data where only that shows whether a record is of today's data.

        Raises:
            UserError: a mistake in the suite, or no trial is selected.
        """
        from harness.suite.expand import expand
        from harness.suite.select import chosen

        suite = self.read()
        idle: list[str] = []
        every = expand(suite, device=self.device, data_dir=self.data_dir, report=idle.append)
        options = {key for trial in every for key in trial.method.options}
        first, step = (0, 1) if self.shard is None else shard_of(self.shard)

        def asked(trials: Sequence[TrialConfig]) -> list[TrialConfig]:
            """Return the selected ones, by the ids of today's data or, alike on all nodes, of any."""
            if self.only is None:
                return list(trials)
            alike = [own for trial in trials for own in (trial, trial.of_any_data)]
            wanted = {own.of_any_data.id for own in chosen(alike, self.only, options)}
            return [trial for trial in trials if trial.of_any_data.id in wanted]

        if with_results:
            from harness.launch.inputs import on_todays_data
            from harness.results.record_store import ResultStore

            store, wanted = ResultStore(self.results, suite.name), asked(every)[first::step]
            making = wanted if build else ()
            every, said = on_todays_data(every, store, self.data_dir, making=making, report=typer.echo)
            for line in said:
                typer.echo(f"note: {line}")
        for line in idle:
            typer.echo(f"note: {line}", err=True)
        trials = asked(every)
        if not trials:
            what = f"none of the {len(every)} trials matches '{self.only}'" if self.only else "the suite has no trials"
            file = self.suite if isinstance(self.suite, Path) else None
            fix = f"see `harness plan {file}`" if file else None
            raise UserError(what, file=file, key="--only" if self.only else None, fix=fix)
        return suite, trials[first::step]


def suite_command(*left_out: str, **fixed: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a function of `SuiteOptions` a command whose options are their fields, then its own parameters.

    `left_out`: fields that the command does not offer; `fixed`: the same, with their values. A field that the command
    declares itself, too, has the command's declaration.
    """

    def made(command: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(SuiteOptions, include_extras=True) | get_type_hints(command, include_extras=True)
        _, *own = inspect.signature(command).parameters.values()
        names = {parameter.name for parameter in own}
        offered = [each for each in fields(SuiteOptions) if each.name not in {*left_out, *fixed}]
        keyword, empty = inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.empty
        declared = [
            inspect.Parameter(name, keyword, default=getattr(SuiteOptions, name, empty), annotation=hints[name])
            for name in (each.name for each in offered)
            if name not in names
        ]
        declared += [each.replace(kind=keyword, annotation=hints[each.name]) for each in own]

        @wraps(command)
        def run(**given: Any) -> None:
            options = SuiteOptions(**fixed, **{each.name: given[each.name] for each in offered})
            command(options, **{name: given[name] for name in names})

        run.__signature__ = inspect.Signature(declared)  # type: ignore[attr-defined]
        run.__annotations__ = {each.name: each.annotation for each in declared}
        return run

    return made
