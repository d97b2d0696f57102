"""`tilesmith show sketches`: text and exit status, as a user sees them."""

from __future__ import annotations

import pytest

from tests.support.command_line import run


def test_the_sketches_of_a_matmul(capsys: pytest.CaptureFixture[str]) -> None:
    words = "show sketches matmul 512 512 512 --rules ansor --target neoverse-n1 --cores 4"
    status, out, _ = run(capsys, *words.split())
    assert status == 0
    assert out.startswith("matmul_512_512_512: 3 sketches\n")
    assert "tile C.i: 512 in 4 (divisors, innermost <= 64): 210" in out


def test_a_gpu_has_its_own_sketch(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(
        capsys, *["show", "sketches", "matmul", "64", "64", "64", "--target", "nvidia-v100"]
    )
    assert "# threadIdx.x" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("show sketches conv9d 1", "unknown operator 'conv9d' (did you mean conv3d or conv2d?)"),
        ("show sketches conv2d 7 3", "conv2d takes the sizes conv2d H CI CO K S P [N=1]; got 7 3"),
        ("show sketches matmul 0 5 5", "matmul: N is 0; it must be at least 1"),
        (
            "show sketches matmul 5 5 5 --target abacus",
            "--target 'abacus' is unknown; it is cpu for this machine",
        ),
        ("show sketches matmul 5 5 5 --rules good", "'good' is not one of 'ansor', 'default'"),
        ("show sketches matmul 5 5 x", "matmul: K is 'x'; sizes are whole numbers"),
        ("show sketches conv2d 3 2 2 9 1 0", "conv2d"),
        ("show nothing", "No such command 'nothing'"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(
    capsys: pytest.CaptureFixture[str], words: str, said: str
) -> None:
    status, out, err = run(capsys, *words.split())
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    assert err.startswith("tilesmith: ")
    assert said in err
