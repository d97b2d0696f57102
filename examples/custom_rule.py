"""A sketch rule of one's own, asked before the built-in ones: blocks whose operands are used again
also get a flat tiling of two levels, with fewer decisions to search.
"""

import numpy as np

import tilesmith as ts


def flat_tiling(state: ts.State) -> ts.Derived | None:
    """SRS: one level around the sum, one inside it."""
    if not state.block.reducing or len(state.block.spatial) < 2:
        return None
    tiled = ts.Tiling("SRS", policy="divisors", max_innermost=16).apply(state)
    return ts.Derived((tiled,), final=False)  # final=True would replace what the others derive


def main(n: int = 64) -> None:
    a, b = ts.placeholder((n, n), name="A"), ts.placeholder((n, n), name="B")
    func = ts.function([a, b, ts.ops.matmul(a, b, name="C")], name="matmul")
    task = ts.Task(func, ts.cpu(num_cores=1))
    space = ts.SketchSpace(rules=(flat_tiling, *ts.ansor_rules(task.target)))
    sketches = space.sketches(task)
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal((n, n), dtype=np.float32) for _ in range(2))
    print(f"{len(sketches)} sketches, one or more of them ours")
    for sketch in sketches:
        for variant in ts.variants(task, sketch):
            row = variant.sample(rng, 1)[0]
            kernel = ts.build(variant.function(row), task.target)
            np.testing.assert_allclose(kernel(x, y), x @ y, rtol=1e-3, atol=1e-3)
            print(f"  {variant.size} rows, such as {row.tolist()}")


if __name__ == "__main__":
    main()
