"""The suites that are part of the package, by their names."""

from __future__ import annotations

from functools import cache
from importlib import resources
from pathlib import Path

from harness.errors import UserError, nearest


@cache
def shipped() -> dict[str, Path]:
    """Return the files of the shipped suites by their names, e.g. "quickstart", "papers/bns-table2"."""
    top = Path(str(resources.files("harness_suites")))
    return {path.relative_to(top).with_suffix("").as_posix(): path for path in sorted(top.rglob("*.yaml"))}


def suite_file(asked: Path | None) -> Path | None:
    """Return the file that is meant: the one of this path, or else the shipped suite of this name.

    Its last part is enough where one suite has it: "bns-table2". None stays None.

    Raises UserError if there is neither. A path (with a suffix) that is no file is left to be read, and refused.
    """
    if asked is None or asked.is_file():
        return asked
    name = asked.with_suffix("").as_posix().removeprefix("suites/")
    found = shipped().get(name)
    alike = [path for path in shipped().values() if path.stem == name]
    file = found or (alike[0] if len(alike) == 1 else None)
    if asked.suffix in (".yaml", ".yml"):
        if file is not None:
            raise UserError("no such file", file=asked, fix=f"the shipped suite is called {name}, without a suffix")
        return asked
    if file is None:
        known = {*shipped(), *(path.stem for path in shipped().values())}
        close = nearest(name, known)
        beside = asked.with_name(f"{asked.name}.yaml")
        listed = close if close.startswith("did") else "`harness suites` lists those that are shipped"
        fix = f"did you mean {beside}?" if beside.is_file() else listed
        raise UserError(f"neither a file nor a shipped suite: '{asked}'", key="SUITE", fix=fix)
    return file
