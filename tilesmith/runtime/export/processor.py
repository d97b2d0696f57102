"""The check that a library makes when it is opened: whether the processor has the features that its
kernels were compiled for. Without it, the first kernel would end the program.
"""

from __future__ import annotations

from tilesmith.base.target import Target
from tilesmith.runtime.export.opening import text_constant

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

# Linux wants to be asked for tile registers (`runtime/loader.py`), and says no where there are
# none.
_TILES = """
declare i64 @syscall(i64, ...)
define internal i1 @tiles_are_allowed() nounwind {
  %r = call i64 (i64, ...) @syscall(
      i64 $0, i64 $1, i64 $2)
  %granted = icmp eq i64 %r, 0
  ret i1 %granted
}
"""
_NO_TILES = "\ndefine internal i1 @tiles_are_allowed() nounwind {\n  ret i1 true\n}\n"


def processor_source(target: Target, uses_tiles: bool) -> str:
    machine = target.machine
    known = machine.feature_bits
    features = target.features & known.keys()
    words = [0, 0]
    for feature in features:
        word, bits = known[feature]
        words[word] |= bits
    tiles = _NO_TILES
    if uses_tiles and machine.tiles is not None:
        features |= {machine.tiles.feature}
        tiles = _TILES
        for k, number in enumerate(machine.tiles.permission):
            tiles = tiles.replace(f"${k}", str(number))
    needs = ", ".join(sorted(features))
    text = f"this library needs a processor with {needs}, and this one lacks some of that"
    compare = _COMPARE.replace("$A", str(words[0])).replace("$B", str(words[1]))
    return "\n".join(
        [text_constant("text.processor", text), tiles, machine.feature_words + compare]
    )
