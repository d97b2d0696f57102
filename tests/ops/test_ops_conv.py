"""Convolutions against PyTorch, in both layouts, and what they refuse."""

import numpy as np
import pytest

import tilesmith as ts

# (N, C, spatial..., O, kernel..., settings); spatial is cut to the number of dimensions
CASES = [
    (1, 3, (7, 6, 5), 4, (3, 3, 3), {}),
    (2, 3, (8, 7, 6), 4, (3, 2, 1), {"stride": 2, "padding": 1}),
    (1, 4, (5, 9, 8), 6, (1, 1, 1), {"stride": 2}),
    (2, 2, (9, 8, 7), 3, (3, 3, 3), {"dilation": 2, "padding": 2}),
    (1, 4, (6, 7, 5), 6, (3, 3, 3), {"groups": 2, "padding": 1}),
    (2, 4, (6, 7, 5), 4, (3, 3, 3), {"groups": 4, "stride": 2, "padding": 1}),
    (1, 3, (6, 7, 5), 6, (2, 2, 2), {"groups": 3}),
    (1, 1, (1, 1, 1), 1, (1, 1, 1), {}),
    (1, 1, (1, 1, 1), 2, (3, 3, 3), {"padding": 1}),
    (0, 2, (4, 4, 4), 2, (3, 3, 3), {}),
]


def _arrays(rng, case, count):
    n, c, spatial, o, kernel, settings = case
    x = rng.standard_normal((n, c, *spatial[:count]), dtype=np.float32)
    w = rng.standard_normal((o, c // settings.get("groups", 1), *kernel[:count]), dtype=np.float32)
    return x, w, settings


def _channels_last(x, w):
    return np.moveaxis(x, 1, -1).copy(), np.moveaxis(w, (0, 1), (-1, -2)).copy()


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("count", [1, 2, 3])
def test_conv(torch, run, rng, case, count):
    x, w, settings = _arrays(rng, case, count)
    op = (ts.ops.conv1d, ts.ops.conv2d, ts.ops.conv3d)[count - 1]
    peer = (torch.conv1d, torch.conv2d, torch.conv3d)[count - 1]
    want = peer(torch.from_numpy(x), torch.from_numpy(w), **settings).numpy()
    np.testing.assert_allclose(run(op, x, w, **settings), want, rtol=1e-4, atol=1e-4)
    letters = "DHW"[3 - count :]
    got = run(op, *_channels_last(x, w), layout=f"N{letters}C", **settings)
    np.testing.assert_allclose(np.moveaxis(got, -1, 1), want, rtol=1e-4, atol=1e-4)


def test_settings_per_dimension(torch, run, rng):
    x = rng.standard_normal((1, 2, 9, 11), dtype=np.float32)
    w = rng.standard_normal((3, 2, 3, 2), dtype=np.float32)
    got = run(ts.ops.conv2d, x, w, stride=(2, 1), padding=(1, 3), dilation=(1, 2))
    want = torch.conv2d(
        torch.from_numpy(x), torch.from_numpy(w), stride=(2, 1), padding=(1, 3), dilation=(1, 2)
    )
    np.testing.assert_allclose(got, want.numpy(), rtol=1e-4, atol=1e-4)


def test_uneven_padding(torch, run, rng):
    x = rng.standard_normal((1, 2, 5, 6), dtype=np.float32)
    w = rng.standard_normal((3, 2, 3, 3), dtype=np.float32)
    got = run(ts.ops.conv2d, x, w, padding=((0, 2), (1, 0)))
    wide = np.pad(x, ((0, 0), (0, 0), (0, 2), (1, 0)))
    want = torch.conv2d(torch.from_numpy(wide), torch.from_numpy(w)).numpy()
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_one_dimensional_twins_take_the_two_dimensional_layout_names(run, rng):
    x = rng.standard_normal((1, 5, 2), dtype=np.float32)
    w = rng.standard_normal((3, 2, 4), dtype=np.float32)
    np.testing.assert_array_equal(
        run(ts.ops.conv1d, x, w, layout="NHWC"), run(ts.ops.conv1d, x, w, layout="NWC")
    )


@pytest.mark.parametrize("multiplier", [1, 2])
@pytest.mark.parametrize(
    "settings", [{}, {"stride": 2, "padding": 1}, {"dilation": 2, "padding": 2}]
)
def test_depthwise(torch, run, rng, multiplier, settings):
    x = rng.standard_normal((2, 3, 7, 6), dtype=np.float32)
    w = rng.standard_normal((3 * multiplier, 1, 3, 3), dtype=np.float32)
    want = torch.conv2d(torch.from_numpy(x), torch.from_numpy(w), groups=3, **settings).numpy()
    np.testing.assert_allclose(
        run(ts.ops.depthwise_conv2d, x, w, **settings), want, rtol=1e-4, atol=1e-4
    )
    got = run(ts.ops.depthwise_conv2d, *_channels_last(x, w), layout="NHWC", **settings)
    np.testing.assert_allclose(np.moveaxis(got, -1, 1), want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"stride": 2, "padding": 1},
        {"stride": 2, "padding": 1, "output_padding": 1},
        {"stride": (1, 3), "padding": (2, 0), "output_padding": (0, 2)},
        {"stride": 2, "dilation": 2, "padding": 3},
        {"padding": 3},  # as wide as the kernel reaches: the input is taken as it is, and cropped
        {"stride": 2, "padding": 4},  # wider than the kernel reaches: it is cropped further
        {"stride": 2, "padding": 1, "groups": 2},
        {"stride": 4, "padding": 0},
        {"stride": 4, "padding": 1},  # phases that begin at different inputs
        {"stride": (2, 1), "padding": (1, 2)},
    ],
)
@pytest.mark.parametrize("batch", [1, 2])
def test_transposed(torch, run, rng, settings, batch):
    x = rng.standard_normal((batch, 4, 5, 6), dtype=np.float32)
    w = rng.standard_normal((4, 3, 4, 4), dtype=np.float32)
    want = torch.conv_transpose2d(torch.from_numpy(x), torch.from_numpy(w), **settings).numpy()
    got = run(ts.ops.conv2d_transpose, x, w, **settings)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    last = (np.moveaxis(x, 1, -1).copy(), np.moveaxis(w, (0, 1), (2, 3)).copy())
    got = run(ts.ops.conv2d_transpose, *last, layout="NHWC", **settings)
    np.testing.assert_allclose(np.moveaxis(got, -1, 1), want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("settings", [{}, {"stride": 2, "padding": 1}, {"dilation": 2}])
@pytest.mark.parametrize("batch", [1, 2])
def test_capsule(torch, run, rng, settings, batch):
    x = rng.standard_normal((batch, 6, 5, 2, 3, 4), dtype=np.float32)
    w = rng.standard_normal((3, 2, 3, 5, 4, 6), dtype=np.float32)
    want = 0
    for k in range(3):  # a plain convolution for each inner element of the capsules' product
        for q in range(5):
            for p in range(2):
                one = torch.conv2d(
                    torch.from_numpy(np.moveaxis(x[:, :, :, p, k], -1, 1).copy()),
                    torch.from_numpy(np.moveaxis(w[:, :, k, q], (3, 2), (0, 1)).copy()),
                    **settings,
                ).numpy()
                if isinstance(want, int):
                    want = np.zeros((batch, *one.shape[2:], 2, 5, 6), np.float32)
                want[:, :, :, p, q] += np.moveaxis(one, 1, -1)
    got = run(ts.ops.capsule_conv2d, x, w, **settings)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    first = (np.moveaxis(x, -1, 1).copy(), np.moveaxis(w, (5, 4), (0, 1)).copy())
    got = run(ts.ops.capsule_conv2d, *first, layout="NCHW", **settings)
    np.testing.assert_allclose(np.moveaxis(got, 1, -1), want, rtol=1e-4, atol=1e-4)


def test_int8_accumulates_in_int32(run):
    x = np.full((1, 64, 3, 3), 127, np.int8)
    w = np.full((1, 64, 3, 3), -128, np.int8)
    got = run(ts.ops.conv2d, x, w)
    assert got.dtype == np.int32
    assert got[0, 0, 0, 0] == 64 * 9 * 127 * -128


def _stages(func):
    return [b.name for b in func.buffers]


def test_padding_is_a_stage_only_where_there_is_some(stated):
    x, w = np.zeros((1, 2, 5, 5), np.float32), np.zeros((3, 2, 3, 3), np.float32)
    assert _stages(stated(ts.ops.conv2d, x, w)) == []
    assert _stages(stated(ts.ops.conv2d, x, w, padding=1)) == ["pad"]
    assert _stages(stated(ts.ops.conv2d_transpose, x, np.zeros((2, 3, 1, 1), np.float32))) == []
    spread = stated(ts.ops.conv2d_transpose, x, np.zeros((2, 3, 4, 4), np.float32), stride=2)
    assert _stages(spread) == ["pad", "conv2d_transpose_phases"]
    odd = stated(ts.ops.conv2d_transpose, x, np.zeros((2, 3, 3, 3), np.float32), stride=2)
    assert _stages(odd) == ["pad", "pad_1", "conv2d_transpose_phases"]


def test_the_sum_of_a_transposed_convolution_divides_nothing(stated):
    x, w = np.zeros((1, 2, 5, 5), np.float32), np.zeros((2, 3, 4, 4), np.float32)
    text = str(stated(ts.ops.conv2d_transpose, x, w, stride=2, padding=1))
    before, total = text.split("for conv2d_transpose_phases.n")
    total, together = total.split("for conv2d_transpose.n")
    assert "//" not in before + total
    assert "//" in together
    text = str(stated(ts.ops.conv2d_transpose, x, w, padding=1, dilation=2))
    assert "//" not in text
    text = str(stated(ts.ops.conv2d_transpose, x, w, stride=2, padding=1, dilation=2))
    spread, total = text.split("for conv2d_transpose.n")
    assert "//" in spread
    assert "//" not in total


def test_a_transposed_convolution_multiplies_no_zeros_between_inputs(stated):
    x, w = np.zeros((1, 8, 4, 4), np.float32), np.zeros((8, 6, 4, 4), np.float32)
    func = stated(ts.ops.conv2d_transpose, x, w, stride=2, padding=1)
    assert func.flops == 2 * 4 * 4 * 8 * 6 * 4 * 4


def test_flops_count_the_sum(stated):
    x, w = np.zeros((2, 4, 8, 8), np.float32), np.zeros((6, 2, 3, 3), np.float32)
    func = stated(ts.ops.conv2d, x, w, groups=2, stride=2, padding=1)
    assert func.flops == 2 * (2 * 6 * 4 * 4) * (2 * 3 * 3)


def test_an_open_batch(rng, torch):
    X = ts.placeholder((ts.size("N"), 2, 5, 5), name="X")
    W = ts.placeholder((3, 2, 3, 3), name="W")
    func = ts.function([X, W, ts.ops.conv2d(X, W, padding=1)])
    x = rng.standard_normal((4, 2, 5, 5), dtype=np.float32)
    w = rng.standard_normal((3, 2, 3, 3), dtype=np.float32)
    got = ts.evaluate(ts.instantiate(func, {"#N": 4}), x, w)
    want = torch.conv2d(torch.from_numpy(x), torch.from_numpy(w), padding=1).numpy()
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def _p(*shape):
    return ts.placeholder(shape, name="P")


X, W = _p(1, 4, 5, 5), _p(6, 4, 3, 3)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (
            lambda: ts.ops.conv2d(_p(4, 5, 5), W),
            r"conv2d: X has shape \(4, 5, 5\).*rank 4: \(N, C, H, W\)",
        ),
        (lambda: ts.ops.conv2d(X, _p(6, 4, 3)), r"conv2d: W .*rank 4: \(O, I/groups, KH, KW\)"),
        (lambda: ts.ops.conv2d(X, _p(3, 3, 4), layout="NHWC"), r"\(KH, KW, I/groups, O\)"),
        (
            lambda: ts.ops.conv2d(X, _p(6, 3, 3, 3)),
            "W has 3 input channels, but X has 4 and groups is 1.*must have 4",
        ),
        (
            lambda: ts.ops.conv2d(X, W, groups=2),
            "W has 4 input channels, but X has 4 and groups is 2.*must have 2",
        ),
        (
            lambda: ts.ops.conv2d(X, W, groups=3),
            "groups=3 does not divide the 4 input and 6 output",
        ),
        (
            lambda: ts.ops.conv2d(X, W, groups=4),
            "groups=4 does not divide the 4 input and 6 output",
        ),
        (lambda: ts.ops.conv2d(X, W, groups=0), "groups is 0; it must be at least 1"),
        (lambda: ts.ops.conv2d(X, W, stride=0), "conv2d: stride is 0; it must be at least 1"),
        (lambda: ts.ops.conv2d(X, W, stride=1.5), r"stride=1.5\) .*it takes a whole number"),
        (
            lambda: ts.ops.conv2d(X, W, stride=(1, 1, 1)),
            r"stride \(1, 1, 1\) has 3 entries for 2 spatial",
        ),
        (lambda: ts.ops.conv2d(X, W, dilation=-1), "dilation is -1"),
        (lambda: ts.ops.conv2d(X, W, padding=-1), "padding is -1; it must be at least 0"),
        (lambda: ts.ops.conv2d(X, W, padding=(1,)), "padding .* has 1 entries for 2 spatial"),
        (
            lambda: ts.ops.conv2d(X, W, padding=((1, 2, 3), 0)),
            r"must be a number or a pair \(before, after\)",
        ),
        (
            lambda: ts.ops.conv2d(X, W, dilation=3),
            "in H the kernel reaches over 7 elements but the padded input has 5",
        ),
        (lambda: ts.ops.conv2d(X, _p(6, 4, 3, 0)), "kernel has extent 0 in W"),
        (
            lambda: ts.ops.conv2d(X, W, layout="CHWN"),
            "unknown layout 'CHWN'; it must be 'NCHW' or 'NHWC'",
        ),
        (lambda: ts.ops.conv1d(_p(1, 4, 5), _p(6, 4, 3), layout="NC"), "it must be 'NCW' or 'NWC'"),
        (
            lambda: ts.ops.conv2d(_p(1, ts.size("C"), 5, 5), W),
            "the channels of X is the open size #C",
        ),
        (lambda: ts.ops.depthwise_conv2d(X, W), "depthwise_conv2d: groups=4 does not divide"),
        (
            lambda: ts.ops.depthwise_conv2d(X, _p(4, 4, 3, 3)),
            "W has 4 input channels.*W must have 1",
        ),
        (
            lambda: ts.ops.conv2d_transpose(X, W),
            r"W has 6 input channels, but X has 4.*\(I, O/groups, KH, KW\)",
        ),
        (
            lambda: ts.ops.conv2d_transpose(X, _p(4, 6, 3, 3), groups=3),
            "groups=3 does not divide the 4",
        ),
        (
            lambda: ts.ops.conv2d_transpose(X, _p(4, 6, 3, 3), output_padding=1),
            "output_padding 1 in H must be below",
        ),
        (
            lambda: ts.ops.conv2d_transpose(X, _p(4, 6, 1, 1), padding=3),
            r"padding \(3, 3\) in H leaves -1 elements",
        ),
        (
            lambda: ts.ops.conv2d_transpose(_p(1, 4, 0, 5), _p(4, 6, 3, 3)),
            "at least 1 element in H",
        ),
        (
            lambda: ts.ops.capsule_conv2d(X, W),
            r"capsule_conv2d: X .*rank 6: \(N, H, W, cap, cap, I\)",
        ),
        (
            lambda: ts.ops.capsule_conv2d(_p(1, 5, 5, 4, 4, 2), _p(3, 3, 4, 4, 3, 2)),
            "input channels of W is 3, but X has 2",
        ),
        (
            lambda: ts.ops.capsule_conv2d(_p(1, 5, 5, 4, 4, 2), _p(3, 3, 3, 4, 2, 2)),
            "rows of a capsule of W is 3",
        ),
    ],
)
def test_errors(state, message):
    with pytest.raises(ts.ExpressionError, match=message):
        state()


@pytest.mark.parametrize("rank", [1, 3])
@pytest.mark.parametrize(
    "settings",
    [
        {"stride": 2, "padding": 1},
        {"stride": 3, "padding": 1, "output_padding": 2, "groups": 2},
        {"dilation": 2, "padding": 2},
    ],
)
def test_transposed_convolutions_of_other_ranks(torch, run, rng, rank, settings):
    x = rng.standard_normal((2, 4, 4, 3, 2)[: 2 + rank], dtype=np.float32)
    w = rng.standard_normal((4, 2, 4, 2, 4)[: 2 + rank], dtype=np.float32)
    peer = getattr(torch.nn.functional, f"conv_transpose{rank}d")
    want = peer(torch.from_numpy(x), torch.from_numpy(w), **settings).numpy()
    op = {1: ts.ops.conv1d_transpose, 3: ts.ops.conv3d_transpose}[rank]
    np.testing.assert_allclose(run(op, x, w, **settings), want, rtol=1e-4, atol=1e-5)
    layout = {1: "NWC", 3: "NDHWC"}[rank]
    last = np.moveaxis(x, 1, -1).copy()
    turned = np.moveaxis(w, (0, 1), (-2, -1)).copy()
    got = run(op, last, turned, layout=layout, **settings)
    np.testing.assert_allclose(np.moveaxis(got, -1, 1), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("seed", range(24))
def test_transposed_convolutions_of_any_settings(torch, run, rng, seed):
    """Whatever phases the stride, the kernel and the padding make of the output."""
    draw = np.random.default_rng(seed)
    rank = int(draw.integers(1, 4))
    groups = int(draw.integers(1, 3))
    dilation = [int(draw.integers(1, 3)) if draw.random() < 0.2 else 1 for _ in range(rank)]
    stride = [int(draw.integers(1, 5)) for _ in range(rank)]
    kernel = [int(draw.integers(1, 6)) for _ in range(rank)]
    reach = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
    padding = [int(draw.integers(0, r // 2 + 1)) for r in reach]
    more = [int(draw.integers(0, max(s, d))) for s, d in zip(stride, dilation, strict=True)]
    sizes = [int(draw.integers(2, 6)) for _ in range(rank)]
    each, filters = (int(draw.integers(1, 8)) for _ in range(2))
    x = rng.standard_normal((2, groups * each, *sizes), dtype=np.float32)
    w = rng.standard_normal((groups * each, filters, *kernel), dtype=np.float32)
    settings = {"stride": stride, "output_padding": more, "dilation": dilation, "groups": groups}
    peer = getattr(torch.nn.functional, f"conv_transpose{rank}d")
    want = peer(torch.from_numpy(x), torch.from_numpy(w), padding=padding, **settings).numpy()
    op = (ts.ops.conv1d_transpose, ts.ops.conv2d_transpose, ts.ops.conv3d_transpose)[rank - 1]
    pads = tuple((p, p) for p in padding)
    got = run(op, x, w, padding=pads, **settings)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    last = np.moveaxis(x, 1, -1).copy()
    turned = np.moveaxis(w, (0, 1), (-2, -1)).copy()
    layout = ("NWC", "NHWC", "NDHWC")[rank - 1]
    got = run(op, last, turned, layout=layout, padding=pads, **settings)
    np.testing.assert_allclose(np.moveaxis(got, -1, 1), want, rtol=1e-4, atol=1e-4)
