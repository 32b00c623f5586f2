"""What the nodes of a run send each other."""

from __future__ import annotations

import hmac
import socket
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from harness.errors import UserError
from harness.launch.coordinator import check_plan
from harness.launch.executors.slurm import first_host
from harness.launch.rendezvous import Peer
from harness.runtime.channel import Channel, Refused, answer

from .target import JSON, Files, Target, as_json

PLAN: dict[str, Any] = {
    "nodes": 2, "versions": {"harness": "1"}, "plugins": {}, "suite": "s", "timeouts": {}, "trials": {"a": "b"},
}  # fmt: skip
SECRET = b"known to both ends"


class RendezvousTarget(Target):
    """What nodes send each other, sealed as by one that knows the secret, and Slurm's lists of nodes."""

    name = "rendezvous"

    def samples(self, folder: Path) -> list[Files]:
        """See `Target`: the bodies of messages."""
        asked = [as_json([operation, "key", value]) for operation, value in (("set", "x"), ("add", 1))]
        return [
            {"plan": as_json(["plan", PLAN]), "asked": asked[0], "hosts": b"node[01-03,7],x"},
            {"plan": as_json(["plan", PLAN]), "asked": asked[1], "hosts": b"a1,b[2-4]c[5,6]"},
        ]

    def prepare(self, folder: Path) -> None:
        """See `Target`."""
        self._values = {path.name: path.read_bytes() for path in folder.iterdir()}

    def read(self, folder: Path) -> object:
        """See `Target`."""
        try:
            answer({}, received(self._values["asked"]).receive())
        except Refused as error:
            raise UserError(str(error), key="asked") from error
        peer = Peer(received(self._values["plan"]))
        peer.listen()  # ends with the connection, or with what is no message
        check_plan(PLAN, peer.get("plan"))
        return first_host(self._values["hosts"].decode("latin1"))

    def named(self, folder: Path) -> str:
        """A message has no file: a line names its key."""
        return ": "

    def strategy(self, files: Files) -> st.SearchStrategy[tuple[str, bytes]]:
        """Any JSON, or none."""
        body = JSON.map(as_json) | st.binary(max_size=50)
        messages = st.tuples(st.sampled_from(["plan", "asked"]), body)
        hosts = st.text("ab[]0123-,", max_size=30).map(lambda text: ("hosts", text.encode()))
        return messages | hosts


def received(body: bytes) -> Channel:
    """Return a channel on which a message with this body arrives, and then the end."""
    near, far = socket.socketpair()
    channel = Channel.__new__(Channel)  # past its handshake
    channel._socket, channel._in, channel._received, channel._deadline = near, SECRET, 0, None
    message = len(body).to_bytes(4, "big") + body
    code = hmac.digest(SECRET, (1).to_bytes(8, "big") + message, "sha256")
    with far:
        far.sendall(message + code)
    return channel
