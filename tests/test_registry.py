"""Methods that are not installed, and installed ones that do not work: each breaks nothing but itself."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from harness.errors import UserError
from harness.registry import find_plugins, sha256_of
from harness.runtime.method import METHODS
from harness.spec import PluginSource

HEAD = """\
from __future__ import annotations
from pydantic import Field
from harness import Method, MethodOptions
"""
MINE = (
    HEAD
    + """
class MineOptions(MethodOptions):
    rate: float = Field(0.5, description="a share")


class Mine(Method[MineOptions]):
    '''Does nothing.'''

    name = "mine"
    family = "full-graph"
    Options = MineOptions

    def steps(self, epoch):
        yield from ()
"""
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    return path


def test_a_file_is_found_beside_the_suite_and_loaded_from_where_it_was(file: Path) -> None:
    plugins = find_plugins(["mine.py"], file.parent)
    assert plugins.keys() == {("method", "mine")}
    found = METHODS.find("mine", plugins)
    assert found.value.Options(rate=1).rate == 1
    assert found.source.file == file
    assert found.source.module is None
    assert METHODS.load("mine", found.source) is found.value
    assert not (file.parent / "__pycache__").exists()


def test_an_edit_is_another_plugin_and_not_what_was_asked_for(file: Path) -> None:
    before = find_plugins([str(file)])["method", "mine"]
    file.write_text(MINE.replace("0.5", "0.7"))  # as long as before, in the same second
    after = find_plugins([str(file)])["method", "mine"]
    assert before.sha256 != after.sha256
    rates = [METHODS.load("mine", source).Options().rate for source in (before, after)]
    assert rates == [0.5, 0.7]
    file.write_text(MINE.replace("0.5", "0.9"))
    for name in [name for name in sys.modules if name.startswith("harness_plugin_")]:
        del sys.modules[name]  # as in a rank, which is another process
    with pytest.raises(UserError, match=f"^{file}: changed since the run began"):
        METHODS.load("mine", after)


def test_a_module_is_a_plugin_too(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (file.parent / "own_plugin.py").write_text(MINE)
    monkeypatch.syspath_prepend(file.parent)
    source = find_plugins(["own_plugin"])["method", "mine"]
    assert (source.module, source.cls, source.file.name) == ("own_plugin", "Mine", "own_plugin.py")
    assert METHODS.find("own_plugin:Mine").source == source
    (file.parent / "own_plugin.py").write_text(MINE + "\n")
    with pytest.raises(UserError, match="changed since the run began"):
        METHODS.load("mine", source)


def test_a_module_that_does_not_import_names_its_line(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = file.parent / "broken_plugin.py"
    broken.write_text("def stop():\n    raise RuntimeError('early')\n\n\nstop()\n")
    monkeypatch.syspath_prepend(file.parent)
    with pytest.raises(UserError) as error:
        find_plugins(["broken_plugin"])
    assert str(error.value) == f"{broken}:2: module 'broken_plugin' does not import: RuntimeError: early"
    with pytest.raises(UserError) as error:
        METHODS.find("broken_plugin:Mine")
    what = "method 'broken_plugin:Mine' does not import: RuntimeError: early (check broken_plugin:Mine)"
    assert str(error.value) == f"{broken}:2: {what}"


def test_what_a_record_names_is_not_run(file: Path) -> None:
    file.write_text(MINE + "\nraise AssertionError('was run')\n")
    source = PluginSource(file=file, module=None, cls="Mine", sha256=sha256_of(file))
    assert METHODS.loaded("mine", source) is None
    assert METHODS.loaded("this:Zen") is None
    assert "this" not in sys.modules
    assert METHODS.loaded("full") is METHODS.load("full")


def test_what_an_import_does_to_the_process_is_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks of other methods would inherit it; a rank of its own keeps it."""
    file = tmp_path / "mine.py"
    odd = (
        "import os, signal\nos.environ['ATEN_CPU_CAPABILITY'] = 'default'\ndel os.environ['HARNESS_ODD']\n"
        "os.chdir('/')\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    )
    file.write_text(HEAD + odd + MINE.removeprefix(HEAD))
    monkeypatch.setenv("HARNESS_ODD", "1")
    monkeypatch.chdir(tmp_path)
    before = dict(os.environ), Path.cwd(), signal.getsignal(signal.SIGTERM)
    find_plugins([str(file)])
    assert (dict(os.environ), Path.cwd(), signal.getsignal(signal.SIGTERM)) == before


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "{file}: cannot be read: No such file or directory"),
        ("def broken(:\n", "{file}:1: does not import: SyntaxError: invalid syntax"),
        ("\nimport sys\nsys.exit(3)\n", "{file}:3: does not import: SystemExit: 3"),
        ("\nraise GeneratorExit('early')\n", "{file}:2: does not import: GeneratorExit: early"),
        ("class Odd(BaseException):\n    __str__ = None\nraise Odd\n", "{file}:3: does not import: Odd: its text"),
        ("\nimport no_such\n", "{file}:2: does not import: ModuleNotFoundError: No module named 'no_such'"),
        (HEAD, "{file}: has nothing that could be named (define a subclass of harness.Method, or of"),
        (
            "from harness_methods.full import Full\n",
            "{file}: has nothing that could be named (define a subclass of harness.Method",
        ),
        (MINE.replace("steps", "step"), "'{file}: Mine' has no steps (define it in the class)"),
        (MINE.replace("full-graph", "graph"), "'{file}: Mine' has no family (write `family = 'full-graph'`"),
        (MINE.replace("Options = MineOptions", "Options = dict"), "'{file}: Mine' has wrong Options (make"),
        (MINE.replace('"mine"', '"<b>"'), "{file}: bad name '<b>' of Mine (letters, digits, '.', '_' or '-'"),
        (MINE.replace('"mine"', '"full"'), "{file}: method 'full' is installed already (give it another"),
        (MINE + "class Other(Mine):\n    name = 'mine'\n", "{file}: Mine and Other are both named 'mine' ("),
    ],
)  # fmt: skip
def test_a_bad_plugin_is_one_line(tmp_path: Path, text: str | None, message: str) -> None:
    file = tmp_path / "plugin.py"
    if text is not None:
        file.write_text(text)
    with pytest.raises(UserError) as error:
        find_plugins([str(file)])
    assert str(error.value).startswith(message.format(file=file))
    assert "\n" not in str(error.value)


def test_two_plugins_of_one_name(file: Path) -> None:
    (other := file.with_name("other.py")).write_text(MINE)
    with pytest.raises(UserError, match=f"^{other}: method 'mine' is in {file} too"):
        find_plugins(["mine.py", "other.py"], file.parent)
    assert find_plugins(["mine.py", "mine.py"], file.parent).keys() == {("method", "mine")}


def install(directory: Path, package: str, **points: str) -> None:
    """Make what `pip install` leaves of a package that offers methods."""
    info = directory / f"{package}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    lines = [f"{name} = {value}\n" for name, value in points.items()]
    (info / "entry_points.txt").write_text("[harness.methods]\n" + "".join(lines))


def test_installed_packages_break_nothing_but_themselves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "installed_mine.py").write_text(MINE)
    (tmp_path / "installed_bad.py").write_text("import sys\nsys.exit('broken on purpose')\n")
    install(tmp_path, "aaa", mine="installed_mine:Mine", full="installed_mine:Mine")
    install(tmp_path, "zzz", mine="installed_bad:Mine", bad="installed_bad:Bad", absent="installed_mine:No")
    monkeypatch.syspath_prepend(tmp_path)
    assert {"mine", "bad", "absent", "full"} <= set(METHODS.names())
    assert METHODS.load("full").__module__ == "harness_methods.full"
    assert METHODS.find("full").source is None
    mine = METHODS.find("mine")
    assert (mine.source.module, mine.source.file) == ("installed_mine", tmp_path / "installed_mine.py")
    assert METHODS.hidden() == [
        "full of package aaa: package gnn-harness has a method of that name",
        "mine of package zzz: package aaa has a method of that name",
    ]
    with pytest.raises(UserError, match="method 'bad' does not import: SystemExit: broken on purpose"):
        METHODS.load("bad")
    with pytest.raises(UserError, match=r"method 'absent' does not import: AttributeError: .*'No'"):
        METHODS.load("absent")
    # The same file by the option: what one does who has installed it, editable.
    assert find_plugins([str(tmp_path / "installed_mine.py")]).keys() == {("method", "mine")}


def test_a_file_in_place_of_a_name_is_told_how_to_be_named() -> None:
    with pytest.raises(UserError, match=r"unknown method 'mine\.py' \(its name, and the file by --plugin mine\.py\)"):
        METHODS.load("mine.py")
