"""By hand: `python tests/frontends/try_models.py [PREFIX ...] [-v] [-c]` runs ONNX's model cases
whose name begins so, by the oracle or compiled (-c), and prints what does not pass, or with -v the
seconds of each.
"""

from __future__ import annotations

import collections
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from model_cases import model_cases, model_outcome
from node_cases import Outcome, by_oracle

from tilesmith.tune.compile_model import compile_model


def main() -> None:
    wanted = [a for a in sys.argv[1:] if not a.startswith("-")]
    run = (lambda m, feeds: compile_model(m)(feeds)) if "-c" in sys.argv else by_oracle
    count: collections.Counter[str] = collections.Counter()
    for name, case in model_cases().items():
        if wanted and not any(name.startswith(w) for w in wanted):
            continue
        began = time.monotonic()
        try:
            result = model_outcome(case, run)
        except Exception as error:
            result = Outcome("crashed", f"{type(error).__name__}: {error}")
        count[result.kind] += 1
        if result.kind != "passed" or "-v" in sys.argv:
            seconds = time.monotonic() - began
            print(f"{result.kind:8} {seconds:6.2f}s {name}: {case.reason} {result.text[:300]}")
    print(dict(count))


if __name__ == "__main__":
    main()
