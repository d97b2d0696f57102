"""Tilesmith: fast tensor programs by searching.

Every public name is imported when it is first used; see base/process.py.
"""

from typing import TYPE_CHECKING

from tilesmith.base.process import make_lazy

if TYPE_CHECKING:
    from tilesmith import ops
    from tilesmith.base.dtype import DTYPES, DType, dtype
    from tilesmith.base.errors import (
        ArgumentError,
        BuildError,
        DeviceError,
        ExpressionError,
        GraphError,
        MeasureError,
        RecordsError,
        ScheduleError,
        TargetError,
        TilesmithError,
        TraceError,
        TuneError,
        VerifyError,
    )
    from tilesmith.base.machines.machine import CpuMachine, CpuModel, CpuVectors
    from tilesmith.base.target import CpuConstants, Target, cpu, set_num_threads
    from tilesmith.codegen.artifact import Artifact, Backend, Entry
    from tilesmith.codegen.c.backends import CudaBackend, OpenclBackend
    from tilesmith.codegen.llvm.backend import LlvmBackend
    from tilesmith.codegen.pipeline import CPU_PASSES, GPU_PASSES, PLAIN_PASSES, lower
    from tilesmith.expr.dsl import Tensor, compute, placeholder, reduce_axis, size, updated
    from tilesmith.expr.functions import absolute as abs
    from tilesmith.expr.functions import (
        atan,
        bitwise_and,
        bitwise_not,
        bitwise_or,
        bitwise_xor,
        ceil,
        cos,
        erf,
        exp,
        expm1,
        floor,
        fmod,
        isinf,
        isnan,
        left_shift,
        log,
        log2,
        log10,
        maximum,
        minimum,
        right_shift,
        rsqrt,
        sigmoid,
        sign,
        sin,
        sqrt,
        tanh,
        trunc,
        trunc_divide,
    )
    from tilesmith.expr.functions import round_ as round
    from tilesmith.expr.reductions import amax, amin, argmax, argmin, prod, reduce, sum
    from tilesmith.expr.transcendental import (
        acos,
        acosh,
        asin,
        asinh,
        atanh,
        cosh,
        log1p,
        sinh,
        tan,
    )
    from tilesmith.expr.values import Value, cast, power, where
    from tilesmith.frontends.open import from_torch, load_onnx
    from tilesmith.frontends.tvm.script import from_tvmscript
    from tilesmith.graph.graph import Graph, Node
    from tilesmith.graph.load_model import load_model
    from tilesmith.graph.model import Model
    from tilesmith.graph.partition import Group, partition
    from tilesmith.graph.pipeline import PASSES as GRAPH_PASSES
    from tilesmith.graph.program import Program
    from tilesmith.ir.deserialize import function_from_json
    from tilesmith.ir.evaluate import evaluate
    from tilesmith.ir.function import Function, instantiate
    from tilesmith.ir.interpreter import interpret
    from tilesmith.ir.intrinsics import (
        AVX512_DOT_U8S8,
        INTRINSICS,
        NEON_DOT_S8S8,
        NEON_DOT_U8U8,
    )
    from tilesmith.ir.lower import function
    from tilesmith.ir.nodes import Intrinsic
    from tilesmith.ir.notes import Note
    from tilesmith.ir.pack import pack
    from tilesmith.ir.serialize import function_to_json
    from tilesmith.ir.simt import run_simt
    from tilesmith.measure.fleet.measurer import FleetMeasurer
    from tilesmith.measure.local import LocalMeasurer
    from tilesmith.measure.protocol import Measurer, Measuring
    from tilesmith.measure.replay import ReplayMeasurer
    from tilesmith.measure.several_gpus import SeveralGpus
    from tilesmith.records.database import Database
    from tilesmith.records.lines import read_records
    from tilesmith.records.open import open_database
    from tilesmith.runtime.devices.open import cuda, opencl
    from tilesmith.runtime.kernel import Kernel
    from tilesmith.schedule.schedule import Schedule
    from tilesmith.schedule.step import Step
    from tilesmith.schedule.trace import PRIMITIVES, Parts, Trace
    from tilesmith.search.classic.annealing import Annealing
    from tilesmith.search.classic.baselines import Grid, Random, RandomModel
    from tilesmith.search.classic.context import RelationFeatures
    from tilesmith.search.classic.ensemble import (
        Ensemble,
        expected_improvement,
        log_expected_improvement,
        upper_confidence_bound,
    )
    from tilesmith.search.classic.genetic import Genetic
    from tilesmith.search.classic.knob_features import KnobFeatures, NoScore
    from tilesmith.search.classic.recorded import Recorded, RecordedSpace
    from tilesmith.search.classic.transfer import Transfer
    from tilesmith.search.classic.tree_gru import TreeGru
    from tilesmith.search.cpu_score import CpuScore
    from tilesmith.search.evolution import Evolution
    from tilesmith.search.gbdt import Gbdt
    from tilesmith.search.gpu_score import GpuScore
    from tilesmith.search.learned.model import LearnedModel, learn, load_cost_model
    from tilesmith.search.population import Catalogue, ChangeDecisions, RandomSearch
    from tilesmith.search.score_by_target import ScoreByTarget
    from tilesmith.search.statements import StatementFeatures
    from tilesmith.search.training import groups_of
    from tilesmith.space.annotation import CpuAnnotation
    from tilesmith.space.annotation_gpu import AnnotateForGpu
    from tilesmith.space.ansor import ansor_rules
    from tilesmith.space.derive import Derived, Finishing, State
    from tilesmith.space.instructions import TileByInstruction
    from tilesmith.space.rules import AddRfactor, InlineCheap, Tile, TileAndFuse
    from tilesmith.space.rules_gpu import Fetching, TileForGpu
    from tilesmith.space.sets import default_rules
    from tilesmith.space.spaces import SketchSpace, TemplateSpace, UnionSpace, variants
    from tilesmith.space.template import TemplateSchedule
    from tilesmith.space.tiling import Tiling
    from tilesmith.space.variant import Variant
    from tilesmith.task.network import ModelTuning, TaskTuning
    from tilesmith.task.task import Budget, Candidate, Failure, Measurement, Task, TuningRun
    from tilesmith.tune.build import best_kernel as build
    from tilesmith.tune.cache import Cache
    from tilesmith.tune.compile_model import compile_model, extract_tasks
    from tilesmith.tune.network_run import NetworkProgress
    from tilesmith.tune.objectives import (
        NetworkCosts,
        early_stopping,
        geomean_speedup,
        latency_targets,
        total_latency,
    )
    from tilesmith.tune.progress import Progress
    from tilesmith.tune.quantize import quantize
    from tilesmith.tune.result import Result
    from tilesmith.tune.scheduler import (
        Scheduler,
        TaskChoice,
        TaskState,
        TaskStep,
        gradient,
        round_robin,
    )
    from tilesmith.tune.task_tuner import TaskTuner
    from tilesmith.tune.tune import tune
    from tilesmith.tune.tune_model import tune_model
    from tilesmith.tune.tune_tasks import TasksResult, tune_tasks

__version__: str

if not TYPE_CHECKING:
    make_lazy(__name__)

    def __getattr__(name: str) -> str:
        # Computed on demand: reading package metadata takes longer than the import.
        if name == "__version__":
            from tilesmith.base.process import version

            return version()
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "AVX512_DOT_U8S8", "CPU_PASSES", "DTYPES", "GPU_PASSES", "GRAPH_PASSES", "INTRINSICS",
    "NEON_DOT_S8S8", "NEON_DOT_U8U8", "PLAIN_PASSES", "PRIMITIVES", "AddRfactor", "Annealing",
    "AnnotateForGpu", "ArgumentError", "Artifact", "Backend", "Budget", "BuildError", "Cache",
    "Candidate", "Catalogue", "ChangeDecisions", "CpuAnnotation", "CpuConstants", "CpuMachine",
    "CpuModel", "CpuScore", "CpuVectors", "CudaBackend", "DType", "Database", "Derived",
    "DeviceError", "Ensemble", "Entry", "Evolution", "ExpressionError", "Failure", "Fetching",
    "Finishing", "FleetMeasurer", "Function", "Gbdt", "Genetic", "GpuScore", "Graph", "GraphError",
    "Grid", "Group", "InlineCheap", "Intrinsic", "Kernel", "KnobFeatures", "LearnedModel",
    "LlvmBackend", "LocalMeasurer", "MeasureError", "Measurement", "Measurer", "Measuring", "Model",
    "ModelTuning", "NetworkCosts", "NetworkProgress", "NoScore", "Node", "Note", "OpenclBackend",
    "Parts", "Program", "Progress", "Random", "RandomModel", "RandomSearch", "Recorded",
    "RecordedSpace", "RecordsError", "RelationFeatures", "ReplayMeasurer", "Result", "Schedule",
    "ScheduleError", "Scheduler", "ScoreByTarget", "SeveralGpus", "SketchSpace", "State",
    "StatementFeatures", "Step", "Target", "TargetError", "Task", "TaskChoice", "TaskState",
    "TaskStep", "TaskTuner", "TaskTuning", "TasksResult", "TemplateSchedule", "TemplateSpace",
    "Tensor", "Tile", "TileAndFuse", "TileByInstruction", "TileForGpu", "TilesmithError", "Tiling",
    "Trace", "TraceError", "Transfer", "TreeGru", "TuneError", "TuningRun", "UnionSpace", "Value",
    "Variant", "VerifyError", "__version__", "abs", "acos", "acosh", "amax", "amin", "ansor_rules",
    "argmax", "argmin", "asin", "asinh", "atan", "atanh", "bitwise_and", "bitwise_not",
    "bitwise_or", "bitwise_xor", "build", "cast", "ceil", "compile_model", "compute", "cos", "cosh",
    "cpu", "cuda", "default_rules", "dtype", "early_stopping", "erf", "evaluate", "exp",
    "expected_improvement", "expm1", "extract_tasks", "floor", "fmod", "from_torch",
    "from_tvmscript", "function", "function_from_json", "function_to_json", "geomean_speedup",
    "gradient", "groups_of", "instantiate", "interpret", "isinf", "isnan", "latency_targets",
    "learn", "left_shift", "load_cost_model", "load_model", "load_onnx", "log", "log1p", "log2",
    "log10", "log_expected_improvement", "lower", "maximum", "minimum", "open_database", "opencl",
    "ops", "pack", "partition", "placeholder", "power", "prod", "quantize", "read_records",
    "reduce", "reduce_axis", "right_shift", "round", "round_robin", "rsqrt", "run_simt",
    "set_num_threads", "sigmoid", "sign", "sin", "sinh", "size", "sqrt", "sum", "tan", "tanh",
    "total_latency", "trunc", "trunc_divide", "tune", "tune_model", "tune_tasks", "updated",
    "upper_confidence_bound", "variants", "where",
]  # fmt: skip
