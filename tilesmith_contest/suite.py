"""The operator suite as data (Ansor, OSDI'20, section 7.1): operators and their shapes, with sizes
in the order in which the operators take them.
"""

from __future__ import annotations

from tilesmith.base.dataclass import dataclass

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Entry:
    """`layouts` are those of ours to try; empty if the operator has only one."""

    operator: str
    shapes: tuple[Shape, ...]
    layouts: tuple[str, ...] = ()


_IMAGES: tuple[Shape, ...] = (
    (224, 3, 64, 7, 2, 3), (56, 64, 64, 1, 1, 0), (14, 256, 256, 3, 1, 1), (7, 512, 512, 3, 1, 1),
)  # fmt: skip
_LAST = ("NHWC",)

SUITE: dict[str, Entry] = {
    "C1D": Entry(
        "conv1d",
        (
            (256, 64, 128, 3, 2, 1), (128, 128, 256, 1, 2, 0),
            (64, 256, 256, 5, 1, 2), (32, 512, 512, 3, 1, 1),
        ),
        _LAST,
    ),
    "C2D": Entry("conv2d", _IMAGES, _LAST),
    "C3D": Entry("conv3d", _IMAGES, _LAST),
    "GMM": Entry("matmul", ((128, 128, 128), (512, 32, 512), (512, 512, 512), (1024, 1024, 1024))),
    "GRP": Entry(
        "group-conv2d",
        (
            (56, 64, 128, 3, 2, 1), (56, 64, 64, 1, 1, 0),
            (14, 256, 256, 3, 1, 1), (7, 512, 512, 3, 1, 1),
        ),
        _LAST,
    ),
    "DIL": Entry("dilated-conv2d", _IMAGES, _LAST),
    "DEP": Entry(
        "depthwise-conv2d",
        ((112, 32, 3, 1, 1), (112, 64, 3, 2, 1), (14, 512, 3, 2, 1), (7, 1024, 3, 1, 1)),
        _LAST,
    ),
    "T2D": Entry(
        "conv2d-transpose",
        (
            (4, 512, 256, 4, 2, 1), (8, 256, 128, 4, 2, 1),
            (16, 128, 64, 4, 2, 1), (32, 64, 3, 4, 2, 1),
        ),
        _LAST,
    ),
    "CAP": Entry(
        "capsule-conv2d",
        (
            (16, 32, 32, 3, 2, 1), (8, 32, 32, 3, 1, 1),
            (16, 8, 16, 3, 2, 1), (8, 16, 16, 3, 1, 1),
        ),
    ),
    "NRM": Entry("norm", ((256, 256), (512, 512), (1024, 1024), (4096, 1024))),
    "SFM": Entry("softmax", ((256, 256), (512, 512), (1024, 1024), (2048, 2048))),
    "CBR": Entry(
        "conv2d-bn-relu",
        (
            (224, 3, 64, 7, 2, 3), (56, 64, 128, 3, 2, 1),
            (28, 128, 256, 1, 2, 0), (7, 512, 512, 3, 1, 1),
        ),
        _LAST,
    ),
    "TBG": Entry(
        "transpose-batch-matmul",
        ((128, 12, 64), (128, 16, 64), (64, 12, 128), (128, 12, 128)),
    ),
}  # fmt: skip
