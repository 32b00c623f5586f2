"""Enter a network namespace, from root or from a user's own place of networks, and keep no more rights than are needed.

Run as a file, `python -I -S enter.py PLACE NAMESPACE COMMAND ...`, it imports nothing of harness; the command takes its
place, with the same process id. See docs/design/privileges.md.
"""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import suppress
from typing import Any, NoReturn

PLACE = "HARNESS_NETWORKS"  # environment variable: number of the descriptor of the user's own place of networks
NEWNS, NEWUSER, NEWNET = 0x00020000, 0x10000000, 0x40000000  # <sched.h>
HOME = "/run/netns/home"  # in a place: a network of its own, which `ip` leaves and comes back to
_SLAVE, _RECURSIVE, _DETACH = 1 << 19, 1 << 14, 2  # <sys/mount.h>
_GET_OWNER = 0xB701  # <linux/nsfs.h>: NS_GET_USERNS
_CAPABILITIES = 0x20080522  # <linux/capability.h>: version 3
_NET_ADMIN, _SYS_ADMIN = 12, 21
_AMBIENT, _RAISE = 47, 2  # <linux/prctl.h>
_LIBC = ctypes.CDLL(None, use_errno=True)


def libc(function: str, *arguments: Any) -> None:
    """Call a function of libc; OSError if it fails."""
    if getattr(_LIBC, function)(*arguments) != 0:
        raise OSError(ctypes.get_errno(), f"{function}: {os.strerror(ctypes.get_errno())}")


def place() -> int | None:
    """Return the descriptor of this user's own place of networks; None where there is none: root needs none."""
    number = os.environ.get(PLACE, "")
    try:
        os.close(_owner(int(number)))
    except (ValueError, OSError):  # inherited by what is no child: the number is another file's there, or none's
        return None
    return int(number)


def passed() -> tuple[int, ...]:
    """Return the descriptors that who is to enter a namespace has to inherit."""
    found = place()
    return () if found is None else (found,)


def command(namespace: str | None) -> tuple[str, ...]:
    """Return what starts a command in a namespace of the user's own place, or, for `ip` and `tc`, in the place itself.

    It is what a command of root's is started with: nothing, or `ip netns exec`, where the user has no such place.
    """
    if (found := place()) is None:
        return () if namespace is None else ("ip", "netns", "exec", namespace)
    return (sys.executable, "-I", "-S", __file__, str(found), namespace or "")


def enter(namespace: str, place: int | None) -> None:
    """Enter a network namespace and mount its /sys, as `ip netns exec` does.

    Of a user's own `place` nothing is kept but the namespace: the process has no capability afterwards, there or
    elsewhere. It must have one thread. Raises OSError.
    """
    if place is not None:
        _join(place)
    _network(f"/run/netns/{namespace}")
    libc("unshare", NEWNS)
    libc("mount", b"", b"/", b"none", _SLAVE | _RECURSIVE, None)
    with suppress(OSError):  # what root had mounted cannot be uncovered: then it is covered
        libc("umount2", b"/sys", _DETACH)
    libc("mount", namespace.encode(), b"/sys", b"sysfs", 0, None)
    if place is not None:
        _keep(0)


def _join(place: int) -> None:
    """Enter the mount namespace behind `place` and the user namespace that owns it, with all capabilities there."""
    owner = _owner(place)
    libc("setns", owner, NEWUSER)
    os.close(owner)
    libc("setns", place, NEWNS)


def _network(path: str) -> None:
    with open(path) as handle:
        libc("setns", handle.fileno(), NEWNET)


def _owner(place: int) -> int:
    import fcntl

    return fcntl.ioctl(place, _GET_OWNER)


def _keep(capabilities: int) -> None:
    """Keep these capabilities (a bit each), for what is started, too, and no others."""
    header, low = (ctypes.c_uint32 * 2)(_CAPABILITIES, 0), capabilities
    libc("capset", header, (ctypes.c_uint32 * 6)(low, low, low))
    for number in range(low.bit_length()):
        if low >> number & 1:
            libc("prctl", _AMBIENT, _RAISE, number, 0, 0)


def main(arguments: list[str]) -> NoReturn:
    """Become a command: place, namespace ("": none, but the rights to make some), and the command."""
    number, namespace, *wanted = arguments
    directory = os.getcwd()
    try:
        if namespace:
            enter(namespace, int(number))
        else:
            _join(int(number))
            _network(HOME)
            _keep(1 << _NET_ADMIN | 1 << _SYS_ADMIN)
        os.close(int(number))
        os.chdir(directory)
        os.execvp(wanted[0], wanted)
    except OSError as error:
        sys.exit(f"{wanted[0]}: {error.strerror}")


if __name__ == "__main__":
    main(sys.argv[1:])
