"""The check that a library makes when it is opened: whether the processor has the features that its
kernels were compiled for. Without it, the first kernel would end the program.
"""

from __future__ import annotations

from tilesmith.base.target import Target
from tilesmith.runtime.amx import ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
from tilesmith.runtime.export.text import text_constant

# Bits of the words that `_WORDS` reads. On ARM these are AT_HWCAP and AT_HWCAP2 of Linux. On x86-64
# they are the first two words of features, which libgcc and compiler-rt know by the same numbers.
# What both have known for long is asked for; processors that have it have the rest.
_BITS = {
    "aarch64": {
        "neon": (0, 1 << 1), "fp16": (0, 1 << 9 | 1 << 10), "dotprod": (0, 1 << 20),
        "sve": (0, 1 << 22), "i8mm": (1, 1 << 13), "bf16": (1, 1 << 14),
    },
    "x86-64": {
        "avx2": (0, 1 << 10), "fma": (0, 1 << 14), "avx512f": (0, 1 << 15),
        "avx512vl": (0, 1 << 20), "avx512bw": (0, 1 << 21), "vnni": (1, 1 << 2),
        "bf16": (1, 1 << 4),
    },
}  # fmt: skip

_WORDS = {
    "aarch64": """
declare i64 @getauxval(i64)
define internal i1 @processor_fits() nounwind {
  %a = call i64 @getauxval(i64 16)
  %b = call i64 @getauxval(i64 26)
""",
    "x86-64": """
@__cpu_model = external global [4 x i32]
@__cpu_features2 = external global i32
declare i32 @__cpu_indicator_init()
define internal i1 @processor_fits() nounwind {
  %e0 = call i32 @__cpu_indicator_init()
  %a.p = getelementptr i32, ptr @__cpu_model, i64 3
  %a.32 = load i32, ptr %a.p
  %a = zext i32 %a.32 to i64
  %b.32 = load i32, ptr @__cpu_features2
  %b = zext i32 %b.32 to i64
""",
}

_COMPARE = """
  %a.have = and i64 %a, $A
  %a.all = icmp eq i64 %a.have, $A
  %b.have = and i64 %b, $B
  %b.all = icmp eq i64 %b.have, $B
  %words = and i1 %a.all, %b.all
  %tiles = call i1 @tiles_are_allowed()
  %all = and i1 %words, %tiles
  br i1 %all, label %yes, label %no
yes:
  ret i1 true
no:
  %e1 = call i32 (ptr, i64, ptr, ...) @snprintf(ptr @message, i64 512, ptr @text.processor)
  ret i1 false
}
"""

# Linux wants to be asked for the tile registers of AMX, see `runtime/amx.py`, and says no where
# there are none.
_TILES = f"""
declare i64 @syscall(i64, ...)
define internal i1 @tiles_are_allowed() nounwind {{
  %r = call i64 (i64, ...) @syscall(
      i64 {ARCH_PRCTL}, i64 {ARCH_REQ_XCOMP_PERM}, i64 {XFEATURE_XTILEDATA})
  %granted = icmp eq i64 %r, 0
  ret i1 %granted
}}
"""
_NO_TILES = "\ndefine internal i1 @tiles_are_allowed() nounwind {\n  ret i1 true\n}\n"


def processor_source(target: Target, uses_tiles: bool) -> str:
    known = _BITS[target.arch]
    features = target.features & known.keys()
    words = [0, 0]
    for feature in features:
        word, bits = known[feature]
        words[word] |= bits
    needs = ", ".join(sorted(features | {"amx"} if uses_tiles else features))
    text = f"this library needs a processor with {needs}, and this one lacks some of that"
    compare = _COMPARE.replace("$A", str(words[0])).replace("$B", str(words[1]))
    tiles = _TILES if uses_tiles else _NO_TILES
    return "\n".join([text_constant("text.processor", text), tiles, _WORDS[target.arch] + compare])
