"""Write a CycloneDX 1.5 bill of materials (JSON): harness's dependencies as installed here, theirs, and the bundled."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import typer
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from harness.version import DISTRIBUTION

NAMESPACE = uuid.UUID("6ba7b812-9dad-11d1-80b4-00c04fd430c8")  # RFC 4122's for object identifiers
LONGEST_LICENCE = 80  # characters: some packages have the whole text where its name belongs


def required(package: Distribution, extras: Iterable[str] = ()) -> Iterator[Requirement]:
    """Yield what a package requires here, with these extras of its own."""
    for text in package.requires or ():
        wanted = Requirement(text)
        if wanted.marker is None or any(wanted.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            yield wanted


def closure(name: str, extras: Iterable[str]) -> dict[str, tuple[Distribution, set[str]]]:
    """Return each installed package that `name` needs, itself first, by its canonical name, and what each needs."""
    found: dict[str, tuple[Distribution, set[str]]] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    todo = [(canonicalize_name(name), frozenset(extras))]
    while todo:
        at = todo.pop()
        if at in seen:
            continue
        seen.add(at)
        try:
            package, needs = found.setdefault(at[0], (distribution(at[0]), set()))
        except PackageNotFoundError:
            continue  # an extra's, which is not installed here
        for wanted in required(package, at[1]):
            needs.add(canonicalize_name(wanted.name))
            todo.append((canonicalize_name(wanted.name), frozenset(wanted.extras)))
    return found


def licences(package: Distribution) -> list[dict[str, Any]]:
    """Return the licence as the package's metadata tell it; empty where they do not."""
    told = package.metadata
    if "License-Expression" in told:
        return [{"expression": told["License-Expression"]}]
    names = [line.rpartition(" :: ")[2] for line in told.get_all("Classifier") or () if line.startswith("License ::")]
    if not names and "License" in told and (text := told["License"].strip()) and len(text) <= LONGEST_LICENCE:
        names = [text]
    return [{"license": {"name": name}} for name in names]


def component(package: Distribution, kind: str) -> dict[str, Any]:
    """Return the entry of a package; its reference is its package URL."""
    name, version = canonicalize_name(package.metadata["Name"]), package.version
    url = f"pkg:pypi/{name}@{version.replace('+', '%2B')}"
    entry: dict[str, Any] = {"type": kind, "bom-ref": url, "name": name, "version": version, "purl": url}
    return entry | ({"licenses": found} if (found := licences(package)) else {})


def bundled() -> list[dict[str, Any]]:
    """Return the entries of npm's packages that the report's script is made of, as its list of licences names them."""
    text = (files("harness") / "report/static/LICENSES.txt").read_text(encoding="utf-8")
    found = []
    for name, version, licence in re.findall(r"(?:\A|\n----\n\s*)(\S+) (\S+) \((.*)\)\n", text):
        url = f"pkg:npm/{name}@{version}"
        entry = {"type": "library", "bom-ref": url, "name": name, "version": version, "purl": url}
        found.append(entry | {"licenses": [{"expression": licence}]})
    return found


def bill(name: str = DISTRIBUTION, extras: Iterable[str] = ()) -> dict[str, Any]:
    """Return the bill of materials: the same for the same packages."""
    found = closure(name, extras)
    entries = {key: component(package, "library") for key, (package, _) in sorted(found.items())}
    own = canonicalize_name(name)
    subject = entries.pop(own) | {"type": "application"}
    refs = {key: entry["bom-ref"] for key, entry in (*entries.items(), (own, subject))}
    needed = {refs[key]: {refs[need] for need in found[key][1] if need in refs} for key in sorted(refs)}
    scripts = {entry["bom-ref"]: entry for entry in (bundled() if name == DISTRIBUTION else ())}
    needed[subject["bom-ref"]] |= scripts.keys()
    content = {
        "metadata": {"component": subject},
        "components": [*entries.values(), *scripts.values()],
        "dependencies": [{"ref": ref, "dependsOn": sorted(needed.get(ref, ()))} for ref in (*needed, *scripts)],
    }
    serial = uuid.uuid5(NAMESPACE, json.dumps(content, sort_keys=True))
    head = {"bomFormat": "CycloneDX", "specVersion": "1.5", "serialNumber": f"urn:uuid:{serial}", "version": 1}
    return head | content


def main(
    out: Annotated[Path, typer.Argument(metavar="FILE")] = Path("sbom.json"),
    extra: Annotated[list[str] | None, typer.Option("--extra", help="Extras of harness that count, too.")] = None,
) -> None:
    """Write the bill of materials of this environment."""
    content = bill(extras=extra or ())
    out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    typer.echo(f"{out}: {len(content['components'])} packages")


if __name__ == "__main__":
    typer.run(main)
