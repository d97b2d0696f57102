"""What the site has beside the pages of docs/ (a hook of mkdocs, see mkdocs.yml): README and
CHANGELOG as pages, all examples as one page, and the API reference.

A line `::: name` of a page becomes the signature and docstring of ts.name, which are taken from the
imported package. That takes a second; a parser of the whole source tree would take half a minute.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from functools import cached_property
from pathlib import Path
from typing import Any

import tilesmith as ts

ROOT = Path(__file__).parent.parent
MARK = re.compile(r"^::: ([\w. ]+)$", re.MULTILINE)
LINK = re.compile(r"\[([^\]]*)\]\(((?:\.\./)+)([a-z]+/[^)]*)\)")


def on_files(files: Any, config: Any) -> Any:
    """Adds the pages that are generated."""
    from mkdocs.structure.files import File

    home = re.sub(r"\]\(docs/", "](", (ROOT / "README.md").read_text())
    home = home.replace("](CHANGELOG.md)", "](changelog.md)").replace(
        "](examples)", "](examples.md)"
    )
    pages = {
        "index.md": home,
        "changelog.md": (ROOT / "CHANGELOG.md").read_text(),
        "examples.md": examples(),
    }
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    return expanded(LINK.sub(_link, markdown))


def _link(match: re.Match[str]) -> str:
    """A link out of docs/: to an example on this site, or the name of a source file."""
    text, up, path = match.groups()
    if path.startswith("examples/"):
        return f"[{text}]({up.removeprefix('../')}examples.md#{Path(path).stem})"
    if not path.startswith("tilesmith"):
        return match.group()
    return f"`{path}`" if text.startswith(("tilesmith/", path.split("/")[-1])) else text


def examples() -> str:
    """All examples, each with its first docstring as a heading."""
    parts = ["# Examples\n"]
    for path in sorted((ROOT / "examples").glob("*.py")):
        parts.append(f"## {path.name} {{#{path.stem}}}\n\n```python\n{path.read_text()}```\n")
    return "\n".join(parts)


def expanded(markdown: str) -> str:
    """The page with the reference of every name that it lists."""
    return MARK.sub(lambda m: "\n".join(map(entry, m.group(1).split())), markdown)


def entry(name: str) -> str:
    """The reference of one public name: signature, docstring, and for a class its methods."""
    thing: Any = ts
    for part in name.split("."):
        thing = getattr(thing, part)
    if inspect.ismodule(thing):
        return "\n".join(entry(f"{name}.{part}") for part in thing.__all__)
    lines = [f"### ts.{name} {{#{name}}}", ""]
    if inspect.isclass(thing) or inspect.isfunction(thing):
        lines += ["```python", _signature(f"ts.{name}", thing), "```", ""]
    lines += [_docstring(thing), ""]
    if inspect.isclass(thing) and not issubclass(thing, Exception):
        lines += _members(thing)
    return "\n".join(lines)


def _docstring(thing: Any) -> str:
    """Its text, which is Markdown. Indented drawings and examples are blocks of code there, too."""
    if not (inspect.isclass(thing) or inspect.isroutine(thing)):
        return ""
    text = inspect.getdoc(thing) or ""
    return re.sub(r"^Example:$", "**Example**", text, flags=re.MULTILINE)


def _signature(name: str, thing: Any) -> str:
    try:
        signature = inspect.signature(thing)
    except (TypeError, ValueError):
        return name
    shown = [
        p.replace(default=_Plain(p.default)) if p.default is not p.empty else p
        for p in signature.parameters.values()
        if p.name != "self"
    ]
    returned = signature.return_annotation if inspect.isroutine(thing) else signature.empty
    text = str(signature.replace(parameters=shown, return_annotation=returned)).replace("'", "")
    if len(name + text) <= 88:
        return name + text
    inner = ",\n".join(f"    {p!s}".replace("'", "") for p in shown)
    arrow = f" -> {returned!s}" if returned is not signature.empty else ""
    star = next((k for k, p in enumerate(shown) if p.kind is p.KEYWORD_ONLY), None)
    if star is not None and not any(p.kind is p.VAR_POSITIONAL for p in shown):
        rows = inner.split(",\n    ")
        inner = ",\n    ".join([*rows[:star], "    *" if star == 0 else "*", *rows[star:]])
    return f"{name}(\n{inner},\n){arrow}".replace("'", "")


class _Plain:
    """A default value as short text: defaults made at each call have no text of their own."""

    def __init__(self, value: Any) -> None:
        text = repr(value)
        if inspect.isfunction(value):
            text = value.__name__
        self.text = text if len(text) <= 40 and "<" not in text else "..."

    def __repr__(self) -> str:
        return self.text.replace("'", '"')


def _members(thing: type) -> list[str]:
    """The public methods and properties with a docstring, in the order of the source."""
    lines: list[str] = []
    fields = getattr(thing, "__dataclass_fields__", {})
    classes = [c for c in thing.__mro__ if c.__module__.startswith("tilesmith")]
    members = {name: m for c in reversed(classes) for name, m in vars(c).items()}
    for name, member in members.items():
        if name.startswith("_") or name in fields:
            continue
        if isinstance(member, property | cached_property):
            text, label = inspect.getdoc(member), name
        elif isinstance(member, staticmethod | classmethod) or inspect.isfunction(member):
            plain = getattr(thing, name)
            text, label = inspect.getdoc(plain), _signature(name, plain)
        else:
            continue
        if text and "\n" in label:
            lines += [f"#### `{name}(...)`", "", "```python", label, "```", "", text, ""]
        elif text:
            lines += [f"#### `{label}`", "", text, ""]
    return lines


def names_on(page: str) -> list[str]:
    """The public names that a page lists."""
    return [name for m in MARK.finditer(page) for name in m.group(1).split()]


def examples_of(thing: Any) -> list[str]:
    """The code of the examples in a docstring."""
    text = inspect.getdoc(thing) or ""
    found = re.findall(r"^Example:\n\n((?:    .*\n?|\n)+)", text, flags=re.MULTILINE)
    return [textwrap.dedent(block) for block in found]
