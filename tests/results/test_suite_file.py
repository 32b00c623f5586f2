from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import UserError
from harness.files import write_whole
from harness.results.record_store import SUITE_FILE, kept, kept_suites, read_suite, write_suite
from harness.suite.expand import expand
from harness.suite.suite_file import load_suite

SUITES = Path(__file__).resolve().parents[2] / "suites"


@pytest.mark.parametrize("file", ["papers/psc-table3.yaml", "papers/saint-fig5.yaml", "network.yaml"])
def test_a_kept_suite_has_the_trials_and_claims_of_its_file(file: str, tmp_path: Path) -> None:
    suite = load_suite(SUITES / file)
    trials = expand(suite, device="cpu")
    write_suite(tmp_path, kept(suite, trials))
    read = read_suite(tmp_path / SUITE_FILE)
    assert [trial.id for trial in read.trials] == [trial.id for trial in trials]
    assert (read.name, read.file, read.claims) == (suite.name, Path(file).name, suite.claims)
    assert [path.name for path in tmp_path.iterdir()] == [SUITE_FILE]


def test_suites_are_found_from_every_level_of_the_results(tmp_path: Path) -> None:
    suite = load_suite(SUITES / "quickstart.yaml")
    home, other = tmp_path / "a" / suite.name, tmp_path / "b" / suite.name
    (home / "0123").mkdir(parents=True)
    (home / "0123" / "record.json").touch()
    other.mkdir(parents=True)
    write_suite(home, kept(suite, expand(suite, device="cpu")))
    write_suite(other, kept(suite, []))
    for place in (tmp_path / "a", home, home / "0123"):
        assert list(kept_suites([place])) == [suite.name]
    assert not kept_suites([tmp_path / "a", tmp_path / "b"])[suite.name].trials
    assert not kept_suites([tmp_path])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "damaged: not JSON"),
        ("[]", "damaged: "),
        ('{"schema_version": 2}', "suite of schema 2, this harness reads up to 1"),
        ('{"name": "a", "suite": {}, "claims": [{"name": "x"}]}', "damaged: claims: 0: metric"),
    ],
)
def test_a_damaged_file_is_the_users_to_mend(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / SUITE_FILE).write_text(text)
    with pytest.raises(UserError) as error:
        kept_suites([tmp_path])
    assert f"{tmp_path / SUITE_FILE}: {said}" in str(error.value)


def test_an_interrupt_while_it_is_written_leaves_no_half_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_whole(tmp_path / SUITE_FILE, "{}")
    assert list(tmp_path.iterdir()) == []
