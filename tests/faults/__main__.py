"""Try faults: `python -m tests.faults --seed 0 --count 200`."""

from __future__ import annotations

import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, islice
from pathlib import Path
from typing import Annotated

import typer

from tests.faults import clocks, clusters, damage, disks, networks, nodes, ranks, several, signals
from tests.faults.case import Cases, Kind, Result
from tests.faults.oracle import OUTCOMES
from tests.faults.place import enter_private, private_prefix

MODULES = (signals, ranks, disks, damage, networks, clocks, several, nodes, clusters)
KEPT = "cases.jsonl"
LEFT = 3  # exit code: the same command goes on


def every() -> list[Kind]:
    """Return all kinds of faults."""
    return [kind for module in MODULES for kind in module.kinds()]


def drawn(kinds: Sequence[Kind], seed: int) -> Iterator[Kind]:
    """Yield kinds without end, each once before any comes again, in random order."""
    rng = random.Random(seed)
    while True:
        yield from rng.sample(kinds, len(kinds))


def main(
    seed: Annotated[int, typer.Option(help="Of what is drawn: kinds, moments, victims, sizes, places.")] = 0,
    count: Annotated[int, typer.Option(help="How many faults.", min=1)] = 200,
    out: Annotated[Path | None, typer.Option(help="Where all is kept; the same command goes on with it.")] = None,
    only: Annotated[str, typer.Option(help="Kinds whose names this regular expression finds.")] = "",
    minutes: Annotated[float, typer.Option(help="Begin no more after so many.", min=0.0)] = float("inf"),
    jobs: Annotated[int, typer.Option(help="How many at once.", min=1)] = 1,
    chain: Annotated[int, typer.Option(help="How many strike one after another at one place.", min=1)] = 1,
    shard: Annotated[str, typer.Option(help="Which of how many.", hidden=True)] = "",
) -> None:
    """Try faults, or go on trying, and print the table.

    Exit code: 0 all is well, 1 something was found, 2 a mistake, 3 some are left.
    """
    kinds = [kind for kind in every() if re.search(only, kind.name)]
    if not kinds:
        typer.echo(f"error: --only: no kind of fault is called like '{only}'", err=True)
        raise typer.Exit(2)
    home = (out or Path(tempfile.mkdtemp(prefix="faults-"))).absolute()
    home.mkdir(parents=True, exist_ok=True)
    if shard:
        part, of = map(int, shard.split("/"))
        own = dict(islice(_chains(kinds, seed, count, chain).items(), part - 1, None, of))
        _try(Cases(home, seed), own, time.monotonic() + 60 * minutes)
        return
    _start_shards(home, jobs)
    results = _kept(home)
    _table(results, kinds)
    left = _chains(kinds, seed, count, chain).keys() - {result.number for result in results}
    typer.echo(f"places of what was found: {home}")
    raise typer.Exit(1 if any(result.findings for result in results) else LEFT if left else 0)


def _chains(kinds: Sequence[Kind], seed: int, count: int, length: int) -> dict[int, list[Kind]]:
    """Return what strikes together, by the number of the first of each."""
    chosen = list(islice(drawn(kinds, seed), count))
    chained = [kind for kind in chosen if kind.chained and kind.why_not() is None]
    groups = [[kind] for kind in chosen if kind not in chained]
    groups += [chained[start : start + length] for start in range(0, len(chained), length)]
    random.Random(seed).shuffle(groups)
    return dict(zip(accumulate([0, *map(len, groups)]), groups, strict=False))


def _start_shards(home: Path, jobs: int) -> None:
    """Try them in processes of their own, each of which sees its own mounts, shared memory and namespaces alone."""
    command = [*private_prefix(), sys.executable, "-m", "tests.faults", *sys.argv[1:], "--out", str(home)]
    shards = [subprocess.Popen([*command, "--shard", f"{part}/{jobs}"]) for part in range(1, jobs + 1)]
    codes = [each.wait() for each in shards]
    if any(codes):
        raise typer.Exit(2)


def _try(cases: Cases, chains: Mapping[int, Sequence[Kind]], end: float) -> None:
    done = {result.number for result in _kept(cases.directory)}
    for number, kinds in chains.items():
        if time.monotonic() > end:
            return
        if number not in done:
            results = cases.run(kinds, number)
            with (cases.directory / KEPT).open("a") as stream:  # lines are appended whole
                stream.write("".join(result.to_json() for result in results))
            for result in results:
                _tell(result)


def _kept(home: Path) -> list[Result]:
    path = home / KEPT
    found = [Result.from_json(line) for line in path.read_text().splitlines()] if path.exists() else []
    return sorted(found, key=lambda result: result.number)


def _tell(result: Result) -> None:
    state = result.skipped and f"skipped: {result.skipped}"
    typer.echo(f"{result.number:>4} {result.seconds:6.1f} s  {result.kind}: {state or result.words}")
    for finding in result.findings:
        typer.echo(f"       {finding.outcome}: {finding.what}")


def _table(results: Sequence[Result], kinds: Sequence[Kind]) -> None:
    """Print a line a kind: how many were tried, and how many of those came to each outcome."""
    width = max(len(kind.name) for kind in kinds) + 2
    heads = ("tried", *OUTCOMES)
    typer.echo("\n" + "kind of fault".ljust(width) + "".join(head.rjust(9) for head in heads))
    sums: Counter[str] = Counter()
    for kind in kinds:
        own = [result for result in results if result.kind == kind.name]
        tried = [result for result in own if result.skipped is None]
        counts = Counter({"tried": len(tried)})
        for result in tried:
            counts.update({finding.outcome for finding in result.findings})
        sums.update(counts)
        why = f"   {own[0].skipped}" if own and not tried else ""
        typer.echo(kind.name.ljust(width) + "".join(str(counts[head]).rjust(9) for head in heads) + why)
    typer.echo("all".ljust(width) + "".join(str(sums[head]).rjust(9) for head in heads))


if __name__ == "__main__":
    enter_private()
    typer.run(main)
