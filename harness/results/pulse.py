"""What a runner's sign of life is made of: a process beside it that beats, and how long a beat has stood still."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field


def start_beating(*arguments: str, inherited: Sequence[int] = ()) -> subprocess.Popen[bytes]:
    """Start Python with `arguments` as a process that is to end when its standard input does: when this one ends.

    `inherited`: file descriptors that it has, too.
    """
    return subprocess.Popen(
        [sys.executable, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is the runner's
        pass_fds=inherited,
    )


def stop_beating(process: subprocess.Popen[bytes], patience_s: float) -> None:
    """End such a process; it has `patience_s` for its last word."""
    assert process.stdin is not None
    process.stdin.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(patience_s)
    process.kill()
    process.wait()


@dataclass
class Pulses:
    """Watches values that change while somebody lives, by the own clock: clocks of two machines are never compared."""

    clock: Callable[[], float] = time.monotonic
    _seen: dict[str, tuple[str | None, float]] = field(default_factory=dict)

    def still_s(self, key: str, value: str | None) -> float:
        """Return for how many seconds this has been the value of `key`; 0 when it is new."""
        now = self.clock()
        last, since = self._seen.setdefault(key, (value, now))
        if value != last:
            self._seen[key] = value, now
            return 0.0
        return now - since
