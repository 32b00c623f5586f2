"""Network namespaces without root: makes some in a user namespace of the user's own, and enters one of them.

Run as a file, it imports nothing of harness: `python -I -S namespaces.py` makes namespaces, as `make` says;
`python -I -S namespaces.py NAMESPACE COMMAND ...` enters one, a descriptor, and becomes the command, with the same
process id. See docs/design/networks.md.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import subprocess
import sys
from contextlib import suppress
from typing import Any, NoReturn

MOST = 253  # descriptors that one message carries
_NEWNS, _NEWUSER, _NEWNET = 0x00020000, 0x10000000, 0x40000000  # <sched.h>
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


def inside(namespace: int) -> tuple[str, ...]:
    """Return the words that start a command in a namespace, whose descriptor the command has to inherit."""
    return (sys.executable, "-I", "-S", __file__, str(namespace))


def enter(namespace: int) -> None:
    """Enter a network namespace, close its descriptor, and mount its /sys, as `ip netns exec` does.

    The process must have one thread. In a user's own namespace it has no capability afterwards. Raises OSError.
    """
    import fcntl

    owner = fcntl.ioctl(namespace, _GET_OWNER)
    is_users = os.fstat(owner).st_ino != os.stat("/proc/self/ns/user").st_ino  # root needs no user namespace
    if is_users:
        libc("setns", owner, _NEWUSER)
    libc("setns", namespace, _NEWNET)
    for descriptor in (owner, namespace):  # the code that runs next must not enter anything
        os.close(descriptor)
    libc("unshare", _NEWNS)
    libc("mount", b"", b"/", b"none", _SLAVE | _RECURSIVE, None)
    with suppress(OSError):  # root's mounts are locked in a user namespace: the new /sys covers the old one
        libc("umount2", b"/sys", _DETACH)
    libc("mount", b"harness", b"/sys", b"sysfs", 0, None)
    if is_users:
        _keep(0)


def make(channel: socket.socket) -> None:
    """Make namespaces, run commands in them, and answer through `channel`.

    The request is JSON: `count` of namespaces and `commands`, each the number of its namespace, a tool (`ip`, `tc`) and
    lines for it, in which `{1}` is the path of namespace 1. The answer has the namespaces' descriptors, or says which
    command `failed` and what it `said`. Nobody else has the descriptors, so namespaces end with their last process.
    """
    with channel.makefile() as stream:
        request = json.load(stream)
    namespaces: list[int] = []
    answer: dict[str, Any] = {}
    try:
        for _ in range(request["count"]):
            try:
                libc("unshare", _NEWNET)
            except PermissionError:
                if namespaces:
                    raise
                uid, gid = os.geteuid(), os.getegid()
                libc("unshare", _NEWUSER | _NEWNET)
                # The user is the only id there, so that `setuid(0)` means nothing.
                for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
                    with open(f"/proc/self/{name}", "w") as file:
                        file.write(text)
            namespaces.append(os.open("/proc/self/ns/net", os.O_RDONLY))
        _keep(1 << _NET_ADMIN | 1 << _SYS_ADMIN)
        paths = [f"/proc/self/fd/{each}" for each in namespaces]
        for number, (where, tool, lines) in enumerate(request["commands"]):
            libc("setns", namespaces[where], _NEWNET)
            text = "".join(f"{line.format(*paths)}\n" for line in lines)
            done = subprocess.run(
                [tool, "-batch", "-"], input=text, capture_output=True, text=True, pass_fds=namespaces, check=False
            )
            if done.returncode != 0:
                answer = {"failed": number, "said": done.stderr.strip() or f"exit code {done.returncode}"}
                break
    except OSError as error:
        answer = {"failed": None, "said": str(error.strerror)}
    socket.send_fds(channel, [json.dumps(answer).encode()], namespaces)


def _keep(capabilities: int) -> None:
    """Keep these capabilities (a bit each), for what is started, too, and no others."""
    header, low = (ctypes.c_uint32 * 2)(_CAPABILITIES, 0), capabilities
    libc("capset", header, (ctypes.c_uint32 * 6)(low, low, low))
    for number in range(low.bit_length()):
        if low >> number & 1:
            libc("prctl", _AMBIENT, _RAISE, number, 0, 0)


def main(arguments: list[str]) -> NoReturn:
    """Make namespaces for the other end of standard input, or become a command in one."""
    if not arguments:
        make(socket.socket(fileno=0))
        sys.exit()
    namespace, *command = arguments
    try:
        enter(int(namespace))
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"{command[0]}: {error.strerror}")


if __name__ == "__main__":
    main(sys.argv[1:])
