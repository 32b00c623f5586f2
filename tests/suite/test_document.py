from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import UserError
from harness.suite.document import MAX_BYTES, parse


def test_every_key_and_item_knows_its_line() -> None:
    doc = parse("a: 1\nb:\n  c: [1,\n      2]\n  d:\n    - e: x\n", "s.yaml")
    assert doc.data == {"a": 1, "b": {"c": [1, 2], "d": [{"e": "x"}]}}
    assert doc.lines == {
        ("a",): 1,
        ("b",): 2,
        ("b", "c"): 3,
        ("b", "c", 0): 3,
        ("b", "c", 1): 4,
        ("b", "d"): 5,
        ("b", "d", 0): 6,
        ("b", "d", 0, "e"): 6,
    }


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("5.0e-4", 0.0005),
        (".5", 0.5),
        ("-7", -7),
        ("0", 0),
        ("1.", 1.0),
        ("true", True),
        ("off", "off"),
        ("yes", "yes"),
        ("none", "none"),
        ("null", None),
        ("~", None),
        ("", None),
        ("12:30", "12:30"),
        ("2020-01-01", "2020-01-01"),
        ("'1'", "1"),
        ("010", "010"),
        ("[1, a]", [1, "a"]),
    ],
)
def test_scalars_are_yaml_1_2(text: str, value: object) -> None:
    got = parse(text, "x").data
    assert got == value
    assert type(got) is type(value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\na: 2\nb:\n  c: 1\n  c: 2", "s:2: a: duplicate key, first on line 1 (keep one of them)\n"
         "s:5: b.c: duplicate key, first on line 4 (keep one of them)"),
        ("a: [1, 2\nb: 3", "s:2: while parsing a flow sequence, expected ',' or ']', but got ':'"),
        ("a: 'x", "s:1: while scanning a quoted scalar, found unexpected end of stream"),
        ("a: 1\n b: 2", "s:2: mapping values are not allowed here"),
        ("a: b: c", "s:1: mapping values are not allowed here"),
        ("a: 1\n\tb: 2", "s:2: while scanning for the next token, found character '\\t' "
         "that cannot start any token"),
        ("a: 1\n---\nb: 2", "s:2: expected a single document in the stream, but found another document"),
        ("a: *x", "s:1: found undefined alias 'x'"),
        ("a: !!python/object/apply:os.system [ls]",
         "s:1: a: tag 'tag:yaml.org,2002:python/object/apply:os.system' is not supported (remove it)"),
        ("a: !!python/name:os.system x",
         "s:1: a: tag 'tag:yaml.org,2002:python/name:os.system' is not supported (remove it)"),
        ("a: !!set {x}", "s:1: a: tag 'tag:yaml.org,2002:set' is not supported (remove it)"),
        ("a: &a [1, *a]", "s:1: a.1: refers to itself (remove the alias)"),
        ("? [1]\n: 2", "s:1: a key must be a word"),
        ("? ''\n: 2", "s:1: a key must be a word"),
        ("a: \x00", "s: not YAML: special characters are not allowed (position 3)"),
        ("a: 1e999\nb: [-.inf]\nc: {d: .nan}", "s:1: a: bad value '1e999': must be a finite number\n"
         "s:2: b.0: bad value '-.inf': must be a finite number\ns:3: c.d: bad value '.nan': must be a finite number"),
        ("a: 9223372036854775808", "s:1: a: bad value '9223372036854775808': a number has at most 63 bits"),
        ('a: "\\ud800"', "s:1: a: bad value '\\ud800': is no text: it holds half a character"),
        ("[" * 100, "s:1: nested deeper than 20 levels"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line_each(text: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        parse(text, "s")
    assert str(error.value) == message


def chain(length: int) -> str:
    """Lists within lists by aliases alone: shallow as text, deep as values."""
    return "a0: &a0 [1]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}]\n" for i in range(1, length))


def laughs(lines: int) -> str:
    """Ten to the power of `lines` values in a few hundred bytes."""
    return "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, lines))


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (laughs(12), "more than 50000 values"),
        (chain(3000), "nested deeper than 20 levels, aliases written out"),
        ("[" * 500_000, "nested deeper than 20 levels"),
        ("- " * 300_000, "nested deeper than 20 levels"),
        ("{a: " * 100_000, "nested deeper than 20 levels"),
        ("a: " + "9" * 100_000, "not YAML"),
        ("x" * (MAX_BYTES + 1), "larger than 1 MiB"),
        ("a: [" + "1," * 60_000 + "]", "more than 50000 values"),
    ],
    ids=["laughs", "chain", "flow", "block", "maps", "digits", "bytes", "values"],
)
@pytest.mark.timeout(60)
def test_hostile_documents_end_quickly_in_one_line(text: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        parse(text, "s")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_aliases_that_do_not_cycle_are_values() -> None:
    assert parse("a: &x {k: 1}\nb: *x", "s").data == {"a": {"k": 1}, "b": {"k": 1}}


def readable(text: str) -> bool:
    """Return whether the text parses or is a user's mistake told in lines that name the file."""
    try:
        parse(text, "s")
    except UserError as error:
        return all(line.startswith("s:") for line in str(error).split("\n"))
    return True


@given(st.text(max_size=200))
def test_any_text_parses_or_is_a_user_error(text: str) -> None:
    assert readable(text)


@given(st.text(alphabet="ab:-[]{},&*!|>'\"#? \n1.e", max_size=60))
def test_any_yaml_like_text_parses_or_is_a_user_error(text: str) -> None:
    assert readable(text)
