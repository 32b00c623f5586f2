"""The report of a results directory: one self-contained page, Markdown, CSV and figures."""

from __future__ import annotations

from pathlib import Path


def write_report(results_dir: Path, out: Path | None = None) -> Path:
    """Write the report of every trial under `results_dir` and return the path of its `index.html`.

    `results_dir` is a results root, one suite's directory or one trial's. `out` (default:
    `reports/<name of results_dir>`) receives `index.html` (figures inside, nothing loaded from
    elsewhere), `report.md`, `results.csv`, `epochs.csv` and `figures/*.png|svg`; files of those names
    are replaced, others are left alone. Raises `UserError` if there is no trial to report.
    """
    from harness.report.page.build import build_report
    from harness.report.trials.inputs import load_inputs

    results_dir = Path(results_dir)
    target = Path("reports") / results_dir.resolve().name if out is None else Path(out)
    return build_report(load_inputs(results_dir), target)


__all__ = ["write_report"]
