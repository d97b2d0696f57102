"""Models with open sizes, compiled once: at every length the result is that of the oracle, which
imports the model at that length.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

import tilesmith as ts
from tests.support.open_models import check, compiled, feeds_of, program
from tilesmith.codegen.llvm import compiler

LAYER = """
    layer (float[seq, 24] x) => (float[seq, 20] y, float[seq, 24] doubled)
    {h = MatMul(x, w) g = Add(h, b) r = Relu(g)
     l = LayerNormalization(r, scale, shift)
     y = Softmax(l) doubled = Add(x, x)}"""


@pytest.fixture(scope="module")
def layer() -> Any:
    return program(LAYER, w=(24, 20), b=(20,), scale=(20,), shift=(20,))


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What is compiled while the test runs."""
    names: list[str] = []
    whole = compiler.compile_ir

    def noticed(name: str, *args: Any, **kwargs: Any) -> Any:
        names.append(name)
        return whole(name, *args, **kwargs)

    monkeypatch.setattr(compiler, "compile_ir", noticed)
    return names


def test_one_model_runs_all_lengths(layer: Any) -> None:
    made = compiled(layer, {"seq": (0, 40)})
    run = made._run
    for n in (0, 1, 2, 7, 8, 16, 33, 39, 40, 41, 100):
        check(made, layer, seq=n)
    assert not [*run.known_stages()]  # nothing was compiled for a length alone
    text = made.summary()
    assert "compiled once for all sizes, tuned for seq 0 to 40" in text
    assert "x0: float32[seq, 24]" in text
    feeds = feeds_of(layer, seq=5)
    profile = made.profile(feeds)
    assert len(profile.kernels) == len(run.executor.kernels)
    assert "5x24 -> 5x24 float32" in str(profile)
    bound = made.bind(feeds)
    np.testing.assert_array_equal(bound()["y"], made(feeds)["y"])


ATTENTION = """
    attention (float[batch, seq, 24] x, float[batch, past, 24] before) =>
        (float[batch, seq, 24] y, float[batch, total, 24] all)
    <int64[1] one = {1}, int64[1] two = {2}, int64[4] heads = {0, 0, 3, 8},
     int64[3] flat = {0, 0, 24}>
    {all = Concat <axis = 1> (before, x)
     q = MatMul(x, wq) k = MatMul(all, wk)
     qh = Reshape(q, heads) kh = Reshape(k, heads) vh = Reshape(all, heads)
     qt = Transpose <perm = [0, 2, 1, 3]> (qh)
     kt = Transpose <perm = [0, 2, 3, 1]> (kh)
     vt = Transpose <perm = [0, 2, 1, 3]> (vh)
     scores = MatMul(qt, kt) p = Softmax(scores) o = MatMul(p, vt)
     back = Transpose <perm = [0, 2, 1, 3]> (o)
     y = Reshape(back, flat)}"""


def test_attention_over_two_open_lengths_and_a_batch() -> None:
    model = program(ATTENTION, wq=(24, 24), wk=(24, 24))
    made = compiled(model, {"batch": (1, 3), "seq": (1, 20), "past": (0, 40)})
    for batch, seq, past in ((1, 1, 0), (1, 1, 1), (2, 5, 7), (3, 20, 40), (1, 17, 33), (4, 9, 50),
                             (0, 3, 2)):  # fmt: skip
        check(made, model, batch=batch, seq=seq, past=past)
    with pytest.raises(ts.TilesmithError, match="'batch' is 2 in 'x' and 3 in 'before'"):
        made(feeds_of(model, batch=2, seq=1, past=1) | {"before": np.zeros((3, 1, 24), "f4")})


IMAGE = """
    image (float[batch, 3, height, width] x) => (float[batch, 6] y, float[batch, 8, h, w] small)
    {c = Conv <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]> (x, first)
     r = Relu(c)
     m = MaxPool <kernel_shape = [3, 3], strides = [2, 2]> (r)
     d = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (m, second)
     small = Add(d, m)
     p = GlobalAveragePool(small) f = Flatten(p) y = MatMul(f, last)}"""


def test_images_of_open_height_and_width() -> None:
    model = program(IMAGE, first=(8, 3, 3, 3), second=(8, 8, 3, 3), last=(8, 6))
    made = compiled(model, {"batch": (1, 2), "height": (8, 30), "width": (8, 40)})
    for batch, height, width in ((1, 8, 8), (2, 9, 23), (1, 30, 40), (3, 17, 12), (1, 64, 9),
                                 (1, 5, 5)):  # fmt: skip
        check(made, model, batch=batch, height=height, width=width)
    with pytest.raises(ts.TilesmithError, match="kernel reaches over 3 elements"):
        made(feeds_of(model, batch=1, height=1, width=20))


WINDOW = """
    window (float[1, 4, width] x) => (float[1, 4, w] y)
    {p = MaxPool <kernel_shape = [5]> (x) y = Relu(p)}"""


def test_lengths_that_are_too_small_for_a_window_are_told() -> None:
    model = program(WINDOW)
    made = compiled(model, {"width": (5, 30)})
    for width in (5, 6, 30, 31):
        check(made, model, width=width)
    with pytest.raises(ts.TilesmithError, match="kernel reaches over 5 elements"):
        made(feeds_of(model, width=3))
    plan = made._run.executor.plan
    with pytest.raises(ts.TilesmithError, match=r"cannot run with width = 3, which is too small"):
        plan.require_possible(plan.values_at({"#width": 3}))


TOKENS = """
    tokens (int64[1, seq] ids, float[seq] length) => (float[1, seq, 8] y, float[1, seq, 8] z)
    <int64[1] zero = {0}, int64 one = {1}>
    {e = Gather <axis = 0> (table, ids)
     s = Shape(ids) n = Gather <axis = 0> (s, one) n1 = Unsqueeze(n, zero)
     place = Slice(positions, zero, n1)
     y = Add(e, place)
     part = Slice(mask, zero, n1, zero) few = Slice(part, zero, n1, one1)
     z = MatMul(few, y)}"""


def test_tables_are_cut_to_the_length() -> None:
    """The table of positions, and a mask that is cut on both sides."""
    text = TOKENS.replace("int64 one = {1}", "int64 one = {1}, int64[1] one1 = {1}")
    model = program(text.replace(", float[seq] length", ""), table=(9, 8), positions=(40, 8),
                    mask=(40, 40))  # fmt: skip
    made = compiled(model, {"seq": (1, 40)})
    run = made._run
    assert run.executor.plan.cut
    for n in (1, 2, 11, 30, 39, 40, 3):
        check(made, model, seq=n)
    assert not [*run.known_stages()]


def test_threads_call_it_with_different_lengths(layer: Any) -> None:
    made = compiled(layer, {"seq": (1, 40)})
    given = [feeds_of(layer, seq=n) for n in (3, 17, 30, 64)]
    want = [made(f)["y"] for f in given]
    wrong: list[int] = []

    def call(k: int) -> None:
        for _ in range(40):
            if not np.array_equal(made(given[k])["y"], want[k]):
                wrong.append(k)

    threads = [threading.Thread(target=call, args=(k,)) for k in range(len(given))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_calls_compile_nothing_and_keep_little(layer: Any, no_compiler: list[str]) -> None:
    made = compiled(layer, {"seq": (1, 300)})
    assert no_compiler
    no_compiler.clear()
    for n in range(1, 240):
        made(feeds_of(layer, seq=n))
    assert not no_compiler
    executor = made._run.executor
    assert len(executor._known) == 239
    assert len(executor.free) == 1  # one memory for all lengths
    assert sum(s.words.nbytes + s.steps.nbytes for s in executor._known.values()) < 1_000_000


def test_what_contents_decide_is_compiled_for_each_size() -> None:
    text = """
        some (float[n, 4] x) => (float[m] y)
        {at = NonZero(x) pairs = Transpose <perm = [1, 0]> (at) y = GatherND(x, pairs)}"""
    model = program(text)
    made = ts.compile_model(model, ts.cpu(1), sizes={"n": (1, 8)}, cache=None)
    assert "compiled at the first call with each size: NonZero" in made.summary()
    x = np.array([[1, 0, 2, 0], [0, 0, 0, 3]], np.float32)
    np.testing.assert_array_equal(made({"x": x})["y"], [1, 2, 3])


def test_wrong_sizes_are_told(layer: Any) -> None:
    def refused(sizes: Any, match: str, model: Any = layer) -> None:
        with pytest.raises(ts.TilesmithError, match=match):
            ts.compile_model(model, ts.cpu(1), sizes=sizes)

    near = r"names 'sequence', which is no open dimension of layer \(did you mean seq\?\).*are seq"
    refused({"sequence": (1, 8)}, near)
    refused({"SEQ": (1, 8)}, r"did you mean seq\?")
    refused({"height": (1, 8)}, "of layer; its open dimensions are seq")
    refused("every", "given the text 'every'; it takes a dict .* or 'each'")
    refused({"seq": (8, 1)}, r"sizes gives 'seq' \(8, 1\); it takes \(lowest, highest\)")
    refused({"seq": 8}, "sizes gives 'seq' 8; it takes")
    refused({"seq": (1, 8, {16: 1})}, "sample 16 of size n is outside of its range")
    fixed = ts.load_onnx(onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> f (float[2] x) => (float[2] y) {y = Relu(x)}'
    ))  # fmt: skip
    refused({"seq": (1, 8)}, "none is open", fixed)


PAIR = """
    pair (float[seq, 24] x, float[seq, 20] z) => (float[seq, 20] y)
    {h = MatMul(x, w) s = Add(h, z) y = Softmax(s)}"""


def test_a_size_that_nobody_gave_has_a_default_range_that_is_said(no_compiler: list[str]) -> None:
    model = program(PAIR, w=(24, 20))
    told = (
        r"pair is compiled for seq from 1 to 1024; give the range .* sizes=\{'seq': \(1, 1024\)\}"
    )
    with pytest.warns(UserWarning, match=told):
        made = ts.compile_model(model, ts.cpu(1), cache=None)
    assert made.is_open
    no_compiler.clear()
    for n in (1, 2, 1000, 1023, 1024, 1025):
        check(made, model, seq=n)
    assert not no_compiler
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        each = ts.compile_model(model, ts.cpu(1), sizes="each", cache=None)
        assert not each.is_open
        check(each, model, seq=7)
    assert no_compiler


def test_models_for_other_machines_are_compiled_and_cannot_be_called() -> None:
    model = program(PAIR, w=(24, 20))
    others = (ts.Target.named(n) for n in ("neoverse-n1", "skylake-avx512"))
    (other,) = (t for t in others if t.arch != ts.cpu(1).arch)
    made = ts.compile_model(model, other, sizes={"seq": (1, 16)}, cache=None)
    assert made.is_open
    with pytest.raises(ts.TilesmithError, match="was built for"):
        made(feeds_of(model, seq=3))


def test_sizes_that_cannot_be_are_told() -> None:
    model = program(PAIR, w=(24, 20))
    made = compiled(model, {"seq": (2, 16)})
    for n in (0, 1, 2, 15, 16, 17, 300):
        check(made, model, seq=n)
    feeds = feeds_of(model, seq=5)
    for n in (0, 1, 3, 17):
        with pytest.raises(ts.TilesmithError, match=f"'seq' is 5 in 'x' and {n} in 'z'"):
            made(feeds | {"z": np.zeros((n, 20), np.float32)})
    rows = 10**11  # of which there is only one in memory
    huge = {
        n: np.broadcast_to(np.zeros((1, k), np.float32), (rows, k))
        for n, k in (("x", 24), ("z", 20))
    }
    with pytest.raises(ts.TilesmithError, match=f"{rows}.* bytes, and the memory here is"):
        made(huge)


def test_samples_and_declared_sizes_are_ranges_too(layer: Any) -> None:
    samples = {4: 1.0, 8: 2.0}
    for given in ((1, 16, samples), ts.size("n", range=(1, 16), samples=samples)):
        made = compiled(layer, {"seq": given})
        (size,) = made._run.executor.plan.sizes
        assert (size.limits, size.weights) == ((1, 16), samples)


def test_other_targets_and_types_are_compiled_for_each_size(layer: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = ts.compile_model(
            layer, ts.cpu(1), sizes={"seq": (1, 8)}, cache=None, precision="bfloat16"
        )
    assert made({"x": np.ones((3, 24), np.float32)})["y"].shape == (3, 20)


@pytest.mark.parametrize(("dims", "axis"), [("seq, 16", 0), ("3, seq, 16", 1)])
def test_sizes_at_which_an_importer_cuts_a_number_off(dims: str, axis: int) -> None:
    """The last eight rows start at n - 8, which is below 0 where there are fewer."""
    model = program(
        f"""last (float[{dims}] x) => (float[{dims.replace("seq", "rows")}] y)
        <int64[1] s = {{-8}}, int64[1] e = {{9999}}, int64[1] a = {{{axis}}}>
        {{t = Slice(x, s, e, a) r = Relu(t) y = Softmax(r)}}"""
    )
    made = compiled(model, {"seq": (1, 64)})
    for n in (1, 5, 7, 8, 9, 40, 64, 65):
        check(made, model, seq=n)


def test_numbers_that_follow_from_a_remainder() -> None:
    """The padding of a strided window differs at odd and at even lengths."""
    model = program(
        """same (float[1, 3, height, 9] x) => (float[1, 4, h, w] y)
        {c = Conv <auto_pad = "SAME_UPPER", strides = [2, 2], kernel_shape = [3, 3]> (x, k)
         y = Relu(c)}""",
        k=(4, 3, 3, 3),
    )
    made = ts.compile_model(model, ts.cpu(1), sizes={"height": (1, 41)}, cache=None)
    for height in (1, 2, 3, 10, 11, 12, 40, 41, 42):
        check(made, model, height=height)


def test_a_batch_of_one_needs_no_compiler(no_compiler: list[str]) -> None:
    """At a size of 1 importers write a product without its batch: it computes the same."""
    model = program(
        """scores (float[batch, seq, 16] x) => (float[batch, seq, seq] p)
        {q = MatMul(x, w) t = Transpose<perm = [0, 2, 1]>(x) s = MatMul(q, t) p = Softmax(s)}""",
        w=(16, 16),
    )
    made = compiled(model, {"batch": (1, 8), "seq": (1, 64)})
    no_compiler.clear()
    for batch, seq in ((1, 1), (1, 7), (8, 1), (2, 64)):
        check(made, model, batch=batch, seq=seq)
    assert no_compiler == []


@pytest.mark.parametrize(("first", "last"), [(0, 20), (-8, 9999), (0, -20)])
@pytest.mark.parametrize("most", [21, 40])
def test_parts_of_a_length_that_may_be_all_of_it(first: int, last: int, most: int) -> None:
    model = program(
        f"""part (float[rows, 3] x) => (float[some, 3] y)
            {{a = Constant<value_ints = [{first}]>() b = Constant<value_ints = [{last}]>()
             y = Slice(x, a, b)}}"""
    )
    made = ts.compile_model(model, ts.cpu(1), sizes={"rows": (1, most)}, cache=None)
    for rows in (1, 7, 8, 9, 19, 20, 21, 22, 39, 40, 41):
        check(made, model, rows=rows)
