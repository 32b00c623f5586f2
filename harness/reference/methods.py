"""A page a method, from its docstring, its options and what it declares."""

from __future__ import annotations

from typing import Any

import yaml

from harness.reference.markdown import GENERATED, options_table, table, text_of
from harness.runtime.method import Method
from harness.runtime.registry import load_method, method_names

OWN = "methods."  # the package that comes with the tool


def shipped_methods() -> list[type[Method[Any]]]:
    """Return the methods that come with the tool, by name; not those of other packages."""
    loaded = [load_method(name) for name in method_names()]
    return [method for method in loaded if method.__module__.startswith(OWN)]


def index_page() -> str:
    """Return the list of all methods."""
    rows = [(f"[`{m.name}`]({m.name}.md)", m.family, m.summary()) for m in shipped_methods()]
    return f"""{GENERATED}
# Methods

{table(["method", "family", "what it does"], rows)}

The same on the command line, with methods of your own: `harness list methods`.
"""


def method_page(method: type[Method[Any]]) -> str:
    """Return the page of a method."""
    source = method.__module__.replace(".", "/") + ".py"
    rows = [
        ("family", method.family),
        ("is full-graph training at", _setting(method.exact)),
        ("aggregates without bias at", _setting(method.unbiased)),
        ("source", f"`{source}`"),
    ]
    return f"""{GENERATED}
# {method.name}

{method.summary()}

{table(["", ""], rows)}

{text_of(method)}

## Options

{options_table(method.Options.model_fields)}

In a suite:

```yaml
methods:
{_example(method)}
```
"""


def _setting(options: dict[str, Any] | None) -> str:
    """Return options as YAML; what the conformance suite holds a method to."""
    if options is None:
        return "not claimed"
    return f"`{_flow(options)}`" if options else "its defaults"


def _flow(value: Any) -> str:
    text: str = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=1000)
    return text.removesuffix("\n").removesuffix("\n...")


def _example(method: type[Method[Any]]) -> str:
    """Return an entry of a suite with the method's last options at their defaults."""
    fields = {k: f for k, f in method.Options.model_fields.items() if not f.is_required()}
    said = {key: field.get_default(call_default_factory=True) for key, field in list(fields.items())[-2:]}
    return f"  - {method.name}: {_flow(said)}" if said else f"  - {method.name}"
