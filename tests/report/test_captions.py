"""The texts of views: each that is asked for is in `captions.toml`, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from harness.report import views
from harness.report.views import captions


def test_views_and_the_file_name_the_same_texts() -> None:
    folder = Path(views.__file__).parent
    asked = {
        (*key.split("."), frozenset(re.findall(r"(\w+)=", fields)))
        for module in (*folder.glob("*.py"), folder.parent / "elsewhere.py", folder.parent / "page.py")
        for key, fields in re.findall(r'prose\(\s*"([^"]+)"((?:[^()]|\([^()]*\))*)\)', module.read_text("utf-8"))
    }
    rules = captions()["rule"].keys()
    written = {
        (view, part, frozenset(re.findall(r"{(\w+)[^}]*}", text.replace("{{", ""))))
        for view, parts in captions().items()
        for part, text in parts.items()
        if view != "rule"
    }
    assert {key[:2] for key in asked} == {key[:2] for key in written}
    fields = {key[:2]: key[2] - rules for key in written}
    assert {key[:2]: fields[key[:2]] - key[2] for key in asked if fields[key[:2]] - key[2]} == {}
