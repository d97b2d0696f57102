"""`tilesmith show portfolio`: which kernel of an operator with open sizes runs at which sizes."""

from __future__ import annotations

from tilesmith.base.errors import ArgumentError
from tilesmith.cli.databases import PartsOption, existing
from tilesmith.cli.show_records import Place, Which
from tilesmith.cli.table import microseconds, table
from tilesmith.tune.open_build import dispatch_of, limits_of, sizes_text
from tilesmith.tune.portfolio import Portfolio
from tilesmith.tune.stored_portfolio import stored_portfolios


def portfolio(db: Place, task: Which = "", parts: PartsOption = "") -> None:
    """Print the portfolio of an operator with open sizes.

    Its kernels were timed at the samples of the sizes. The regret is the time of the kernel that
    runs there over that of the fastest of all that were timed.

    Example: tilesmith show portfolio matmul --db tune.db
    """
    with existing(db, parts) as d:
        found = [(t, p) for t in d.tasks() for p in stored_portfolios(d, t.task)]
        place = str(d.place)
    plain = task.replace("-", "_")
    meant = [
        (t, p) for t, p in found if p.func.name.startswith(plain) or t.key.startswith(task or "?")
    ]
    if not found:
        raise ArgumentError(f"{place} holds no portfolio; tilesmith tune of open sizes makes one")
    names = ", ".join(dict.fromkeys(p.func.name for _, p in found))
    if not meant:
        raise ArgumentError(f"{place} holds no portfolio of {task!r}; it has those of {names}")
    for k, (t, p) in enumerate(meant):
        print("\n" * bool(k) + "\n".join(described(p, t.task.target.label)))


def described(p: Portfolio, machine: str) -> list[str]:
    """The samples, the kernels and where they run, as lines."""
    limits = ", ".join(f"{n} {low} to {high}" for n, (low, high) in limits_of(p.func).items())
    number = {k: i for i, k in enumerate(p.members)}
    rows = []
    for s, (k, regret) in enumerate(zip(p.chosen, p.regrets, strict=True)):
        times = microseconds(p.seconds[k][s]), microseconds(p.seconds[0][s])
        rows.append((sizes_text(p.samples[s]), str(number[k]), *times, f"{regret:.3f}"))
    header = ("sizes", "kernel", "time", "untuned", "regret")
    return [
        f"{p.func.name} ({limits}) on {machine}: {len(p.members)} of {len(p.kernels)} kernels, "
        f"{p.cost:.3f} of the time of kernel 0",
        *table(header, rows, left=("sizes",)),
        *(f"kernel {i}: {p.kernels[k]}" for i, k in enumerate(p.members)),
        "",
        *(
            f"kernel {i} where {' and '.join(where) or 'anything'}"
            for where, i in dispatch_of(p.func, p.samples, [number[k] for k in p.chosen])
        ),
        *(f"left out, {why}" for why in p.left_out),
    ]
