"""The help texts: every option is explained, every operator's sizes are named in order."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from typer.main import get_command

from tilesmith.cli.main import app
from tilesmith.cli.operator_arguments import Dtype
from tilesmith.cli.operator_table import OPERATORS, SIZES
from tilesmith.cli.operators import operator, usage
from tilesmith_contest.suite import SUITE


def commands(command: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    command = command or get_command(app)
    yield " ".join(path), command
    for name, sub in getattr(command, "commands", {}).items():
        yield from commands(sub, (*path, name))


ALL = dict(commands())


def help_of(capsys: pytest.CaptureFixture[str], words: str) -> str:
    with pytest.raises(SystemExit) as left:
        app([*words.split(), "--help"])
    assert left.value.code == 0
    return capsys.readouterr().out


def test_the_commands_are_all_there() -> None:
    assert {"tune", "bench", "doctor", "show sketches", "show tasks", "show records"} < set(ALL)
    assert {"show trace", "show source", "db stats", "db merge", "db export"} < set(ALL)
    assert {"run", "db import", "db prune"} < set(ALL)


@pytest.mark.parametrize("words", ALL)
def test_every_command_option_and_argument_is_explained(
    capsys: pytest.CaptureFixture[str], words: str
) -> None:
    command = ALL[words]
    text = " ".join(help_of(capsys, words).split())
    first = (command.help or "").strip().splitlines()[0]
    assert len(first.split()) > 3, "what the command does"
    for p in command.params:
        if getattr(p, "hidden", False):
            continue
        explained = getattr(p, "help", None) or ""
        assert len(explained.split()) > 3, f"{words} {p.name}: {explained!r}"
        assert " ".join(explained.split()) in text
    assert all(len(line) <= 80 for line in help_of(capsys, words).splitlines())


@pytest.mark.parametrize("words", [w for w, c in ALL.items() if not hasattr(c, "commands")])
def test_every_command_has_an_example(capsys: pytest.CaptureFixture[str], words: str) -> None:
    if words != "doctor":  # which takes nothing
        assert f"tilesmith {words} " in help_of(capsys, words)


@pytest.mark.parametrize("words", ["tune", "bench", "show sketches"])
def test_the_sizes_of_every_operator_are_named_in_order(
    capsys: pytest.CaptureFixture[str], words: str
) -> None:
    text = help_of(capsys, words)
    for name in (e.operator for e in SUITE.values()) if words == "bench" else OPERATORS:
        assert re.search(rf"^\s+{re.escape(usage(name))}(\s|$)", text, re.MULTILINE), name
        for size in re.findall(r"[A-Z]+", usage(name)):
            if OPERATORS[name].on_images:
                assert re.search(rf"^\s+{size} +{re.escape(SIZES[size])}$", text, re.MULTILINE)
            else:
                assert re.search(rf"\b{size}\b", OPERATORS[name].about), f"{name} {size}"
    for short in SUITE if words == "bench" else ():
        assert f"({short})" in text


@pytest.mark.parametrize("name", OPERATORS)
def test_sizes_mean_what_the_help_says(name: str) -> None:
    """Each size is used: another value gives another function."""
    small = {"P": 1, "S": 1, "K": 3, "CI": 8, "CO": 8, "C": 8, "G": 2}
    sizes = re.findall(r"[A-Z]+", usage(name))
    values = [small.get(s, 12) for s in sizes]
    func = operator(name, values)
    for k, s in enumerate(sizes):
        other = [v + (2 if s in ("K", "G") else 8 if s in ("CI", "CO", "C") else 1) * (j == k)
                 for j, v in enumerate(values)]  # fmt: skip
        assert operator(name, other).digest != func.digest, s


def test_examples_of_the_help_are_commands_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    """Their options, too."""
    for words in ALL:
        text = help_of(capsys, words)
        for line in re.findall(r"^\s*(?:Example: )?tilesmith ([a-z][^\n]*)$", text, re.MULTILINE):
            told = re.sub(r"   .*", "", line).split()
            name = " ".join(told[:2]) if " ".join(told[:2]) in ALL else told[0]
            known = {o for p in ALL[name].params for o in getattr(p, "opts", ())}
            assert {w for w in told if w.startswith("--")} <= known | {"--help"}, line


@pytest.mark.parametrize("dtype", list(Dtype))
def test_operators_take_a_dtype(dtype: str) -> None:
    func = operator("conv2d", (7, 3, 4, 3, 1, 1), "NHWC", dtype=str(dtype))
    assert {str(b.dtype) for b in func.inputs} == {dtype}
    plain = dtype == "float32"
    assert func.name == "conv2d_7_3_4_3_1_1_NHWC" + ("" if plain else f"_{dtype}")
    assert str(operator("matmul", (4, 4, 4)).inputs[0].dtype) == "float32"  # and is not kept
