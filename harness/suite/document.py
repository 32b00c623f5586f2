"""Safe reading of small YAML documents in which every key and item knows its line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import yaml

from harness.errors import UserError
from harness.suite.source import KeyPath, dotted, gather

MAX_BYTES = 1 << 20
MAX_DEPTH = 20
MAX_VALUES = 50_000  # after aliases are written out: what stops a "billion laughs"


class _Loader(yaml.SafeLoader):
    """YAML's core schema: `1e-3` is a number, `yes` and `off` are words; tags build nothing."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 (PyYAML's)
    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Compose one node; refuse deep nesting before it costs memory or the stack."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(problem=f"nested deeper than {MAX_DEPTH} levels", problem_mark=mark)
        node: yaml.Node | None = super().compose_node(parent, index)
        self.depth -= 1
        return node


for _tag, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?(0|[1-9][0-9]*)", list("-+0123456789")),
    (
        "float",
        r"[-+]?(\.[0-9]+|[0-9]+\.[0-9]*)([eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+"
        r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), _first)


@dataclass
class Document:
    """Plain values (dict, list, str, int, float, bool, None) and the line, from 1, of every key path."""

    name: str
    data: Any = None
    lines: dict[KeyPath, int] = field(default_factory=dict)
    errors: list[UserError] = field(default_factory=list)
    values: int = 0

    def error(self, node: yaml.Node, path: KeyPath, message: str, fix: str | None = None) -> UserError:
        """Return an error that points at a node."""
        line = node.start_mark.line + 1
        return UserError(message, file=self.name, line=line, key=dotted(path) or None, fix=fix)


def parse(text: str, name: str) -> Document:
    """Parse one YAML document.

    Args:
        text: the document.
        name: what messages call it.

    Raises:
        UserError: syntax, duplicate keys, tags, reference cycles, more than the limits above; a line each.
    """
    if len(text) > MAX_BYTES:
        raise UserError(f"larger than {MAX_BYTES >> 20} MiB", file=name, fix="a suite is a small file")
    document = Document(name)
    with _one_line(name):
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is not None:
            document.data = _build(loader, node, (), document, ())
    if document.errors:
        raise gather(document.errors)
    return document


@contextmanager
def _one_line(name: str) -> Iterator[None]:
    """Turn PyYAML's errors, which are several lines, into a UserError of one."""
    try:
        yield
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        said = ", ".join(part for part in (error.context, error.problem) if part)
        raise UserError(said.replace("\n", " "), file=name, line=mark.line + 1 if mark else None) from error
    except yaml.reader.ReaderError as error:
        raise UserError(f"not YAML: {error.reason} (position {error.position})", file=name) from error
    except (ValueError, OverflowError) as error:  # a number too long for Python to read
        raise UserError(f"not YAML: {error}".splitlines()[0], file=name) from error


def _build(loader: _Loader, node: yaml.Node, path: KeyPath, doc: Document, above: tuple[int, ...]) -> Any:
    """Turn a node into plain values, noting lines."""
    doc.values += 1
    if doc.values > MAX_VALUES:
        raise doc.error(node, (), f"more than {MAX_VALUES} values, aliases written out")
    if id(node) in above:
        raise doc.error(node, path, "refers to itself", fix="remove the alias")
    if len(above) > MAX_DEPTH:
        raise doc.error(node, (), f"nested deeper than {MAX_DEPTH} levels, aliases written out")
    inside = (*above, id(node))
    if isinstance(node, yaml.MappingNode):
        _check_tag(node, "map", path, doc)
        return _mapping(loader, node, path, doc, inside)
    if isinstance(node, yaml.SequenceNode):
        _check_tag(node, "seq", path, doc)
        for i, item in enumerate(node.value):
            doc.lines[(*path, i)] = item.start_mark.line + 1
        return [_build(loader, item, (*path, i), doc, inside) for i, item in enumerate(node.value)]
    return loader.construct_object(node)


def _check_tag(node: yaml.Node, kind: str, path: KeyPath, doc: Document) -> None:
    """Refuse a tag (`!!set`, `!!python/object`) on a mapping or list."""
    if node.tag != f"tag:yaml.org,2002:{kind}":
        raise doc.error(node, path, f"tag '{node.tag}' is not supported", fix="remove it")


def _mapping(
    loader: _Loader, node: yaml.MappingNode, path: KeyPath, doc: Document, above: tuple[int, ...]
) -> dict[str, Any]:
    """Build a mapping of text keys; a duplicate key is an error that names both lines."""
    built: dict[str, Any] = {}
    for key_node, value_node in node.value:
        if not isinstance(key_node, yaml.ScalarNode) or not key_node.value:
            raise doc.error(key_node, path, "a key must be a word")
        key = key_node.value
        here = (*path, key)
        if key in built:
            doc.errors.append(
                doc.error(
                    key_node, here, f"duplicate key, first on line {doc.lines[here]}", "keep one of them"
                )
            )
            continue
        doc.lines[here] = key_node.start_mark.line + 1
        built[key] = _build(loader, value_node, here, doc, above)
    return built
