"""Tasks in words: shapes, layout, dtype, and the nodes of a model that a kernel computes."""

from __future__ import annotations

import pytest

import tilesmith as ts
from tilesmith.task.describe import is_match, layout_of, place_text, places_text, shapes_text


def convolution(layout: str, dtype: str = "float32") -> ts.Function:
    first = layout == "NCHW"
    x = ts.placeholder((1, 8, 9, 7) if first else (1, 9, 7, 8), dtype, name="x")
    w = ts.placeholder((16, 8, 3, 3) if first else (3, 3, 8, 16), dtype, name="w")
    b = ts.placeholder((16, 1, 1) if first else (16,), dtype, name="b")
    y = ts.ops.add(ts.ops.conv2d(x, w, padding=1, layout=layout), b)
    return ts.function([x, w, b, y], name="conv2d_add")


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_shapes_layout_and_dtype(layout: str) -> None:
    given, made = ("1x8x9x7, 16x8x3x3", "1x16x9x7") if layout == "NCHW" else (
        "1x9x7x8, 3x3x8x16", "1x9x7x16")  # fmt: skip
    for dtype in ("float32", "float16"):
        assert shapes_text(convolution(layout, dtype)) == f"{given} -> {made} {dtype} {layout}"


@pytest.mark.parametrize(("layout", "shape"), [("NCHW", (1, 3, 9, 9)), ("NHWC", (1, 9, 9, 3))])
def test_layout_of_pools_and_depthwise_convolutions(layout: str, shape: tuple[int, ...]) -> None:
    x = ts.placeholder(shape, name="x")
    w = ts.placeholder((3, 1, 3, 3) if layout == "NCHW" else (3, 3, 1, 3), name="w")
    assert layout_of(ts.function([x, ts.ops.max_pool2d(x, 2, layout=layout)])) == layout
    depthwise = ts.ops.depthwise_conv2d(x, w, layout=layout)
    assert layout_of(ts.function([x, w, depthwise])) == layout


def test_what_has_no_window_has_no_layout() -> None:
    a, b = ts.placeholder((4, 8), name="a"), ts.placeholder((8, 3), name="b")
    assert shapes_text(ts.function([a, b, ts.ops.matmul(a, b)])) == "4x8, 8x3 -> 4x3 float32"
    assert shapes_text(ts.function([a, ts.ops.softmax(a)])) == "4x8 -> 4x8 float32"
    half = ts.function([a, ts.ops.cast(a, "float16")])
    assert shapes_text(half) == "4x8 -> 4x8 float32/float16"


@pytest.mark.parametrize(
    ("nodes", "text"),
    [
        (["Conv '/stem/Conv'", "Relu '/stem/Relu'"], "/stem/{Conv, Relu}"),
        (["MatMul 'p'", "Softmax 'q'"], "MatMul p, Softmax q"),
        (["aten.convolution.default f.0.conv", "aten.add.Tensor f.0.bn", "aten.silu.default f.0"],
         "f.0.{conv, bn}"),
        (["aten.addmm.default head", "aten.relu.default head"], "head"),
        (["aten.mean.dim mean_3", "aten.addmm.default head.fc"], "mean_3, head.fc"),
        ([f"Relu '/a/Relu_{k}'" for k in range(9)],
         "/a/{Relu_0, Relu_1, Relu_2, Relu_3, Relu_4, Relu_5, ...}"),
        ([], ""),
    ],
)  # fmt: skip
def test_places(nodes: list[str], text: str) -> None:
    assert place_text(nodes) == text


def test_a_task_in_several_places_and_filters() -> None:
    func = convolution("NHWC")
    places = [("Conv '/a/Conv'",), ("Conv '/b/Conv'",)]
    assert places_text(places) == "/a/Conv and 1 more"
    assert places_text([]) == ""
    for text in ("", "conv2d", "nhwc float32", "3x3x8x16 /B/", "CONV"):
        assert is_match(text, func, places)
    for text in ("nchw", "conv2d /c/", "float16"):
        assert not is_match(text, func, places)
