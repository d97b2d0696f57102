"""An int8 matrix product through the machine's dot-product instruction: exact, and four products at
a time in every lane.
"""

import numpy as np

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
    """B are weights: the caller brings them into the instruction's order once, by ts.pack."""
    lanes = 16 if unit is ts.AVX512_DOT_U8S8 else 4
    panel = 3 * lanes  # of 512 rows, it stays in the first cache
    sch = ts.Schedule(func)
    i, j, k = sch.loops("C")
    i0, i1 = sch.split(i, [None, 8])
    j0, j1, j2 = sch.split(j, [None, 3, lanes])
    k0, k1 = sch.split(k, [None, 4])
    sch.reorder(j0, i0, k0, i1, j1, j2, k1)
    sch.transform_layout("B", lambda k, j: (j // panel, k // 4, j % panel, k % 4))
    sch.unroll(i1, j1)
    sch.parallel(j0)
    sch.tensorize(j2, unit)
    return sch


def main(n: int = 512) -> None:
    target = ts.cpu(num_cores=1)
    unit = instruction(target)
    if unit is None:
        print("this machine has no dot-product instruction that Tilesmith knows")
        return
    func = matmul(n, left="uint8" if unit is ts.AVX512_DOT_U8S8 else "int8")
    kernel = ts.build(schedule(func, unit), target)
    rng = np.random.default_rng(0)
    a = rng.integers(0, 100, (n, n)).astype(str(func.inputs[0].dtype))
    b = rng.integers(-100, 100, (n, n)).astype("int8")
    packed = kernel.pack("B", b)
    np.testing.assert_array_equal(kernel(a, packed), a.astype("int32") @ b.astype("int32"))
    seconds = kernel.time(a, packed).median
    rate = func.flops / seconds / 1e9
    print(f"int8 matmul {n}, exact, by {unit.name}: {seconds * 1e6:.1f} us, {rate:.1f} GOP/s")


if __name__ == "__main__":
    main()
