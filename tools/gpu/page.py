"""Write docs/gpu.md from its summary: `python -m tools.gpu.page [SUMMARY]`.

SUMMARY is the `summary.json` of a folder of evidence, which becomes docs/gpu.json; without it the page is made anew
from docs/gpu.json.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.files import write_whole

DOCS = Path(__file__).parents[2] / "docs"
HEAD = """# On a GPU

<!-- Made from docs/gpu.json by `python -m tools.gpu.page`; do not edit. -->

`make gpu` gathers what there is to know on a machine with a GPU: in pieces of nine minutes, each call going on where
the last one stopped. `make gpu-bundle` makes a folder to take to one without a network
([design](design/gpus.md#a-bundle-for-a-machine-without-a-network)). What was found lies in `gpu-evidence/`; this page
is its summary.

    make gpu                                           # again, until it says that nothing is left
    python -m tools.gpu --step kernels                 # one step anew
    python -m tools.gpu --device cpu --quick           # small sizes without a GPU: tries the commands, judges no goal
    python -m tools.gpu --device cpu                   # full sizes without a GPU: two epochs a method, over an hour
    python -m tools.gpu.page gpu-evidence/cuda/summary.json

A step that begins anew in each call, and did not end in two, has failed. Closure of phases is not asked of trials whose
record says that others used their cores. The exit code is 0 when all steps have ended well, 1 when one failed (the
others go on), 3 when some are left.

Ranks that share a GPU talk through gloo and the host's memory, because NCCL refuses two ranks on one device; with a
GPU for each rank of a machine they talk through NCCL. Bytes are the same either way, seconds are not.
"""
STATES = {"ok": "ended well", "failed": "failed", "left": "not run", "skipped": "skipped"}
UNITS = {"_bytes_s": (1e9, "GB/s"), "_bytes": (2**30, "GiB"), "_mhz": (1, "MHz"), "_w": (1, "W")}


def render(summary: Mapping[str, Any]) -> str:
    """Return the page."""
    return "\n".join([HEAD, *_goals(summary), *_where(summary), *_steps(summary), *_found(summary)]).rstrip() + "\n"


def number(value: Any) -> str:
    """Return a figure in three digits, a dash where there is none."""
    return "-" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)


def _goals(summary: Mapping[str, Any]) -> Iterator[str]:
    yield "## Goals\n"
    rows = []
    for goal in summary["goals"]:
        state = f"{goal['state']}: {goal['why']}" if goal["why"] else goal["state"]
        judged = goal["state"] != "not measured"
        rows.append((goal["what"], goal["goal"], number(goal["measured"]) if judged else "-", state))
    yield table(("what", "goal", "measured", ""), rows)
    yield """
The bytes that an epoch moves: each entry of a sparse product reads a row, layers' activations (Eq. 3 of BNS-GCN) are
written once and read twice, weights and optimizer are read and written (`moved_bytes` of `tools/gpu/goals.py`). Caches
are left out, so that a ratio below 1 is possible. A copy counts bytes read and written.
"""


def _where(summary: Mapping[str, Any]) -> Iterator[str]:
    yield "## Machine\n"
    if not summary["machine"]:
        yield "None yet: nothing of this project has run on a GPU.\n"
        return
    yield table(("", ""), [(_plain(key), _measure(key, value)) for key, value in summary["machine"].items()]) + "\n"


def _plain(key: str) -> str:
    for ending in UNITS:
        key = key.removesuffix(ending)
    return key.replace("_", " ")


def _measure(key: str, value: Any) -> str:
    for ending, (unit, name) in UNITS.items():
        if key.endswith(ending):
            return f"{value / unit:.4g} {name}"
    return ", ".join(value) if isinstance(value, list) else str(value)


def _steps(summary: Mapping[str, Any]) -> Iterator[str]:
    yield "## Steps\n"
    rows = []
    for step in summary["steps"]:
        state = STATES[step["state"]] + (f": {step['reason']}" if step.get("reason") else "")
        commits = ", ".join(step.get("commits", ())) or "-"
        rows.append((f"`{step['name']}`", step["title"], number(step.get("seconds")), state, commits))
    yield table(("step", "what", "s", "how it ended", "code of"), rows) + "\n"
    if counts := summary["tests"]:
        yield "Tests: " + ", ".join(f"{count} {kind}" for kind, count in counts.items() if count) + ".\n"


def _found(summary: Mapping[str, Any]) -> Iterator[str]:
    if summary["checks"]:
        yield "## What records are held to\n"
        rows = [
            (each["what"], f"{each['bounds'][0]:g} to {each['bounds'][1]:g}", each["of"], each["wrong"],
             f"{number(each['least'])} to {number(each['most'])}")
            for each in summary["checks"].values()
        ]  # fmt: skip
        yield table(("what", "bounds", "trials", "outside", "found"), rows) + "\n"
    if summary["products"]:
        yield "## Sparse products\n"
        products = [
            (f"`{row['engine']}`", row["width"], number(1e3 * row["seconds"]), number(row["of_copy"]),
             number(row["error"]))
            for row in summary["products"]
        ]  # fmt: skip
        yield table(("engine", "width", "ms", "of a copy's bandwidth", "error"), products) + "\n"
    if summary["trials"]:
        yield "## Reddit's twin\n"
        trials = [
            (f"`{row['method']}`", row["parts"], row["status"], number(row["epoch_time_s"]),
             number(_share(row, "time_sample_s")), number(_share(row, "time_comm_s")), number(row["model_ratio"]))
            for row in summary["trials"]
        ]  # fmt: skip
        heads = ("method", "ranks", "status", "s/epoch", "sampling", "transfer", "memory model / measured")
        yield table(heads, trials) + "\n"


def _share(row: Mapping[str, Any], key: str) -> float | None:
    return row[key] / row["phases_s"] if row["phases_s"] and row[key] is not None else None


def table(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a Markdown table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


def main(arguments: Sequence[str]) -> None:
    """Write the page, and with an argument its summary."""
    kept = DOCS / "gpu.json"
    if arguments:
        write_whole(kept, Path(arguments[0]).read_text(encoding="utf-8"))
    write_whole(DOCS / "gpu.md", render(json.loads(kept.read_text(encoding="utf-8"))))
    print(f"written: {DOCS / 'gpu.md'}")


if __name__ == "__main__":
    main(sys.argv[1:])
