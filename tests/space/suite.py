"""The operator suite twice: at the first shape of BENCHMARKS.md, and small and odd for oracles."""

from __future__ import annotations

from tilesmith.base.target import Target
from tilesmith.cli.operators import operator
from tilesmith.schedule.trace import Trace
from tilesmith.space.ansor import ansor_rules
from tilesmith.space.sets import default_rules
from tilesmith.space.spaces import SketchSpace
from tilesmith.task.task import Task

SUITE: dict[str, tuple[int, ...]] = {
    "matmul": (512, 512, 512),
    "conv1d": (256, 64, 128, 3, 2, 1),
    "conv2d": (224, 3, 64, 7, 2, 3),
    "conv3d": (224, 3, 64, 7, 2, 3),
    "group-conv2d": (56, 64, 128, 3, 2, 1),
    "dilated-conv2d": (224, 3, 64, 7, 2, 3),
    "depthwise-conv2d": (112, 32, 3, 1, 1),
    "conv2d-transpose": (4, 512, 256, 4, 2, 1),
    "capsule-conv2d": (16, 32, 32, 3, 2, 1),
    "norm": (256, 256),
    "softmax": (256, 256),
    "conv2d-bn-relu": (56, 64, 128, 3, 2, 1),
    "transpose-batch-matmul": (128, 12, 64),
    # what no list names
    "matmul-relu": (512, 512, 512),
    "matmul-chain": (128, 128, 64, 32),
    "max-pool2d": (56, 64, 3, 2, 1),
    "sum": (65536,),
    "gelu": (128, 3072),
}

SMALL: dict[str, tuple[int, ...]] = {
    "matmul": (13, 17, 11),
    "conv1d": (11, 3, 5, 3, 2, 1),
    "conv2d": (7, 3, 5, 3, 2, 1),
    "conv3d": (5, 2, 3, 3, 1, 1, 3),
    "group-conv2d": (5, 4, 6, 3, 2, 1, 2),
    "dilated-conv2d": (7, 3, 5, 3, 1, 2),
    "depthwise-conv2d": (7, 9, 3, 1, 1),
    "conv2d-transpose": (3, 2, 3, 4, 2, 1),
    "capsule-conv2d": (5, 3, 2, 3, 2, 1, 2),
    "norm": (30, 43),
    "softmax": (5, 33),
    "conv2d-bn-relu": (5, 3, 7, 3, 1, 1),
    "transpose-batch-matmul": (7, 3, 5),
    "matmul-relu": (7, 18, 9),
    "matmul-chain": (9, 7, 11, 5),
    "max-pool2d": (7, 3, 3, 2, 1),
    "sum": (101,),
    "gelu": (4, 9),
}

RULES = {"ansor": ansor_rules, "default": default_rules}
FOUR_CORES = Target.named("neoverse-n1").with_cores(4)
V100 = Target.named("nvidia-v100")


def task_of(name: str, target: Target, *, small: bool = False) -> Task:
    return Task(operator(name, (SMALL if small else SUITE)[name]), target)


def sketches_of(task: Task, rules: str) -> tuple[Trace, ...]:
    return SketchSpace(RULES[rules](task.target)).sketches(task)
