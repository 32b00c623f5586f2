"""Where each key of a suite was written: a line of its file, or an override of the command line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness.errors import UserError

KeyPath = tuple[str | int, ...]


def dotted(path: KeyPath) -> str:
    """Write a key path as `--set` takes it: `methods.1.bns-gcn.rate`."""
    return ".".join(str(part) for part in path)


@dataclass
class Source:
    """Lines (from 1) and overrides by key path."""

    file: Path | None = None
    lines: dict[KeyPath, int] = field(default_factory=dict)
    overrides: dict[KeyPath, str] = field(default_factory=dict)

    def override(self, path: KeyPath, text: str) -> None:
        """Note that the command line's `text` has replaced what was written at `path` and below."""
        self.lines = {p: line for p, line in self.lines.items() if p[: len(path)] != path}
        self.overrides = {p: said for p, said in self.overrides.items() if p[: len(path)] != path}
        self.overrides[path] = text

    def error(self, path: KeyPath, message: str, fix: str | None = None) -> UserError:
        """Return a UserError that points at `path`, or at the nearest key above it that was written."""
        for length in range(len(path), 0, -1):
            if (override := self.overrides.get(path[:length])) is not None:
                said = override.split("=", 1)[0]
                key = None if said == dotted(path) else dotted(path)
                return UserError(message, file=f"--set {override}", key=key, fix=fix)
            if path[:length] in self.lines:
                break
        line = next((self.lines[p] for p in _above(path) if p in self.lines), None)
        return UserError(message, file=self.file, line=line, key=dotted(path) or None, fix=fix)


def _above(path: KeyPath) -> list[KeyPath]:
    """Return the path and its parents, innermost first."""
    return [path[:length] for length in range(len(path), -1, -1)]


def gather(errors: Sequence[UserError]) -> UserError:
    """Return one error whose text is a line for each distinct one of `errors`, in the file's order."""
    ordered = sorted(errors, key=lambda error: error.line or 0)
    lines = list(dict.fromkeys(str(error) for error in ordered))
    return errors[0] if len(lines) == 1 else UserError("\n".join(lines))
