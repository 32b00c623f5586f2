"""Whose a command is that root starts, and what it may still do."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.somebody import python_of

from harness.cli import main
from harness.errors import UserError
from harness.launch import enter
from harness.launch import privileges as module
from harness.launch.network import batch, namespace, namespaces
from harness.launch.privileges import chosen, give_up_root

NOBODY = pwd.getpwnam("nobody")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give it up")
pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, None),
        ({"HARNESS_USER": ""}, None),
        ({"HARNESS_USER": "root", "SUDO_UID": "1000"}, None),
        ({"HARNESS_USER": "0", "SUDO_UID": "1000"}, None),
        ({"SUDO_UID": "0", "SUDO_GID": "0"}, None),
        ({"HARNESS_USER": "nobody", "SUDO_UID": "0"}, (NOBODY.pw_uid, NOBODY.pw_gid)),
        ({"HARNESS_USER": str(NOBODY.pw_uid)}, (NOBODY.pw_uid, NOBODY.pw_gid)),
        ({"SUDO_UID": str(NOBODY.pw_uid), "SUDO_GID": "54321"}, (NOBODY.pw_uid, 54321)),
        ({"HARNESS_USER": "54321"}, (54321, 54321)),  # a container's user, whom no file names
        ({"SUDO_UID": "54321", "SUDO_GID": "12345"}, (54321, 12345)),
    ],
)
def test_whose_it_is(environ: dict[str, str], expected: tuple[int, int] | None) -> None:
    user = chosen(environ, 0)
    assert (None if user is None else (user.uid, user.gid)) == expected
    assert user is None or user.gid in user.groups
    assert chosen(environ, 1000) is None  # who is not root has nothing to give up


@pytest.mark.parametrize("name", ["no-such-user", "-1", "4294967295", "4294967296", "9" * 20, "\u0663", "a b", "0x0"])
def test_nobody_by_that_name(name: str) -> None:
    with pytest.raises(UserError, match=r"^HARNESS_USER: there is no user .* \(name one, or root\)$"):
        chosen({"HARNESS_USER": name}, 0)


def apart(what: Callable[[], None]) -> tuple[int, str]:
    """Run it in a child, which may become somebody else; return its exit code, and what it and its kind wrote."""
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        code = 99
        try:
            os.dup2(write, 1)
            os.dup2(write, 2)
            sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))
            what()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        except BaseException as error:
            print(repr(error))
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    os.close(write)
    with open(read) as stream:
        said = stream.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), said


def as_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARNESS_USER", "nobody")
    monkeypatch.setattr(module, "_why_not_run", lambda user: None)
    monkeypatch.setattr(module, "keep_kernels_where_one_can_write", lambda: None)


def status() -> dict[str, str]:
    return dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":\t" in line)


@needs_root
def test_it_is_given_up_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    as_nobody(monkeypatch)
    home = pwd.getpwuid(0).pw_dir
    monkeypatch.setenv("HOME", home)
    monkeypatch.setenv("XDG_CACHE_HOME", f"{home}/.cache")
    monkeypatch.setenv("XDG_DATA_HOME", "/srv/data")

    def tried() -> None:
        give_up_root()
        for become in (os.setuid, os.seteuid, os.setgid, os.setegid):
            with pytest.raises(PermissionError):
                become(0)
        with pytest.raises(PermissionError):
            os.setresuid(0, 0, 0)
        with pytest.raises(PermissionError):
            Path("/etc/shadow").read_bytes()
        found = status()
        assert set(found["Uid"].split()) == {str(NOBODY.pw_uid)}
        assert set(found["Gid"].split()) == {str(NOBODY.pw_gid)}
        assert {int(found[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {0}
        assert found["NoNewPrivs"] == "1"
        assert Path("/proc/self/pagemap").stat().st_uid == NOBODY.pw_uid  # what is measured is read there
        assert (os.environ["HOME"], os.environ["USER"]) == (NOBODY.pw_dir, "nobody")
        assert ("XDG_CACHE_HOME" in os.environ, os.environ["XDG_DATA_HOME"]) == (False, "/srv/data")

    assert apart(tried) == (0, "")


@needs_root
def test_programs_that_make_root_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `sudo` would, which may remember the terminal: a copy of `id` that is setuid to root."""
    as_nobody(monkeypatch)
    program = Path("/tmp", f"harness-test-{os.getpid()}-id")
    program.write_bytes(Path("/usr/bin/id").read_bytes())
    program.chmod(0o4755)
    try:
        plain = subprocess.run([program, "-u"], user="nobody", capture_output=True, text=True).stdout
        if plain.strip() != "0":
            pytest.skip("/tmp ignores setuid")

        def tried() -> None:
            give_up_root()
            subprocess.run([program, "-u"], check=True)

        assert apart(tried) == (0, f"{NOBODY.pw_uid}\n")
    finally:
        program.unlink()


@needs_root
def test_who_cannot_run_it_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.symlink_to(sys.executable)
    tmp_path.chmod(0o700)
    monkeypatch.setenv("HARNESS_USER", "nobody")
    monkeypatch.setattr(module.sys, "executable", str(python))

    def tried() -> None:
        give_up_root()
        assert os.getresuid() == (0, 0, 0)

    code, said = apart(tried)
    assert code == 0
    assert said == (
        f"note: all of this runs as root, ranks too: nobody cannot run harness: {python}: Permission denied "
        "(install harness where nobody can read it)\n"
    )


@needs_root
def test_a_kernel_without_user_namespaces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Root is given up all the same; networks are what there is not."""
    as_nobody(monkeypatch)
    monkeypatch.setattr(module, "NEWUSER", 1 << 3)  # the kernel knows no such namespace

    def tried() -> None:
        give_up_root()
        assert set(os.getresuid()) == {NOBODY.pw_uid}
        assert enter.place() is None
        assert enter.command("x") == ("ip", "netns", "exec", "x")

    code, said = apart(tried)
    assert code == 0, said
    assert said == (
        "note: no shaped networks for nobody, which need user namespaces: unshare: Invalid argument "
        "(sysctl user.max_user_namespaces; HARNESS_USER=root runs all of it as root, ranks too)\n"
    )


@needs_root
def test_the_command_line_of_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["harness", "--version"])
    monkeypatch.setenv("HARNESS_USER", "no-such-user")
    assert apart(main) == (2, "error: HARNESS_USER: there is no user 'no-such-user' (name one, or root)\n")
    code, said = apart(lambda: main(["--version"]))  # somebody's program that calls it stays who it is
    assert (code, said.split()[0]) == (0, "harness")


def said_by(command: list[str], place: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, pass_fds=(place,), capture_output=True, text=True)


@pytest.mark.root
def test_networks_of_the_users_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody who is not root any more makes networks, in a place where nothing else is theirs."""
    as_nobody(monkeypatch)
    monkeypatch.setattr(sys, "executable", python_of(NOBODY, "import ctypes, fcntl", {}))
    before = set(os.listdir("/run/netns"))

    def tried() -> None:
        give_up_root()
        name, own = namespace("own"), enter.place()
        assert own is not None
        with namespaces([name]):
            assert set(os.listdir("/run/netns")) == before  # not the machine's
            batch("ip", ["link set lo up", "link add cable type veth"], "-n", name)
            batch("tc", ["qdisc add dev cable root tbf rate 1gbit burst 30000 limit 100000"], "-n", name)
            script = "cat /proc/net/dev; ls /sys/class/net; grep -E 'Uid|CapPrm|CapEff|CapAmb' /proc/self/status; pwd"
            ran = said_by([*enter.command(name), "sh", "-c", script], own)
            assert ran.returncode == 0, ran.stderr
            assert "cable:" in ran.stdout  # of /proc
            assert "cable\n" in ran.stdout  # of /sys
            *_, uid, permitted, effective, ambient, directory = ran.stdout.splitlines()
            assert set(uid.split()[1:]) == {str(NOBODY.pw_uid)}
            assert {int(line.split()[1], 16) for line in (permitted, effective, ambient)} == {0}
            assert directory == os.getcwd()
        gone = said_by([*enter.command(name), "true"], own)
        assert (gone.returncode, gone.stderr) == (1, "true: No such file or directory\n")

    assert apart(tried) == (0, "")
    assert set(os.listdir("/run/netns")) == before


@pytest.mark.root
def test_nothing_of_roots_in_that_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """With all capabilities there, a hostile process reaches neither root's files nor the machine's network."""
    as_nobody(monkeypatch)

    def tried() -> None:
        give_up_root()
        own = enter.place()
        assert own is not None
        enter._join(own)
        assert int(status()["CapEff"], 16) != 0
        for refused in (
            lambda: os.setuid(0),
            lambda: Path("/etc/shadow").read_bytes(),
            lambda: os.chown("/etc/passwd", NOBODY.pw_uid, -1),
            lambda: os.kill(os.getppid(), 0),
        ):
            with pytest.raises(OSError, match=r"Operation not permitted|Permission denied|Invalid argument"):
                refused()
        device = subprocess.run(["ip", "link", "add", "harnesstest", "type", "dummy"], capture_output=True)
        assert device.returncode != 0

    assert apart(tried) == (0, "")


def test_a_number_that_means_another_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A job inherits variables, and not the descriptor."""
    with (tmp_path / "x").open("w") as stream:
        for text in (str(stream.fileno()), "987", "", "x", "-1"):
            monkeypatch.setenv(enter.PLACE, text)
            assert enter.place() is None
            assert enter.passed() == enter.command(None) == ()
