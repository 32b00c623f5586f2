"""The suite beside its results, `suite.json`: what was to be run, and what it claims."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from harness.errors import UserError
from harness.results.record import read_versioned
from harness.suite.schema import Claim, Suite, TrialConfig

SUITE_FILE = "suite.json"
SCHEMA_VERSION = 1


class KeptSuite(BaseModel):
    """A suite as it was run last. Its trials are kept too: data sets and plugins may be gone by the time."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    schema_version: int = Field(SCHEMA_VERSION, description="of this layout")
    file: str | None = Field(None, description="the suite file's name, without its directory")
    suite: dict[str, Any] = Field(description="the Suite with its overrides")
    name: str
    claims: tuple[Claim, ...] = ()
    trials: tuple[TrialConfig, ...] = Field((), description="every trial of it, selected to run or not")


def kept(suite: Suite, trials: Sequence[TrialConfig]) -> KeptSuite:
    """Return what is to be kept of a suite that has these trials."""
    file = suite.source.file
    return KeptSuite(
        file=file.name if file else None,
        suite=suite.model_dump(mode="json", exclude={"claims"}),
        name=suite.name,
        claims=suite.claims,
        trials=tuple(trials),
    )


def write_suite(directory: Path, suite: KeptSuite) -> None:
    """Write `suite.json` into a suite's directory of results, whole or not at all. Call under its lock."""
    temporary = directory / f".{SUITE_FILE}.new"
    temporary.write_text(suite.model_dump_json(indent=1) + "\n", encoding="utf-8")
    temporary.replace(directory / SUITE_FILE)


def read_suite(path: Path) -> KeptSuite:
    """Read a `suite.json`; UserError if it is damaged or of a newer harness."""
    fix = "remove it; `harness check-claims --suite FILE` does without"
    try:
        return read_versioned(path, KeptSuite, SCHEMA_VERSION, ("suite", "damaged"), fix)
    except OSError as error:
        raise UserError("damaged: not JSON", file=path, fix=fix) from error


def kept_suites(directories: Sequence[Path]) -> dict[str, KeptSuite]:
    """Return the suites kept beside results, by name; of two of one name the last directory's.

    A directory is a results directory, a suite's or a trial's. Results older than `suite.json` have none.
    """
    found: dict[str, KeptSuite] = {}
    for directory in directories:
        home = directory.resolve().parent if (directory / "record.json").is_file() else directory
        for path in sorted([*home.glob(SUITE_FILE), *home.glob(f"*/{SUITE_FILE}")]):
            suite = read_suite(path)
            found[suite.name] = suite
    return found
