"""Where a trial's checkpoints are, and which of them a new start may go on from."""

from __future__ import annotations

import hashlib
import json
import shutil
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from harness.launch.inputs import TrialInputs
from harness.runtime.checkpoint import CheckpointPlace
from harness.suite.schema import TrialConfig

LAYOUT = 1  # of what is in a checkpoint
BUILD = ("harness", "commit", "dirty", "python", "packages")  # of an environment: what may round otherwise


def place_of(
    home: Path, trial: TrialConfig, inputs: TrialInputs, environment: Mapping[str, Any], tell: Callable[[str], None]
) -> CheckpointPlace | None:
    """Return where a start of the trial's ranks keeps checkpoints, below `home`; None if it keeps none.

    They are of this trial, these data, this code and these libraries. Those of others are removed, and that is told.
    """
    if trial.train.checkpoint == "off":
        return None
    directory = home.absolute() / _fingerprint(trial, inputs, environment)  # other machines are told
    for other in home.iterdir() if home.is_dir() else ():
        if other.name != directory.name:
            tell("an earlier checkpoint is of other data, code or libraries: training starts anew")
            shutil.rmtree(other, ignore_errors=True)
    return CheckpointPlace(directory=directory, lineage=uuid.uuid4().hex, resume=any(directory.glob("rank*")))


def _fingerprint(trial: TrialConfig, inputs: TrialInputs, environment: Mapping[str, Any]) -> str:
    code = {name: source.sha256 for name, source in trial.sources.items()}
    build = {key: environment.get(key) for key in BUILD}
    told = json.dumps([LAYOUT, trial.id, inputs.fingerprint, code, build], sort_keys=True)
    return hashlib.sha256(told.encode()).hexdigest()[:16]
