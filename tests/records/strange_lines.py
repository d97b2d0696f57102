"""Changes lines of an exported file as a stranger might, and imports them.

PYTHONPATH=. python tests/records/strange_lines.py --trials 20000
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import random
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import tilesmith as ts
from tilesmith.base.errors import TilesmithError
from tilesmith.task.task import Budget, Failure, Moment
from tilesmith.testing.measurements import measured, task_of, tuning_run

X, W = ts.placeholder((6, 8), name="X"), ts.placeholder((8, 4), name="W")
MATMUL = ts.Task(ts.function([X, W, ts.ops.matmul(X, W, name="Y")], name="mm"), ts.cpu(1))


def good_lines(folder: Path) -> list[str]:
    task, file = task_of(), folder / "good.jsonl"
    moment = Moment(tuning_run(Budget(trials=9, seconds=1.5, patience=3)), 0.5, 1)
    sketch = ts.SketchSpace().sketches(MATMUL)[0]
    search = ts.Random().start(MATMUL, [sketch], np.random.default_rng(0))
    with ts.open_database(":memory:") as db:
        m = measured(task, 3, (1e-3, 2e-3))
        db.add([replace(m, references=(1e-4, 1e-4), moment=moment)])
        db.add([measured(task, 4, (), Failure("build", "no such instruction"))])
        db.add([ts.Measurement(c, (1e-5,), when=7.0) for c in search.ask(2)])
        db.export(file)
    return file.read_text().splitlines()


def nested(depth: int, inner: Any = 0) -> Any:
    for _ in range(depth):
        inner = [inner]
    return inner


STRANGE: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 7, 2**31, 2**63, -(2**63) - 1, 10**400, 1e308, -0.0, 1e-320,
    float("nan"), float("inf"), "", "x", "nan", "-1", "\0", "\ud800", "../../etc/passwd",
    "y" * 200_000, [], {}, [[]], [None], {"": None}, nested(50), nested(900), [0] * 1000,
    "\N{PILE OF POO}", "__class__", "inf", ["//", 1, 0], ["max", "i", "i"], ["value", 0],
    "float32", "split", "int8", "reduce", "serial", "parallel", "vector",
)  # fmt: skip


def places(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all values in a JSON value."""
    items = data.items() if isinstance(data, dict) else enumerate(data)
    for key, value in items if isinstance(data, dict | list) else ():
        yield (*path, key)
        if isinstance(value, dict | list):
            yield from places(value, (*path, key))


def at(data: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        data = data[key]
    return data


def strange(line: str, rng: random.Random) -> str:
    data = json.loads(line)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        everywhere = list(places(data))
        path = rng.choice(everywhere)
        parent, key = at(data, path[:-1]), path[-1]
        match rng.randrange(8):
            case 0:
                del parent[key]
            case 1 if isinstance(parent, list):
                parent.insert(key, parent[key])
            case 2:
                other = at(data, rng.choice(everywhere))
                parent[key] = json.loads(json.dumps(other))
            case 3 if type(parent[key]) in (int, float):
                parent[key] = rng.choice((-1, 1, 2, 3, 0, 1 << 20, 1 << 40)) * (parent[key] + 1)
            case 4 if isinstance(parent[key], str):
                parent[key] = parent[key][: rng.randrange(len(parent[key]) + 1)] + rng.choice(
                    ("", "x", "\0", "\udfff", "0")
                )
            case 5 if isinstance(parent, list):
                rng.shuffle(parent)
            case _:
                parent[key] = rng.choice(STRANGE)
    text = json.dumps(data)
    if rng.random() < 0.1:  # a key twice, or bytes of something else
        k = rng.randrange(len(text))
        text = text[:k] + rng.choice(('"version":1,', "\\u0000", "}", "\t", '"', "NaN", "1e999"))
        text += json.dumps(data)[k:]
    return text.replace("\n", " ")


def defect(line: str, folder: Path) -> BaseException | None:
    """What goes wrong when it is imported and what was imported is used."""
    file = folder / "strange.jsonl"
    file.write_bytes(line.encode(errors="surrogatepass") + b"\n")
    try:
        with ts.open_database(":memory:") as db:
            done = db.import_(file)
            if done.added + done.refused != 1:
                raise AssertionError(f"neither added nor refused: {done}")
            if not done.added:
                return None
            for summary in db.tasks():
                str(summary.task)
                summary.task.func.__str__()
                db.of(summary.task)
                db.best(summary.task)
                db.runs(summary.task)
                db.earlier(summary.task)
            db.unread()
            db.export(folder / "again.jsonl")
            with ts.open_database(":memory:") as other:
                if other.merge(db) != 1 or db.import_(folder / "again.jsonl").present != 1:
                    raise AssertionError("it does not survive")
            ts.read_records(folder / "again.jsonl")
            db.prune(keep=1, failures=True)
    except TilesmithError:
        return None  # read_records: of a user's own primitive
    except Exception as error:
        return error
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    found: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        good = good_lines(folder)
        for k in range(options.trials):
            if k % 200 == 0:
                print(f"{k} lines, {sum(found.values())} defects", flush=True)
            line = strange(rng.choice(good), rng)
            faulthandler.dump_traceback_later(10)
            start = time.perf_counter()
            error = defect(line, folder)
            seconds = time.perf_counter() - start
            faulthandler.cancel_dump_traceback_later()
            if seconds > 3:
                print(f"trial {k} takes {seconds:.1f} s: {line[:2000]}")
            if error is not None:
                kind = f"{type(error).__name__}: {str(error)[:90]}"
                if not found[kind]:
                    print(f"trial {k}: {line[:3000]}")
                    traceback.print_exception(error, limit=-5, chain=False)
                found[kind] += 1
    for kind, count in found.most_common():
        print(count, kind)
    print(f"{sum(found.values())} defects in {options.trials} lines")


if __name__ == "__main__":
    main()
