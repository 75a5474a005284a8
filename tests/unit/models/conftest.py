"""Async tests run on asyncio, the backend the program uses."""

import pytest


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
