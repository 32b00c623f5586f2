"""Inputs made of valid files: bits flipped, cut, spliced, and values put where others belong."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

CANARY = "fuzz-canary"  # a file of this name appears if anything of an input is executed

ODD: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2**31, 2**63, 2**64, -(2**63) - 1, 10**40, 0.5, -0.0, 1e-320, 1e308),
    *(
        float("inf"),
        float("-inf"),
        float("nan"),
        "",
        "x",
        "0",
        "1e999",
        "none",
        "null",
        "auto",
        "gpu",
        "..",
        "/dev/zero",
    ),
    *(
        "\0",
        "\x1b[2J",
        "\ud800",
        "é\n",
        "a" * 5000,
        "%s%n",
        "{}",
        "=1+1",
        "<script>",
        "../../x",
        "full",
        "bns-gcn",
        "sage",
    ),
    *(
        [],
        {},
        [[]],
        [None],
        [0] * 100,
        {"": 0},
        {"a": {"a": {"a": {}}}},
        [[[[[]]]]],
        ["full", "full"],
        {"x": [1, 2, 3]},
    ),
)
TOKENS: tuple[bytes, ...] = (
    *(b"1e999", b".nan", b"-.inf", b"NaN", b"Infinity", b"-1", b"9" * 400, b"9" * 5000, b"0x7f", b"1_000", b"null"),
    *(b"&a [*a, *a]", b"*a", b"<<: *a", b"[" * 200, b"{a: " * 50, b"- " * 50, b"? ", b"---\n", b"...\n", b"%YAML 9\n"),
    *(b"!!python/object/apply:os.system ['touch fuzz-canary']", b"!!binary aaaa", b"!!set {x}", b"!x ", b"~", b"\t"),
    *(b"\0", b"\xff\xfe", b"\xed\xa0\x80", b'"\\ud800"', b'"\\x00"', b"\xe2\x80\xa8", b"\r\n", b"#", b"|+\n"),
    *(b"cos\nsystem\n(S'touch fuzz-canary'\ntR.", b"\x80\x04", b"q\xff", b"r\xff\xff\xff\x7f", b"\x85" * 300),
    *(b"\x93NUMPY\x01\x00", b"PK\x01\x02", b"PK\x03\x04", b"PK\x05\x06", b"\x1f\x8b\x08", b"PAR1"),
    *(b"'descr': '|O'", b"'shape': (99999999999,)", b"1,2,3\n", b"1\t2\n", b"a,b\n", b"0:", b"999999:"),
    *(b"'", b'"', b"(lp0\n", b"\xff" * 8, b"\x00" * 8, b"_" * 40, b"R", b"b", b">9\n", b"[0-99999999]"),
)  # fmt: skip


def mutated(data: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
    """Return `data` after one to four changes; `others` are valid files that pieces are taken from."""
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        data = rng.choice(_CHANGES)(data, others, rng)
    return data


def _place(data: bytes, rng: random.Random) -> int:
    """Return a place; ends, where lengths and directories are, are as likely as all the rest."""
    near = rng.choice((0, len(data), None))
    return rng.randint(0, len(data)) if near is None else min(len(data), max(0, near + rng.randint(-64, 64)))


def _flip(data: bytes, _: Sequence[bytes], rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 8)) if data else 0):
        changed[min(_place(data, rng), len(data) - 1)] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _set(data: bytes, _: Sequence[bytes], rng: random.Random) -> bytes:
    at, size = _place(data, rng), rng.choice((1, 2, 4, 8))
    return data[:at] + rng.choice((b"\0", b"\xff", b"\x7f", rng.randbytes(1))) * size + data[at + size :]


def _cut(data: bytes, _: Sequence[bytes], rng: random.Random) -> bytes:
    return data[: rng.randint(0, len(data))]


def _drop(data: bytes, _: Sequence[bytes], rng: random.Random) -> bytes:
    at = _place(data, rng)
    return data[:at] + data[at + rng.randint(1, 64) :]


def _again(data: bytes, _: Sequence[bytes], rng: random.Random) -> bytes:
    at, size = _place(data, rng), rng.randint(1, 64)
    return data[:at] + data[at : at + size] * rng.choice((2, 3, 100)) + data[at + size :]


def _splice(data: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
    other = rng.choice(others)
    return data[: _place(data, rng)] + other[_place(other, rng) :]


def _token(data: bytes, _: Sequence[bytes], rng: random.Random) -> bytes:
    at = _place(data, rng)
    return data[:at] + rng.choice(TOKENS) + data[at + rng.choice((0, 0, 1, 8)) :]


def _confuse(data: bytes, _: Sequence[bytes], rng: random.Random) -> bytes:
    """Put another type in the place of a value, where the file is JSON; else a number in that of a number."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return _token(data, (), rng)
    if isinstance(document, dict) and document:  # not the whole, which is refused at once
        key = rng.choice(list(document))
        return json.dumps(document | {key: confused(document[key], rng)}).encode()
    return json.dumps(confused(document, rng)).encode()


def confused(document: Any, rng: random.Random) -> Any:
    """Return a document of JSON in which a value, or a key, is another one."""
    if not isinstance(document, dict | list) or not document or rng.random() < 0.15:
        return rng.choice(ODD)
    if isinstance(document, dict):
        key = rng.choice(list(document))
        kind = rng.random()
        if kind < 0.1:
            return {k: v for k, v in document.items() if k != key}
        if kind < 0.2:
            return document | {str(rng.choice(ODD)): document[key]}
        return document | {key: confused(document[key], rng)}
    at = rng.randrange(len(document))
    if rng.random() < 0.1:
        return document[:at] + document[at + 1 :]
    return [*document[:at], confused(document[at], rng), *document[at + 1 :]]


_CHANGES = (_flip, _set, _cut, _drop, _again, _splice, _token, *[_confuse] * 5)
