"""What a stranger reads first: short, and every command and link in it is there."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
import typer

from harness.cli import app
from harness.suite.suite_file import shipped

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    *(f"docs/{name}.md" for name in ("running", "suites", "data", "tuning", "report")),
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs" / "gallery").glob("*.md")),
]
LONGEST = 900  # words


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().split()) <= LONGEST


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_of_pages_outside_the_site_lead_somewhere(page: str) -> None:
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", (ROOT / page).read_text())
    assert links
    assert [link for link in links if "://" not in link and not (ROOT / link).exists()] == []


def commands(page: str) -> list[list[str]]:
    """Return the `harness` commands of a page's code, in words, without their comments."""
    lines = re.findall(r"^    (?:python -m )?harness (.*)$", (ROOT / page).read_text(), re.MULTILINE)
    return [shlex.split(line, comments=True) for line in lines]


@pytest.mark.parametrize("page", PAGES)
def test_its_commands_are_commands(page: str) -> None:
    top = typer.main.get_command(app)
    for words in commands(page):
        command, rest = top, list(words)
        while hasattr(command, "commands"):
            assert rest[0] in command.commands, words
            command = command.commands[rest.pop(0)]
        options = {name for each in command.params for name in (*each.opts, *each.secondary_opts)} | {"--help"}
        assert [word for word in rest if word.startswith("-") and word not in options] == [], words
        if command.params[0].name == "suite" and rest and not rest[0].startswith("-"):
            name = rest[0].removeprefix("suites/").removesuffix(".yaml")
            assert name in {*shipped(), "mine", "example", "FILE", "SUITE"}, words


def test_the_gallery_has_six_short_pages_with_a_small_picture_each() -> None:
    pages = sorted((ROOT / "docs" / "gallery").glob("*.md"))
    listed = re.findall(r"\]\(([\w-]+\.md)\)", (ROOT / "docs" / "gallery" / "index.md").read_text())
    assert len(listed) == 6
    assert sorted([*listed, "index.md"]) == [page.name for page in pages]
    for page in pages:
        text = page.read_text()
        assert len(text.split()) <= 350
        pictures = re.findall(r"!\[[^]]+\]\(([^)]+)\)", text)
        assert len(pictures) == (page.name != "index.md")
        assert all(0 < (page.parent / picture).stat().st_size <= 60_000 for picture in pictures)


def test_the_readmes_commands_are_there() -> None:
    assert {words[0] for words in commands("README.md")} >= {"run", "plan", "new", "check", "tune"}


def test_the_container_takes_the_tested_torch() -> None:
    asked = re.search(r"grep '(\S+)' constraints.txt", (ROOT / "Dockerfile").read_text())
    assert asked is not None
    pins = re.findall(asked.group(1) + ".*", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert [re.fullmatch(r"torch==[\d.]+", pin) is not None for pin in pins] == [True]
    assert "postCreateCommand" in json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
