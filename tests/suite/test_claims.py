from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import UserError
from harness.metrics import Formula
from harness.suite.expand import expand
from harness.suite.schema import Suite, TrialConfig
from harness.suite.select import pairs_of
from harness.suite.suite_file import load_suite

pytestmark = pytest.mark.usefixtures("world")

SUITE = """\
name: demo
datasets: [digits, {twin: {scale: [0.1, 0.2]}}]
partition: {parts: [2, 4]}
methods: [full, bns-gcn: {rate: [1.0, 0.1], sampler: [bernoulli, fixed]}]
network: [none, 1gbit]
device: cpu
seeds: [0, 1]
claims:
"""
CLAIM = "  - name: a\n    source: here\n    metric: {}\n    of: {}\n    expect: {}\n"
FULL, LEAST = "{method: full}", "{at_least: 1}"


@pytest.fixture
def read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)

    def read(claims: str, *overrides: str) -> tuple[Suite, list[TrialConfig]]:
        Path("s.yaml").write_text(SUITE + claims)
        suite = load_suite(Path("s.yaml"), overrides)
        return suite, expand(suite)

    return read


def told(trial: TrialConfig) -> tuple[object, ...]:
    """What of a trial the tests below look at."""
    options = trial.method.options
    network = "none" if trial.network is None else trial.network.label
    return (trial.dataset.options.get("scale"), trial.partition.parts, network, trial.method.name,
            options.get("rate"), options.get("sampler"))  # fmt: skip


def test_metrics_are_sums_and_one_quotient() -> None:
    assert Formula.parse("epoch_time_s") == Formula(columns=("epoch_time_s",))
    assert Formula.parse("a+b / c + d") == Formula(columns=("a", "b"), per=("c", "d"))
    for text in ("", "a / b / c", "a - b", "a +", "2 * a", "f(a)", "a / "):
        with pytest.raises(ValueError, match="not understood"):
            Formula.parse(text)


def test_claims_are_no_part_of_a_trial(read) -> None:
    claimed = read(CLAIM.format("epoch_time_s", FULL, LEAST))[1]
    assert [trial.id for trial in claimed] == [trial.id for trial in read("  []\n")[1]]


def test_without_over_every_trial_is_a_row_with_its_seeds(read) -> None:
    suite, trials = read(CLAIM.format("bytes_feature + bytes_embedding", "{method: full, parts: 4}", LEAST))
    rows = [row for _, row in pairs_of(suite.claims[0], trials)]
    assert {tuple(map(told, cell)) for [cell] in rows} == {
        ((scale, 4, network, "full", None, None),) * 2 for scale in (None, 0.1, 0.2) for network in ("none", "1gbit")
    }
    assert all([trial.seed for trial in cell] == [0, 1] for [cell] in rows)


def test_over_is_alike_in_all_that_it_does_not_name(read) -> None:
    text = CLAIM.format("epoch_time_s", "{method: bns-gcn, rate: 0.1, dataset.scale: 0.1}", LEAST)
    suite, trials = read(text + "    over: {method: full}\n")
    rows = [row for _, row in pairs_of(suite.claims[0], trials)]
    assert {(told(of[0]), told(over[0])) for of, over in rows} == {
        ((0.1, parts, network, "bns-gcn", 0.1, sampler), (0.1, parts, network, "full", None, None))
        for parts in (2, 4)
        for network in ("none", "1gbit")
        for sampler in ("bernoulli", "fixed")
    }
    suite, trials = read(text + "    over: {rate: 1.0, network: none}\n")  # the same method: its options too
    rows = [row for _, row in pairs_of(suite.claims[0], trials)]
    assert {(told(of[0]), told(over[0])) for of, over in rows} == {
        ((0.1, parts, network, "bns-gcn", 0.1, sampler), (0.1, parts, "none", "bns-gcn", 1.0, sampler))
        for parts in (2, 4)
        for network in ("none", "1gbit")
        for sampler in ("bernoulli", "fixed")
    }


def test_an_order_is_a_row_of_its_items(read) -> None:
    order = "{order: [{method: full}, {method: bns-gcn, rate: 1.0}, {method: bns-gcn, rate: 0.1}], "
    of = "{network: 1gbit, parts: 2, dataset: digits, seed: 1}"
    text = CLAIM.format("epoch_time_s", of, order + "direction: decreasing}")
    with pytest.raises(UserError) as error:  # two samplers at each rate
        read(text)
    assert str(error.value) == (
        "s.yaml:13: claims.0.expect.order.1: compares 'digits sage-2x64 full P=2 1gbit seed=1' with 2 "
        "trials: 'digits sage-2x64 bns-gcn(rate=1) P=2 1gbit seed=1' and "
        "'digits sage-2x64 bns-gcn(rate=1,sampler=fixed) P=2 1gbit seed=1' (select one for each)"
    )
    suite, trials = read(text.replace("bns-gcn,", "bns-gcn, sampler: fixed,"))
    [(_, row)] = pairs_of(suite.claims[0], trials)
    assert [[(*told(trial)[3:5], trial.seed) for trial in cell] for cell in row] == [
        [("full", None, 1)],
        [("bns-gcn", 1.0, 1)],
        [("bns-gcn", 0.1, 1)],
    ]


@pytest.mark.parametrize(
    ("claim", "message"),
    [
        (CLAIM.format("epoch_time", FULL, LEAST),
         "s.yaml:11: claims.0.metric: unknown column 'epoch_time' (did you mean 'epoch_time_s'?)"),
        (CLAIM.format("status", FULL, LEAST),
         "s.yaml:11: claims.0.metric: unknown column 'status' (did you mean 'setup_s'?)"),
        (CLAIM.format("a - b", FULL, LEAST),
         "s.yaml:11: claims.0.metric: 'a - b' is not understood: write a column, a sum `a + b`, or sums "
         "divided `a + b / c + d`"),
        (CLAIM.format("eval_s", "{mehtod: full}", LEAST),
         "s.yaml:12: claims.0.of: unknown key 'mehtod' (did you mean 'method'?)"),
        (CLAIM.format("eval_s", "{model.hiden: 3}", LEAST),
         "s.yaml:12: claims.0.of: unknown key 'model.hiden' (did you mean 'model.hidden'?)"),
        (CLAIM.format("eval_s", "{}", LEAST),
         "s.yaml:12: claims.0.of: selects every trial: name some of them, e.g. {method: full}"),
        (CLAIM.format("eval_s", "{method: full, parts: 8}", LEAST),
         "s.yaml:12: claims.0.of: selects no trial of the suite (see `harness plan`)"),
        (CLAIM.format("eval_s", FULL, LEAST) + "    over: {method: full, parts: 8}\n",
         "s.yaml:14: claims.0.over: selects no trial of the suite (see `harness plan`)"),
        (CLAIM.format("eval_s", "{dataset: digits, parts: 2, method: full}", LEAST)
         + "    over: {dataset.scale: 0.1, method: bns-gcn, rate: 1.0, sampler: fixed, parts: [2, 4]}\n",
         "s.yaml:14: claims.0.over: compares 'digits sage-2x64 full P=2 seed=0' with 2 trials: "
         "'twin(scale=0.1) sage-2x64 bns-gcn(rate=1,sampler=fixed) P=2 seed=0' and "),
        (CLAIM.format("eval_s", FULL, "{at_least: 1, at_most: 2}"),
         "s.yaml:13: claims.0.expect: write one of at_least, at_most, between, order, not 2"),
        (CLAIM.format("eval_s", FULL, "{}"),
         "s.yaml:13: claims.0.expect: write one of at_least, at_most, between, order"),
        (CLAIM.format("eval_s", FULL, "{at_lest: 1}"),
         "s.yaml:13: claims.0.expect.at_lest: unknown key (did you mean 'at_least'?)"),
        (CLAIM.format("eval_s", FULL, "{at_most: much}"),
         "s.yaml:13: claims.0.expect.at_most: bad value 'much': must be a valid number, unable to parse "
         "string as a number"),
        (CLAIM.format("eval_s", FULL, "{at_most: .nan}"),
         "s.yaml:13: claims.0.expect.at_most: bad value '.nan': must be a finite number"),
        (CLAIM.format("eval_s", FULL, "{between: [2, 1]}"),
         "s.yaml:13: claims.0.expect: the range of `between` is empty: write the smaller number first"),
        (CLAIM.format("eval_s", FULL, "{order: [{parts: 2}, {parts: 4}]}"),
         "s.yaml:13: claims.0.expect: `order` needs `direction: increasing` or `direction: decreasing`"),
        (CLAIM.format("eval_s", FULL, "{at_least: 1, tolerance: 0.1}"),
         "s.yaml:13: claims.0.expect: `direction` and `tolerance` belong to `order`"),
        (CLAIM.format("eval_s", FULL, LEAST) + "    by: ratio\n",
         "s.yaml:9: claims.0: `by` needs `over`: what to compare with"),
        (CLAIM.format("eval_s", FULL, LEAST) + "    by: quotient\n",
         "s.yaml:14: claims.0.by: bad value 'quotient', allowed: ratio, difference"),
        (CLAIM.format("eval_s", FULL, "{order: [{parts: 2}, {parts: 4}], direction: increasing}")
         + "    over: {method: bns-gcn}\n",
         "s.yaml:9: claims.0: `order` compares trials with each other: remove `over`"),
        (CLAIM.format("eval_s", FULL, LEAST).replace("source", "sorce"),
         "s.yaml:10: claims.0.sorce: unknown key (did you mean 'source'?)"),
    ],
)  # fmt: skip
def test_mistakes_golden(read, claim: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        read(claim)
    said = str(error.value)
    assert said == message or (message.endswith("and ") and said.startswith(message))


def test_what_an_override_takes_away_is_no_mistake_of_the_claim(read) -> None:
    claim = CLAIM.format("eval_s", FULL, LEAST)
    assert read(claim, "methods=[bns-gcn]")[1]
    with pytest.raises(UserError, match="unknown column"):
        read(claim.replace("eval_s", "evals"), "methods=[bns-gcn]")


def test_seeds_are_one_cell_though_only_some_of_them_ran_on_older_data(read) -> None:
    suite, trials = read(CLAIM.format("epoch_time_s", "{method: bns-gcn}", LEAST + "\n    over: {method: full}"))
    now = [trial if trial.seed else trial.model_copy(update={"data": "v2.p"}) for trial in trials]
    rows = [row for _, row in pairs_of(suite.claims[0], now)]
    assert len(rows) == len(list(pairs_of(suite.claims[0], trials)))
    assert {len(cell) for row in rows for cell in row} == {2}
