"""The page of commands: the help of each, as it is printed."""

from __future__ import annotations

import typer
from typer.testing import CliRunner

from harness.cli import app
from harness.reference.markdown import GENERATED

WIDTH = 110  # columns


def commands_page() -> str:
    """Return the help of every command."""
    sections = [f"## harness {' '.join(words)}\n\n```text\n{_help(words)}\n```\n" for words in _commands(app)]
    return "\n".join([f"{GENERATED}\n# Commands\n", *sections])


def _commands(group: typer.Typer) -> list[tuple[str, ...]]:
    """Return the words of every command of a group and of those in it."""
    own = [(_name(command),) for command in group.registered_commands]
    nested = [
        (str(inner.name), *words)
        for inner in group.registered_groups
        if inner.typer_instance
        for words in _commands(inner.typer_instance)
    ]
    return [*own, *nested]


def _name(command: typer.models.CommandInfo) -> str:
    assert command.callback is not None
    return command.name or command.callback.__name__.replace("_", "-")


def _help(words: tuple[str, ...]) -> str:
    printed = CliRunner().invoke(
        app,
        [*words, "--help"],
        terminal_width=WIDTH,
        prog_name="harness",
        env={"COLUMNS": str(WIDTH), "NO_COLOR": "1", "HARNESS_DATA": None},
    )
    return "\n".join(line.rstrip() for line in printed.output.strip().splitlines())
