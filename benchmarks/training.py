"""Loss curves of the training examples, with flashgen's attention and with the framework's own, in PyTorch and in JAX.

    python benchmarks/training.py    # needs a GPU, PyTorch, JAX and matplotlib

Writes results/training_<card>.json, the losses in nats a byte, and training_<card>.png.
"""

import os
import runpy
import sys
from pathlib import Path
from typing import Any

import jax
from matplotlib.figure import Figure

from flashgen.bench.results import card_name, environment, save_json

HERE = Path(__file__).parent
EXAMPLES = {"PyTorch": "11_training", "JAX": "12_training_in_jax"}


def rows(framework: str) -> list[dict[str, Any]]:
    """Runs an example: its curves, a row each."""
    found = runpy.run_path(str(HERE.parent / "examples" / f"{EXAMPLES[framework]}.py"), run_name="__main__")["curves"]
    return [{"framework": framework, "attention": name, "losses": [round(x, 5) for x in curve]} for name, curve in found.items()]


def draw(found: list[dict[str, Any]], path: Path) -> None:
    """Draws the curves, a panel a framework."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    for axes, framework in zip(figure.subplots(1, 2, sharey=True), EXAMPLES, strict=True):
        for row, style in zip([row for row in found if row["framework"] == framework], ("-", ":"), strict=True):
            axes.plot(row["losses"], style, label=row["attention"])
        axes.set(title=framework, xlabel="step", ylabel="loss, nats a byte")
        axes.legend()
        axes.label_outer()
    figure.savefig(path, dpi=110)


def main() -> None:
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # PyTorch takes some of the memory too
    sys.path.insert(0, str(HERE.parent / "examples"))
    sys.argv[1:] = []
    measured_on = environment()
    measured_on["versions"] |= {"jax": jax.__version__}
    found = [row for framework in EXAMPLES for row in rows(framework)]
    path = HERE / "results" / f"training_{card_name(measured_on)}"
    save_json({**measured_on, "rows": found}, path.with_suffix(".json"))
    draw(found, path.with_suffix(".png"))


if __name__ == "__main__":
    main()
