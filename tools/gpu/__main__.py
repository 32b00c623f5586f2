"""Gather what a GPU has to show, step by step, into a folder: `make gpu`, or `python -m tools.gpu`."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated

import typer

from harness.files import write_whole
from harness.gpus import why_unusable
from tools.gpu import page
from tools.gpu.evidence import Evidence, Setting
from tools.gpu.goals import summary
from tools.gpu.steps import STEPS, find

ROOT = Path(__file__).parents[2]
LEFT = 3  # exit code: the same command goes on


def main(
    out: Annotated[Path, typer.Option(help="Where the evidence is kept.")] = Path("gpu-evidence"),
    step: Annotated[
        list[str] | None, typer.Option(help=f"Do this step, again if it has ended: {', '.join(s.name for s in STEPS)}.")
    ] = None,
    minutes: Annotated[float, typer.Option(help="Stop before so many; another call goes on.", min=0.0)] = 9,
    device: Annotated[str, typer.Option(help="cuda, or cpu to try the commands.")] = "cuda",
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes; judges no goal.")] = False,
) -> None:
    """Gather the evidence, or go on with it. Exit code: 0 all is well, 1 a step failed, 2 a mistake, 3 some is left."""
    end = time.monotonic() + 60 * minutes
    try:
        steps = find(step or [])
    except KeyError as unknown:
        _mistake(f"--step: no step {unknown} (one of {', '.join(s.name for s in STEPS)})")
    if device not in ("cpu", "cuda"):
        _mistake(f"--device: '{device}' (cpu or cuda)")
    if device == "cuda" and (problem := why_unusable()):
        _mistake(f"--device cuda: torch can use no GPU here: {problem[0]} (--device cpu --quick tries the commands)")
    evidence = Evidence(ROOT, out.absolute(), Setting(device, quick))
    for name in step or []:
        evidence.forget(name)
    for each in steps:
        if evidence.ended(each.name) and not each.always:
            continue
        start = time.monotonic()
        outcome = evidence.take(each, end)
        reason = f": {outcome.reason}" if outcome.reason else ""
        typer.echo(f"{each.name:<12}{page.STATES[outcome.state]:<12}{time.monotonic() - start:>7.1f} s{reason}")
    told = summary(evidence)
    write_whole(evidence.home / "summary.json", json.dumps(told, indent=1) + "\n")
    write_whole(evidence.home / "summary.md", page.render(told))
    for goal in told["goals"]:
        measured = "" if goal["measured"] is None else f" ({goal['measured']:.3g})"
        typer.echo(f"goal {goal['name']}: {goal['goal']}, {goal['state']}{measured}  {goal['why']}")
    typer.echo(f"summary: {evidence.home / 'summary.md'}")
    states = {each["state"] for each in told["steps"]}
    raise typer.Exit(LEFT if "left" in states else 1 if "failed" in states else 0)


def _mistake(line: str) -> None:
    typer.echo(f"error: {line}", err=True)
    raise typer.Exit(2)


if __name__ == "__main__":
    typer.run(main)
