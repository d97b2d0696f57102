"""A 3x3 convolution in NHWC, scheduled by hand: a row of pixels by a panel of channels stays in
registers, weights are packed.
"""

import numpy as np

import tilesmith as ts


def conv2d(size: int, inputs: int, outputs: int) -> ts.Function:
    x = ts.placeholder((1, size, size, inputs), name="X")
    w = ts.placeholder((3, 3, inputs, outputs), name="W")
    return ts.function(
        [x, w, ts.ops.conv2d(x, w, padding=1, layout="NHWC", name="Y")], name="conv2d"
    )


def schedule(func: ts.Function, target: ts.Target) -> ts.Schedule:
    # All registers but three are sums: two hold weights, one a value of the image. With few
    # channels a tile, each weight that is loaded serves many pixels.
    pixels, channels = 14 if target.num_vector_registers >= 32 else 6, 2 * target.lanes(32)
    sch = ts.Schedule(func)
    n, y, x, f, r, s, c = sch.loops("Y")
    y0, y1 = sch.split(y, [None, 8])
    x0, x1 = sch.split(x, [None, pixels])
    f0, f1 = sch.split(f, [None, channels])
    c0, c1 = sch.split(c, [None, 4])
    sch.reorder(n, y0, f0, y1, x0, r, s, c0, c1, x1, f1)
    sch.compute_at("pad", y0)  # a few rows at a time, so that they stay in the cache
    sch.vectorize(sch.loops("pad")[-1])
    sch.vectorize(f1)
    sch.unroll(c1, x1)
    sch.transform_layout("W", lambda r, s, c, f: (f // channels, r, s, c, f % channels))
    sch.prefetch(c0, "W", 8)
    sch.prefetch(x0, "Y", 0)  # its lines arrive while the sums are made
    sch.prefetch(y0, "X", 1)
    return sch


def main(size: int = 56, channels: int = 64) -> None:
    func, target = conv2d(size, channels, channels), ts.cpu(num_cores=1)
    kernel = ts.build(schedule(func, target), target)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, size, size, channels), dtype=np.float32)
    w = rng.standard_normal((3, 3, channels, channels), dtype=np.float32)
    packed = kernel.pack("W", w)  # once: weights stay the same
    np.testing.assert_allclose(kernel(x, packed), ts.evaluate(func, x, w), rtol=1e-3, atol=1e-3)
    seconds = kernel.time(x, packed).median
    rate = func.flops / seconds / 1e9
    print(f"conv2d 3x3, {size} x {size} x {channels}: {seconds * 1e6:.1f} us, {rate:.1f} GFLOP/s")


if __name__ == "__main__":
    main()
