"""Directories of what is kept between runs: prepared data, partitions, compiled kernels.

Imported before a working directory's own `random.py` is out of the way (`python -m harness`): it imports little.
"""

from __future__ import annotations

import os
from pathlib import Path


def cache_root() -> Path:
    """$HARNESS_CACHE, else $XDG_CACHE_HOME/harness, else ~/.cache/harness (absolute; may not exist yet)."""
    own = os.environ.get("HARNESS_CACHE")
    return Path(own or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "harness").expanduser().absolute()


def keep_kernels_where_one_can_write() -> None:
    """Have numba, before it is imported, keep kernels in the cache directory if they cannot lie at their code."""
    # numba refuses to work where it can write neither there nor at home. Ranks inherit the choice.
    if "NUMBA_CACHE_DIR" in os.environ or os.access(Path(__file__).parent, os.W_OK):
        return
    home = cache_root() / "numba"
    try:
        home.mkdir(parents=True, exist_ok=True)
        writable = os.access(home, os.W_OK)
    except OSError:
        writable = False
    if not writable:
        home = private_directory(Path(os.environ.get("TMPDIR") or "/tmp"), "harness-numba")
    os.environ["NUMBA_CACHE_DIR"] = str(home)


def private_directory(base: Path, name: str) -> Path:
    """Return `base/NAME-UID`, of this user alone; another one if another user owns it."""
    home = base / f"{name}-{os.getuid()}"
    home.mkdir(mode=0o700, exist_ok=True)
    if home.is_symlink() or home.stat().st_uid != os.getuid():  # another user's trap: files there are trusted
        home = base / f"{name}-{os.urandom(8).hex()}"
        home.mkdir(mode=0o700)
    return home
