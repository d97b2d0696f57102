"""What models compute does not depend on how well their kernels are scheduled."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _short(request: pytest.FixtureRequest) -> None:
    if "as_users_compile" not in request.keywords:
        request.getfixturevalue("short_drafts")
