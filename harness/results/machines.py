"""What two sets of results ran on, and whether their times can be compared."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from harness.results.pairs import Pair, Trial
from harness.results.record import Json

CODE = ("harness", "commit", "dirty")
# A machine's name is not recorded: these tell it from another.
HARDWARE = ("cpu", "cores", "logical_cores", "memory_gib", "gpus", "nodes")
ALIKE = 0.1  # reruns on a quiet machine differ by less than this in the processor that ranks get


@dataclass(frozen=True)
class Differences:
    """Lines on what differs: `code` is what one compares, `software` may explain it, `hardware` does."""

    code: tuple[str, ...]
    software: tuple[str, ...]
    hardware: tuple[str, ...]


def differences(pairs: Sequence[Pair]) -> Differences:
    """Return what differs between the environments of the two sides, a line "key: before -> after" each.

    A key differs if its values over all trials of a side do: a suite may have run on two commits.
    """
    before, after = (_values(trials) for trials in zip(*((p.before, p.after) for p in pairs), strict=True))
    lines: dict[tuple[str, ...], list[str]] = {CODE: [], HARDWARE: [], (): []}
    for key in dict.fromkeys([*before, *after]):
        if before.get(key) != after.get(key):
            kind = next((keys for keys in (CODE, HARDWARE) if key in keys), ())
            lines[kind].append(f"{key}: {_text(before.get(key))} -> {_text(after.get(key))}")
    return Differences(tuple(lines[CODE]), tuple(lines[()]), tuple(lines[HARDWARE]))


def busier(pairs: Sequence[Pair]) -> str | None:
    """Return a line if ranks got much less of the processor on one side than on the other.

    Other programs that took it make times longer; a code that waits more does so too.
    """
    shares = [(p.before.figure("cpu_utilisation"), p.after.figure("cpu_utilisation")) for p in pairs]
    known = [(a, b) for a, b in shares if a and b]
    if not known:
        return None
    before, after = np.median(np.array(known), axis=0)
    if max(before, after) <= (1 + ALIKE) * min(before, after):
        return None
    return (
        f"a rank used {before:.2f} cores in A, {after:.2f} in B (median): "
        "other programs were at work, or the code waits more"
    )


def _values(trials: Iterable[Trial]) -> dict[str, set[str]]:
    """Return the values of every key over the trials, as text."""
    found: dict[str, set[str]] = {}
    for trial in trials:
        for key, value in _flat(trial.record.environment).items():
            found.setdefault(key, set()).add(value)
    return found


def _flat(environment: Json) -> dict[str, str]:
    """Return an environment as text by key: packages by their names, memory in whole GiB."""
    plain = {key: value for key, value in environment.items() if key not in ("packages", "memory_bytes")}
    plain |= environment.get("packages") or {}
    if memory := environment.get("memory_bytes"):
        plain["memory_gib"] = round(memory / 2**30)  # a kernel's update changes what it has left by less
    if plain.get("commit"):
        plain["commit"] = str(plain["commit"])[:10]
    return {key: v if isinstance(v, str) else json.dumps(v) for key, v in plain.items() if v is not None}


def _text(values: set[str] | None) -> str:
    return " and ".join(sorted(values)) if values else "unknown"
