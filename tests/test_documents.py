"""What README.md and docs/ show is true: the code of README and tour runs, commands exist, and so
do the names, files and links that pages mention. The tour covers every folder.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import onnx.parser
import pytest
from test_architecture import STAGES

import tilesmith as ts
from bench.figures import written
from tilesmith.cli.main import app

TOUR = "docs/tour.md"
ROOT = Path(__file__).parent.parent
TORCH = "docs/howto_torch.md"
PAGES = ["README.md", TOUR, *(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md"))]
EXTENSIONS = sorted((ROOT / "examples").glob("custom_*.py"))
SMALLER = {"512": "32", "56": "8", "64": "16", "n:1..512": "n:1..4"}  # sizes on the command line
# Budgets: the number of trials ends tuning, however slow the machine; bench does not tune.
OTHER = {"--time": "5m", "--seconds": "0"}
MODEL = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[batch, 8] x, float[8, 4] w) => (float[batch, 4] y) {p = MatMul(x, w) y = Softmax(p)}"""


def text_of(page: str) -> str:
    return (ROOT / page).read_text()


def blocks(page: str, language: str) -> list[str]:
    """What stands between fences; the pattern takes whole blocks, so an end is never a start."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text_of(page), re.MULTILINE | re.DOTALL)
    return [text for name, text in found if name == language]


def shell_lines(page: str) -> list[list[str]]:
    lines = "\n".join(blocks(page, "") + blocks(page, "sh") + blocks(page, "bash")).splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


@pytest.mark.parametrize("page", ["README.md", TOUR])
def test_python_runs_from_top_to_bottom(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All blocks of a page share one namespace, so that each may use names of earlier ones."""
    tune = ts.tune

    def short(func: ts.Function, *args: Any, **kwargs: Any) -> ts.Result:
        return tune(func, *args, **{**kwargs, "budget": ts.Budget(trials=4), "quiet": True})

    monkeypatch.setattr(ts, "tune", short)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    scope: dict[str, Any] = {"__name__": "document"}
    code = blocks(page, "python")
    assert code
    for number, block in enumerate(code, 1):
        exec(compile(block, f"{page}, Python block {number}", "exec"), scope)
    if "db" in scope:
        scope["db"].close()


def test_python_of_the_torch_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the backend as `pip install` makes it known, and few trials."""
    torch = pytest.importorskip("torch")
    from tilesmith.tune import torch_backend

    if "tilesmith" not in torch._dynamo.list_backends(exclude_tags=()):
        torch._dynamo.register_backend(compiler_fn=torch_backend.tilesmith, name="tilesmith")
    few = property(lambda self: None if self.budget_seconds is None else ts.Budget(trials=4))
    monkeypatch.setattr(torch_backend.Options, "budget", few)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    scope: dict[str, Any] = {"__name__": "document"}
    for number, block in enumerate(blocks(TORCH, "python"), 1):
        exec(compile(block, f"{TORCH}, Python block {number}", "exec"), scope)
    with ts.open_database("torch.db") as db:
        assert db.tasks()


def test_the_first_example_is_short() -> None:
    code = [line for line in blocks("README.md", "python")[0].splitlines() if line.strip()]
    assert len(code) <= 13


def test_pages_show_the_figures_that_were_measured() -> None:
    """`python -m bench.figures` writes them."""
    assert [path.name for path, text in written().items() if path.read_text() != text] == []


def sections() -> dict[str, str]:
    """The text of each section of the tour by its heading, in order."""
    parts = re.split(r"^## (.*)$", text_of(TOUR), flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def folders() -> list[str]:
    return sorted(p.parent.name for p in (ROOT / "tilesmith").glob("*/__init__.py"))


def test_the_tour_has_a_section_for_every_folder_in_import_order() -> None:
    headings = [h for h in sections() if h in folders()]
    assert sorted(headings) == folders()
    assert headings == [stage for stage in STAGES if stage in headings]


def test_the_picture_of_the_tour_names_every_folder() -> None:
    (picture,) = blocks(TOUR, "text")
    assert [f for f in folders() if not re.search(rf"\b{f}/", picture)] == []


@pytest.mark.parametrize("folder", folders())
def test_a_section_of_the_tour_has_one_short_example(folder: str) -> None:
    (block,) = re.findall(r"^```python\n(.*?)^```$", sections()[folder], re.MULTILINE | re.DOTALL)
    assert len([line for line in block.splitlines() if line.strip()]) <= 10


@pytest.mark.parametrize("folder", folders())
def test_a_section_of_the_tour_names_types_of_its_folder(folder: str) -> None:
    source = "\n".join(p.read_text() for p in (ROOT / "tilesmith" / folder).rglob("*.py"))
    text = " ".join(re.findall(r"\*\*Types:\*\*(.*?)^- ", sections()[folder], re.DOTALL | re.M))
    for name in re.findall(r"`([A-Z]\w*)`", text):
        assert re.search(rf"^(class {name}\b|{name}\b.* = )", source, re.M), f"{folder}: {name}"


@pytest.mark.parametrize("path", EXTENSIONS, ids=lambda p: p.stem)
def test_the_tour_links_every_example_of_an_extension(path: Path) -> None:
    assert f"(../examples/{path.name})" in text_of(TOUR)


def test_commands_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the order given, with smaller sizes and few trials."""
    pytest.importorskip("plotly", reason="`tilesmith report` draws with it")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    onnx.save(onnx.parser.parse_model(MODEL), "model.onnx")
    ts.open_database("tune.db").close()
    pages = ("README.md", "docs/command_line.md", "docs/reading_schedules.md")
    lines = [line for page in pages for line in shell_lines(page)]
    commands = [w[1:] for w in dict.fromkeys(map(tuple, lines)) if w[0] == "tilesmith"]
    assert len(commands) > 12
    for words in commands:
        given = [SMALLER.get(w, w) for w in words]
        for option, value in OTHER.items():
            if option in given:
                given[given.index(option) + 1] = value
        if given[0] == "tune":
            given += ["--trials", "4", "--quiet"]
        if given[0] == "bench":
            peer = "onnxruntime" if "model.onnx" in given else "numpy"
            given += ["--against", peer, "--threads", "1"]
        with pytest.raises(SystemExit) as left:
            app(given)
        said = capsys.readouterr()
        assert left.value.code == 0, f"{' '.join(words)}: {said.err}"
        assert said.out.strip()


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files(page: str) -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", text_of(page)):
        if "://" not in link:
            assert (ROOT / page).parent.joinpath(link).exists(), link


@pytest.mark.parametrize("page", PAGES)
def test_files_and_folders_that_are_mentioned_exist(page: str) -> None:
    for name in re.findall(r"`(\w[\w./]*(?:\.py|/\w*))`", text_of(page)):
        places = [ROOT / name, ROOT / "tilesmith" / name]
        places += (ROOT / "tilesmith").rglob(name)  # the folder was named just before
        assert any(p.exists() for p in places), f"{page} mentions {name}"


@pytest.mark.parametrize("page", PAGES)
def test_links_with_the_text_of_a_name_lead_to_the_file_that_defines_it(page: str) -> None:
    for name, link in re.findall(r"\[([A-Za-z_]+)\]\(([^)#]+\.py)\)", text_of(page)):
        source = (ROOT / page).parent.joinpath(link).read_text()
        defined = rf"^(def |class )?{name}\b.*(=|:$|\()"
        own = link.endswith(f"/{name}/__init__.py")
        assert own or re.search(defined, source, re.M), f"{page}: {name} is not in {link}"


@pytest.mark.parametrize("page", [*PAGES, "CHANGELOG.md"])
def test_benchmarks_and_their_options_exist(page: str) -> None:
    sources = {p.stem: p.read_text() for p in (ROOT / "bench").glob("*.py")}
    text = text_of(page).replace("\n", " ")
    for name, rest in re.findall(r"python -m bench\.(\w+)([^`#)]*)", text):
        assert name in sources, f"{page} mentions bench.{name}"
        for option in re.findall(r"(?<!\w)--[a-z][a-z-]*", rest):
            used = sources[name] + sources["table"] + sources["module_rows"]  # what several share
            assert f'"{option}"' in used, f"{page} mentions bench.{name} {option}"


@pytest.mark.parametrize("page", PAGES)
def test_public_names_exist(page: str) -> None:
    for name in re.findall(r"\bts\.([A-Za-z_]+)", text_of(page)):
        assert name in ts.__all__, f"{page} mentions ts.{name}"


@pytest.mark.parametrize("page", PAGES)
def test_targets_of_make_and_extras_of_pip_exist(page: str) -> None:
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for words in shell_lines(page):
        assert words[0] != "make" or words[1] in targets
    for target in re.findall(r"`make ([a-z]+)`", text_of(page)):
        assert target in targets
    extras = tomllib.loads(text_of("pyproject.toml"))["project"]["optional-dependencies"]
    for names in re.findall(r"(?:tilesmith|\.)\[([a-z,]+)\]", text_of(page)):
        assert set(names.split(",")) <= set(extras), names
