"""A figure as part of the page: SVG that its style sheet can colour and its script can hide."""

from __future__ import annotations

import re
from collections.abc import Iterator
from xml.etree import ElementTree

from harness.report.figures.drawing import Picture

_REFERENCE = re.compile(r"url\(#([^)]*)\)")
_UNUSED = ("metadata", "style")  # its one rule is in the page's style sheet, which holds for this element only


def inline_svg(picture: Picture) -> str:
    """Return a figure as an `svg` element for an HTML page.

    Its ids begin with the figure's name, so that they are the page's only ones; declarations of style are
    attributes, which a policy without inline styles allows and which rules may override. A panel whose
    vertical axis has the labels of its neighbours too is of class `shared`; what is written on coloured
    squares is of class `fixed`, for its colour was chosen for theirs.
    """
    root = ElementTree.fromstring(picture.svg)
    for element in root.iter():
        element.tag = _local(element.tag)
        element.attrib = {_local(key): value for key, value in element.attrib.items()}
    for parent in list(root.iter()):
        for child in [child for child in parent if child.tag in _UNUSED]:
            parent.remove(child)
    _class_axes(root)
    for element in root.iter():
        element.attrib = dict(_attributes(element.attrib, picture.name))
        element.text = element.tail = (element.text or "").strip() or None
    view = root.attrib["viewBox"]
    root.attrib = {"viewBox": view, "class": "plot", "role": "img", "aria-label": picture.alt}
    return ElementTree.tostring(root, encoding="unicode")


def colours_of(svg: str) -> set[str]:
    """Return the colours (as #rrggbb) of an inline figure."""
    return set(re.findall(r'(?:fill|stroke)="(#[0-9a-f]{6})"', svg))


def _local(name: str) -> str:
    return name.rpartition("}")[2]


def _attributes(attributes: dict[str, str], prefix: str) -> Iterator[tuple[str, str]]:
    for key, value in attributes.items():
        if key == "style":
            for declaration in filter(None, (part.strip() for part in value.split(";"))):
                name, _, said = declaration.partition(":")
                yield name, _REFERENCE.sub(rf"url(#{prefix}-\1)", said.strip())
        elif key == "id":
            yield key, f"{prefix}-{value}"
        elif key == "href" and value.startswith("#"):
            yield key, f"#{prefix}-{value[1:]}"
        elif key != "type":
            yield key, _REFERENCE.sub(rf"url(#{prefix}-\1)", value)


def _class_axes(root: ElementTree.Element) -> None:
    """Tell apart panels by what their vertical axis and their squares are to others."""
    panels = [group for group in root.iter("g") if _child(group, "matplotlib.axis_") is not None]
    labelled = [panel for panel in panels if _lettered(_vertical(panel))]
    shared = 0 < len(labelled) < len(panels)
    for panel in panels:
        if shared and panel in labelled:
            _add_class(panel, "shared")
            _add_class(_vertical(panel), "keep")
        if _child(panel, "QuadMesh") is not None or panel.find("image") is not None:
            for text in (child for child in panel if child.get("id", "").startswith("text_")):
                _add_class(text, "fixed")


def _vertical(panel: ElementTree.Element) -> ElementTree.Element | None:
    """Return the panel's vertical axis: the second of its axes."""
    axes = [child for child in panel if child.get("id", "").startswith("matplotlib.axis_")]
    return axes[1] if len(axes) > 1 else None


def _lettered(group: ElementTree.Element | None) -> bool:
    """Return whether there is text in a group: glyphs, which are drawn in units of the font."""
    return group is not None and any(" scale(" in each.get("transform", "") for each in group.iter("g"))


def _child(group: ElementTree.Element, start: str) -> ElementTree.Element | None:
    return next((child for child in group if child.get("id", "").startswith(start)), None)


def _add_class(element: ElementTree.Element | None, name: str) -> None:
    if element is not None:
        element.set("class", f"{element.get('class', '')} {name}".strip())
