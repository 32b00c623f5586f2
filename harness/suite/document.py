"""Suite files as YAML in which every key and item knows its line, and messages that point there."""

from __future__ import annotations

import math
import re
import reprlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails
from ruamel.yaml import YAML
from ruamel.yaml.composer import MaxDepthExceededError
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError

from harness.errors import UserError, UserErrors, nearest

MAX_BYTES = 1 << 20
MAX_DEPTH = 20
_BITS = 63  # of a number, that JSON and a table can hold
MAX_VALUES, MAX_TEXT = 50_000, 4 * MAX_BYTES  # after aliases are written out: what stops a "billion laughs"
KeyPath = tuple[str | int, ...]
V = TypeVar("V")


def dotted(path: KeyPath) -> str:
    """Write a key path as `--set` takes it: `methods.1.bns-gcn.rate`."""
    return ".".join(str(part) for part in path)


@dataclass
class SuiteSource:
    """Lines (from 1) and overrides by key path, and where each variant of a section is written."""

    file: Path | None = None
    lines: dict[KeyPath, int] = field(default_factory=dict)
    overrides: dict[KeyPath, str] = field(default_factory=dict)
    variants: dict[tuple[str, int], KeyPath] = field(default_factory=dict)

    def variant(self, section: str, number: int) -> KeyPath:
        """Return where the variant of a number (from 0) of a section is written."""
        return self.variants.get((section, number), (section,))

    def override(self, path: KeyPath, text: str) -> None:
        """Note that the command line's `text` has replaced what was written at `path` and below."""
        self.lines = {p: line for p, line in self.lines.items() if p[: len(path)] != path}
        self.overrides = {p: said for p, said in self.overrides.items() if p[: len(path)] != path}
        self.overrides[path] = text

    def error(self, path: KeyPath, message: str, fix: str | None = None) -> UserError:
        """Return a UserError that points at `path`, or at the nearest key above it that was written."""
        if (override := self.override_at(path)) is not None:
            said = override.split("=", 1)[0]
            key = None if said == dotted(path) else dotted(path)
            return UserError(message, file=f"--set {override}", key=key, fix=fix)
        return UserError(message, file=self.file, line=_at(self.lines, path), key=dotted(path) or None, fix=fix)

    def override_at(self, path: KeyPath) -> str | None:
        """Return what of the command line set `path` or a key above it; None if nothing did."""
        return _at(self.overrides, path)


def _at(found: Mapping[KeyPath, V], path: KeyPath) -> V | None:
    """Return what is found at `path`, or else at the nearest key above it."""
    return next((found[path[:n]] for n in range(len(path), 0, -1) if path[:n] in found), None)


def gather(errors: Sequence[UserError]) -> UserError:
    """Return one error whose text is a line for each distinct one of `errors`, in the file's order."""
    ordered = sorted(errors, key=lambda error: error.line or 0)
    distinct = list({str(error): error for error in ordered}.values())
    return distinct[0] if len(distinct) == 1 else UserErrors(distinct)


# YAML's core schema and no more: `1e-3` is a number; `off`, `010` and `2020-01-01` are words.
_TAG = "tag:yaml.org,2002:"
_TAGS = {
    MappingNode: {f"{_TAG}map"},
    SequenceNode: {f"{_TAG}seq"},
    ScalarNode: {_TAG + kind for kind in ("str", "null", "bool", "int", "float", "timestamp", "merge", "value")},
}
_WORDS = dict.fromkeys(("", "~", "null", "Null", "NULL"))
_WORDS |= dict.fromkeys(("true", "True", "TRUE"), True) | dict.fromkeys(("false", "False", "FALSE"), False)
_INT = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_FLOAT = re.compile(
    r"[-+]?(\.[0-9]+|[0-9]+\.[0-9]*)([eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+"
    r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
)


@dataclass
class Document:
    """Plain values (dict, list, str, int, float, bool, None) and the line, from 1, of every key path."""

    name: str
    data: Any = None
    lines: dict[KeyPath, int] = field(default_factory=dict)
    errors: list[UserError] = field(default_factory=list)
    values: int = 0
    text: int = 0

    def error(self, node: Node, path: KeyPath, message: str, fix: str | None = None) -> UserError:
        """Return an error that points at a node."""
        return UserError(message, file=self.name, line=_line(node), key=dotted(path) or None, fix=fix)


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
    document, reader = Document(name), YAML(typ="safe", pure=True)
    reader.max_depth = MAX_DEPTH
    try:
        node = reader.compose(text)
        if node is not None:
            document.data = _build(node, (), document, ())
    except MarkedYAMLError as error:  # the reader's errors are several lines each
        mark = error.problem_mark or error.context_mark
        said = ", ".join(part for part in (error.context, error.problem) if part).replace("\n", " ")
        if isinstance(error, MaxDepthExceededError):
            said = f"nested deeper than {MAX_DEPTH} levels"
        raise UserError(said, file=name, line=mark.line + 1 if mark else None) from error
    except ReaderError as error:
        raise UserError(f"not YAML: {error.reason} (position {error.position})", file=name) from error
    except (ValueError, OverflowError) as error:  # a number too long for Python to read
        raise UserError(f"not YAML: {error}".splitlines()[0], file=name) from error
    if document.errors:
        raise gather(document.errors)
    return document


def _build(node: Node, path: KeyPath, doc: Document, above: tuple[int, ...]) -> Any:
    """Turn a node into plain values, noting lines."""
    doc.values += 1
    if doc.values > MAX_VALUES:
        raise doc.error(node, (), f"more than {MAX_VALUES} values, aliases written out")
    doc.text += len(node.value) if isinstance(node, ScalarNode) else 0
    if doc.text > MAX_TEXT:
        raise doc.error(node, (), f"more than {MAX_TEXT >> 20} MiB of text, aliases written out")
    if id(node) in above:
        raise doc.error(node, path, "refers to itself", fix="remove the alias")
    if len(above) > MAX_DEPTH:
        raise doc.error(node, (), f"nested deeper than {MAX_DEPTH} levels, aliases written out")
    if str(node.tag) not in _TAGS[type(node)]:
        raise doc.error(node, path, f"tag '{node.tag}' is not supported", fix="remove it")
    inside = (*above, id(node))
    if isinstance(node, MappingNode):
        return _mapping(node, path, doc, inside)
    if isinstance(node, SequenceNode):
        doc.lines |= {(*path, i): _line(item) for i, item in enumerate(node.value)}
        return [_build(item, (*path, i), doc, inside) for i, item in enumerate(node.value)]
    value = node.value if getattr(node, "style", None) or str(node.tag) == f"{_TAG}str" else _plain(node.value)
    if wrong := unstorable(value):
        doc.errors.append(doc.error(node, path, f"bad value {reprlib.repr(node.value)}: {wrong}"))
    return value


def _plain(text: str) -> Any:
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        return int(text)
    return float(re.sub(r"\.(inf|nan)", r"\1", text.lower())) if _FLOAT.fullmatch(text) else text


def _mapping(node: MappingNode, path: KeyPath, doc: Document, above: tuple[int, ...]) -> dict[str, Any]:
    """Build a mapping of text keys; a duplicate key is an error that names both lines."""
    built: dict[str, Any] = {}
    for key_node, value_node in node.value:
        if not isinstance(key_node, ScalarNode) or not key_node.value:
            raise doc.error(key_node, path, "a key must be a word")
        key = key_node.value
        if wrong := unstorable(key):
            raise doc.error(key_node, path, f"bad key {reprlib.repr(key)}: {wrong}")
        here = (*path, key)
        if key in built:
            message = f"duplicate key, first on line {doc.lines[here]}"
            doc.errors.append(doc.error(key_node, here, message, "keep one of them"))
            continue
        doc.lines[here] = _line(key_node)
        built[key] = _build(value_node, here, doc, above)
    return built


def _line(node: Node) -> int:
    return int(node.start_mark.line) + 1


def unstorable(value: Any) -> str | None:
    """Return what is wrong with a plain value that neither JSON nor a table of numbers can hold; None of others."""
    if isinstance(value, float) and not math.isfinite(value):
        return "must be a finite number"
    if isinstance(value, int) and value.bit_length() > _BITS:
        return f"a number has at most {_BITS} bits"
    if isinstance(value, str) and any("\ud800" <= char <= "\udfff" for char in value):
        return "is no text: it holds half a character"
    return None


def all_values(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Yield every plain value of nested mappings and lists, and every key, with where it is."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield path, key
            yield from all_values(item, (*path, key))
    elif isinstance(value, list | tuple):
        for i, item in enumerate(value):
            yield from all_values(item, (*path, i))
    else:
        yield path, value


ErrorAt = Callable[[KeyPath, str, str | None], UserError]
KnownKeys = Callable[[KeyPath], Mapping[str, Any]]
Mend = Callable[[KeyPath, ErrorDetails, Mapping[str, Any]], str | None]


def explain(error: ValidationError, at: ErrorAt, known: KnownKeys, mend: Mend, depth: int | None = None) -> UserError:
    """Return one UserError with a line for each thing pydantic found.

    Args:
        error: what `model_validate` raised.
        at: makes the UserError for a location in the model, a message and a fix.
        known: the keys that the section at a location has.
        mend: returns the fix of what was found at a location, if it is plain, given the section's keys.
        depth: how much of pydantic's locations are keys; what is deeper names members of a union, whose
            complaints about one value are joined by "or".
    """
    places: defaultdict[KeyPath, list[ErrorDetails]] = defaultdict(list)
    found = error.errors(include_url=False)
    for details in found:
        if details["type"] == "too_short" and any(len(e["loc"]) > len(details["loc"]) for e in found):
            continue  # pydantic counts only the items that are right
        places[details["loc"][:depth]].append(details)
    errors = []
    for path, details_of in places.items():
        first = details_of[0]
        kind, value = first["type"], first["input"]
        keys = known(path[:-1]) if kind == "extra_forbidden" else {}
        mended = mend(path, first, keys)
        if kind == "extra_forbidden":
            others = nearest(str(path[-1]), keys) if keys else "it takes no options"
            errors.append(at(path, "unknown key", mended or others))
        elif kind == "missing":
            errors.append(at(path, "missing", f"add `{path[-1]}: ...`"))
        elif kind == "literal_error":
            allowed = [part.strip("'") for part in first["ctx"]["expected"].replace(" or ", ", ").split(", ")]
            hint = nearest(value, allowed) if isinstance(value, str) and len(value) > 3 else ""  # gpu is not cpu
            fix = hint if hint.startswith("did you mean") else None
            errors.append(at(path, f"bad value {reprlib.repr(value)}, allowed: {', '.join(allowed)}", fix))
        elif kind == "value_error":
            errors.append(at(path, str(first["ctx"]["error"]), None))
        else:
            wanted = []
            for details in details_of:
                message = _WANTED_WORDS.get(details["type"], details["msg"]).replace("Input should be ", "must be ")
                message = message.replace("String should ", "must ").replace("Value should ", "must ")
                wanted.append(message[:1].lower() + message[1:])
            errors.append(at(path, f"bad value {reprlib.repr(value)}: {' or '.join(dict.fromkeys(wanted))}", mended))
    return gather(errors)


_WANTED_WORDS = {  # in words of YAML
    **dict.fromkeys(("tuple_type", "list_type"), "must be a list"),
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type"), "must be a section of `key: value` lines"),
    "too_short": "must not be empty",
    "string_pattern_mismatch": "must be letters, digits, '.', '_' or '-', a letter or digit first",
}
