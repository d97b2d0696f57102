"""The candidates that bench.gpu_sanitize runs: small problems of all kinds, and of each a few
candidates of sketches that different rules made, built for an H200. No GPU is needed.
"""

from __future__ import annotations

import json
import pickle
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

import tilesmith as ts
from bench.gpu_cases import function_of
from tests.support.gpu_programs import GpuCheck
from tests.support.programs import random_program
from tests.support.wide_programs import random_wide_program
from tilesmith.codegen.artifact import Artifact
from tilesmith.codegen.c.backends import emit_artifact
from tilesmith.codegen.c.dialect import CUDA
from tilesmith.codegen.c.nvrtc import compile_cuda
from tilesmith.codegen.pipeline import GPU_PASSES
from tilesmith.ir.nodes import walk
from tilesmith.ir.notes import PipelineStages
from tilesmith.schedule.step import Step
from tilesmith.schedule.trace import Trace
from tilesmith.space.ansor import ansor_rules
from tilesmith.space.derive import Derived, Finishing, Rule, State
from tilesmith.space.filtering import FilterWindowsForGpu
from tilesmith.space.rules_columns import FuseColumns
from tilesmith.space.rules_gpu import KeepPadding, TileForGpu
from tilesmith.space.rules_rows import FuseRows
from tilesmith.space.sets import default_rules
from tilesmith.space.spaces import SketchSpace, structural_counts, with_structure
from tilesmith.space.split_sums import SplitSums
from tilesmith.space.unfolding import TileUnfolded
from tilesmith.space.variant import lower

Rng = np.random.Generator
Array = np.ndarray[Any, Any]

H200 = ts.Target.named("nvidia-h200")
_LEAST_TERMS = 16  # of a part of a split sum: problems here are small
_LONG_ROW = 512
# Rules of which most problems have few sketches or none.
_RARE = (
    "split_interleaved", "FilterWindowsForGpu", "TileUnfolded", "TileByTensorCores", "TileByWarps",
    "CrossThreadReduction",
)  # fmt: skip
_STRUCTURES = 12  # that are tried of a sketch, since not all are legal

# Instructions by the text that stands for them in CUDA C.
_INSTRUCTIONS = {
    "wgmma": "wgmma.mma_async", "mma.sync": "mma.sync", "ldmatrix": "ldmatrix",
    "bulk copies (TMA)": "cp.async.bulk.tensor", "mbarrier": "mbarrier.init",
    "setmaxnreg": "setmaxnreg", "clusters": "__cluster_dims__",
    "another block's shared memory": "mapa.", "warp shuffles": "__shfl_",
    "barriers of blocks": "__syncthreads()",
}  # fmt: skip
_VECTORS = re.compile(r"\((const )?u?(char|short|int|long|longlong|float|double)[24] ?\*\)")


# rules -------------------------------------------------------------------------------------------


def small_rules(target: ts.Target) -> tuple[Rule, ...]:
    """The default rules, but those that wait for large problems do not."""
    return tuple(map(_small, default_rules(target)))


def _small(rule: Rule) -> Rule:
    match rule:
        case KeepPadding():
            return replace(rule, terms=1, uses=1)
        case FilterWindowsForGpu():
            return replace(rule, terms=1)
        case FuseRows():
            return replace(rule, longest=_LONG_ROW)
        case SplitSums() | TileForGpu() | FuseColumns():
            return replace(rule, least=_LEAST_TERMS)
        case TileUnfolded():
            return replace(rule, split=replace(rule.split, least=_LEAST_TERMS))
    return rule


RULES: dict[str, Callable[[ts.Target], tuple[Rule, ...]]] = {
    "default": small_rules,
    "ansor": ansor_rules,
}


def name_of(rule: Rule) -> str:
    return getattr(rule, "__name__", type(rule).__name__)


def rule_names() -> list[str]:
    """All rules that a candidate may be of."""
    return list(dict.fromkeys(name_of(r) for make in RULES.values() for r in make(H200)))


class Lineage:
    """Rules that note which of them made a state, and which of its alternatives it is."""

    def __init__(self, rules: tuple[Rule, ...]) -> None:
        self._made: dict[tuple[Step, ...], frozenset[str]] = {}
        self.rules = tuple(map(self._noting, rules))

    def of(self, sketch: Trace) -> frozenset[str]:
        return self._made.get(sketch.steps, frozenset())

    def _note(self, before: State, after: State, *labels: str) -> None:
        known = self._made.get(before.steps, frozenset())
        if after.steps == before.steps:  # a node was left as it is, by a rule of its own
            self._made[after.steps] = known | {*labels}
        else:
            self._made.setdefault(after.steps, known | {*labels})

    def _noting(self, rule: Rule) -> Rule:
        name = name_of(rule)

        def called(state: State) -> Derived | None:
            derived = rule(state)
            for k, after in enumerate(derived.states if derived is not None else ()):
                self._note(state, after, name, f"{name} {k}")
            return derived

        if isinstance(rule, Finishing):
            finish = rule.finish

            def finished(state: State) -> State:
                after = finish(state)
                self._note(state, after, name)
                return after

            called.finish = finished
        return called


# problems ----------------------------------------------------------------------------------------

_ANY = (1, 2, 3, 5, 7, 8, 12, 15, 16, 17, 24, 31, 32, 33, 40, 48, 63, 64, 65, 80, 96)
_DEPTHS = (16, 31, 32, 64, 65, 96, 128, 192, 256)


def _one(rng: Rng, items: Any) -> Any:
    return items[int(rng.integers(len(items)))]


def _named(name: str, *tensors: ts.Tensor) -> ts.Function:
    return ts.function(list(tensors), name=name)


def _product(rng: Rng, dtype: str) -> ts.Function:
    """Matrix products, some batched, some transposed, some with a bias and relu behind them."""
    m, n, k = _one(rng, _ANY), _one(rng, _ANY), _one(rng, _DEPTHS)
    batch = (_one(rng, (2, 3)),) if rng.random() < 0.2 else ()
    ta, tb = (bool(rng.random() < 0.3) for _ in range(2))
    a = ts.placeholder((*batch, *((k, m) if ta else (m, k))), dtype, name="A")
    b = ts.placeholder((*batch, *((n, k) if tb else (k, n))), dtype, name="B")
    make = ts.ops.batch_matmul if batch else ts.ops.matmul
    wide = "float32" if dtype in ("float16", "bfloat16") and rng.random() < 0.5 else None
    c = make(a, b, transpose_a=ta, transpose_b=tb, out_dtype=wide, name="C")
    if rng.random() < 0.4:
        bias = ts.placeholder((n,), c.dtype, name="bias")
        d = ts.compute(c.shape, lambda *i: ts.maximum(c[i] + bias[i[-1]], 0), name="D")
        return _named("product", a, b, bias, d)
    return _named("product", a, b, c)


def _large_product(rng: Rng, dtype: str) -> ts.Function:
    """Of a size that the matrix instructions of four warps take."""
    m, n = _one(rng, (64, 65, 96, 128, 192)), _one(rng, (64, 72, 96, 128))
    k = _one(rng, (64, 128, 200, 256))
    a, b = ts.placeholder((m, k), dtype, name="A"), ts.placeholder((k, n), dtype, name="B")
    c = ts.ops.matmul(a, b, out_dtype=_one(rng, ("float32", None)), name="C")
    return _named("large_product", a, b, c)


def _conv(rng: Rng, dtype: str) -> ts.Function:
    groups = _one(rng, (1, 1, 1, 2, 3))
    ci, co = groups * _one(rng, (1, 3, 4, 8, 16)), groups * _one(rng, (2, 5, 8, 16))
    size, kernel = _one(rng, (5, 7, 8, 9, 12)), _one(rng, (1, 3, 3, 5))
    stride, dilation = _one(rng, (1, 1, 2)), _one(rng, (1, 1, 1, 2))
    layout = _one(rng, ("NCHW", "NHWC"))
    first = layout == "NCHW"
    image = (2, ci, size, size) if first else (2, size, size, ci)
    taps = (kernel, kernel)
    weights = (co, ci // groups, *taps) if first else (*taps, ci // groups, co)
    x, w = ts.placeholder(image, dtype, name="X"), ts.placeholder(weights, dtype, name="W")
    padding = dilation * (kernel // 2)
    y = ts.ops.conv2d(x, w, stride, padding, dilation, groups, layout, name="Y")
    if rng.random() < 0.4:
        y = ts.ops.relu(y, name="Z")
    return _named("conv", x, w, y)


def _half_conv(rng: Rng, dtype: str) -> ts.Function:
    """Convolutions that become products of matrices."""
    kind = _one(rng, ("conv-float16", "conv-bfloat16", "conv-first-float16"))
    size, ci, co = _one(rng, (7, 8, 9, 14)), _one(rng, (32, 64, 72, 128)), _one(rng, (32, 64, 96))
    images, kernel, stride = _one(rng, (1, 2)), _one(rng, (1, 3)), _one(rng, (1, 2))
    return function_of(kind, (images, size, size, ci, co, kernel, stride))


def _filtered(rng: Rng, dtype: str) -> ts.Function:
    """Convolutions of constant weights, for minimal filtering."""
    size, ci, co = _one(rng, (8, 9, 12, 15)), _one(rng, (16, 24, 32)), _one(rng, (16, 20, 32))
    return function_of("conv2d", (size, ci, co, 3, 1, 1), prepared=True)


def _operator(rng: Rng, dtype: str) -> ts.Function:
    """Other operators of the suite."""
    n = _one(rng, (5, 7, 9, 12, 16))
    c = _one(rng, (4, 6, 9))
    shapes: dict[str, tuple[int, ...]] = {
        "conv1d": (3 * n, 6, c, 3, 2, 1), "conv3d": (5, 3, c, 3, 1, 1, 3),
        "capsule-conv2d": (5, 3, 3, 3, 2, 1, 2),
        "transpose-batch-matmul": (n, 3, 15), "conv2d-bn-relu": (n, 3, c, 3, 1, 1),
        "matmul-chain": (n, 24, 40, 9), "dilated-conv2d": (n, 3, c, 3, 1, 2), "gelu": (n, 45),
    }  # fmt: skip
    name = _one(rng, sorted(shapes))
    return function_of(name, shapes[name], prepared=bool(rng.random() < 0.5))


def _transposed(rng: Rng, dtype: str) -> ts.Function:
    """Transposed convolutions, whose phases are interleaved."""
    n, ci, co = _one(rng, (3, 5, 8)), _one(rng, (6, 8, 16)), _one(rng, (8, 9, 12))
    return function_of("conv2d-transpose", (n, ci, co, _one(rng, (2, 4)), 2, _one(rng, (0, 1))))


def _window(rng: Rng, dtype: str) -> ts.Function:
    """Depthwise convolution and pooling."""
    n, c = _one(rng, (7, 8, 9, 14, 15)), _one(rng, (3, 8, 16))
    kernel, stride = _one(rng, (2, 3, 5)), _one(rng, (1, 2))
    x = ts.placeholder((2, c, n, n), dtype, name="X")
    if rng.random() < 0.5:
        return _named("pool", x, ts.ops.max_pool2d(x, kernel, stride, name="Y"))
    w = ts.placeholder((c, 1, kernel, kernel), dtype, name="W")
    y = ts.ops.depthwise_conv2d(x, w, stride, kernel // 2, name="Y")
    return _named("depthwise", x, w, ts.ops.relu(y, name="Z") if rng.random() < 0.5 else y)


def _rows(rng: Rng, dtype: str) -> ts.Function:
    """Softmax, norms and sums along rows: a few long ones, or many short ones."""
    rows, length = _one(rng, ((1, 5000), (3, 4096), (2, 1023), (40, 300), (600, 64), (7, 45)))
    x = ts.placeholder((rows, length), dtype, name="X")
    kind = int(rng.integers(4))
    if kind == 0:
        return _named("softmax", x, ts.ops.softmax(x, name="Y"))
    if kind == 1:
        gamma, beta = (ts.placeholder((length,), dtype, name=n) for n in ("gamma", "beta"))
        return _named("layer_norm", x, gamma, beta, ts.ops.layer_norm(x, gamma, beta, name="Y"))
    k = ts.reduce_axis(length, name="k")
    make = ts.sum if kind == 2 else ts.amax
    return _named("reduce", x, ts.compute((rows,), lambda i: make(x[i, k], axis=k), name="Y"))


def _elementwise(rng: Rng, dtype: str) -> ts.Function:
    shape = _one(rng, ((1000,), (33, 65), (5, 7, 96), (128, 64)))
    x, y = (ts.placeholder(shape, dtype, name=n) for n in "XY")
    last = len(shape) - 1
    turned = (*shape[1:], shape[0])
    if last and rng.random() < 0.5:
        z = ts.compute(turned, lambda *i: x[(i[-1], *i[:-1])] * 2, name="Z")
        return _named("turned", x, z)
    return _named("sum", x, y, ts.compute(shape, lambda *i: x[i] * y[i] + x[i], name="Z"))


def _random(rng: Rng, dtype: str) -> ts.Function:
    return (random_wide_program if rng.random() < 0.4 else random_program)(rng)


FLOATS = ("float32", "float64", "float16", "bfloat16")
HALVES = ("float16", "bfloat16")
# What is drawn in turns; each with the dtypes that it takes turns with.
KINDS: tuple[tuple[Callable[[Rng, str], ts.Function], tuple[str, ...]], ...] = (
    (_product, ("float32", "float16", "int8", "float64", "bfloat16")),
    (_large_product, HALVES),
    (_half_conv, HALVES),
    (_rows, FLOATS),
    (_conv, ("float32", "float16", "int8", "float64")),
    (_filtered, ("float32",)),
    (_window, ("float32", "int8", "float16", "float64")),
    (_large_product, HALVES[::-1]),
    (_operator, ("float32",)),
    (_product, ("bfloat16", "float32", "float16", "int8", "float64")),
    (_elementwise, ("int8", "float16", "float64", "float32")),
    (_random, ("float32",)),
    (_transposed, ("float32",)),
)


def problem(seed: int, number: int) -> ts.Function:
    turn, which = divmod(number, len(KINDS))
    make, dtypes = KINDS[which]
    return make(np.random.default_rng((seed, number)), dtypes[turn % len(dtypes)])


# candidates --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Saved:
    """A candidate that is ready to run, with the oracle's answer."""

    number: int
    problem: int
    func: ts.Function  # unscheduled
    trace: Trace
    artifact: Artifact
    inputs: list[Array]
    want: Any
    labels: tuple[str, ...]  # rules, and their alternatives
    features: tuple[str, ...]
    planted: str = ""  # the tool that has to report it

    @property
    def title(self) -> str:
        shapes = ", ".join(
            f"{p.name}: {p.dtype}[{'x'.join(map(str, p.shape))}]"
            for p in self.artifact.parameters
        )  # fmt: skip
        return f"{self.func.name}({shapes})"


def path_of(folder: Path, number: int, suffix: str) -> Path:
    return folder / f"{tag(number)}{suffix}"


def tag(number: int) -> str:
    """In the names of a candidate's kernels and of its source, so that reports name it."""
    return f"c{number:05d}"


def save(folder: Path, c: Saved) -> None:
    """Written last, the pickle says that the others are complete."""
    path_of(folder, c.number, ".cu").write_text(c.artifact.source)
    facts = {
        "number": c.number, "problem": c.problem, "title": c.title, "planted": c.planted,
        "labels": c.labels, "features": c.features, "trace": json.loads(c.trace.to_json()),
    }  # fmt: skip
    path_of(folder, c.number, ".json").write_text(json.dumps(facts, indent=1))
    path_of(folder, c.number, ".pickle").write_bytes(pickle.dumps(c))


def load(folder: Path, number: int) -> Saved:
    saved: Saved = pickle.loads(path_of(folder, number, ".pickle").read_bytes())
    return saved


def built(func: ts.Function, number: int) -> Artifact:
    """One module with all launches, so that lines are those of the whole source."""
    renamed = replace(func, name=f"{tag(number)}_{func.name}")
    artifact = emit_artifact(renamed, H200, CUDA, GPU_PASSES, False)
    cubin = compile_cuda(tag(number), artifact.source, H200.arch, lines=True).cubin
    return replace(artifact, code=cubin)


@dataclass
class _Sketch:
    trace: Trace
    labels: frozenset[str]
    left: int = _STRUCTURES
    taken: set[str] = field(default_factory=set)


def drawn(
    func: ts.Function, rng: Rng, count: int, rules: str = "default"
) -> Iterator[tuple[ts.Function, Trace, tuple[str, ...]]]:
    """So many scheduled Functions, or fewer, of sketches that differ in the rules that made them;
    with their traces and labels.
    """
    lineage = Lineage(RULES[rules](H200))
    task = ts.Task(func, H200)
    traces = SketchSpace(lineage.rules).derive(task).traces
    sketches = [_Sketch(t, lineage.of(t)) for t in traces]
    common = Counter(x for s in sketches for x in s.labels)
    seen: Counter[str] = Counter()

    def news(s: _Sketch) -> float:
        """Higher for what few sketches have, and no candidate yet: rules, then alternatives."""
        value = {x: (3 if x in _RARE else 1) / common[x] / (1 + seen[x]) ** 2 for x in s.labels}
        rules = max((v for x, v in value.items() if " " not in x), default=0.0)
        others = max((v for x, v in value.items() if " " in x), default=0.0)
        return float(rules + 0.3 * others + 0.2 * rng.random())

    while count and sketches:
        s = sketches[int(np.argmax([news(s) for s in sketches]))]
        found = _candidate(task, s, rng)
        if found is None:
            s.left -= 1
            if s.left <= 0:
                sketches.remove(s)
            continue
        seen.update(s.labels)
        count -= 1
        yield (*found, tuple(sorted(s.labels)))


def _candidate(task: ts.Task, s: _Sketch, rng: Rng) -> tuple[ts.Function, Trace] | None:
    picked = [int(rng.integers(n)) for n in structural_counts(s.trace)]
    try:
        variant = lower(task, with_structure(s.trace, picked))
    except ts.ScheduleError:
        return None
    rows = variant.sample(rng, 1)
    if not len(rows):
        return None
    trace = variant.decided(rows[0])
    if trace.to_json() in s.taken:
        return None
    s.taken.add(trace.to_json())
    return variant.function(rows[0]), trace


def features_of(func: ts.Function, scheduled: ts.Function, artifact: Artifact) -> tuple[str, ...]:
    """What the kernels have that a sanitizer looks at, and what the problem is like."""
    source = artifact.source
    launches = artifact.entries[0].launches
    found = [name for name, text in _INSTRUCTIONS.items() if text in source]
    stages = [f.count(PipelineStages) for path, _ in walk(scheduled.body) for f in path]
    has = {
        "pipelined copies": any(n is not None and n > 1 for n in stages),
        "static shared memory": "  __shared__" in source,
        "dynamic shared memory": any(x.shared_nbytes for x in launches),
        "several launches": len(launches) > 1,
        "launches that overlap": any(x.overlaps for x in launches[1:]),
        "buffers between launches": bool(artifact.entries[0].scratch),
        "vectors": _VECTORS.search(source) is not None,
    }
    extents = [n for p in artifact.parameters for n in p.shape if n > 1]
    has |= {
        "odd extents": any(n % 2 for n in extents),
        "even extents only": not any(n % 2 for n in extents),
    }
    dtypes = dict.fromkeys(str(b.dtype) for b in func.inputs)
    return (*found, *(k for k, yes in has.items() if yes), *dtypes)


FEATURES = (
    *_INSTRUCTIONS, "pipelined copies", "static shared memory", "dynamic shared memory",
    "several launches", "launches that overlap", "buffers between launches", "vectors",
    "odd extents", "even extents only", "float32", "float16", "bfloat16", "int8", "float64",
)  # fmt: skip


def draw_problem(folder: str, seed: int, number: int, count: int) -> None:
    """Builds and saves `count` candidates of a problem, one of them by Ansor's rules."""
    func = problem(seed, number)
    rng = np.random.default_rng((seed, number, 1))
    check = GpuCheck(func, H200, seed)
    at = number * count
    for rules, share in (("default", count - 1), ("ansor", 1)):
        for scheduled, trace, labels in drawn(func, rng, share, rules):
            try:
                artifact = built(scheduled, at)
            except ts.BuildError as error:
                path_of(Path(folder), at, ".refused").write_text(f"{func.name}: {error}")
            else:
                features = features_of(func, scheduled, artifact)
                arguments = check.arguments(scheduled)
                save(Path(folder), Saved(
                    at, number, func, trace, artifact, arguments, check.want, labels, features
                ))  # fmt: skip
            at += 1
