"""The command line. Each command is a file in this folder.

Exit status: 0 for success; 1 if something failed that is not the user's mistake, such as a case of
a benchmark; 2 for a mistake, which is one line on the error stream; 130 after Ctrl-C.
"""

from __future__ import annotations

import os
import re
import select
import sys
import traceback
import warnings
from collections.abc import Sequence
from functools import cached_property
from typing import Annotated, Any, TextIO

import typer
from typer.exceptions import TyperException
from typer.main import get_command

from tilesmith.base.errors import TilesmithError
from tilesmith.base.process import version as installed_version
from tilesmith.cli.compile import COMPILE_HELP, compile
from tilesmith.cli.db import db
from tilesmith.cli.doctor import doctor
from tilesmith.cli.export import EXPORT_HELP, export
from tilesmith.cli.import_tvm import IMPORT_TVM_HELP, import_tvm
from tilesmith.cli.learn import LEARN_HELP, learn
from tilesmith.cli.pack import PACK_HELP, pack
from tilesmith.cli.report import REPORT_HELP, report
from tilesmith.cli.run import RUN_HELP, run
from tilesmith.cli.show import show
from tilesmith.cli.show_records import explain
from tilesmith.cli.suggest import options_like
from tilesmith.cli.tune import TUNE_HELP, tune
from tilesmith.cli.worker import WORKER_HELP, worker
from tilesmith_contest.bench import BENCH_HELP, bench

_INTERRUPTED = 130  # what shells use for Ctrl-C
_DEBUG = "TILESMITH_TRACEBACK"


class Commands(typer.Typer):
    """Typer, but an error or a warning is one line: no box, no traceback and no source."""

    @cached_property
    def _built(self) -> Any:
        """All commands with their options, which takes longer than most of them run."""
        return get_command(self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            with warnings.catch_warnings():
                warnings.showwarning = _show_warning
                status = self._built(*args, standalone_mode=False, **kwargs)
            _flush()
        except (TilesmithError, TyperException) as e:
            _complain(_text_of(e, args[0] if args else sys.argv[1:]))
            sys.exit(2)
        except MemoryError as e:
            _complain(f"there is not enough memory for this: {e}")
            sys.exit(2)
        except SystemExit as e:
            # Typer exits this way when a stream was closed, and users' own files may, too.
            if not isinstance(e.__context__, BrokenPipeError):
                raise
            sys.exit(_status_without_reader())
        except BrokenPipeError:
            sys.exit(_status_without_reader())
        except OSError as e:
            _complain(f"{e.filename}: {e.strerror}" if e.filename else str(e))
            sys.exit(2)
        except Exception as e:
            if os.environ.get(_DEBUG):
                traceback.print_exc()
            _complain(
                f"internal error, which is a defect of tilesmith: {type(e).__name__}: {e} "
                f"(set {_DEBUG}=1 to see where)"
            )
            sys.exit(1)
        if status == _INTERRUPTED:
            _complain("interrupted")
        sys.exit(status if isinstance(status, int) else 0)


def _show_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int,
    file: TextIO | None = None, line: str | None = None,
) -> None:  # fmt: skip
    _complain(f"warning: {message}")


def _text_of(error: Exception, words: Sequence[str]) -> str:
    """What to say of an error in the words of a command line."""
    text: str = error.format_message() if hasattr(error, "format_message") else str(error)
    option = re.match(r"No such option: (-\S+)", text)
    if option is None:
        return text
    name = option.group(1)
    if re.match(r"-[0-9.]", name):  # Typer takes a negative number for several short options
        given = next((w for w in words if w.startswith(name)), name)
        return f"{given} is not a size; sizes are whole numbers, at least 1"
    context = getattr(error, "ctx", None)
    known = [o for p in context.command.params for o in p.opts] if context is not None else []
    if similar := options_like(name, known):
        return f"No such option: {name} (did you mean {' or '.join(similar)}?)"
    return text


def _complain(text: str) -> None:
    if text.startswith("Missing command"):
        text = "Missing command; --help lists the commands"
    try:
        print(f"tilesmith: {' '.join(text.split())}", file=sys.stderr, flush=True)
    except OSError:  # the error stream is closed
        _silence(sys.stderr)


def _flush() -> None:
    """Flushes now, because errors at the end of the interpreter can no longer be handled."""
    if sys.stdout is not None:
        sys.stdout.flush()


def _status_without_reader() -> int:
    """The status after the reader of a stream has gone, as in `tilesmith show ... | head`. It is a
    failure only for the error stream, to which tuning writes its progress.
    """
    status = 1 if _is_closed(sys.__stderr__) else 0
    _silence(sys.__stdout__)
    _silence(sys.__stderr__)
    return status


def _is_closed(stream: TextIO | None) -> bool:
    """Whether the other end of a pipe was closed."""
    if stream is None:
        return False
    poll = select.poll()
    poll.register(stream.fileno(), select.POLLOUT)
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))


def _silence(stream: TextIO | None) -> None:
    """Discards what is still buffered, so that the interpreter does not complain at its end."""
    if stream is not None and _is_closed(stream):
        with open(os.devnull, "wb") as nothing:
            os.dup2(nothing.fileno(), stream.fileno())


app = Commands(
    add_completion=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Tilesmith makes tensor programs fast by searching: it tries many ways to compute the "
    "same thing, measures them on this machine, checks every answer, and keeps the fastest.",
    epilog="\b\nStart here:\n"
    "  tilesmith doctor                                   what this machine can do\n"
    "  tilesmith tune matmul 512 512 512 --time 30s --db tune.db\n"
    "  tilesmith show records matmul --db tune.db         what was measured\n"
    "  tilesmith explain matmul --db tune.db              the schedule it found\n"
    "  tilesmith report tune.db -o report.html            as a page of charts\n"
    "  tilesmith run model.onnx --random                  run it on random numbers\n"
    "  tilesmith show graph model.onnx                    its groups and tasks\n"
    "  tilesmith tune model.onnx --time 10m --db tune.db  make it fast\n"
    "  tilesmith compile model.onnx -o m.tsm --db tune.db a file that loads at once\n"
    "  tilesmith export model.onnx -o out --db tune.db    a C library that runs it\n"
    "  tilesmith COMMAND --help                           options and examples",
)
app.command(epilog=TUNE_HELP)(tune)
app.command(epilog=BENCH_HELP)(bench)
app.command(epilog=RUN_HELP)(run)
app.command(epilog=COMPILE_HELP)(compile)
app.command(epilog=EXPORT_HELP)(export)
app.command(epilog=PACK_HELP)(pack)
app.command(epilog=LEARN_HELP)(learn)
app.command(epilog=IMPORT_TVM_HELP)(import_tvm)
app.add_typer(show, name="show")
app.command()(explain)
app.add_typer(db, name="db")
app.command(epilog=REPORT_HELP)(report)
app.command()(doctor)
app.command(epilog=WORKER_HELP)(worker)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"tilesmith {installed_version()}")
        raise typer.Exit


@app.callback()
def tilesmith(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="print the version and exit"
        ),
    ] = False,
) -> None:
    pass
