"""`harness check-claims`: do the results show what their suite claims?"""

from __future__ import annotations

from pathlib import Path

import typer

from harness.cli.options import ClaimingSuite, DataDir, ResultDirs, use_data_dir
from harness.errors import UserError


def check_claims(results: ResultDirs = None, suite: ClaimingSuite = None, data_dir: DataDir = None) -> None:
    """Hold results against the claims of their suites.

    Prints every claim with what is expected and what was measured.

    Exit code: 0 no claim fails (some may not be measured), 1 a claim fails, 2 a mistake in the command or
    no claim to check.
    """
    from harness.claims.evaluate import judge_directories, suite_of
    from harness.report.claims import claims_text

    directories = results or [Path("results")]
    given = [] if suite is None else [suite_of(suite, directories, use_data_dir(data_dir))]
    judged = judge_directories(directories, given)
    if not judged:
        where = " ".join(map(str, directories))
        if suite is not None:
            raise UserError("the suite claims nothing", file=suite, fix="give it `claims:`")
        message = "no suite with claims is kept beside these results"
        raise UserError(message, file=where, fix="name the suite with --suite FILE")
    typer.echo(claims_text(judged))
    raise typer.Exit(any(verdict.state == "fails" for one in judged for verdict in one.verdicts))
