"""A Slurm of this machine alone: munged, slurmctld and two slurmd, each a node, with a configuration of their own."""

from __future__ import annotations

import getpass
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"  # daemons are not on everybody's
NEEDED = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol", "scancel", "sinfo", "srun")
HOST = socket.gethostname().partition(".")[0]
NODES = (HOST, "zz-second")  # in order; nodes meet at the name of the first
CONF = """\
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={home}/munge.sock,cred_expire=10
StateSaveLocation={home}/state
SlurmctldPidFile={home}/slurmctld.pid
SlurmdPidFile={home}/slurmd.%n.pid
SlurmdSpoolDir={home}/spool.%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=1,bf_interval=1
MpiDefault=none
ReturnToService=2
KillWait=10
NodeName={host} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=4 RealMemory=4000
NodeName=zz-second NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=4 RealMemory=3000
PartitionName=cpu Nodes=ALL Default=YES MaxTime=600 State=UP
PartitionName=small Nodes=zz-second MaxTime=600 State=UP
"""


def missing() -> str | None:
    """Return what this machine lacks for a Slurm, or None."""
    lacking = [name for name in NEEDED if shutil.which(name, path=PATH) is None]
    return f"no {', '.join(lacking)} (Debian: slurm-wlm, munge)" if lacking else None


class OwnSlurm:
    """A running Slurm; `env` is the environment that its commands need."""

    def __init__(self) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="slurm-"))  # short: a socket's path has a limit
        self.env = {**os.environ, "PATH": PATH, "SLURM_CONF": str(self.home / "slurm.conf")}
        self._daemons: list[subprocess.Popen[bytes]] = []
        try:
            self._start()
        except BaseException:
            self.stop()
            raise

    def run(self, *command: str) -> str:
        """Return what a command of Slurm prints; it must succeed."""
        done = subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def logs(self) -> str:
        """Return the ends of the daemons' logs."""
        paths = sorted(self.home.glob("*.log"))
        return "".join(f"==== {path.name} ====\n{path.read_text(errors='replace')[-4000:]}" for path in paths)

    def stop(self) -> None:
        """Cancel jobs, wait for their end, end the daemons."""
        try:
            if len(self._daemons) == 4:
                self.run("scancel", f"--user={os.getuid()}")
                _until(lambda: not self.run("squeue", "--noheader").strip(), 40, self)
        finally:
            for daemon in reversed(self._daemons):
                daemon.terminate()
                try:
                    daemon.wait(10)
                except subprocess.TimeoutExpired:
                    daemon.kill()
                    daemon.wait()
            shutil.rmtree(self.home, ignore_errors=True)

    def _start(self) -> None:
        (self.home / "state").mkdir()
        key = self.home / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        text = CONF.format(home=self.home, host=HOST, user=getpass.getuser(), ports=_free_ports(3))
        (self.home / "slurm.conf").write_text(text)
        named = [f"--{name}={self.home}/munge.{end}" for name, end in MUNGE.items()]
        self._daemon("munged", "--foreground", "--force", *named)
        _until((self.home / "munge.sock").exists, 20, self)
        self._daemon("slurmctld", "-D")
        for node in NODES:
            self._daemon("slurmd", "-D", "-N", node)
        _until(lambda: self._idle() == len(NODES), 60, self)

    def _idle(self) -> int:
        done = subprocess.run(
            ["sinfo", "--noheader", "--Node", "--partition=cpu", "--format=%T"],
            env=self.env,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return done.stdout.split().count("idle")

    def _daemon(self, name: str, *options: str) -> None:
        log = self.home / f"{name}.{len(self._daemons)}.log"
        with log.open("wb") as stream:
            command = [str(shutil.which(name, path=PATH)), *options]
            self._daemons.append(subprocess.Popen(command, env=self.env, stdout=stream, stderr=stream))


MUNGE = {"key-file": "key", "socket": "sock", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}


def _until(true: object, limit_s: float, slurm: OwnSlurm) -> None:
    deadline = time.monotonic() + limit_s
    while not true():  # type: ignore[operator]
        assert time.monotonic() < deadline, slurm.logs()
        time.sleep(0.1)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
