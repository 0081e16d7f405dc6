"""GPU tests: marked, and skipped with the reason where there is no GPU."""

from pathlib import Path

import pytest

from flashgen.runtime import device

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = [item for item in items if HERE in item.path.parents]
    reason = device.missing() if here else None
    for item in here:
        item.add_marker(pytest.mark.gpu)
        if reason:
            item.add_marker(pytest.mark.skip(reason=f"no GPU: {reason}"))
