"""`harness` as it is run by root for somebody else, in a place that is theirs."""

from __future__ import annotations

import pwd
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from e2e.cli import CommandLine

SOMEBODY = "nobody"
# Another interpreter then finds what this one has: editable installs are found by files that PYTHONPATH does not read.
SITE = "import site\nsite.addsitedir({!r})\n"


@contextmanager
def somebody() -> Iterator[tuple[CommandLine, pwd.struct_passwd]]:
    """Yield the command line, run by root for somebody else, and who that is; skips where nobody else can run it."""
    user = pwd.getpwnam(SOMEBODY)
    place = Path(tempfile.mkdtemp(prefix="harness-test-"))
    try:
        for made in (place, place / "cache"):
            made.mkdir(exist_ok=True)
            shutil.chown(made, user.pw_uid, user.pw_gid)
        place.chmod(0o755)
        site = place / "site"
        site.mkdir(mode=0o755)
        (site / "sitecustomize.py").write_text(SITE.format(sysconfig.get_path("purelib")))
        variables = {"HARNESS_USER": SOMEBODY, "PYTHONPATH": str(site), "HARNESS_LOCKS": str(place / "locks")}
        python = python_of(user, "import harness.cli, torch, harness_methods", variables)
        yield CommandLine(place, place / "cache", variables, (python, "-P", "-m", "harness"), command=None), user
    finally:
        shutil.rmtree(place, ignore_errors=True)


def python_of(user: pwd.struct_passwd, code: str, variables: Mapping[str, str]) -> str:
    """Return an interpreter of this version with which `user` can run `code`; skips where there is none."""
    said = []
    for python in (sys.executable, f"/usr/bin/python{sys.version_info[0]}.{sys.version_info[1]}"):
        options = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": (), "env": {**variables}}
        try:
            subprocess.run([python, "-P", "-c", code], check=True, capture_output=True, text=True, **options)
        except OSError as error:
            said.append(f"{python}: {error.strerror}")
        except subprocess.CalledProcessError as error:
            said.append(f"{python}: {error.stderr.strip().splitlines()[-1]}")
        else:
            return python
    pytest.skip(f"{user.pw_name} cannot run python here: {'; '.join(said)}")
