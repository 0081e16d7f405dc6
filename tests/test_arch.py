"""The architecture that serves a device: its own where there is a row, else one whose binaries run."""

import pytest

from flashgen.arch import of_capability
from flashgen.errors import PlanError


@pytest.mark.parametrize(
    ("capability", "name"),
    [
        ((8, 0), "sm_80"),
        ((8, 6), "sm_86"),
        ((8, 7), "sm_80"),
        ((9, 0), "sm_90a"),
        ((10, 0), "sm_100a"),
        ((10, 3), "sm_100"),
        ((12, 1), "sm_120"),
    ],
)
def test_of_capability(capability: tuple[int, int], name: str) -> None:
    assert of_capability(*capability).name == name


@pytest.mark.parametrize(("capability", "why"), [((7, 5), "too old"), ((11, 0), "newer than this flashgen"), ((13, 0), "newer")])
def test_no_binary_runs(capability: tuple[int, int], why: str) -> None:
    with pytest.raises(PlanError, match=f"compute capability {capability[0]}.{capability[1]}, {why}"):
        of_capability(*capability)
