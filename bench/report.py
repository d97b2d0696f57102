"""The page of a database of 100,000 records in a headless Chromium: its size, and how long it takes
from the navigation until the charts in view are drawn.

With `--other FILE` a page that another version made is opened in turns with this one's.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

import tilesmith as ts
from bench.chromium import BROWSER, Chromium
from bench.table import Row, arguments, finish
from tilesmith.records.networks import NetworkUse, store_network_uses
from tilesmith.task.task import Moment, TuningRun

# Runs before the page's own scripts. Charts are drawn when plotly has put its drawing into all that
# are in the window, and the browser has shown a frame after that.
_WATCH = """
window.drawnAt = 0;
(function look() {
  const done = document.readyState === 'complete' && document.querySelector('.xtick')
    && [...document.querySelectorAll('.chart')].every(c => {
      const b = c.getBoundingClientRect();
      return !b.height || b.top > innerHeight || b.bottom < 0 || c.querySelector('.xtick');
    });
  requestAnimationFrame(done ? () => { drawnAt = performance.now(); } : look);
})();
"""


@dataclass(frozen=True, slots=True)
class Visit:
    """All are seconds. `processor` is what the renderer has used until the charts were drawn."""

    loaded: float
    drawn: float
    processor: float


def fill(place: Path, tasks: int, records: int) -> None:
    """Tasks of one network, each with candidates of its own space and times that follow none."""
    rng = np.random.default_rng(0)
    with ts.open_database(place) as db:
        for k in range(tasks):
            n = 16 * (k + 1)
            a, b = ts.placeholder((n, 64), name="A"), ts.placeholder((64, n), name="B")
            product = ts.ops.matmul(a, b, name="C")
            task = ts.Task(ts.function([a, b, product], name=f"matmul {n}"), ts.cpu(1))
            run = TuningRun(f"run {k}", "evolution", "", k, ts.Budget(), 100.0, "m")
            sketch = ts.SketchSpace().sketches(task)[0]
            variant = next(iter(ts.variants(task, sketch)))
            candidates = [variant.candidate(r) for r in variant.sample(rng, 500)]
            times = 1e-5 * n * (1 + rng.exponential(size=records // tasks))
            measured = []
            for i, seconds in enumerate(times):
                m = ts.Measurement(candidates[i % 500], (float(seconds),), when=100.0 + i)
                if i % 20 == 7:
                    m = replace(m, seconds=(), failure=ts.Failure("wrong", "differs by 0.5"))
                measured.append(replace(m, moment=Moment(run, 0.1 * i, i + 1)))
            db.add(measured)
            uses = [NetworkUse("network", 1 + k % 3, 100.0, f"run {k}")]
            store_network_uses(db, task, 100.0, uses)


def visit(page: Path) -> Visit:
    """With a new browser, which has compiled nothing yet."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = Chromium(Path(profile))
        try:
            for domain in ("Runtime", "Log", "Network"):
                browser.call(f"{domain}.disable")  # what they report costs the page time
            browser.call("Page.addScriptToEvaluateOnNewDocument", source=_WATCH)
            before = browser.processor_seconds()
            browser.open(page.as_uri())
            drawn = browser.wait_for("drawnAt") / 1e3
            processor = browser.processor_seconds() - before
            loaded = browser.run("performance.getEntriesByType('navigation')[0].loadEventEnd")
        finally:
            browser.close()
    return Visit(loaded / 1e3, drawn, processor)


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--tasks", type=int, default=50)
    parser.add_argument("--visits", type=int, default=7, help="the median of these is shown")
    parser.add_argument("--page", metavar="FILE", type=Path, help="made if it is not there")
    parser.add_argument("--other", metavar="FILE", type=Path, help="a page of another version")
    options = parser.parse_args()
    if BROWSER is None:
        parser.error("needs Chromium: apt install chromium")
    with tempfile.TemporaryDirectory() as folder:
        place, page = Path(folder, "records.db"), options.page or Path(folder, "report.html")
        if not page.exists():
            fill(place, options.tasks, options.records)
            command = [sys.executable, "-m", "tilesmith", "report", str(place), "-o", str(page)]
            subprocess.run(command, check=True)
        pages = [page, *([options.other] if options.other else [])]
        visits: dict[Path, list[Visit]] = {p: [] for p in pages}
        for _ in range(options.visits):
            for p in pages:
                visits[p].append(visit(p))
        rows = []
        peer = options.other
        for name, of in (
            ("navigation to load event", lambda v: v.loaded),
            ("navigation to charts drawn", lambda v: v.drawn),
            ("processor time of the renderer until then", lambda v: v.processor),
        ):
            value = statistics.median(map(of, visits[page]))
            theirs = statistics.median(map(of, visits[peer])) if peer else None
            rows.append(
                Row(name, value, "s", peer and peer.name, theirs, theirs and theirs / value)
            )
        rows.append(Row("size of the page", page.stat().st_size / 1e6, "MB"))
    finish(rows, options)


if __name__ == "__main__":
    main()
