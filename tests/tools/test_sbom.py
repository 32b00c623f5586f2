"""The bill of materials: whole, without loose ends, and of what is installed."""

from __future__ import annotations

import json
import re
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

from tools.sbom import bill, main

ROOT = Path(__file__).resolve().parents[2]


def test_it_names_what_is_installed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(tmp_path / "sbom.json")
    content = json.loads((tmp_path / "sbom.json").read_text())
    assert (content["bomFormat"], content["specVersion"], content["version"]) == ("CycloneDX", "1.5", 1)
    components = {entry["name"]: entry for entry in content["components"]}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    direct = {re.match(r"[\w.-]+", line)[0] for line in project["dependencies"]}  # type: ignore[index]
    direct = {re.sub(r"[-_.]+", "-", name).lower() for name in direct}  # PEP 503
    assert direct <= components.keys()
    for name in direct:
        assert components[name]["version"] == version(name)
    assert components["numpy"]["purl"] == f"pkg:pypi/numpy@{version('numpy')}"
    assert capsys.readouterr().out == f"{tmp_path}/sbom.json: {len(content['components'])} packages\n"


def test_every_reference_is_one_package() -> None:
    content = bill()
    own = content["metadata"]["component"]
    refs = [own["bom-ref"], *(entry["bom-ref"] for entry in content["components"])]
    assert len(set(refs)) == len(refs)
    assert {entry["ref"] for entry in content["dependencies"]} == set(refs)
    wanted = {ref for entry in content["dependencies"] for ref in entry["dependsOn"]}
    assert wanted == set(refs) - {own["bom-ref"]}  # nothing is there that nobody needs


def test_it_names_what_the_reports_script_is_made_of() -> None:
    found = {entry["purl"]: entry for entry in bill()["components"] if entry["purl"].startswith("pkg:npm/")}
    locked = json.loads((ROOT / "tools" / "vega" / "package-lock.json").read_text())["packages"]
    known = {
        f"pkg:npm/{path.rpartition('node_modules/')[2]}@{each['version']}" for path, each in locked.items() if path
    }
    assert found.keys() <= known
    assert found["pkg:npm/vega-lite@6.4.3"]["licenses"] == [{"expression": "BSD-3-Clause"}]
    # What a package's own file has inside is named, too.
    assert {"delaunator", "robust-predicates"} <= {entry["name"] for entry in found.values()}
    licences = (ROOT / "harness" / "report" / "static" / "LICENSES.txt").read_text()
    for whose in ("Ariya Hidayat", "Jason Davies", "fast-json-stable-stringify", "d3/d3-contour", "Mapbox"):
        assert whose in licences


def test_it_is_the_same_for_the_same_packages_and_grows_with_extras() -> None:
    plain = bill()
    assert bill() == plain
    tested = bill(extras=("test",))
    names = [{entry["name"] for entry in each["components"]} for each in (plain, tested)]
    assert names[0] < names[1]
    assert "pytest" in names[1] - names[0]
    assert tested["serialNumber"] != plain["serialNumber"]
