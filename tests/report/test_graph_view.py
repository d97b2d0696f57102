"""What there is to see of a graph, and its pictures."""

from __future__ import annotations

from xml.etree import ElementTree

import numpy as np
import pytest

import tilesmith as ts
from tilesmith.graph.builder import GraphBuilder
from tilesmith.graph.graph import Graph
from tilesmith.graph.kinds import Kind
from tilesmith.ops.transform import reshape
from tilesmith.report.graph_html import graph_html
from tilesmith.report.graph_svg import graph_svg
from tilesmith.report.graph_view import graph_view
from tilesmith.report.quantities import dims_text, short_number

SVG = "{http://www.w3.org/2000/svg}"


def layers(count: int, input_name: str = "x", origin: str = "") -> Graph:
    """x = relu(x @ W) + x, several times, the sums read under another shape."""
    b = GraphBuilder("layers")
    rng = np.random.default_rng(0)
    x = b.input(input_name, (4, 8), "float32")
    for k in range(count):
        w = b.constant(rng.standard_normal((8, 8), dtype=np.float32), f"w{k}")
        product = b.add(ts.ops.matmul, x, w, origin=origin or f"MatMul 'm{k}'")
        y = b.add(ts.ops.softmax, product, origin=f"Softmax 's{k}'")
        x = b.add(reshape, b.add(ts.ops.add, y, x, origin=f"Add 'a{k}'"), shape=(8, 4))
        x = b.add(reshape, x, shape=(4, 8))
    return b.finish({"y": x})


def test_groups_tasks_and_edges() -> None:
    graph, target = layers(3), ts.cpu(1)
    view = graph_view(graph, target)
    tasks = ts.extract_tasks(graph, target)
    assert [(t.task.key, t.weight) for t in view.tasks] == [(t.key, n) for t, n in tasks]
    assert sum(t.weight for t in view.tasks) == len(view.groups)
    assert view.flops == sum(t.func.flops * n for t, n in tasks)
    assert sum(t.share for t in view.tasks) == pytest.approx(1)
    assert [g.number for g in view.groups] == list(range(1, len(view.groups) + 1))
    first, second, third = view.groups[:3]
    assert (first.kind, first.reads, first.nodes) == (Kind.HEAVY, ("x",), ("MatMul 'm0'",))
    assert (second.kind, second.reads) == (Kind.REDUCTION, (1, "x"))
    assert second.nodes == ("Softmax 's0'", "Add 'a0'")
    assert third.reads == (2,)  # through two reshapes
    assert third.task == first.task
    assert [(o.text, o.reads) for o in view.outputs] == [("y: float32[4, 8]", (len(view.groups),))]
    assert view.arena_nbytes >= view.arena_lower_bound > 0
    assert (view.host, view.unknown) == ((), "")


def test_what_is_written_in_parts_is_read_from_all_of_them() -> None:
    b = GraphBuilder("parts")
    x, z = b.input("x", (2, 8), "float32"), b.input("z", (3, 8), "float32")
    parts = [b.add(ts.ops.softmax, v) for v in (x, z)]
    whole = b.add(ts.ops.concatenate, *parts, axis=0)
    last = b.add(ts.ops.softmax, whole)
    view = graph_view(b.finish({"whole": whole, "last": last}), ts.cpu(1))
    assert [g.reads for g in view.groups] == [("x",), ("z",), (1, 2)]
    assert [o.reads for o in view.outputs] == [(1, 2), (3,)]


def test_an_output_that_is_an_input_has_no_group() -> None:
    b = GraphBuilder("nothing")
    x = b.input("x", (2, 3), "float32")
    view = graph_view(b.finish({"y": x}), ts.cpu(1))
    assert view.groups == ()
    assert view.outputs[0].reads == ("x",)
    assert 'data-from="input-0" data-to="output-0"' in graph_svg(view)


def test_the_picture_has_a_box_for_every_group_and_a_line_for_every_read() -> None:
    view = graph_view(layers(3), ts.cpu(1))
    root = ElementTree.fromstring(graph_svg(view))
    boxes = {g.get("id"): g for g in root.iter(f"{SVG}g")}
    for g in view.groups:
        box = boxes[f"group-{g.number}"]
        assert box.get("data-task") == str(g.task)
        title = box.findtext(f"{SVG}title") or ""
        assert title.startswith(f"{g.number}: {g.kernel}\n")
        assert all(node in title for node in g.nodes)
    lines = [p for p in root.iter(f"{SVG}path") if p.get("class") == "edge"]
    assert len(lines) == sum(len(g.reads) for g in view.groups) + len(view.outputs)
    assert all(p.get("data-from") in boxes and p.get("data-to") in boxes for p in lines)


def test_names_of_a_model_are_text_and_nothing_else() -> None:
    bad = "</title><script>alert(1)</script>\"'&\x00\x1b]\ud800"
    view = graph_view(layers(1, bad, bad), ts.cpu(1))
    ElementTree.fromstring(graph_svg(view))
    page = graph_html(view)
    page.encode()
    assert page.count("<script") == page.count("</script>") == 1
    assert "\x1b" not in page


@pytest.mark.parametrize(
    ("n", "text"),
    [(0, "0 "), (999, "999 "), (1000, "1.00 k"), (9996, "10.0 k"), (99960, "100 k"),
     (999_600, "1.00 M"), (8_206_520_296, "8.21 G"), (5e21, "5000000 P")],
)  # fmt: skip
def test_short_numbers(n: float, text: str) -> None:
    assert short_number(n) == text


def test_shapes_in_one_word() -> None:
    assert dims_text((1, 56, 64)) == "1x56x64"
    assert dims_text(()) == "scalar"
