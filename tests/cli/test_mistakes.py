"""The answer to a user's mistake: one line and exit code 2."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.commands import NO_GPU, harness

pytestmark = pytest.mark.timeout(90)


MISTAKES = {
    "run nowhere.yaml": "nowhere.yaml: ",
    "run tiny": "SUITE: neither a file nor a shipped suite: 'tiny' (did you mean tiny.yaml?)",
    "check-claims . --suite tiny": "SUITE: neither a file nor a shipped suite: 'tiny' (did you mean tiny.yaml?)",
    "run tiny.yaml --device gqu": "--device: unknown device 'gqu' (known: auto, cpu, cuda)",
    "run tiny.yaml --device gpu": f"device cuda: {NO_GPU}",
    "new suite tiny": "tiny.yaml: is there already (choose another name, or another --dir)",
    "run tiny.yaml --retry errors": "--retry: unknown status 'errors' (did you mean 'error'?)",
    "run tiny.yaml --data-dir nowhere": "--data-dir (or HARNESS_DATA): 'nowhere' is not a directory",
    "run tiny.yaml --device cuda": f"device cuda: {NO_GPU}",
    "run tiny.yaml --results tiny.yaml": "tiny.yaml/tiny: --results: cannot write there: Not a directory",
    "run quickstart --results r": "/proc/x: HARNESS_CACHE: cannot write there: No such file or directory",
    "run tiny.yaml --results /proc/x": "/proc/x/tiny: --results: cannot write there: No such file",
    "run tiny.yaml --only method=bns-gcn": "tiny.yaml: --only: none of the 6 trials matches 'method=bns-gcn' "
    "(see `harness plan tiny.yaml`)",
    "run tiny.yaml --only metod=full": "--only metod=full: ",
    "run tiny.yaml --set train.epochs=many": "--set train.epochs=many: ",
    "run tiny.yaml --set datasets=[rin]": "--set datasets=[rin]: ",
    "run tiny.yaml --epochs 3": "--epochs: no option, but a key of the suite (--set train.epochs=3)",
    "run --seeds=3 tiny.yaml": "--seeds: no option, but a key of the suite (--set 'seeds=[0, 1, 2]')",
    "plan tiny.yaml --model gat": "--model: no option, but a key of the suite (--set model.name=gat)",
    "tune tiny.yaml --weight-decay": "--weight-decay: no option, but a key of the suite "
    "(--set train.weight_decay=VALUE)",
    "run tiny.yaml --seeds 1,2": "--seeds: no option, but a key of the suite (--set 'seeds=[1, 2]')",
    "run tiny.yaml --plugin mine.py": "/",
    "list methods --plugin no.such": "module 'no.such' does not import: ModuleNotFoundError: ",
    "plan tiny.yaml --set plugins=no.py": "--set plugins=no.py: plugins.0: /",
    "plan tiny.yaml --set methods=[ful]": "--set methods=[ful]: ",
    "plan data": "SUITE: neither a file nor a shipped suite: 'data' (it is a directory: name a file)",
    "report nowhere": "nowhere: no such directory of results (run `harness run SUITE` first)",
    "report tiny.yaml": "tiny.yaml: is a file, no directory of results (run `harness run SUITE` first)",
    "compare tiny.yaml data": "tiny.yaml: is a file, no directory of results (run `harness run SUITE` first)",
    "status nowhere": "nowhere: no such directory of results (run `harness run SUITE` first)",
    "data info redit": "datasets: unknown data set 'redit' (did you mean 'reddit'?)",
    "data info sbm --option nodes": "--option: 'nodes' is not KEY=VALUE (e.g. --option scale=0.02)",
    "partition ring --parts 2,x": "--parts: '2,x' is not a list of positive numbers (e.g. 2,4,8)",
    "partition ring --parts 0": "--parts: '0' is not a list of positive numbers (e.g. 2,4,8)",
    "partition ring --method meits": "--method: unknown partitioner 'meits' (did you mean 'metis'?)",
    "partition ring --objective volum": "--objective: 'volum': Input should be 'volume' or 'cut'",
    "partition reddit": "reddit is not here; get it with: harness data get reddit",
}


@pytest.mark.quick(16)
@pytest.mark.parametrize("command", MISTAKES)
def test_a_mistake_is_one_line_and_exit_code_2(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.version.cuda", None)
    if "HARNESS_CACHE" in MISTAKES[command]:
        monkeypatch.setenv("HARNESS_CACHE", "/proc/x")
    code, out, err = harness(capsys, *command.split())
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {MISTAKES[command]}")
    assert err.count("\n") == 1
    assert "Traceback" not in err


@pytest.mark.parametrize("command", ["run", "no-such-command", "run tiny.yaml --no-such-option", "list"])
def test_wrong_usage_is_exit_code_2(home: Path, capsys: pytest.CaptureFixture[str], command: str) -> None:
    assert harness(capsys, *command.split())[0] == 2


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ("model: {name: sage, heads: 8}", "4: model.heads: bad value 8: sage has no heads (remove it, or name "
         "a model that has: gat)"),
        ("model: {name: gat, order: 2}", "4: model.order: bad value 2: gat has no order (remove it, or name a "
         "model that has: mixhop)"),
        ("per_dataset: {sbm: {model: {heads: 2}}}", "4: per_dataset.sbm.model.heads: bad value 2: sage has no "
         "heads (remove it, or name a model that has: gat)"),
        ("methods: [full, graphsage: {fanouts: [[5, 5], [3, 4, 5]]}]", "4: methods.1.graphsage.fanouts: bad "
         "value [3, 4, 5]: 3 numbers for 2 graph layers (give 2, or one number for all; a layer of mixhop counts "
         "`order` times)"),
        ("methods: [graphsage]\nper_method: {graphsage: {options: {fanouts: [3]}}}", "5: per_method.graphsage."
         "options.fanouts: bad value [3]: 1 numbers for 2 graph layers (give 2, or one number for all; a layer of "
         "mixhop counts `order` times)"),
        ("methods: [full: {epochs: 3}]", "4: methods.0.full.epochs: unknown key (write `train: {epochs: 3}`)"),
        ("methods: [bns-gcn: {rate: 10}]", "4: methods.0.bns-gcn.rate: bad value 10: must be less than or "
         "equal to 1 (write `methods: {bns-gcn: {rate: 0.1}}`)"),
    ],
)  # fmt: skip
def test_what_fits_no_model_is_refused_before_a_run(
    home: Path, capsys: pytest.CaptureFixture[str], sections: str, message: str
) -> None:
    methods = "" if sections.startswith("methods") else "\nmethods: [full]"
    (home / "tiny.yaml").write_text(f"# a suite\nname: tiny\ndatasets: [sbm]\n{sections}{methods}\n")
    for command in ("plan", "run"):
        assert harness(capsys, command, "tiny.yaml") == (2, "", f"error: tiny.yaml:{message}\n")


def test_a_key_that_one_of_several_models_reads_multiplies_that_one_alone(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "name: s\ndatasets: [sbm]\nmethods: [full]\nmodel: {name: [sage, gat], heads: [2, 8]}\n"
    (home / "s.yaml").write_text(text)
    labels = re.findall(r"sbm (\S+) full", harness(capsys, "plan", "s.yaml")[1])
    assert labels == ["sage-2x64", "gat-2x64h2", "gat-2x64h8"]
