"""By hand: `python tests/frontends/try_nodes.py [PREFIX ...] [-v]` runs ONNX's node cases whose
operator or name begins so, and prints what does not pass.
"""

from __future__ import annotations

import collections
import sys
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from node_cases import Outcome, cases, outcome


def main() -> None:
    wanted = [a for a in sys.argv[1:] if not a.startswith("-")]
    verbose = "-v" in sys.argv
    count: collections.Counter[str] = collections.Counter()
    for name, case in cases().items():
        ops = {n.op_type for n in case.model.graph.node}
        if wanted and not any(name.startswith(w) or w in ops for w in wanted):
            continue
        try:
            result = outcome(case)
        except Exception as error:
            result = Outcome("crashed", f"{type(error).__name__}: {error}")
            if verbose:
                traceback.print_exc()
        count[result.kind] += 1
        if result.kind != "passed":
            print(f"{result.kind:8} {name}: {result.text[:300]}")
    print(dict(count))


if __name__ == "__main__":
    main()
