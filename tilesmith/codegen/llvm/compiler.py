"""Compiles LLVM IR for a Target to a relocatable object or to assembly, in this process.

No optimisation passes run: the emitter writes vectorised, unrolled code, and LLVM selects
instructions, allocates registers and schedules.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from hashlib import sha256
from typing import Any

import llvmlite.binding as llvm

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import BuildError
from tilesmith.base.machines.machine import CpuMachine
from tilesmith.base.process import LLVM_LOCK
from tilesmith.base.target import MACHINES, NAMED, Target, cpu
from tilesmith.codegen.artifact import ENTRY, Artifact, Check, Entry, OpenSizes, Parameter

_DIGEST = 16  # hexadecimal digits of the hash in a kernel's symbol
_NAMED_CPUS = {(t.arch, t.cpu) for t in NAMED.values()}


@dataclass(frozen=True, slots=True)
class Machine:
    """LLVM's TargetMachine, and the triple, processor and features it was created for."""

    triple: str
    cpu: str
    features: str
    layout: str
    machine: Any

    @property
    def header(self) -> str:
        return f'target datalayout = "{self.layout}"\ntarget triple = "{self.triple}"\n'


def compile_ir(
    name: str,
    source: str,
    target: Target,
    parameters: Sequence[Parameter],
    workspace_nbytes: int = 0,
    uses_threads: bool = False,
    checks: tuple[Check, ...] = (),
    open_sizes: OpenSizes | None = None,
) -> Artifact:
    """Machine code of a module. The stored source is suitable for `llc`. If it defines
    `tilesmith_entry`, that becomes an Entry with a symbol of its own.
    """
    machine = _machine(target)
    _require_features(name, source, target)
    text = source if "target triple" in source else machine.header + source
    defined = f"@{ENTRY}(" in text
    # All symbols of a name are equally long: the digest is patched into the object afterwards. It
    # is that of the machine code, so equal code gives equal objects.
    prefix = f"tilesmith_{re.sub('[^0-9A-Za-z_]', '_', name)}_"
    blank = prefix + "0" * _DIGEST
    text = text.replace(f"@{ENTRY}(", f"@{blank}(")
    code = object_code(machine, name, text)
    entries: tuple[Entry, ...] = ()
    if defined:
        symbol = prefix + sha256(code).hexdigest()[:_DIGEST]
        text, code = text.replace(blank, symbol), code.replace(blank.encode(), symbol.encode())
        entries = (
            Entry(
                name, symbol, tuple(parameters), workspace_nbytes, uses_threads, checks,
                open=open_sizes,
            ),
        )  # fmt: skip
    return Artifact(name, target, entries, text, code, machine.cpu, machine.features)


def object_code(machine: Machine, name: str, text: str) -> bytes:
    """A relocatable object of a module's text."""
    with LLVM_LOCK, few_passes():
        code: bytes = machine.machine.emit_object(_parse(name, text))
    return code


def _require_features(name: str, source: str, target: Target) -> None:
    """Raises a BuildError for an instruction that the target does not have: LLVM would abort."""
    for called in _OWN_CALL.findall(source):
        machines = (target.machine, *MACHINES.values())
        owner = next((m for m in machines if m.calls and called.startswith(m.calls)), None)
        if owner is None:  # of all architectures
            continue
        if owner.arch != target.arch:
            raise BuildError(
                f"{name!r} uses {called} of {owner.arch}, and the target is {target.arch}"
            )
        needs = next((n for pattern, n in owner.needs if re.match(pattern, called)), frozenset())
        other = owner.also.get(called, needs)
        missing = needs - target.features
        if missing and not other <= target.features:
            raise BuildError(
                f"{name!r} uses {called}, which needs {', '.join(sorted(missing))}; the target "
                f"{target.cpu} has {', '.join(sorted(target.features)) or 'no features'}"
            )


_OWN_CALL = re.compile(r"^declare [^@\n]*@(llvm\.[\w.]*)", re.MULTILINE)


def assembly(artifact: Artifact) -> str:
    """The machine code as text, compiled again with the same settings."""
    machine = _machine_of(artifact.target.machine, artifact.cpu, artifact.features)
    with LLVM_LOCK, few_passes():
        text: str = machine.machine.emit_assembly(_parse(artifact.name, artifact.source))
    return text


# Passes that take half of LLVM's time without any effect here: the emitter already increments
# pointers with their loops, computes addresses next to their uses, and chooses selects on purpose.
_IDLE = ("-disable-lsr", "-disable-cgp", "-disable-select-optimize")


@contextmanager
def few_passes() -> Iterator[None]:
    """Turns off passes without effect. LLVM's options are global to the process, so they are
    restored for others that compile here.
    """
    for option in _IDLE:
        llvm.set_option("tilesmith", f"{option}=true")
    try:
        yield
    finally:
        for option in _IDLE:
            llvm.set_option("tilesmith", f"{option}=false")


def _parse(name: str, text: str) -> Any:
    """A verified module: LLVM's code generator crashes on invalid ones."""
    # In an LLVM context of its own: types and constants of the global context are never freed.
    scope = llvm.create_context()
    try:
        module = llvm.parse_assembly(text, scope)
    except RuntimeError as error:
        raise BuildError(f"LLVM cannot read the code of {name!r}: {_first(str(error))}") from None
    try:
        module.verify()
    except RuntimeError as error:
        module.close()
        raise BuildError(f"LLVM rejects the code of {name!r}: {str(error).strip()}") from None
    return module


def _first(message: str) -> str:
    """The first error with its line: "line 7: undefined '%y' in: %x = add ..."."""
    error = re.search(r"<string>:(\d+):\d+: error: (.*)\n(.*)", message)
    if error is None:
        return message.strip()
    return f"line {error[1]}: {error[2]} in: {error[3].strip()}"


def _machine(target: Target) -> Machine:
    described = target.machine
    if target.kind != "cpu" or not described.triple:
        names = " and ".join(MACHINES)
        raise BuildError(
            f"LLVM code for a {target.kind} target of architecture {target.arch!r}; "
            f"it is made for processors of {names}"
        )
    if target.cpu == "native":
        here = cpu().arch
        if target.arch != here:
            raise BuildError(
                f"the target is the native processor of a machine of {target.arch}, and this "
                f"one is {here}; name the processor, as Target.named does"
            )
        # The processor's name selects the scheduling model and implies features that detection does
        # not list (dotprod on ARM). The list removes what a virtual machine hides.
        with LLVM_LOCK:
            name, detected = _host()
            others = _features(described, target.features, cpu().features)
            return _machine_of(described, name, ",".join(filter(None, (detected, others))))
    features = _features(described, target.features, None)
    if not is_known_cpu(described, target.cpu):
        raise BuildError(
            f"LLVM knows no {target.arch} processor named {target.cpu!r}; `Target.named` lists "
            "some, and `llc -mcpu=help` all"
        )
    return _machine_of(described, target.cpu, features)


def _features(machine: CpuMachine, wanted: frozenset[str], implied: frozenset[str] | None) -> str:
    """The features of a target in LLVM's syntax ("+avx2,-fma"). What the target lacks is disabled,
    because the processor's name may imply it. With `implied`, only the differences from it.
    """
    names = machine.llvm_features
    if unknown := wanted - names.keys():
        raise BuildError(
            f"unknown feature {', '.join(map(repr, sorted(unknown)))} of a target of "
            f"{machine.arch}; known are {', '.join(names)}"
        )
    # Disabled features come first, because enabling one enables those it depends on.
    kept = wanted | machine.always
    disabled = [f for f in names if f not in kept and (implied is None or f in implied)]
    signs = [f"-{names[f]}" for f in disabled]
    signs += [f"+{n}" for f, n in names.items() if f in wanted and f not in (implied or ())]
    return ",".join(signs)


@cache
def is_known_cpu(machine: CpuMachine, name: str) -> bool:
    """Whether LLVM knows the processor. It aborts on some unknown names, so the name is looked up
    in the list that `-mcpu=help` prints. LLVM prints it to stderr: a subprocess is needed.
    """
    if (machine.arch, name) in _NAMED_CPUS:
        return True
    script = (
        "import llvmlite.binding as l; l.initialize_all_targets(); l.initialize_all_asmprinters()\n"
        f"l.Target.from_triple({machine.triple!r}).create_target_machine(cpu='help')"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    listed = re.findall(r"^ +(\S+) +- Select the", done.stderr, re.MULTILINE)
    return name in listed


def host_cpu() -> str:
    """LLVM's name of this machine's processor."""
    return str(llvm.get_host_cpu_name())


@cache
def _host() -> tuple[str, str]:
    return llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()


@cache
def missing_features(features: str) -> tuple[str, ...]:
    """Of features in LLVM's syntax ("+avx2,-fma"), those that code may use and that this machine's
    processor lacks. A name that this version of LLVM does not know counts as there.
    """
    here = llvm.get_host_cpu_features()
    wanted = (f[1:] for f in features.split(",") if f.startswith("+"))
    return tuple(f for f in wanted if not here.get(f, True))


@cache
def initialize() -> None:
    """Registers LLVM's targets. The linker needs them too."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


def _machine_of(machine: CpuMachine, cpu: str, features: str) -> Machine:
    with LLVM_LOCK:
        return _make_machine(machine.triple, cpu, features)


@cache
def _make_machine(triple: str, cpu: str, features: str) -> Machine:
    initialize()
    # Position-independent code in the small code model addresses constants relative to the program
    # counter, needs no register for it, and suits shared libraries. The JIT linker adds stubs for
    # distant calls.
    machine = llvm.Target.from_triple(triple).create_target_machine(
        cpu=cpu, features=features, opt=2, reloc="pic", codemodel="small"
    )
    return Machine(triple, cpu, features, str(machine.target_data), machine)
