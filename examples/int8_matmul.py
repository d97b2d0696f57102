"""An int8 matrix product through the machine's dot-product instruction: exact, and four products at
a time in every lane.
"""

import tilesmith as ts


def matmul(n: int, left: str = "uint8") -> ts.Function:
    a, b = ts.placeholder((n, n), left, name="A"), ts.placeholder((n, n), "int8", name="B")
    k = ts.reduce_axis(n, name="k")

    def product(i: ts.Value, j: ts.Value) -> ts.Value:
        return ts.sum(ts.cast(a[i, k], "int32") * ts.cast(b[k, j], "int32"), axis=k)

    return ts.function([a, b, ts.compute((n, n), product, name="C")], name="int8_matmul")


def instruction(target: ts.Target) -> ts.Intrinsic | None:
    """AVX-512 VNNI takes uint8 by int8, NEON int8 by int8."""
    if "vnni" in target.features:
        return ts.AVX512_DOT_U8S8
    return ts.NEON_DOT_S8S8 if "dotprod" in target.features else None


def schedule(func: ts.Function, unit: ts.Intrinsic) -> ts.Schedule:
    lanes = 16 if unit is ts.AVX512_DOT_U8S8 else 4
    sch = ts.Schedule(func)
    packed = sch.cache_read("C", "B")
    i, j, k = sch.loops("C")
    i0, i1 = sch.split(i, [None, 8])
    j0, j1, j2 = sch.split(j, [None, 2, lanes])
    k0, k1, k2 = sch.split(k, [None, 2, 4])
    sch.reorder(j0, i0, k0, k1, i1, j1, j2, k2)
    sch.compute_at(packed, j0)
    sch.transform_layout(packed, lambda k, j: (k // 4, j, k % 4))  # four of one column side by side
    k, j = sch.loops(packed)[-2:]
    outer, inner = sch.split(k, [None, 4])
    sch.reorder(outer, j, inner)
    sch.unroll(inner)
    sch.unroll(k1, i1, j1)
    sch.tensorize(j2, unit)
    return sch
