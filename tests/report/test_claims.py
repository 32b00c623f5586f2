from __future__ import annotations

import math

from claims.made import claim, frame, trial

from harness.claims import judge
from harness.report.summary import claims_table, claims_text
from harness.results.record_store import KeptSuite

WHOLE, SAMPLED = {"method": "whole"}, {"method": "sampled"}


def test_the_card_has_every_claim_and_the_rows_of_those_that_speak_of_several_trials() -> None:
    pairs = [(trial(m, parts=p), p, m == "whole") for p in (2, 4) for m in ("whole", "sampled")]
    results = frame([(t, {"epoch_time_s": 2.0 * p if slow else 2.0, "origin": "twin"}) for t, p, slow in pairs])
    kept = KeptSuite(
        file="s.yaml",
        suite={},
        name="demo",
        claims=(
            claim("epoch_time_s", {"at_least": 3}, WHOLE, over=SAMPLED),
            claim("epoch_time_s", {"at_most": 9}, {"method": "whole", "parts": 2}, source=""),
            claim("best_val", {"at_least": 0}, {"method": "whole", "parts": 2}),
        ),
        trials=(*(t for t, *_ in pairs), trial("whole", parts=8), trial("sampled", parts=8)),
    )
    results["best_val"] = math.nan
    judged = judge(results, {"demo": kept, "not run": kept.model_copy(update={"name": "not run"})})
    [table] = map(claims_table, judged)
    assert table.caption.startswith("3 claims: 1 indicated, 1 indicated against, 1 not measured; 4 of 6 trials run.")
    assert "says nothing of the paper's absolute numbers" in table.caption
    assert [(row.label, *((c.mark + c.text, c.note) for c in row.cells)) for row in table.rows] == [
        ("a claim",),
        ("here", ("(✗)indicated against", "twin"), ("at least 3 ×", "epoch_time_s"),
         ("2.00 to 4.00 × (1 of 2 as expected)", "not sure: one seed of 1 of 1; 1 of 3 not measured: not run")),
        ("parts=2", ("(✗)indicated against", ""), ("", ""), ("2.00 ×", "not sure: one seed")),
        ("parts=4", ("(✓)indicated", ""), ("", ""), ("4.00 ×", "not sure: one seed")),
        ("parts=8", ("–not measured", ""), ("", ""), ("", "not run")),
        ("a claim",),
        ("own claim", ("(✓)indicated", "twin"), ("at most 9 s", "epoch_time_s"), ("4.00 s", "not sure: one seed")),
        ("a claim",),
        ("here", ("–not measured", "twin"), ("at least 0 %", "best_val"), ("", "has no best_val")),
    ]  # fmt: skip
    text = claims_text(judged)
    assert "  all on a twin: says nothing of the paper's absolute numbers\n" in text
    assert "        (✗) parts=2: 2.00 ×, not sure: one seed\n" in text
