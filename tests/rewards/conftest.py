from __future__ import annotations

import pytest

from sparrow_trainers.rewards import sandbox


@pytest.fixture(scope="session")
def sandbox_works() -> None:
    flaw = sandbox.check()
    if flaw is not None:
        pytest.skip(flaw)
