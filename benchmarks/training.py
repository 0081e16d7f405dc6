"""Loss curves of the training examples, with flashgen's attention and with the framework's own, in PyTorch and in JAX.

    python benchmarks/training.py    # needs a GPU, PyTorch, JAX and matplotlib

Writes results/training_<card>.json, the losses in nats a byte, and training_<card>.png.
"""

import json
import os
import runpy
import sys
from pathlib import Path

import torch
from matplotlib.figure import Figure

HERE = Path(__file__).parent
EXAMPLES = {"PyTorch": "11_training", "JAX": "12_training_in_jax"}


def curves(name: str) -> dict[str, list[float]]:
    found = runpy.run_path(str(HERE.parent / "examples" / f"{name}.py"), run_name="__main__")["curves"]
    return {which: [round(loss, 5) for loss in curve] for which, curve in found.items()}


def draw(found: dict[str, dict[str, list[float]]], path: Path) -> None:
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    for axes, (framework, both) in zip(figure.subplots(1, 2, sharey=True), found.items(), strict=True):
        for (which, curve), style in zip(both.items(), ("-", ":"), strict=True):
            axes.plot(curve, style, label=which)
        axes.set(title=framework, xlabel="step", ylabel="loss, nats a byte")
        axes.legend()
        axes.label_outer()
    figure.savefig(path, dpi=110)


def main() -> None:
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # PyTorch takes some of the memory too
    sys.path.insert(0, str(HERE.parent / "examples"))
    sys.argv[1:] = []
    found = {framework: curves(name) for framework, name in EXAMPLES.items()}
    path = HERE / "results" / f"training_{torch.cuda.get_device_name().replace(' ', '_')}"
    path.with_suffix(".json").write_text(json.dumps(found) + "\n")
    draw(found, path.with_suffix(".png"))


if __name__ == "__main__":
    main()
