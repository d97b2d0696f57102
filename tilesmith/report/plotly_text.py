"""The text of plotly.js, from the installed package, changed so that a browser starts it faster.

Most of the time in which a page loads goes into plotly.js. Each change here is made only where the
text is known well enough; another version of plotly is taken as it is, and then starts more slowly.
"""

from __future__ import annotations

import pkgutil
import re

from tilesmith.base.errors import ArgumentError

# Browsers skim a function that they meet and read it again when it is called, unless it stands in
# parentheses. All of plotly.js is inside of these two functions, so all of it was read three times.
_READ_TWICE = ', () => {\n"use strict";var Plotly=(()=>{'
_READ_ONCE = ', (function () {\n"use strict";var Plotly=(function () {'
_END = "window.Plotly = Plotly;\nreturn Plotly;\n}));"
_END_ONCE = "window.Plotly = Plotly;\nreturn Plotly;\n})));"

# The list of all kinds of charts, bars first. Lines and points are not in it, because they are a
# part of the core. The modules of maps and volumes are run only for this list.
_KINDS = re.compile(r"\.register\(\[([\w$]+)\(\)(?:,[\w$]+\(\)){20,}\]\)")


def plotly_text() -> str:
    """A script that defines `Plotly`, which can draw lines, points and bars."""
    try:
        script = pkgutil.get_data("plotly", "package_data/plotly.min.js")
    except (ImportError, OSError):
        script = None
    if script is None:
        raise ArgumentError("the page needs plotly; pip install 'tilesmith[report]'")
    return with_bars_only(read_once(script.decode()))


def read_once(text: str) -> str:
    if text.count(_READ_TWICE) != 1 or not text.endswith(_END):
        return text
    return text.replace(_READ_TWICE, _READ_ONCE).removesuffix(_END) + _END_ONCE


def with_bars_only(text: str) -> str:
    lists = list(_KINDS.finditer(text))
    if len(lists) != 1 or not _is_bar(text, lists[0].group(1)):
        return text
    start, end = lists[0].span()
    return f"{text[:start]}.register([{lists[0].group(1)}()]){text[end:]}"


def _is_bar(text: str, module: str) -> bool:
    """Whether a module only hands on another one, the one that defines bars."""
    name, own = r"([\w$]+)", re.escape(module)
    handed = re.search(
        rf'\b{own}={name}\(\({name},{name}\)=>{{"use strict";\3\.exports={name}\(\)}}\)', text
    )
    if handed is None:
        return False
    wrapper, _, _, inner = handed.groups()
    # All that is between the beginning of that module and the beginning of the next one.
    start = text.find(f"{inner}={wrapper}((")
    end = text.find(f"={wrapper}((", start + len(f"{inner}={wrapper}(("))
    return start >= 0 and 'moduleType:"trace",name:"bar",' in text[start:end]
