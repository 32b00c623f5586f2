"""`harness export`: finished trials for other tools to show."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer


def export(
    results: Annotated[Path, typer.Argument(metavar="DIR", help="Results directory, or one suite's directory in it.")],
    to: Annotated[
        Literal["tensorboard", "mlflow", "wandb"],
        typer.Option("--to", metavar="tensorboard|mlflow|wandb", help="The tool; each is an extra."),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="DIR",
            help="Where it is written.",
            show_default="exports/TOOL; of mlflow its own MLFLOW_TRACKING_URI, if set",
        ),
    ] = None,
) -> None:
    """Write finished trials for TensorBoard, MLflow or Weights & Biases.

    Configuration, metrics, and those of every epoch. Trials that are there already are left out. Nothing is
    sent anywhere, but by MLflow to a MLFLOW_TRACKING_URI; `wandb sync` uploads runs of Weights & Biases.
    """
    import os

    from harness.trackers import TRACKERS, read_runs

    runs = read_runs(results)
    if out is None and not (to == "mlflow" and os.environ.get("MLFLOW_TRACKING_URI")):
        out = Path("exports") / to
    written = TRACKERS[to](runs, out)
    typer.echo(f"{written} trials written, {len(runs) - written} were there")
    typer.echo(f"{to}: {out or os.environ['MLFLOW_TRACKING_URI']}")
