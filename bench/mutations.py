"""Damaged ONNX models by the thousand: `python -m bench.mutations --count 5000`. Each ends in
arrays or in a TilesmithError; what does not is printed, and the program fails.

With `--compiled`, models that still run are compiled too and compared with the oracle.
"""

from __future__ import annotations

import argparse
import collections
import queue
import sys
import threading
import time

from tests.support.onnx_trials import Trial, trials


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--verbose", action="store_true", help="print every trial")
    given = parser.parse_args()
    mode = "compiled" if given.compiled else "oracle"
    found: queue.Queue[Trial] = queue.Queue()
    last = given.first + given.count

    def work(k: int) -> None:
        for trial in trials(given.first + k, last, mode, given.workers):
            found.put(trial)

    threads = [threading.Thread(target=work, args=(k,), daemon=True) for k in range(given.workers)]
    for t in threads:
        t.start()
    counts: collections.Counter[str] = collections.Counter()
    slowest, began = (0.0, -1), time.monotonic()
    for _ in range(given.count):
        trial = found.get()
        counts[trial.outcome] += 1
        slowest = max(slowest, (trial.seconds, trial.number))
        if given.verbose or not trial.is_good:
            print(f"{trial.number} {trial.outcome} {trial.seconds:.1f}s {trial.text}", flush=True)
    print(f"{dict(counts)} in {time.monotonic() - began:.0f} s")
    print(f"slowest: number {slowest[1]} with {slowest[0]:.1f} s")
    bad = sum(n for outcome, n in counts.items() if outcome not in ("ran", "refused"))
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
