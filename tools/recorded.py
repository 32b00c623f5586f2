"""Runs of the quickstart, kept so that a test holds the sentences of a report against all of them together.

python -m tools.recorded RUN ... > tests/report/quickstart_runs.json

A RUN is the directory of one run's results, each with fresh seeds, made one after another on a quiet machine:
`harness run suites/quickstart.yaml --set name=quickstart-1 --set "seeds=[1000,1001,1002,1003,1004]"`, and so on.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.report.sections import make_sections
from harness.report.summary import answer_sentence
from harness.report.views.answer import AnswerView
from harness.results.frames import load_inputs


def recorded(directory: Path) -> dict[str, Any]:
    """Return what is kept of a run: by method and parts the seconds to the target by seed, or those trained in vain."""
    inputs = load_inputs(directory)
    (section,) = make_sections(inputs)
    first = min(inputs.records.values(), key=lambda record: record.started)
    return {
        "started": first.started,
        "cpu": first.environment["cpu"],
        "harness": first.environment["harness"],
        "said": answer_sentence(section, section.name),
        "trials": len(section.ok),
        "flagged": int((section.ok["flags"] != "").sum()),
        "times": [
            {
                "method": variant.method,
                "parts": parts,
                "reached": {seed: round(s, 6) for seed, s in sorted(own.reached.items())},
                "in vain": {seed: round(s, 6) for seed, s in sorted(own.censored.items())},
            }
            for (variant, parts), own in AnswerView(section).times.items()
        ],
    }


def text(runs: Sequence[dict[str, Any]]) -> str:
    """Return runs as JSON with a line for each row of times."""
    lines = []
    for run in runs:
        facts = ",\n  ".join(f"{json.dumps(key)}: {json.dumps(run[key])}" for key in run if key != "times")
        rows = ",\n   ".join(map(json.dumps, run["times"]))
        lines.append(f' {{{facts},\n  "times": [\n   {rows}]}}')
    return "[\n" + ",\n".join(lines) + "\n]\n"


if __name__ == "__main__":
    sys.stdout.write(text([recorded(Path(each)) for each in sys.argv[1:]]))
