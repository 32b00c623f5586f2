"""Errors that the user can mend, one line each: file, key, value and fix."""

from __future__ import annotations

import difflib
import errno
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class UserError(Exception):
    """A user's mistake: one line that names the file, the key, the value and the fix; exit code 2."""

    def __init__(
        self,
        message: str,
        *,
        file: Path | str | None = None,
        line: int | None = None,
        key: str | None = None,
        fix: str | None = None,
    ) -> None:
        self.message, self.file, self.line, self.key, self.fix = message, file, line, key, fix
        super().__init__(str(self))

    def __str__(self) -> str:
        where = "" if self.file is None else f"{self.file}{f':{self.line}' if self.line else ''}: "
        key = f"{self.key}: " if self.key else ""
        fix = f" ({self.fix})" if self.fix else ""
        where, said = printable(where), printable(f"{key}{self.message}{fix}")
        return (where if isinstance(self.file, Path) else shortened(where)) + shortened(said)


class UserErrors(UserError):  # noqa: N818 - several of them
    """Several mistakes at once; its text has a line for each."""

    def __init__(self, errors: Sequence[UserError]) -> None:
        self.errors = tuple(errors)
        super().__init__(str(self))

    def __str__(self) -> str:
        return "\n".join(map(str, self.errors))


_OF_SYSTEM = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "make room there, or name another directory"),
    **dict.fromkeys((errno.EROFS, errno.EACCES, errno.EPERM), "name a directory that you may write to"),
    **dict.fromkeys((errno.ENOLCK, errno.ENOSYS), "name a directory on a file system with locks"),
    **dict.fromkeys((errno.EIO, errno.ESTALE, errno.ENODEV), "the disk, or its server, failed: try again"),
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), "raise `ulimit -n`"),
    **dict.fromkeys((errno.EEXIST, errno.ENOTDIR), "a file is where a directory should be: name another"),
    errno.EFBIG: "raise `ulimit -f`, or name a file system whose files may be larger",
    errno.ELOOP: "a link is not followed there: remove it",
}


def of_system(error: OSError) -> UserError | None:
    """Return an error of the system that its user can mend, such as a full disk, with its fix; None for others."""
    number = error.errno
    if number is None:  # libraries raise it with a text alone
        number = next((each for each in _OF_SYSTEM if os.strerror(each) in str(error)), None)
    if number not in _OF_SYSTEM:
        return None
    return UserError(os.strerror(number), file=error.filename2 or error.filename, fix=_OF_SYSTEM[number])


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Add the path to an error of a full disk or file: the system names none when a write fails."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


class DamagedRecord(UserError):  # noqa: N818 - no mistake of the user
    """A record that cannot be read: it is passed over, and its trial is run again."""


_said = set[str]()  # of this process


def pass_over(record: DamagedRecord) -> None:
    """Name a record that is passed over, once."""
    if (text := f"warning: passed over: {record}") not in _said:
        _said.add(text)
        print(text, file=sys.stderr)


class DataError(UserError):
    """A file that is damaged, truncated or not of the format it should have; nothing of it is cached."""


class DataUnavailable(Exception):  # noqa: N818 - absent data is a state, not an error
    """Data that is not on this machine; a trial that needs it is recorded as `skipped`, not failed."""

    def __init__(self, reason: str, command: str) -> None:
        self.reason, self.command = reason, command  # a command line, or a sentence ("Download from ...")
        by_hand = command.startswith("Download")
        super().__init__(f"{reason}. {command}" if by_hand else f"{reason}; get it with: {command}")


# Control characters but tabs and ends of lines; what turns the direction of text, or is not seen.
_UNSEEN = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f"
)
UNSEEN = re.compile(f"[{_UNSEEN}]")


def readable(value: Any) -> Any:
    """Return a value of JSON, the characters of its texts and keys that drive a terminal written as escapes."""
    if isinstance(value, str):
        return UNSEEN.sub(lambda found: ascii(found[0])[1:-1], value)
    if isinstance(value, dict):
        return {readable(key): readable(each) for key, each in value.items()}
    return [readable(each) for each in value] if isinstance(value, list) else value


def printable(text: str) -> str:
    """Return a text in one line and without control characters: what a file says must not drive a terminal."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def shortened(text: str) -> str:
    """Return a text without the middles of words above 1,000 characters, and its own above 5,000."""
    words = re.sub(r"\S{1001,}", lambda word: f"{word[0][:400]}...{word[0][-400:]}", text)
    return words if len(words) <= 5_000 else f"{words[:2500]} ... {words[-2400:]}"


def one_line(text: str, limit: int = 300) -> str:
    """Return a text in one line, cut off after so many characters."""
    flat = " ".join(text.split())
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"


def nearest(name: str, known: Iterable[str]) -> str:
    """Return "did you mean 'x'?" or the list of what there is, for an unknown `name`."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return f"did you mean '{close[0]}'?" if close else "known: " + ", ".join(names)


def folded(name: str) -> str:
    """Return a name without case, `-` and `_`: they distinguish no two names."""
    return re.sub("[-_]", "", name).casefold()


def spelled(name: str, known: Iterable[str]) -> str:
    """Return the known name that is meant, `BNS_GCN` for `bns-gcn`; `name` itself if it is known, or none is meant."""
    names = set(known)
    alike = [each for each in names if folded(each) == folded(name)]
    return alike[0] if name not in names and len(alike) == 1 else name
