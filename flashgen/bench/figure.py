"""Pictures are drawn by matplotlib, an extra of the installation."""

import importlib.util
from typing import Any

from flashgen.errors import BackendError

MISSING = "matplotlib draws pictures, and is not installed: pip install 'flashgen[plots]'"


def can_draw() -> bool:
    """True if matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def figure(width: float, height: float) -> Any:
    """A matplotlib figure without axes, of this size in inches. Raises BackendError without matplotlib."""
    if not can_draw():
        raise BackendError(MISSING)
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")
