"""Every command with wrong input: one line that names the thing, status 2, and no traceback."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import onnx.parser
import pytest

import tilesmith as ts
from tilesmith.cli import doctor as doctor_module
from tilesmith.cli.main import app

NOWHERE = "/dev/null/sub"  # no user can write there
MANY = str(10**6)  # cores that no machine has

# (words, what the message names). FOLDER is an empty folder, DB a database with one task, TEXT a
# file that is neither a database nor records, MINE a Python file.
MISTAKES = [
    # commands and options
    ("", "Missing command"),
    ("tuen matmul 8 8 8", "Did you mean 'tune'?"),
    ("show", "Missing command"),
    ("show recrods --db DB", "Did you mean 'records'?"),
    ("db", "Missing command"),
    ("db stat DB", "Did you mean 'stats'?"),
    ("tune matmul 8 8 8 --trails 3", "--trials"),
    ("tune matmul 8 8 8 --trials", "--trials"),
    ("tune matmul 8 8 8 --budget 5", "--budget (did you mean --time or --trials?)"),
    ("tune matmul 8 8 8 --database x", "--database (did you mean --db?)"),
    ("tune matmul 8 8 8 --iterations 5", "--iterations (did you mean --trials?)"),
    ("bench matmul 8 8 8 --num-threads 5", "--num-threads (did you mean --threads?)"),
    ("run model.onnx --batch 5", "--batch (did you mean --dim?)"),
    ("run OPEN --random --dim batch=0", "--dim 'batch=0': a size is at least 1, such as batch=1"),
    ("export OPEN -o FOLDER --dim batch=1", "dims={\"seq\": 1}) or --dim seq=1"),
    ("export OPEN -o FOLDER", "--dim batch=1 --dim seq=1"),
    ("--nonsense", "--nonsense"),
    ("doctor please", "please"),
    # operators and sizes
    ("tune", "OP"),
    ("tune matmull 8 8 8", "unknown operator 'matmull' (did you mean matmul"),
    ("tune Conv2D 7 3 4 3 1 1", "did you mean conv2d"),
    ("tune depthwise_conv2d 7 3 3 1 1", "did you mean depthwise-conv2d"),
    ("tune xyz", "unknown operator 'xyz'; operators are matmul"),
    ("tune ''", "unknown operator"),
    ("tune matmul", "matmul takes the sizes matmul N M K [B=1]; got none"),
    ("tune matmul 8 8", "got 8 8"),
    ("tune matmul 8 8 8 8 8", "got 8 8 8 8 8"),
    ("tune matmul 8 8 8 x0", "matmul 8 8 8 x0: a weight is above 0, as x3"),
    ("tune matmul 8 8 8 x3 matmul 8 8", "got 8 8"),
    ("tune matmul 8 8 8 softmax 8 8 --layout NHWC", "none of these operators has a layout"),
    ("tune matmul 8 8 8 model.onnx", "model.onnx: models and operators are tuned by commands"),
    ("tune nothing.txt", "there is no file nothing.txt"),
    ("tune LIST 8", "takes no sizes, but got 8"),
    ("tune LIST", "line 3: conv2d takes the sizes conv2d H CI"),
    ("tune matmul 8 8 8 sum 9 --resume", "--resume continues from a database"),
    ("tune matmul 8 8 8 sum 9 --resume --db DB", "holds no measurement of these operators"),
    ("tune MINE:pair:x", "has no Function 'pair:x'"),
    ("tune matmul 8 8 8 --scheduler fair", "'fair' is not one of 'gradient', 'round-robin'"),
    ("tune matmul 8 0 8", "matmul: M is 0; it must be at least 1"),
    ("tune matmul 8 8 -8", "-8 is not a size"),
    ("tune matmul -64 64 64", "-64 is not a size"),
    ("tune matmul 64 -.5 64", "-.5 is not a size"),
    ("tune -- matmul 8 8 -8", "matmul: K is -8; it must be at least 1"),
    ("tune -- conv2d 7 3 4 3 1 -1", "conv2d: P is -1; it must be at least 0"),
    ("tune matmul 8 8 x", "matmul: K is 'x'; sizes are whole numbers"),
    ("tune matmul 8 8 8.0", "matmul: K is '8.0'"),
    ("tune matmul 8 8 1e3", "matmul: K is '1e3'"),
    ("tune matmul 8 8 ٣", "matmul: K is"),
    ("tune matmul 8 8 0x8", "matmul: K is '0x8'"),
    ("tune matmul 8 8 " + "9" * 5000, "matmul: K is '9999"),
    ("tune matmul 8 8 99999999999999999999999", "matmul: K is 9999"),
    ("tune matmul 100000000 100000000 100000000", "more than a process can address"),
    ("tune matmul 3000000 3000000 8", "GiB for its arrays; this machine has"),
    ("tune conv2d 3 2 2 9 1 0", "conv2d"),
    ("tune group-conv2d 7 6 8 3 1 1 4", "group"),
    ("bench matmul 3000000 3000000 8", "GiB for its arrays; this machine has"),
    ("bench matmul 8 8 x", "matmul: K is 'x'"),
    ("bench GMM 0 8 8", "matmul: N is 0"),
    ("bench matmull 8 8 8", "did you mean matmul"),
    ("bench gelu 8 8", "unknown operator 'gelu'"),
    ("bench siute", "did you mean suite"),
    ("show sketches sofmax 8 8", "did you mean softmax"),
    ("show sketches matmul 8 8 99999999999999999999999", "matmul: K is 9999"),
    ("show sketches matmul 8 8 ''", "matmul: K is ''"),
    # options with a value
    ("tune matmul 8 8 8 --seed -1", "'--seed': '-1' is not a whole number"),
    ("tune matmul 8 8 8 --seed x", "'--seed': 'x' is not a whole number"),
    ("tune matmul 8 8 8 --trials -3", "'--trials': '-3' is not a whole number"),
    ("tune matmul 8 8 8 --trials many", "'--trials': 'many' is not a whole number"),
    ("tune matmul 8 8 8 --time soon", "'--time' / '--seconds': 'soon' is not a time"),
    ("tune matmul 8 8 8 --seconds soon", "'--seconds': 'soon' is not a time"),
    ("tune matmul 8 8 8 --time 0", "--time"),
    ("tune matmul 8 8 8 --time -5", "'-5' is not a time"),
    ("tune matmul 8 8 8 --time 5d", "'5d' is not a time"),
    ("tune matmul 8 8 8 --time 1e3", "'1e3' is not a time"),
    ("tune matmul 8 8 8 --time nan", "'nan' is not a time"),
    ("tune matmul 8 8 8 --time 99999999999999999h", "too long"),
    ("tune matmul 8 8 8 --timeout never", "'--timeout': 'never' is not a time"),
    ("tune matmul 8 8 8 --timeout 0", "--timeout"),
    ("tune matmul 8 8 8 --strategy luck", "'--strategy'"),
    ("tune conv2d 7 3 4 3 1 1 --layout HWCN", "'--layout'"),
    ("tune matmul 8 8 8 --layout NHWC", "matmul has no layout 'NHWC'"),
    ("tune matmul 8 8 8 --dtype float8", "'--dtype'"),
    ("tune matmul 8 8 8 --precision float16", "for an operator there is --dtype float16"),
    ("tune OPEN --dtype float16", "for a model there is --precision float16"),
    ("tune softmax 8 8 --dtype int8", "X is int8; it must be a float"),
    ("tune MINE:double --dtype float16", "--dtype is for named operators"),
    ("db diff DB missing.db", "there is no database missing.db"),
    ("tune matmul 8 8 8 --cores -1", "'--cores' / '--threads': '-1' is not a whole number"),
    (f"tune matmul 8 8 8 --cores {MANY}", f"--cores {MANY}: this process may use"),
    (f"show sketches matmul 8 8 8 --cores {MANY}", f"--cores {MANY}: this process may use"),
    ("tune matmul 8 8 8 --target gpu", "--target 'gpu' is unknown"),
    ("tune matmul 8 8 8 --target neoverse_n1", "did you mean neoverse-n1"),
    ("tune matmul 8 8 8 --target nvidia-v100 --trials 1", ""),
    ("tune matmul 8 8 8 --target opencl --cores 2", "--cores 2: a GPU is used as a whole"),
    ("tune matmul 8 8 8 --target cuda:99 --trials 1", ""),
    ("show sketches matmul 8 8 8 --target skylake", "did you mean skylake-avx512"),
    ("show sketches matmul 8 8 8 --rules good", "'--rules'"),
    ("bench matmul 8 8 8 --seconds soon", "'--seconds' / '--time': 'soon' is not a time"),
    (f"bench matmul 8 8 8 --threads {MANY}", f"--threads {MANY}: this process may use"),
    ("bench matmul 8 8 8 --threads 0", "--threads '0'"),
    ("bench matmul 8 8 8 --threads 1,,2", "--threads '1,,2'"),
    ("bench matmul 8 8 8 --batch 0", "'--batch': '0' is not a whole number"),
    ("bench matmul 8 8 8 --against tvm", "'tvm'"),
    ("bench conv2d 7 3 4 3 1 1 --layout CHWN", "--layout 'CHWN' is unknown"),
    ("bench matmul 8 8 8 --ops GMM", "bench suite --ops"),
    ("bench suite --shapes 9", "--shapes '9'"),
    ("bench suite --ops GMM,", "unknown operator ''"),
    # places
    (f"tune matmul 8 8 8 --out {NOWHERE}", f"--out {NOWHERE} cannot be written"),
    ("tune matmul 8 8 8 --out TEXT", "--out TEXT cannot be written"),
    ("tune matmul 8 8 8 --db FOLDER", "FOLDER is a folder"),
    ("tune matmul 8 8 8 --db .", ". is a folder"),
    ("tune matmul 8 8 8 --db TEXT", "TEXT"),
    (f"tune matmul 8 8 8 --db {NOWHERE}/t.db", NOWHERE),
    ("tune matmul 8 8 8 --db mysql://host/x", "mysql"),
    ("tune matmul 8 8 8 --db postgresql://user@127.0.0.1:1/x", "127.0.0.1"),
    ("tune matmul 8 8 8 --db postgresql://", "postgresql"),
    ("tune matmul 8 8 8 --db ://", "://"),
    ("tune matmul 8 8 8 --db postgresql://h:port/x", "port"),
    ("tune matmul 8 8 8 --resume", "name it with --db FILE"),
    ("tune matmul 8 8 8 --resume --db DB", "holds no measurement of matmul_8_8_8"),
    ("bench matmul 8 8 8 --db FOLDER", "FOLDER is a folder"),
    (f"bench matmul 8 8 8 --json {NOWHERE}", f"--json {NOWHERE} cannot be written"),
    ("bench matmul 8 8 8 --json FOLDER", "--json FOLDER is a folder"),
    ("bench matmul 8 8 8 --json TEXT --against ''", "TEXT does not hold rows"),
    (f"bench matmul 8 8 8 --chart {NOWHERE}", f"--chart {NOWHERE} cannot be written"),
    (f"bench matmul 8 8 8 --json FOLDER/r --page {NOWHERE}", f"--page {NOWHERE} cannot be"),
    ("bench matmul 8 8 8 --page FOLDER/x.md", "name that file too"),
    ("show tasks", "--db"),
    ("show tasks --db missing.db", "there is no database missing.db"),
    ("show tasks --db FOLDER", "FOLDER is a folder"),
    ("show tasks --db TEXT", "TEXT"),
    ("show tasks --db " + "x" * 5000, "xxx"),
    ("show records nothing --db DB", "holds no task 'nothing'"),
    ("show records --db DB --top -1", "'--top': '-1' is not a whole number"),
    ("show trace --db DB --record 99", "--record '99' names no record"),
    ("show trace --db DB --record 0", "--record '0' names no record"),
    ("show source --db DB --record zzzz", "--record 'zzzz' names no record"),
    ("db stats missing.db", "there is no database missing.db"),
    ("db stats FOLDER", "FOLDER is a folder"),
    ("db merge DB missing.db", "there is no database missing.db"),
    ("db merge FOLDER DB", "FOLDER is a folder"),
    ("db export missing.db out.jsonl", "there is no database missing.db"),
    (f"db export DB {NOWHERE}", f"{NOWHERE} cannot be written"),
    ("db export DB FOLDER", "FOLDER is a folder"),
    ("db import FOLDER/n.db missing.jsonl", "there is no file missing.jsonl"),
    ("db import FOLDER/n.db FOLDER", "FOLDER"),
    ("db import FOLDER TEXT", "FOLDER is a folder"),
    ("db prune DB", "say what to delete"),
    ("db prune DB --keep -1", "'--keep': '-1' is not a whole number"),
    ("db prune missing.db --keep 1", "there is no database missing.db"),
    # Python files
    ("tune missing.py", "there is no file missing.py"),
    ("tune FOLDER/x.py:f", "there is no file"),
    ("tune MINE:nothing", "has no Function 'nothing'"),
    ("tune MINE:duoble", "did you mean double"),
    ("tune MINE", "has several Functions: double, triple"),
    ("tune MINE:double 8", "takes no sizes, but got 8"),
    ("tune MINE:double --layout NCHW", "--layout is for named operators"),
    ("tune BROKEN", "line 2: NameError: name 'tensor' is not defined"),
    ("tune UNREADABLE", "line 1: "),
    ("tune LEAVING", "line 2: SystemExit: 3"),
    ("tune WRONG", "line 2: "),
    ("show sketches BROKEN", "line 2: NameError"),
]  # fmt: skip

OPEN = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
    open (float[batch, seq, 8] x) => (float[batch, seq, 8] y) {y = Relu(x)}""")
FILES: dict[str, tuple[str, Any]] = {
    "TEXT": ("text", "neither a database nor records\n"),
    "MINE": (
        "mine.py",
        "import tilesmith as ts\nx = ts.placeholder((8,), name='x')\n"
        "double = ts.function([x, ts.compute((8,), lambda i: 2 * x[i], name='y')])\n"
        "triple = ts.function([x, ts.compute((8,), lambda i: 3 * x[i], name='y')])\n",
    ),
    "LIST": ("list.txt", "matmul 8 8 8\n\nconv2d 3 # and so on\n"),
    "BROKEN": ("broken.py", "import tilesmith as ts\nx = tensor((8,))\n"),
    "UNREADABLE": ("unreadable.py", "def f(:\n"),
    "LEAVING": ("leaving.py", "import sys\nsys.exit(3)\n"),
    "OPEN": ("open.onnx", OPEN),
    "WRONG": ("wrong.py", "import tilesmith as ts\nts.placeholder((-1,), name='x')\n"),
}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("places")
    (root / "folder").mkdir()
    found = {"FOLDER": str(root / "folder"), "DB": str(root / "one.db")}
    for word, (name, text) in FILES.items():
        if isinstance(text, str):
            (root / name).write_text(text)
        else:
            onnx.save(text, root / name)
        found[word] = str(root / name)
    a, b = ts.placeholder((16, 16), name="A"), ts.placeholder((16, 16), name="B")
    func = ts.function([a, b, ts.ops.matmul(a, b, name="C")], name="known")
    with ts.open_database(found["DB"]) as d:
        d.add([ts.Measurement(ts.Candidate(ts.Task(func, ts.cpu(1)), ts.Trace()), (1e-6,) * 3)])
    return found


def put(text: str, places: dict[str, str]) -> str:
    return re.sub(r"\b[A-Z]{2,}\b", lambda m: places.get(m.group(), m.group()), text)


@pytest.mark.parametrize(("words", "named"), MISTAKES, ids=[w[:60] or "-" for w, _ in MISTAKES])
def test_a_mistake_is_one_line_and_status_2(
    capsys: pytest.CaptureFixture[str],
    places: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: str,
    named: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    given = ["" if w == "''" else w for w in put(words, places).split()]
    with pytest.raises(SystemExit) as left:
        app(given)
    said = capsys.readouterr()
    lines = [line for line in said.err.splitlines() if not line.startswith("absent: ")]
    assert left.value.code == 2, said.err
    assert said.out == ""
    assert len(lines) == 1, said.err
    assert lines[0].startswith("tilesmith: ")
    assert put(named, places) in lines[0]
    assert list(tmp_path.iterdir()) == []


def tilesmith(*words: str) -> list[str]:
    return [sys.executable, "-m", "tilesmith", *words]


def test_huge_sizes_have_sketches_or_a_message(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        app(["show", "sketches", "sum", "100000000000"])
    assert left.value.code in (0, 2)
    assert len(capsys.readouterr().err.splitlines()) <= 1


@pytest.mark.parametrize("words", ["show sketches conv2d 56 64 64 3 1 1", "tune --help", "doctor"])
def test_a_closed_pipe_is_no_error(words: str) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            tilesmith(*words.split()), stdout=write, stderr=subprocess.PIPE, text=True, timeout=300
        )
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_full_disk_is_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            tilesmith("--version"), stdout=full, stderr=subprocess.PIPE, text=True, timeout=300
        )
    assert done.returncode == 2
    assert done.stderr.startswith("tilesmith: ")
    assert "No space left on device" in done.stderr
    assert done.stderr.count("\n") == 1


def test_closed_streams_and_narrow_screens() -> None:
    for command in (
        f"{sys.executable} -m tilesmith --help >&-",
        f"{sys.executable} -m tilesmith --help 2>&- >/dev/null </dev/null",
        f"COLUMNS=40 {sys.executable} -m tilesmith bench --help",
        f"TERM=dumb COLUMNS=0 {sys.executable} -m tilesmith tune --help",
    ):
        done = subprocess.run(
            ["/bin/sh", "-c", command], capture_output=True, text=True, timeout=300
        )
        assert (done.returncode, done.stderr) == (0, ""), command


def test_ctrl_c_while_tuning_keeps_the_result(tmp_path: Path) -> None:
    words = ("tune", "matmul", "64", "64", "64", "--time", "5m", "--db", str(tmp_path / "t.db"))
    with subprocess.Popen(
        tilesmith(*words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        first = process.stderr.readline()  # progress: something was measured
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=300)
    assert "matmul_64_64_64" in first
    assert process.returncode == 0, err
    assert out.startswith("matmul_64_64_64: ")
    assert "Traceback" not in err


def test_ctrl_c_elsewhere_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted() -> float:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(doctor_module, "version", interrupted)
        with pytest.raises(SystemExit) as left:
            app(["doctor"])
    assert left.value.code == 130
    assert capsys.readouterr().err == "tilesmith: interrupted\n"


def test_a_defect_of_ours_is_one_line_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_module, "version", lambda: 1 / 0)
    with pytest.raises(SystemExit) as left:
        app(["doctor"])
    assert left.value.code == 1
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "internal error" in err
    assert "ZeroDivisionError" in err
    monkeypatch.setenv("TILESMITH_TRACEBACK", "1")
    with pytest.raises(SystemExit):
        app(["doctor"])
    assert "Traceback" in capsys.readouterr().err


def test_writing_is_tried_before_tuning(tmp_path: Path) -> None:
    start = time.monotonic()
    words = ("tune", "matmul", "64", "64", "64", "--time", "10m", "--out", NOWHERE)
    done = subprocess.run(tilesmith(*words), capture_output=True, text=True, timeout=300)
    assert done.returncode == 2
    assert time.monotonic() - start < 300
