"""Every way to state a computation wrongly, and the message it gets."""

import numpy as np
import pytest

import tilesmith as ts

A = ts.placeholder((3, 4), name="A")
V = ts.placeholder((5,), name="V")
FLAG = ts.placeholder((5,), dtype="bool", name="FLAG")
BYTE = ts.placeholder((5,), dtype="int8", name="BYTE")
k, r = ts.reduce_axis(4, name="k"), ts.reduce_axis(5, name="r")


def stated(body, shape=(5,)):
    return lambda: ts.compute(shape, body, name="C")


def join_one(p, q):
    return (p[0] + q[0],)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        # tensors
        (
            lambda: ts.placeholder((3, -1)),
            "dimension 1 of x has extent -1; an extent is at least 0",
        ),
        (
            lambda: ts.placeholder((3, 1.5)),
            r"shape=...\) is given .* with the float 1.5; it takes a.* whole number",
        ),
        (
            lambda: ts.placeholder((True,)),
            r"shape=...\) is given .* with the bool True; it takes a.* whole number",
        ),
        (lambda: ts.placeholder((ts.size("N") - ts.size("N") - 2,)), "extent -2; .*at least 0"),
        (lambda: ts.placeholder((3,), name="1x"), "'1x' is not a name"),
        (lambda: ts.placeholder((3,), name=""), "'' is not a name"),
        (lambda: ts.placeholder((3,), name="a.b"), "'a.b' is not a name"),
        (lambda: ts.placeholder((3,), dtype="float8"), "unknown dtype 'float8'; known are float16"),
        (lambda: ts.reduce_axis(-1, name="q"), "reduce axis q has extent -1"),
        # reading
        (stated(lambda i: A[i]), "A has 2 dimensions but is read with 1 index"),
        (stated(lambda i: V[i, i]), "V has 1 dimensions but is read with 2 indices"),
        (stated(lambda i: V[V[i]]), "V is indexed by V.* of dtype float32; an index is an integer"),
        (stated(lambda i: V[1.0]), "of dtype float32; an index is an integer"),
        (
            stated(lambda i: V[i + 1]),
            r"C reads V at 1\.\.5 in dimension 0, which has 5 elements; guard",
        ),
        (stated(lambda i: V[i - 1]), r"C reads V at -1\.\.3 in dimension 0"),
        (stated(lambda i: V[2 * i]), r"C reads V at 0\.\.8"),
        (stated(lambda i: V[5]), r"C reads V at 5\.\.5"),
        (
            stated(lambda i: V[ts.argmax(V[r], axis=r)[0]]),
            "V is indexed by the result of a reduction",
        ),
        (stated(lambda i: V + 1), r"\+ of the tensor V: say what each element is"),
        (stated(lambda i: V), r"V is a tensor; read an element of it: V\[...\]"),
        (stated(lambda i: V[i] + A), "A is a tensor; read an element of it"),
        (stated(lambda i: None), "None is not a value, a number"),
        (stated(lambda i: V[i] + "x"), "the text 'x' is not a value, a number"),
        # conditions
        (stated(lambda i: 1 if V[i] > 0 else 0), "the truth of .* is not known.*use ts.where"),
        (stated(lambda i: (V[i] > 0) and (V[i] < 1)), "use ts.where"),
        (
            stated(lambda i: (V[i] > 0) & V[i]),
            "V.* is float32, but & takes two conditions or two int",
        ),
        (stated(lambda i: (V[i] > 0) | 1), r"1 is int64, but \| takes two conditions"),
        (stated(lambda i: ~V[i]), "~ turns a condition or the bits of an .*V.* is float32"),
        (stated(lambda i: V[i] ^ V[i]), r"V.* is float32, but \^ takes two conditions or two int"),
        (stated(lambda i: V[i] << 1), "V.* is float32, but << takes two integers"),
        (stated(lambda i: FLAG[i] >> FLAG[i]), "FLAG.* is bool, but >> takes two integers"),
        (stated(lambda i: np.logical_and(V[i], FLAG[i])), "V.* is float32, but 'and' joins"),
        (
            stated(lambda i: ts.where(V[i], 1.0, 0.0)),
            "where.* needs a condition, but V.* is float32",
        ),
        (stated(lambda i: FLAG[i] + FLAG[i]), "add of two conditions; cast them to a number first"),
        (stated(lambda i: FLAG[i] < FLAG[i]), "lt of two conditions"),
        (stated(lambda i: -FLAG[i]), "neg of a condition; cast it to a number first"),
        (stated(lambda i: abs(FLAG[i])), "abs of a condition"),
        (stated(lambda i: ts.sum(FLAG[r], axis=r)), "sum.* of conditions; cast them to a number"),
        (stated(lambda i: ts.prod(FLAG[r], axis=r)), "prod.* of conditions"),
        (stated(lambda i: list(V[i])), "is a single value and cannot be unpacked"),
        # numbers
        (stated(lambda i: BYTE[i] + 300), "300 does not fit into int8, the dtype it meets; cast"),
        (stated(lambda i: BYTE[i] > -129), "-129 does not fit into int8"),
        (stated(lambda i: ts.cast(BYTE[i], "uint8") * -1), "-1 does not fit into uint8"),
        (stated(lambda i: V[i // 0]), "is divided by zero"),
        (stated(lambda i: V[i % 0]), "is divided by zero"),
        # axes and reductions
        (
            stated(lambda i: V[i] * r),
            "C uses the axis 'r', which is neither one of its own nor reduced",
        ),
        (stated(lambda i: A[0, k], (4,)), "C uses the axis 'k'"),
        (lambda: ts.sum(V[r], axis=r), "sum.* stands outside of ts.compute"),
        (stated(lambda i: ts.sum(V[r], axis=1)), r"axis=1\) .*an axis, as ts\.reduce_axis"),
        (stated(lambda i: ts.sum(V[i], axis=i)), r"axis=\.*\) .*an axis, as ts\.reduce_axis"),
        (stated(lambda i: ts.sum(V[r], axis=(r, r))), "C reduces over the same axis twice"),
        (
            stated(lambda i: ts.sum(ts.sum(A[0, k], axis=k) * V[r], axis=r)),
            "C contains another reduction; give the inner one its own ts.compute",
        ),
        (
            stated(lambda i: ts.reduce((V[r],), join_one, (0, 0), axis=r)),
            "reduce.* has 1 values but 2 identities",
        ),
        (
            stated(lambda i: ts.reduce((V[r], V[r]), join_one, (0, 0), axis=r)),
            "combine.* gave 1 results for 2 values",
        ),
        (
            stated(lambda i: ts.reduce((V[r],), lambda p, q: (p[0] > q[0],), (0,), axis=r)),
            "combine.* gives bool for value 0, which is float32",
        ),
        # compute
        (stated(lambda i, j: V[i]), "C has 1 dimensions but its body takes 2 axes"),
        (stated(lambda: 1.0), "C has 1 dimensions but its body takes 0 axes"),
        (lambda: ts.compute((2,), lambda i: i, name="a b"), "'a b' is not a name"),
        (
            lambda: ts.compute((2, 2), lambda *i: 1.0, axes=("i",)),
            "has 2 dimensions but 1 named axes",
        ),
        (lambda: ts.compute((2,), lambda *i: 1.0, axes=("i j",)), "'i j' is not a name"),
        # functions
        (lambda: ts.function([V]), "function.'main'. has no output; add a computed tensor"),
        (
            lambda: ts.function([3]),
            r"is given the list \[3\] with the int 3; it takes a list, each a tensor",
        ),
        (lambda: ts.function([stated(lambda i: V[i])(), V]), "list the inputs first"),
        (lambda: ts.function([V, V, stated(lambda i: V[i])()]), "lists a tensor twice"),
        (lambda: ts.function([stated(lambda i: V[i])()]), "V is read but is not a parameter"),
        (
            lambda: ts.function([V, ts.compute((5,), lambda i: V[i], name="V")]),
            "has two parameters named 'V'; name each differently",
        ),
    ],
)
def test_message(state, message):
    with pytest.raises(ts.ExpressionError, match=message):
        state()


def test_a_failed_compute_leaves_nothing_behind():
    with pytest.raises(ZeroDivisionError):
        ts.compute((5,), lambda i: 1 // 0)
    with pytest.raises(ts.ExpressionError, match=r"outside of ts\.compute"):
        ts.sum(V[r], axis=r)


@pytest.mark.parametrize("run", [ts.evaluate, ts.interpret])
def test_wrong_arrays(run):
    func = ts.function([V, ts.compute((5,), lambda i: V[i], name="C")])
    with pytest.raises(ts.ArgumentError, match=r"main takes 1 .*got 2"):
        run(func, np.zeros(5), np.zeros(5))
    with pytest.raises(ts.ArgumentError, match=r"V has shape \[4\], main wants \[5\]"):
        run(func, np.zeros(4))


@pytest.mark.parametrize("run", [ts.evaluate, ts.interpret])
def test_open_sizes_are_those_of_the_arrays(run):
    X = ts.placeholder((ts.size("N"),), name="X")
    Y = ts.placeholder((ts.size("N"),), name="Y")
    func = ts.function([X, Y, ts.compute(X.shape, lambda i: X[i] + Y[i], name="C")])
    np.testing.assert_array_equal(run(func, np.ones(4), np.ones(4)), np.full(4, 2))
    with pytest.raises(ts.ArgumentError, match=r"dimension 0 of Y is 5; it must be N, which is 4"):
        run(func, np.ones(4), np.ones(5))
