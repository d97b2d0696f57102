"""The pictures of docs/report.md: `python -m bench.report_pictures report.html`.

The page is one that `tilesmith report` has made of any database of networks.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from PIL import Image

from bench.chromium import Chromium

DOCS = Path(__file__).parent.parent / "docs"
_WIDTH = 1180
# Name, what is chosen before, the first and the last section. The page as it opens has no section:
# the picture is of the window.
_PICTURES = (
    ("report_progress", "", "", ""),
    ("report_layers", "", "#layers", ""),
    ("report_models", "task", "#speed", "#models"),
    ("report_decisions", "task", "#tiles", ""),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path)
    parser.add_argument("--task", default="", help="a part of its name; the slowest of these")
    parser.add_argument("--out", type=Path, default=DOCS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = Chromium(Path(profile), (_WIDTH, 1120))
        try:
            browser.open(options.page.resolve().as_uri())
            # Whoever has a mouse sees a chart's buttons only while it is there.
            browser.run("document.styleSheets[0].insertRule('.modebar {display: none}')")
            for name, what, first, last in _PICTURES:
                if what:
                    browser.run(
                        "choose({task: data.tasks.find(t => t.predictions && t.name.includes("
                        f"{options.task!r})).key}})"
                    )
                browser.run("for (const id of [...waiting.keys()]) paint(id)")
                browser.run("new Promise(done => setTimeout(done, 500))")  # fonts and frames
                file = options.out / f"{name}.png"
                browser.screenshot(file, first, last)
                Image.open(file).convert("RGB").quantize(128).save(file, optimize=True)
        finally:
            browser.close()


if __name__ == "__main__":
    main()
