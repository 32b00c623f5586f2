"""The ranks of a group on this machine talk over a network that is as slow as the suite says.

Every host is a network namespace with one end of a veth pair; a further one, the switch, holds the other ends
and the bridge that joins them. The machine's own network is not touched. The kernel removes all of it when the last
process that holds it has ended. See docs/design/networks.md.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from ipaddress import ip_network
from typing import Any, NamedTuple

from harness.errors import UserError
from harness.launch import namespaces as helper
from harness.launch.process import Placement, placements_of
from harness.suite.schema import Suite
from harness.suite.sections import NetworkSpec

INTERFACE = "eth0"
SBIN = ("/usr/sbin", "/sbin")
ADDRESSES = ip_network("198.18.0.0/15")  # RFC 2544: for benchmarks, routed nowhere

# TCP hands the interface packets of many frames, as to a network card that cuts them itself. If the kernel
# cuts them, 64 MB at 1 Gbit/s cost a second of CPU time and went at a third of the rate; left at 64 KB, a
# message of 200 KB went at one and a half times 100 Mbit/s, because the bucket must hold a whole packet. So a
# packet is what the link carries in this time, and tbf counts the headers of each of its frames.
PACKET_S = 250e-6
SMALLEST_PACKET, LARGEST_PACKET = 4096, 65536  # bytes; two frames, and the kernel's own limit
HEADERS = 1.1  # a packet is at most this much longer as frames, each with 66 bytes of headers to 1448
# Queues are never full: TCP's windows bound what is under way. A lost packet would cost a time-out of 0.2 s.
LIMIT_BYTES, LIMIT_PACKETS = 2**30, 2**20
# The machine's default would make metrics depend on it.
CONGESTION_CONTROL = "cubic"
_SWITCH, _FIRST_HOST = 0, 1  # numbers of namespaces
_FAILED_LINE = re.compile(r"Command failed -:([0-9]+)")


class Command(NamedTuple):
    """Lines for a tool (`ip` or `tc`), which stops at the first that fails, in the namespace of a number."""

    where: int
    tool: str
    lines: Sequence[str]


class CommandError(UserError):
    """The command `number` in a namespace failed; its `key` names the line, its `message` is what the tool said."""

    number = 0


@contextmanager
def network(spec: NetworkSpec | None, world: int) -> Iterator[list[Placement]]:
    """Yield the placements of `world` ranks on the network `spec` (None: the loopback) while in the context.

    Ranks fill hosts in their order. `local_rank` counts all of them: whatever host they play, they share this
    machine's processors. Raises UserError that names the command if one fails; ask `why_not` first.
    """
    if spec is None:
        yield placements_of(range(world), world)
        return
    hosts = math.ceil(world / spec.ranks_per_host)
    with namespaces(hosts + 1, [*_cables(spec, hosts), *_shapers(spec, hosts)]) as found:
        places = [found[_FIRST_HOST + rank // spec.ranks_per_host] for rank in range(world)]
        yield [Placement(rank, rank, world, world, INTERFACE, place) for rank, place in enumerate(places)]


def found_tool(name: str) -> str | None:
    """Return the path of a tool; where Debian has `tc`, but not in the PATH of its users, too."""
    return shutil.which(name, path=os.pathsep.join((os.environ.get("PATH", os.defpath), *SBIN)))


def why_not(spec: NetworkSpec) -> str | None:
    """Return why this machine cannot play the network `spec`, and what would help; None if it can."""
    if missing := [tool for tool in ("ip", "tc") if found_tool(tool) is None]:
        return f"network {spec.label} needs {' and '.join(missing)} (apt install iproute2)"
    needs = {
        "bridge": Command(0, "ip", ["link add probe type bridge"]),
        "veth": Command(0, "ip", ["link add cable type veth"]),
        "tcp_cubic": Command(0, "ip", ["link set lo up", _route("lo")]),
    }
    if math.isfinite(spec.bits_s):
        needs["sch_tbf"] = Command(0, "tc", [f"qdisc add dev cable root {_tbf(spec)}"])
    if spec.latency_s:
        needs["sch_netem"] = Command(0, "tc", [f"qdisc add dev lo root {_netem(spec)}"])
    # What the kernel has is found out in a namespace that is removed at once.
    try:
        with namespaces(1, [*needs.values()]) as (probe,):
            tried = subprocess.run([*helper.inside(probe), "true"], pass_fds=[probe], capture_output=True, text=True)
    except CommandError as error:
        module = [*needs][error.number]
        return f"network {spec.label} needs the kernel module {module} (modprobe {module}): {error.message}"
    except UserError as error:
        said = error.message
    else:
        if tried.returncode == 0:
            return None
        said = tried.stderr.strip()
    settings = "user.max_user_namespaces, kernel.apparmor_restrict_unprivileged_userns"
    return f"network {spec.label} needs user namespaces, or root: {said} (sysctl {settings}; a container: --privileged)"


def shaped_if_possible(suite: Suite, say: Callable[[str], object]) -> Suite:
    """Return a suite with the loopback for networks that this machine cannot play; say so."""
    reasons = {spec: why for spec in suite.network if spec is not None and (why := why_not(spec))}
    for why in reasons.values():
        say(f"{why}; trials run over the loopback instead, from which the report projects")
    kept = tuple(dict.fromkeys(None if spec in reasons else spec for spec in suite.network))
    return suite.model_copy(update={"network": kept})


def _cables(spec: NetworkSpec, hosts: int) -> Iterator[Command]:
    """Bring up a bridge and a cable from it to each host."""
    size = f" gso_max_size {_packet_bytes(spec)}" if math.isfinite(spec.bits_s) else ""
    lines = ["link add br0 type bridge stp_state 0 mcast_snooping 0", *_up("br0")]
    for host in range(hosts):
        port, at = f"port{host}", f"{{{_FIRST_HOST + host}}}"
        lines += [
            f"link add {port}{size} type veth peer name {INTERFACE} netns {at}{size}",
            f"link set {port} master br0",
            *_up(port),
        ]
    yield Command(_SWITCH, "ip", lines)
    for host in range(hosts):
        address = f"address add {ADDRESSES[host + 1]}/{ADDRESSES.prefixlen} dev {INTERFACE} noprefixroute"
        yield Command(_FIRST_HOST + host, "ip", ["link set lo up", address, *_up(INTERFACE), _route(INTERFACE)])


def _up(device: str) -> list[str]:
    # The announcements of an IPv6 address would be in the counters of the interface.
    return [f"link set {device} addrgenmode none", f"link set {device} up"]


def _route(device: str) -> str:
    return f"route add {ADDRESSES} dev {device} congctl {CONGESTION_CONTROL}"


def _shapers(spec: NetworkSpec, hosts: int) -> Iterator[Command]:
    """Limit both directions of each cable: what the host sends, and what the switch sends to it."""
    sending, where = [], "root"
    if spec.latency_s:  # a packet is delayed once on its way, where it is sent
        sending.append(f"qdisc add dev {INTERFACE} root handle 1: {_netem(spec)}")
        where = "parent 1:1 handle 2:"
    if math.isfinite(spec.bits_s):
        sending.append(f"qdisc add dev {INTERFACE} {where} {_tbf(spec)}")
        yield Command(_SWITCH, "tc", [f"qdisc add dev port{host} root {_tbf(spec)}" for host in range(hosts)])
    if sending:
        yield from (Command(_FIRST_HOST + host, "tc", sending) for host in range(hosts))


def _packet_bytes(spec: NetworkSpec) -> int:
    return int(min(max(spec.bits_s / 8 * PACKET_S, SMALLEST_PACKET), LARGEST_PACKET))


def _tbf(spec: NetworkSpec) -> str:
    burst = max(_packet_bytes(spec), spec.bits_s / 8 * PACKET_S) * HEADERS
    return f"tbf rate {spec.bits_s:.0f}bit burst {burst:.0f} limit {LIMIT_BYTES}"


def _netem(spec: NetworkSpec) -> str:
    return f"netem delay {spec.latency_s * 1e6:.3f}us limit {LIMIT_PACKETS}"


@contextmanager
def namespaces(count: int, commands: Sequence[Command] = ()) -> Iterator[list[int]]:
    """Yield descriptors of `count` new network namespaces in which `commands` have run, in their order.

    They are gone, with all devices in them, when no process is in them and the context is left.
    Raises UserError if one cannot be made, CommandError if a command fails.
    """
    # Descriptors travel through a socket: as files in /run/netns they would need root, and outlive a killed runner.
    ours, theirs = socket.socketpair()
    found = list[int]()
    try:
        with ours:
            with theirs:
                command = [sys.executable, "-I", "-S", helper.__file__]
                process = subprocess.Popen(command, stdin=theirs.fileno(), start_new_session=True)
            try:
                asked = [(where, found_tool(tool) or tool, lines) for where, tool, lines in commands]
                ours.sendall(json.dumps({"count": count, "commands": asked}).encode())
                ours.shutdown(socket.SHUT_WR)
                answer, found, _, _ = socket.recv_fds(ours, 1 << 16, helper.MOST, socket.MSG_CMSG_CLOEXEC)
            finally:
                process.kill()
                process.wait()
        failure: dict[str, Any] = json.loads(answer or '{"said": "the process that makes them ended early"}')
        if "said" in failure:
            said, number = failure["said"], failure.get("failed")
            if number is None:
                raise UserError(said)
            _, tool, lines = commands[number]
            failed = _FAILED_LINE.search(said)
            line = f"{tool} {lines[int(failed[1]) - 1] if failed else ''}".strip()
            error = CommandError(" ".join(_FAILED_LINE.sub("", said).split()), key=f"`{line}`")
            error.number = number
            raise error
        yield found
    finally:
        for descriptor in found:
            os.close(descriptor)
