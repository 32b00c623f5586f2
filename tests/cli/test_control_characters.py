"""What records say reaches people without characters that drive a terminal or turn the direction of text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from report.fake import METHODS, write_results

from harness.cli import main
from harness.errors import UNSEEN, readable
from harness.results.record import digest_of, read_record
from harness.results.record_store import kept, write_suite
from harness.suite.schema import Suite

ODD = "\r\x1b]0;owned\x07\x1b[2J\u202egnp.exe\u2066\x9b31m\x7f"
COMMANDS = {
    "status": ("status",),
    "report": ("report", "--format", "html,md,csv,latex", "--out", "{out}"),
    "compare": ("compare", "{results}"),
    "methods": ("compare", "--method", "full"),
    "history": ("history",),
}


def odd(value: Any) -> Any:
    """Return what a record says with odd characters behind each text that nothing is read from."""
    return {key: f"{each}{ODD}" if isinstance(each, str) else each for key, each in value.items()}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    def fails(config: Any) -> tuple[str, str] | None:
        return ("error", f"it broke{ODD}") if config.seed == 1 and config.method.name == "graphsage" else None

    root = write_results(tmp_path_factory.mktemp("odd"), methods=METHODS, seeds=(0, 1), fails=fails)
    for path in root.rglob("record.json"):
        record = json.loads(path.read_text())
        record["label"] += ODD
        record["flags"] = [f"noise: much{ODD}"]
        record["environment"] = odd(record["environment"])
        record["dataset"]["note"] = f"a note{ODD}"
        record["config"]["method"]["options"]["odd"] = ODD
        record["config"]["method"]["options"][ODD] = 1
        record["digest"] = digest_of(record)
        path.write_text(json.dumps(record, ensure_ascii=path.parent.name < "8"))
    suite = Suite(name="demo", description=f"words{ODD}", datasets="digits", methods="full")
    write_suite(root / "demo", kept(suite, ()))
    return root


def test_what_is_read_is_clean_and_unflagged(results: Path) -> None:
    for path in results.rglob("record.json"):
        record = read_record(path)
        assert [flag.partition(":")[0] for flag in record.flags] == ["noise"]
        assert UNSEEN.search(json.dumps(record.model_dump(), ensure_ascii=False)) is None
        assert record.label.endswith(readable(ODD))


@pytest.mark.quick(1)
@pytest.mark.parametrize("command", list(COMMANDS))
def test_no_command_passes_them_on(
    command: str, results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, *options = (word.format(out=tmp_path, results=results) for word in COMMANDS[command])
    with pytest.raises(SystemExit) as ended:
        main([name, str(results), *options])
    said = capsys.readouterr()
    assert ended.value.code in (0, None), said.err
    assert said.out + said.err
    texts = {"printed": said.out + said.err}
    texts |= {
        path.name: path.read_text() for path in tmp_path.rglob("*") if path.suffix in {".html", ".md", ".csv", ".tex"}
    }
    for where, text in texts.items():
        found = UNSEEN.search(text)
        assert found is None, (where, text[found.start() - 60 : found.start() + 20])
