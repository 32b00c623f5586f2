"""A command that root starts for a user is that user's: it gives up root, and with it all that it starts.

What shaped networks need of root is made before: a place of the user's own, in which it may make networks, and nothing
else. See docs/design/privileges.md.
"""

from __future__ import annotations

import os
import pwd
import re
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from harness.caches import keep_kernels_where_one_can_write
from harness.errors import UserError
from harness.launch.enter import HOME, NEWNET, NEWNS, NEWUSER, PLACE, libc

_USER = "HARNESS_USER"
_DUMPABLE, _SECUREBITS, _NO_NEW_PRIVILEGES = 4, 28, 38  # <linux/prctl.h>
_KEEP_CAPABILITIES = 1 << 2  # <linux/securebits.h>: SECBIT_NO_SETUID_FIXUP
_BIND = 1 << 12  # <sys/mount.h>
_NO_ID = 2**32 - 1  # it means "leave it as it is"
_XDG = ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR")


@dataclass(frozen=True)
class User:
    """Whose a command is. `groups` are all of the user's, `gid` the first among them."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str


def chosen(environ: Mapping[str, str], uid: int) -> User | None:
    """Return whom a command is for that `uid` starts; None: for whom it is started by.

    That is who HARNESS_USER names (a name or a number), else who called sudo. Raises UserError if that is nobody.
    """
    if uid != 0:
        return None
    if own := environ.get(_USER):
        user = _known(own, _USER)
    elif sudo := environ.get("SUDO_UID"):
        user = _known(sudo, "SUDO_UID", environ.get("SUDO_GID"))
    else:
        return None
    return None if user.uid == 0 else user


def _known(text: str, key: str, group: str | None = None) -> User:
    uid = _number(text)
    try:
        entry = pwd.getpwnam(text) if uid is None else pwd.getpwuid(uid)
    except (KeyError, ValueError):
        if uid is None:
            raise UserError(f"there is no user {text!r}", key=key, fix="name one, or root") from None
        gid = _number(group) or uid  # in a container users often have a number and nothing else
        return User(text, uid, gid, (gid,), "/")
    gid = _number(group) or entry.pw_gid
    return User(entry.pw_name, entry.pw_uid, gid, tuple(os.getgrouplist(entry.pw_name, gid)), entry.pw_dir)


def _number(text: str | None) -> int | None:
    plain = text is not None and re.fullmatch("[0-9]{1,10}", text) is not None
    return int(text) if text and plain and int(text) < _NO_ID else None


def give_up_root() -> None:
    """Become the user whom the command is for, for good, if that is another than who started it.

    Two things are told on standard error: that the user cannot run what is installed, so that all stays root's; and
    that the kernel gives the user no place of networks. Raises UserError, as `chosen` does.
    """
    user = chosen(os.environ, os.geteuid())
    if user is None:
        return
    if (why := _why_not_run(user)) is not None:
        fix = f"install harness where {user.name} can read it"
        _tell(f"all of this runs as root, ranks too: {user.name} cannot run harness: {why} ({fix})")
        return
    if sys.platform == "linux":
        try:
            os.environ[PLACE] = str(_make_place(user))
        except OSError as error:
            os.environ.pop(PLACE, None)
            fix = f"sysctl user.max_user_namespaces; {_USER}=root runs all of it as root, ranks too"
            _tell(f"no shaped networks for {user.name}, which need user namespaces: {error.strerror} ({fix})")
    _become(user)
    _use_own_files(user)


def _why_not_run(user: User) -> str | None:
    command = [sys.executable, "-P", "-c", "import harness.cli"]
    try:
        done = subprocess.run(
            command,
            user=user.uid,
            group=user.gid,
            extra_groups=user.groups,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
    except OSError as error:
        return f"{sys.executable}: {error.strerror}"
    said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
    return None if done.returncode == 0 else said[-1]


def _make_place(user: User) -> int:
    """Return a descriptor of a mount namespace with a /run/netns of its own, whose user namespace belongs to `user`.

    In it there are no ids but the user's. It ends, with all networks in it, when nobody has the descriptor or is in it.
    """
    Path("/run/netns").mkdir(mode=0o755, parents=True, exist_ok=True)
    here, there = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.close(there[1])  # else it would wait for itself
        _be_place(user, here[1], there[0])
    try:
        os.close(here[1])
        _heard(here[0])
        Path(f"/proc/{child}/uid_map").write_text(f"{user.uid} {user.uid} 1")
        groups = dict.fromkeys((user.gid, *user.groups))
        Path(f"/proc/{child}/gid_map").write_text("".join(f"{gid} {gid} 1\n" for gid in groups))
        place = os.open(f"/proc/{child}/ns/mnt", os.O_RDONLY)
        os.write(there[1], b".")
        try:
            _heard(here[0])
        except OSError:
            os.close(place)
            raise
    finally:
        for descriptor in (here[0], *there):
            os.close(descriptor)
        os.waitpid(child, 0)
    return place


def _be_place(user: User, say: int, hear: int) -> None:
    """Make the namespaces as the user, to whom they then belong, with root's leave where not every user may."""
    said = b"."
    try:
        os.setgroups(user.groups)
        os.setgid(user.gid)
        libc("prctl", _SECUREBITS, _KEEP_CAPABILITIES, 0, 0, 0)
        os.setuid(user.uid)
        libc("unshare", NEWUSER | NEWNS | NEWNET)
        os.write(say, said)
        os.read(hear, 1)
        libc("mount", b"none", b"/run/netns", b"tmpfs", 0, b"mode=755")
        Path(HOME).touch()
        libc("mount", b"/proc/self/ns/net", HOME.encode(), b"", _BIND, None)
    except OSError as error:
        said = str(error.strerror).encode()
    finally:
        with suppress(OSError):
            os.write(say, said)
        os._exit(0)


def _heard(descriptor: int) -> None:
    said = os.read(descriptor, 4096)
    if said != b".":
        raise OSError(0, said.decode() or "it ended")


def _become(user: User) -> None:
    """Give up root: real, effective and saved ids, groups, capabilities, and every program that would give it back."""
    os.setgroups(user.groups)
    os.setgid(user.gid)
    os.setuid(user.uid)
    if sys.platform == "linux":
        libc("prctl", _NO_NEW_PRIVILEGES, 1, 0, 0, 0)  # sudo may still remember this terminal
        libc("prctl", _DUMPABLE, 1, 0, 0, 0)  # else /proc/self is root's, which what is measured is read from


def _use_own_files(user: User) -> None:
    roots = Path(pwd.getpwuid(0).pw_dir)
    for name in _XDG:
        place = Path(os.environ.get(name, ""))
        if place.is_relative_to(roots) or place.is_relative_to("/run/user/0"):
            del os.environ[name]
    os.environ.update(HOME=user.home, USER=user.name, LOGNAME=user.name)
    if not os.access(os.environ.get("NUMBA_CACHE_DIR", ""), os.W_OK):
        os.environ.pop("NUMBA_CACHE_DIR", None)
    keep_kernels_where_one_can_write()


def _tell(text: str) -> None:
    print(f"note: {text}", file=sys.stderr)
