"""A network between the ranks of a group on this machine, as slow as the suite says.

Every host is a network namespace with one end of a veth pair; a further one, the switch, holds the other ends
and the bridge that joins them. The machine's own network is not touched. See docs/design/networks.md.
"""

from __future__ import annotations

import ipaddress
import math
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from harness.errors import UserError
from harness.launch.namespaces import batch, inside, namespace, namespaces
from harness.launch.place import Place, local_places
from harness.suite.network import NetworkSpec

INTERFACE = "eth0"
ADDRESSES = ipaddress.ip_network("198.18.0.0/15")  # RFC 2544: for benchmarks, routed nowhere

BURST_BYTES = 80_000
BURST_S = 0.0005
LIMIT_BYTES = 2**30
LIMIT_PACKETS = 2**20


@contextmanager
def network(spec: NetworkSpec | None, world: int) -> Iterator[list[Place]]:
    """Yield the places of `world` ranks on the network `spec` (None: the loopback), for as long as the context.

    Ranks fill hosts in their order. `local_rank` counts all of them: whatever host they play, they share this
    machine's processors. Raises UserError that names the command if one fails; ask `why_not` first.
    """
    if spec is None:
        yield local_places(world)
        return
    hosts = [namespace(f"h{host}") for host in range(math.ceil(world / spec.ranks_per_host))]
    switch = namespace("switch")
    with namespaces([switch, *hosts]):
        _join(switch, hosts)
        _shape(spec, switch, hosts)
        yield [
            Place(rank, rank, world, world, INTERFACE, inside(hosts[rank // spec.ranks_per_host]))
            for rank in range(world)
        ]


def why_not(spec: NetworkSpec) -> str | None:
    """Return why this machine cannot play the network `spec`, and what would help; None if it can.

    What the kernel has is found out in a namespace that is removed at once.
    """
    if missing := [tool for tool in ("ip", "tc") if shutil.which(tool) is None]:
        return f"network {spec.label} needs {' and '.join(missing)} (apt install iproute2)"
    if os.geteuid() != 0:
        return f"network {spec.label} needs root, for network namespaces (run as root)"
    probe = namespace("probe")
    try:
        with namespaces([probe]):
            return _kernel_lacks(spec, probe)
    except UserError as error:
        return f"network {spec.label} needs network namespaces: {error} (in a container: --privileged)"


def _kernel_lacks(spec: NetworkSpec, probe: str) -> str | None:
    needs = [("bridge", "ip", "link add probe type bridge"), ("veth", "ip", "link add cable type veth")]
    if math.isfinite(spec.bits_s):
        needs.append(("sch_tbf", "tc", f"qdisc add dev cable root {_tbf(spec)}"))
    if spec.latency_s:
        needs.append(("sch_netem", "tc", f"qdisc add dev lo root {_netem(spec)}"))
    for module, tool, line in needs:
        try:
            batch(tool, [line], "-n", probe)
        except UserError as error:
            return (
                f"network {spec.label} needs the kernel module {module} (modprobe {module}): {error.message}"
            )
    return None


def _join(switch: str, hosts: list[str]) -> None:
    """Bring up a bridge and a cable from it to each host."""
    lines = ["link add br0 type bridge stp_state 0 mcast_snooping 0", *_up("br0")]
    for host, name in enumerate(hosts):
        port = f"port{host}"
        lines += [
            f"link add {port} type veth peer name {INTERFACE} netns {name}",
            f"link set {port} master br0",
            *_up(port),
        ]
    batch("ip", lines, "-n", switch)
    for host, name in enumerate(hosts):
        address = f"address add {ADDRESSES[host + 1]}/{ADDRESSES.prefixlen} dev {INTERFACE}"
        batch("ip", ["link set lo up", address, *_up(INTERFACE)], "-n", name)


def _up(device: str) -> list[str]:
    # No IPv6 address: its announcements would be in the counters of the interface.
    return [f"link set {device} addrgenmode none", f"link set {device} up"]


def _shape(spec: NetworkSpec, switch: str, hosts: list[str]) -> None:
    """Limit both directions of each cable: what the host sends, and what the switch sends to it."""
    for name in hosts:
        if lines := _sending(spec):
            batch("tc", lines, "-n", name)
    if math.isfinite(spec.bits_s):
        ports = [f"qdisc add dev port{host} root {_tbf(spec)}" for host in range(len(hosts))]
        batch("tc", ports, "-n", switch)


def _sending(spec: NetworkSpec) -> list[str]:
    """Return what delays and limits what a host sends; a packet is delayed once on its way, here."""
    add = f"qdisc add dev {INTERFACE}"
    if not spec.latency_s:
        return [f"{add} root {_tbf(spec)}"] if math.isfinite(spec.bits_s) else []
    lines = [f"{add} root handle 1: {_netem(spec)}"]
    return [*lines, f"{add} parent 1:1 handle 2: {_tbf(spec)}"] if math.isfinite(spec.bits_s) else lines


def _tbf(spec: NetworkSpec) -> str:
    burst = max(BURST_BYTES, math.ceil(spec.bits_s / 8 * BURST_S))
    return f"tbf rate {spec.bits_s:.0f}bit burst {burst} limit {LIMIT_BYTES}"


def _netem(spec: NetworkSpec) -> str:
    return f"netem delay {spec.latency_s * 1e6:.3f}us limit {LIMIT_PACKETS}"
