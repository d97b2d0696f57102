"""Stable hashes of text, as short hexadecimal digests: the same on every machine and in every
process.
"""

import hashlib


def digest(*parts: str) -> str:
    h = hashlib.blake2b(digest_size=16)
    for part in parts:
        data = part.encode()
        h.update(len(data).to_bytes(8, "little"))  # so that ("ab", "c") differs from ("a", "bc")
        h.update(data)
    return h.hexdigest()
