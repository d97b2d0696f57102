"""What models compute does not depend on how well their kernels are scheduled."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _short(short_drafts: None) -> None:
    pass
