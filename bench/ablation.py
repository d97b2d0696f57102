"""What the scheduler, the shared cost model and transfer are worth, without the hardware:
`python -m bench.ablation --seeds 5`.

Schedulers: simulated tasks, and tasks whose steps were recorded in a real run (`--run FILE`; make
one with `--record MODEL.onnx --seconds 600 --run FILE`). A seed draws a network of 20 of these
tasks with weights of its own. Round robin gets half of the recorded time, and the figure is the
share of that after which gradient's latency is as low.

Sharing: two such networks, tuned apart and in one run, until each is as fast as when tuned alone.

Accuracy (`--accuracy`, ten minutes): what a model of each task and one of all tasks like best, of
ten operators whose programs were recorded (`bench.dataset`).

Models (`--models`, ten minutes): five of these operators as one network, on simulators fitted to
the records; the other five are in the database. One contestant lacks the shared model, one the
records of similar tasks, one is round robin.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path

from bench.ablation_run import compare_accuracy, compare_models, record_run
from bench.table import arguments
from tests.support.recorded_runs import cost_of_sharing, network_of, read_run, share_of_time
from tilesmith.base.whole_file import write_whole
from tilesmith.testing.schedulers import simulated_network
from tilesmith.tune.scheduler import gradient

RUN = Path(__file__).parent.parent / "tests" / "data" / "network_run.json"
COUNT = 20  # tasks of a network


def main(words: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--run", type=Path, default=RUN, help="a recorded run")
    parser.add_argument("--record", metavar="MODEL.onnx", help="tune it and write --run FILE")
    parser.add_argument("--seconds", type=float, default=600.0, help="of --record")
    parser.add_argument("--models", action="store_true", help="also compare cost models")
    parser.add_argument("--accuracy", action="store_true", help="also compare what models rank")
    parser.add_argument("--trials", type=int, default=300, help="of each run of --models")
    parser.add_argument("--records", type=int, default=500, help="of each operator, for --models")
    options = parser.parse_args(words)
    if options.record:
        record_run(options.record, options.seconds, options.run)
        return
    tasks = read_run(options.run)
    seeds = range(options.seeds)
    nets = [network_of(tasks, s, min(COUNT, len(tasks))) for s in seeds]
    others = [network_of(tasks, 100 + s, min(COUNT, len(tasks))) for s in seeds]
    figures: dict[str, object] = {
        "simulated": [
            share_of_time(net, gradient(), 20 * len(net)) for net in map(simulated_network, seeds)
        ],
        "recorded": [share_of_time(net, gradient()) for net in nets],
        "sharing": [cost_of_sharing(a, b) for a, b in zip(nets, others, strict=True)],
    }
    for name, what in (
        ("simulated", "simulated tasks: time of gradient / round robin, same latency"),
        ("recorded", "recorded tasks: time of gradient / round robin, same latency"),
        ("sharing", "two networks: time of one run / of two, same latencies"),
    ):
        values = figures[name]
        assert isinstance(values, list)
        each = ", ".join(f"{v:.2f}" for v in values)
        print(f"{what}: median {statistics.median(values):.2f} ({each})", flush=True)
    if options.accuracy:
        figures["accuracy"] = compare_accuracy(options.seeds)
    if options.models:
        figures["models"] = compare_models(options.seeds, options.trials, options.records)
    if options.json:
        write_whole(Path(options.json), json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
