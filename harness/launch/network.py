"""The ranks of a group on this machine talk over a network that is as slow as the suite says.

Every host is a network namespace with one end of a veth pair; a further one, the switch, holds the other ends
and the bridge that joins them. The machine's own network is not touched. Namespaces are named after the runner, so that
those of a dead one are found and removed. See docs/design/networks.md.
"""

from __future__ import annotations

import ipaddress
import math
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from harness.errors import UserError
from harness.launch import enter
from harness.launch.process import Placement, placements_of
from harness.results.leases import start_time
from harness.suite.sections import NetworkSpec

INTERFACE = "eth0"
ADDRESSES = ipaddress.ip_network("198.18.0.0/15")  # RFC 2544: for benchmarks, routed nowhere

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
NAMESPACES = Path("/run/netns")  # where `ip netns` keeps them
_NAME = re.compile(r"harness-([0-9]+)-([0-9]+)-[a-z0-9]+")
_FAILED_LINE = re.compile(r"Command failed -:([0-9]+)")


@contextmanager
def network(spec: NetworkSpec | None, world: int) -> Iterator[list[Placement]]:
    """Yield the placements of `world` ranks on the network `spec` (None: the loopback) while in the context.

    Ranks fill hosts in their order. `local_rank` counts all of them: whatever host they play, they share this
    machine's processors. Raises UserError that names the command if one fails; ask `why_not` first.
    """
    if spec is None:
        yield placements_of(range(world), world)
        return
    hosts = [namespace(f"h{host}") for host in range(math.ceil(world / spec.ranks_per_host))]
    switch = namespace("switch")
    with namespaces([switch, *hosts]):
        _join(spec, switch, hosts)
        _shape(spec, switch, hosts)
        places = [hosts[rank // spec.ranks_per_host] for rank in range(world)]
        yield [Placement(rank, rank, world, world, INTERFACE, place) for rank, place in enumerate(places)]


def why_not(spec: NetworkSpec) -> str | None:
    """Return why this machine cannot play the network `spec`, and what would help; None if it can.

    What the kernel has is found out in a namespace that is removed at once.
    """
    if missing := [tool for tool in ("ip", "tc") if shutil.which(tool) is None]:
        return f"network {spec.label} needs {' and '.join(missing)} (apt install iproute2)"
    if os.geteuid() != 0 and enter.place() is None:
        return f"network {spec.label} needs root, for network namespaces (run as root)"
    probe = namespace("probe")
    try:
        with namespaces([probe]):
            return _kernel_lacks(spec, probe)
    except UserError as error:
        return f"network {spec.label} needs network namespaces: {error} (in a container: --privileged)"


def _kernel_lacks(spec: NetworkSpec, probe: str) -> str | None:
    needs = [
        ("bridge", "ip", ["link add probe type bridge"]),
        ("veth", "ip", ["link add cable type veth"]),
        ("tcp_cubic", "ip", ["link set lo up", _route("lo")]),
    ]
    if math.isfinite(spec.bits_s):
        needs.append(("sch_tbf", "tc", [f"qdisc add dev cable root {_tbf(spec)}"]))
    if spec.latency_s:
        needs.append(("sch_netem", "tc", [f"qdisc add dev lo root {_netem(spec)}"]))
    for module, tool, lines in needs:
        try:
            batch(tool, lines, "-n", probe)
        except UserError as error:
            return f"network {spec.label} needs the kernel module {module} (modprobe {module}): {error.message}"
    return None


def _join(spec: NetworkSpec, switch: str, hosts: list[str]) -> None:
    """Bring up a bridge and a cable from it to each host."""
    size = f" gso_max_size {_packet_bytes(spec)}" if math.isfinite(spec.bits_s) else ""
    lines = ["link add br0 type bridge stp_state 0 mcast_snooping 0", *_up("br0")]
    for host, name in enumerate(hosts):
        port = f"port{host}"
        lines += [
            f"link add {port}{size} type veth peer name {INTERFACE} netns {name}{size}",
            f"link set {port} master br0",
            *_up(port),
        ]
    batch("ip", lines, "-n", switch)
    for host, name in enumerate(hosts):
        address = f"address add {ADDRESSES[host + 1]}/{ADDRESSES.prefixlen} dev {INTERFACE} noprefixroute"
        batch("ip", ["link set lo up", address, *_up(INTERFACE), _route(INTERFACE)], "-n", name)


def _up(device: str) -> list[str]:
    # The announcements of an IPv6 address would be in the counters of the interface.
    return [f"link set {device} addrgenmode none", f"link set {device} up"]


def _route(device: str) -> str:
    return f"route add {ADDRESSES} dev {device} congctl {CONGESTION_CONTROL}"


def _shape(spec: NetworkSpec, switch: str, hosts: list[str]) -> None:
    """Limit both directions of each cable: what the host sends, and what the switch sends to it."""
    limited = math.isfinite(spec.bits_s)
    sending, where = [], "root"
    if spec.latency_s:  # a packet is delayed once on its way, where it is sent
        sending.append(f"qdisc add dev {INTERFACE} root handle 1: {_netem(spec)}")
        where = "parent 1:1 handle 2:"
    if limited:
        sending.append(f"qdisc add dev {INTERFACE} {where} {_tbf(spec)}")
    for name in hosts if sending else []:
        batch("tc", sending, "-n", name)
    if limited:
        ports = [f"qdisc add dev port{host} root {_tbf(spec)}" for host in range(len(hosts))]
        batch("tc", ports, "-n", switch)


def _packet_bytes(spec: NetworkSpec) -> int:
    return int(min(max(spec.bits_s / 8 * PACKET_S, SMALLEST_PACKET), LARGEST_PACKET))


def _tbf(spec: NetworkSpec) -> str:
    burst = max(_packet_bytes(spec), spec.bits_s / 8 * PACKET_S) * HEADERS
    return f"tbf rate {spec.bits_s:.0f}bit burst {burst:.0f} limit {LIMIT_BYTES}"


def _netem(spec: NetworkSpec) -> str:
    return f"netem delay {spec.latency_s * 1e6:.3f}us limit {LIMIT_PACKETS}"


def namespace(role: str) -> str:
    """Return the name of this process's namespace for `role` (lower-case letters and digits)."""
    return f"harness-{os.getpid()}-{start_time(os.getpid())}-{role}"


@contextmanager
def namespaces(names: Sequence[str]) -> Iterator[None]:
    """Make the namespaces `names`; they and all devices in them are gone when the context is left.

    Raises UserError if one cannot be made.
    """
    try:
        for name in names:
            # One batch does not do: older `ip` stay in the namespace that they made.
            _call(["ip", "netns", "add", name])
        yield
    finally:
        remove_namespaces(names)


def clean_namespaces() -> None:
    """Remove the namespaces of runners that are dead, which were killed before they could do it.

    Without root there is nothing that this process could remove, and nothing is.
    """
    if os.geteuid() == 0:
        remove_namespaces([name for name in _present() if _is_left(name)])


def remove_namespaces(names: Sequence[str]) -> None:
    """Remove those of `names` that exist. Raises UserError if one is still there afterwards."""
    existing = sorted({*names} & _present())
    if not existing:
        return
    with suppress(UserError):  # another runner may remove the same ones at this moment
        batch("ip", [f"netns delete {name}" for name in existing], "-force")
    if left := sorted({*existing} & _present()):
        raise UserError(f"cannot remove network namespace {left[0]}", fix=f"ip netns delete {left[0]}")


def _present() -> set[str]:
    if enter.place() is None:
        return {path.name for path in NAMESPACES.iterdir()} if NAMESPACES.is_dir() else set()
    return {line.split()[0] for line in _call(["ip", "netns", "list"]).splitlines()}  # its /run/netns is another


def batch(tool: str, lines: Sequence[str], *options: str) -> None:
    """Give `lines` to one `ip` or `tc`, which stops at the first that fails.

    Raises UserError whose `key` is that command and whose `message` is what the tool said of it.
    """
    _call([tool, *options, "-batch", "-"], lines)


def _call(command: Sequence[str], lines: Sequence[str] = ()) -> str:
    """Run a command in a session of its own, which keeps a Ctrl-C from ending it half-way; return what it says."""
    text = "".join(f"{line}\n" for line in lines)
    try:
        done = subprocess.run(
            [*enter.command(None), *command],
            input=text,
            capture_output=True,
            text=True,
            pass_fds=enter.passed(),
            start_new_session=True,
        )
    except OSError as error:
        raise UserError(f"cannot run {command[0]}: {error.strerror}", fix="apt install iproute2") from error
    if done.returncode == 0:
        return done.stdout
    said = done.stderr.strip()
    found = _FAILED_LINE.search(said)
    what = " ".join(command[: -2 if lines else None])
    if found is not None:
        what += f" {lines[int(found[1]) - 1]}"
        said = _FAILED_LINE.sub("", said)
    raise UserError(" ".join(said.split()) or f"exit code {done.returncode}", key=f"`{what}`")


def _is_left(name: str) -> bool:
    found = _NAME.fullmatch(name)
    return found is not None and start_time(int(found[1])) != int(found[2])
