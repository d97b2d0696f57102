"""The package as `pip install` leaves it: a wheel that has every file, and extras that bring what
they promise. Programs run outside of the repository, with a search path that holds the wheel and
the packages of some extras only; a missing package is answered with the extra that has it.
"""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import pytest

from tilesmith.base.errors import BuildError
from tilesmith.codegen.c.nvrtc import compile_cuda

ROOT = Path(__file__).parent.parent
EXTRAS: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
    "optional-dependencies"
]
# Which extras have a package that some file imports; those that every install has are "".
EXTRA_OF = {
    "numpy": "", "llvmlite": "", "ml_dtypes": "", "sqlalchemy": "", "typer": "", "rich": "",
    "xgboost": "", "onnx": "onnx", "torch": "torch", "cuda": "cuda", "pyopencl": "opencl",
    "ray": "fleet", "matplotlib": "report", "plotly": "report", "psycopg": "postgres",
    "google": "onnx", "onnxruntime": "peers", "openvino": "peers", "MNN": "peers",
    "_tools": "peers", "pytest": "test",
}  # fmt: skip

PACKAGES = ("tilesmith", "tilesmith_contest")  # of the wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that nothing is written into the repository."""
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, source)
    for name in PACKAGES:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, source / name, ignore=ignored)
    dist = source / "dist"
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-q"]
    done = subprocess.run(
        [*command, "--disable-pip-version-check", "-w", str(dist), str(source)],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (path,) = dist.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that it was installed into."""
    target = tmp_path_factory.mktemp("target")
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-compile", "-q"]
    done = subprocess.run(
        [*command, "--disable-pip-version-check", "--target", str(target), str(wheel)],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return target


def requirements(texts: list[str], extras: set[str]) -> dict[str, set[str]]:
    """Distributions that are asked for, with their extras, under the conditions of this machine."""
    from packaging.requirements import Requirement

    out: dict[str, set[str]] = {}
    for text in texts:
        r = Requirement(text)
        if r.marker is None or any(r.marker.evaluate({"extra": e}) for e in extras | {""}):
            out.setdefault(r.name, set()).update(r.extras)
    return out


def with_requirements(wanted: dict[str, set[str]]) -> dict[str, metadata.Distribution]:
    """The distributions and all that they need; those that are not installed are left out."""
    found: dict[str, metadata.Distribution] = {}
    seen: set[tuple[str, str]] = set()
    todo = list(wanted.items())
    while todo:
        name, extras = todo.pop()
        news = {(name, e) for e in extras | {""}} - seen
        if not news:
            continue
        seen |= news
        try:
            dist = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        found[name] = dist
        todo += requirements(dist.requires or [], extras).items()
    return found


def environment(folder: Path, installed: Path, *extras: str) -> Path:
    """The Python of an environment as `pip install tilesmith[extras]` leaves it, by links."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    texts = [*project["dependencies"], *(t for e in extras for t in EXTRAS[e])]
    venv.create(folder, with_pip=False, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    for path in installed.iterdir():
        (site / path.name).symlink_to(path)
    for dist in with_requirements(requirements(texts, set())).values():
        for file in dist.files or ():
            top = file.parts[0]
            if top not in ("..", "__pycache__") and not (site / top).exists():
                (site / top).symlink_to(Path(str(dist.locate_file(top))).resolve())
    return folder / "bin" / "python"


def run(python: Path, code: str, where: Path) -> str:
    where.mkdir()
    done = subprocess.run(
        [python, "-c", code], capture_output=True, text=True, cwd=where,
        env={"XDG_CACHE_HOME": str(where / "cache"), "PATH": "/usr/bin:/bin", "HOME": str(where)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_wheel_has_every_file(wheel: Path) -> None:
    """Data that lies beside the code, too, which a source tree would have in any case."""
    here = {
        str(p.relative_to(ROOT))
        for p in (ROOT / "tilesmith").rglob("*")
        if p.is_file() and p.suffix != ".pyc"
    }
    inside = set(zipfile.ZipFile(wheel).namelist())
    assert "tilesmith/py.typed" in here
    assert here <= inside
    assert not [n for n in inside if n.startswith(("tests", "bench", "examples", "build"))]


def test_the_wheel_offers_what_the_readme_names(wheel: Path) -> None:
    inside = zipfile.ZipFile(wheel)
    (name,) = [n for n in inside.namelist() if n.endswith(".dist-info/METADATA")]
    lines = inside.read(name).decode().splitlines()
    mark = "Provides-Extra: "
    offered = {line.removeprefix(mark) for line in lines if line.startswith(mark)}
    assert offered == set(EXTRAS)
    named = set(re.findall(r"`\.\[(\w+)\]`", (ROOT / "README.md").read_text()))
    assert {"onnx", "torch", "cuda", "opencl", "fleet", "report", "all"} <= named <= offered


FIRST_STEPS = """
import sys
import numpy as np, tilesmith as ts
from tilesmith.cli.main import app
assert not ts.__file__.startswith({root!r}), ts.__file__
def command(*words):
    try:
        app(words)
    except SystemExit as left:
        assert left.code == 0, (words, left.code)
command("--version")
command("tune", "matmul", "16", "16", "16", "--trials", "2", "--cores", "1", "--db", "t.db",
        "--quiet", "--out", "tuned")
A, B = ts.placeholder((8, 8), name="A"), ts.placeholder((8, 8), name="B")
func = ts.function([A, B, ts.ops.matmul(A, B, name="C")], name="product")
kernel = ts.build(func, ts.cpu(1))
a = np.eye(8, dtype=np.float32)
assert (kernel(a, a) == a).all()
kernel.export("out", name="product", shared=False)
print(sorted({{m.partition(".")[0] for m in sys.modules}}))
"""


def test_first_steps_with_the_plain_install(installed: Path, tmp_path: Path) -> None:
    python = environment(tmp_path / "env", installed)
    said = run(python, FIRST_STEPS.format(root=str(ROOT)), tmp_path / "user")
    assert "2 trials" in said
    assert (tmp_path / "user" / "out" / "product.h").exists()
    # A package that merely happens to be here would hide that another one is missing.
    loaded = set(ast.literal_eval(said.splitlines()[-1]))
    assert not loaded & {module for module, extra in EXTRA_OF.items() if extra}


ACTIONS = {
    "onnx": """
from onnx.parser import parse_model
graph = ts.load_onnx(parse_model('''<ir_version: 8, opset_import: ["" : 17]>
    g (float[2, 3] x) => (float[2, 3] y) {y = Relu(x)}'''))
y = ts.compile_model(graph, ts.cpu(1))({"x": np.ones((2, 3), np.float32)})["y"]
assert (y == 1).all()""",
    # No import of ours: PyTorch finds the backend by its name.
    "torch": """
import sys, torch
assert not [m for m in sys.modules if m.startswith("tilesmith")]
with torch.no_grad():
    f = torch.compile(lambda x: x + 1, backend="tilesmith", options={"quiet": True})
    assert (f(torch.ones(4)) == 2).all()
assert "tilesmith.tune.torch_backend" in sys.modules""",
    "cuda": """
assert "__global__" in ts.build(func, ts.Target.named("nvidia-h200")).source""",
    "opencl": """
try:
    assert ts.opencl().kind == "opencl"
except ts.TargetError as error:  # the package is there, a device may not be
    assert "pip" not in str(error), error""",
    "fleet": """
from importlib.util import find_spec
assert find_spec("ray")""",
    "report": """
from tilesmith.report.plotly_text import plotly_text
import tilesmith_contest.chart
assert plotly_text()""",
    "postgres": """
try:
    ts.open_database("postgresql://nobody@127.0.0.1:1/none")
except ts.RecordsError as error:
    assert "pip" not in str(error), error""",
}
PROGRAM = """
import numpy as np, tilesmith as ts
A = ts.placeholder((4,), name="A")
func = ts.function([A, ts.compute((4,), lambda i: A[i] + 1, name="B")], name="next")
a = np.ones(4, np.float32)
"""


# Those that share a process bring packages that have nothing to do with each other.
@pytest.mark.turns(3)
@pytest.mark.parametrize("extras", ["onnx", "torch", "cuda", "opencl", "fleet report postgres"])
def test_an_extra_is_enough_for_what_it_is_named_for(
    extras: str, installed: Path, tmp_path: Path
) -> None:
    named = extras.split()
    for module in (m for m, extra in EXTRA_OF.items() if extra in named):
        if find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
    python = environment(tmp_path / "env", installed, *named)
    before = "" if extras == "torch" else PROGRAM
    run(python, before + "\n".join(ACTIONS[e] for e in named), tmp_path / "user")


# Each tries what needs a package that is not there.
WITHOUT = {
    "onnx": "lambda: ts.load_onnx('model.onnx')",
    "torch": "lambda: ts.from_torch(None, ())",
    "torch (TreeGru)": "lambda: ts.TreeGru().fit([])",
    "cuda": "lambda: ts.build(func, ts.Target.named('nvidia-h200'))",
    "opencl": "lambda: ts.opencl()",
    "fleet": "lambda: ts.FleetMeasurer(address='auto').open(ts.Task(func, ts.cpu(1)))",
    "fleet (worker)": "lambda: app(['worker', '--address', '127.0.0.1:1'])",
    "report": "lambda: app(['report', 't.db'])",
    "report (chart)": "lambda: draw_chart(None, [])",
    "postgres": "lambda: ts.open_database('postgresql://nobody@127.0.0.1:1/none')",
    "peers": "lambda: say(installed_peers(['onnxruntime']))",
    "peers (engines)": "lambda: say(usable_engines(['openvino'], Path('m.onnx')))",
}  # fmt: skip
WITHOUT_ALL = """
import contextlib, io, json, sys
from pathlib import Path
from tilesmith_contest.bench import _draw as draw_chart
from tilesmith.cli.main import app
from tilesmith_contest.engines import usable_engines
from tilesmith_contest.peers import installed_peers
out = {}
def say(found):
    usable, absent = found
    sys.stderr.write(" ".join(absent if isinstance(absent, list) else absent.values()))
def attempt(name, action):
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            action()
    except ts.TilesmithError as error:
        said.write(str(error))
    except SystemExit:
        pass
    out[name] = " ".join(said.getvalue().split())
"""


def test_a_missing_package_is_answered_with_its_extra(installed: Path, tmp_path: Path) -> None:
    python = environment(tmp_path / "env", installed)
    calls = "".join(f"attempt({name!r}, {code})\n" for name, code in WITHOUT.items())
    program = PROGRAM + WITHOUT_ALL + calls + "print(json.dumps(out))"
    said = json.loads(run(python, program, tmp_path / "user"))
    for name, text in said.items():
        assert f"pip install 'tilesmith[{name.partition(' ')[0]}]'" in text, (name, text)


def test_bindings_without_the_library_of_nvrtc(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after `pip install cuda-core`: the bindings load, and find no library when called."""
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc")

    def missing() -> None:
        raise RuntimeError('Failure finding "libnvrtc.so.13"')

    monkeypatch.setattr(nvrtc, "nvrtcVersion", missing)
    with pytest.raises(BuildError, match=r"libnvrtc.*pip install 'tilesmith\[cuda\]'"):
        compile_cuda("empty", "", "sm_90")


def test_every_package_that_is_imported_has_an_extra_that_was_tried() -> None:
    imported: set[str] = set()
    for path in (p for name in PACKAGES for p in (ROOT / name).rglob("*.py")):
        text = path.read_text()
        lines = re.findall(
            r"^ *import (\w+)(?:\.\w+)*(?: as \w+)?$|^ *from (\w+)[\w.]* import ", text, re.M
        )
        imported |= {one or other for one, other in lines}
    unknown = imported - set(sys.stdlib_module_names) - {*PACKAGES, "__future__"} - set(EXTRA_OF)
    assert not unknown, "say in EXTRA_OF which extra has it"
    tried = {name.partition(" ")[0] for name in WITHOUT}
    assert {e for e in EXTRA_OF.values() if e} - tried <= {"test"}
    assert set(ACTIONS) == tried - {"peers"}


def test_all_is_all() -> None:
    (text,) = EXTRAS["all"]
    named = re.search(r"\[(.*)\]", text)
    assert named is not None
    assert set(named.group(1).split(",")) == set(EXTRAS) - {"all", "docs", "peers", "test"}
    assert set(ACTIONS) == set(EXTRAS) - {"all", "docs", "peers", "test"}
