"""Network namespaces of a runner: named after it, so that those of a dead one are found and removed."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from harness.errors import UserError

DIRECTORY = Path("/run/netns")  # where `ip netns` keeps them
_NAME = re.compile(r"harness-([0-9]+)-([0-9]+)-[a-z0-9]+")
_FAILED_LINE = re.compile(r"Command failed -:([0-9]+)")


def namespace(role: str) -> str:
    """Return the name of this process's namespace for `role` (lower-case letters and digits)."""
    return f"harness-{os.getpid()}-{_start_time(os.getpid())}-{role}"


@contextmanager
def namespaces(names: Sequence[str]) -> Iterator[None]:
    """Make the namespaces `names`; they and all devices in them are gone when the context is left.

    Raises UserError if one cannot be made.
    """
    try:
        for name in names:
            # Not in one batch: older `ip` stay in the namespace that they made.
            _call(["ip", "netns", "add", name])
        yield
    finally:
        remove(names)


def clean() -> None:
    """Remove the namespaces of runners that are dead, which were killed before they could do it.

    Without root there is nothing that this process could remove, and nothing is.
    """
    if os.geteuid() != 0 or not DIRECTORY.is_dir():
        return
    remove([path.name for path in DIRECTORY.iterdir() if _is_left(path.name)])


def remove(names: Sequence[str]) -> None:
    """Remove those of `names` that exist; UserError if one is still there afterwards."""
    existing = [name for name in names if (DIRECTORY / name).exists()]
    if not existing:
        return
    with suppress(UserError):  # another runner may remove the same ones at this moment
        batch("ip", [f"netns delete {name}" for name in existing], "-force")
    if left := [name for name in existing if (DIRECTORY / name).exists()]:
        raise UserError(f"cannot remove network namespace {left[0]}", fix=f"ip netns delete {left[0]}")


def batch(tool: str, lines: Sequence[str], *options: str) -> None:
    """Give `lines` to one `ip` or `tc`, which stops at the first that fails.

    Raises UserError whose `key` is that command and whose `message` is what the tool said of it.
    """
    _call([tool, *options, "-batch", "-"], lines)


def inside(name: str) -> tuple[str, ...]:
    """Return the command prefix that starts a process in namespace `name`, without a process between."""
    return ("ip", "netns", "exec", name)


def _call(command: Sequence[str], lines: Sequence[str] = ()) -> None:
    """Run a command; its own session keeps a Ctrl-C from ending it half-way."""
    text = "".join(f"{line}\n" for line in lines)
    try:
        done = subprocess.run(command, input=text, capture_output=True, text=True, start_new_session=True)
    except OSError as error:
        raise UserError(f"cannot run {command[0]}: {error.strerror}", fix="apt install iproute2") from error
    if done.returncode == 0:
        return
    said = done.stderr.strip()
    found = _FAILED_LINE.search(said)
    what = " ".join(command[: -2 if lines else None])
    if found is not None:
        what += f" {lines[int(found[1]) - 1]}"
        said = _FAILED_LINE.sub("", said)
    raise UserError(" ".join(said.split()) or f"exit code {done.returncode}", key=f"`{what}`")


def _is_left(name: str) -> bool:
    found = _NAME.fullmatch(name)
    return found is not None and _start_time(int(found[1])) != int(found[2])


def _start_time(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot; None if it has ended.

    With it a process that was given a dead runner's id is not taken for the runner.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else int(fields[19])
