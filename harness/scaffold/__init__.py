"""What `harness new` writes, from templates: a package for a method of one's own, a suite."""

from __future__ import annotations

import ast
import importlib.util
import keyword
import re
import tempfile
from importlib import resources
from pathlib import Path

from harness.errors import UserError
from harness.runtime.method import METHODS, Family
from harness.suite.schema import PLAIN_NAME

NAME = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*")
LONGEST = 50


def new_method(name: str, family: Family, directory: Path) -> list[Path]:
    """Write the package `name` into `directory`, whole or not at all, and return its files.

    Raises:
        UserError: a name that is none or is taken, a directory that is there already or cannot be written to.
    """
    module, template = _module_of(name), f"{family.replace('-', '_')}.py"
    cls = "".join(part.capitalize() for part in module.split("_"))
    _check_class(cls, template)
    words = {"new-method": name, "new_method": module, "NewMethod": cls}
    pattern = re.compile("|".join(words))
    templates = {f"{module}.py": template, f"tests/test_{module}.py": "test_method.py"}
    templates |= {file: file for file in ("pyproject.toml", "README.md")}
    files = {path: pattern.sub(lambda found: words[found.group()], _text(own)) for path, own in templates.items()}
    home = directory / name
    if home.exists() or home.is_symlink():
        raise UserError("is there already", file=home, fix="choose another name, or another --dir")
    try:
        with tempfile.TemporaryDirectory(dir=directory, prefix=f".{name}-") as work:
            built = Path(work) / name
            for path, text in files.items():
                (built / path).parent.mkdir(parents=True, exist_ok=True)
                (built / path).write_text(text, encoding="utf-8")
            built.rename(home)
    except OSError as error:
        what = f"cannot write there: {error.strerror}"
        raise UserError(what, file=directory, key="--dir", fix="name another directory") from error
    return [home / path for path in files]


def new_suite(name: str, directory: Path) -> Path:
    """Write the suite `name` as NAME.yaml into `directory`, and return the file.

    Raises:
        UserError: a name that cannot be a suite's, a file that is there already, a directory that cannot be written to.
    """
    if not re.fullmatch(PLAIN_NAME, name) or len(name) > LONGEST:
        fix = f"letters, digits, '-', '_' and '.', at most {LONGEST}: my-suite"
        raise UserError(f"bad name {name!r}", key="NAME", fix=fix)
    file = directory / f"{name}.yaml"
    text = _text("suite.yaml").replace("new-suite", name)
    try:
        with file.open("x", encoding="utf-8") as out:
            out.write(text)
    except FileExistsError as error:
        raise UserError("is there already", file=file, fix="choose another name, or another --dir") from error
    except OSError as error:
        what = f"cannot write there: {error.strerror}"
        raise UserError(what, file=directory, key="--dir", fix="name another directory") from error
    return file


def _module_of(name: str) -> str:
    """Return the module that a method's name becomes; UserError if it cannot be one."""
    if not NAME.fullmatch(name) or len(name) > LONGEST:
        fix = f"small letters and digits, '-' between words, a letter first, at most {LONGEST}: my-method"
        raise UserError(f"bad name {name!r}", fix=fix)
    if name in METHODS.names():
        raise UserError(f"method '{name}' is installed already", fix="choose another name")
    module = name.replace("-", "_")
    if keyword.iskeyword(module) or importlib.util.find_spec(module) is not None:
        raise UserError(f"'{module}' is a module of Python or of a package", fix="choose another name")
    return module


def _check_class(cls: str, template: str) -> None:
    """Refuse a class's name that the template's own code uses for something else."""
    nodes = ast.walk(ast.parse(_text(template)))
    taken = {alias.name for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names}
    if clash := {cls, f"{cls}Options", f"{cls}Sampler"} & taken:
        what = f"its class would be called {clash.pop()}, as one that it needs"
        raise UserError(what, fix="choose another name")


def _text(template: str) -> str:
    return (resources.files("harness.scaffold") / "templates" / template).read_text(encoding="utf-8")
