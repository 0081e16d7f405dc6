"""The mask as a picture of tiles: empty, partial, full."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flashgen.bench.figure import figure
from flashgen.cli.errors import CommandError, unwritable
from flashgen.cli.work import Work, coarser
from flashgen.expr.tiles.ranges import EMPTY, FULL
from flashgen.plan import Program

SYMBOLS, PLAIN_SYMBOLS = "·▒█", ".+#"  # by class


def in_characters(classes: NDArray[np.int8], symbols: str = SYMBOLS, height: int = 32, width: int = 64) -> list[str]:
    """A line a row of tiles, one character a tile; where there are more, a character stands for several, partial unless all are alike.

    >>> in_characters(np.array([[1, 0], [2, 1]], np.int8))
    ['▒·', '█▒']
    """
    rows, columns = (max(1, -(-n // limit)) for n, limit in zip(classes.shape, (height, width), strict=True))
    return ["".join(symbols[kind] for kind in line) for line in coarser(classes, rows, columns)]


def save(program: Program, work: Work, path: Path) -> None:
    """Saves the picture, in the format of the suffix (PNG, SVG, PDF); axes in keys and queries. Raises BackendError without matplotlib."""
    drawn = figure(7, 6.2)
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    colors = {"never loaded": "#eceff4", "mask tested": "#88c0d0", "no mask code": "#2e5f8a"}
    axes = drawn.subplots()
    (rows, columns), (down, across) = work.picture.classes.shape, work.picture.cell
    tile = program.attention.tile
    extent = (0, columns * across * tile.block_n, rows * down * tile.block_m, 0)
    axes.imshow(
        work.picture.classes,
        cmap=ListedColormap(list(colors.values())),
        vmin=EMPTY,
        vmax=FULL,
        extent=extent,
        interpolation="none",
        aspect="auto",
    )
    axes.set(xlim=(0, work.kv_len), ylim=(work.q_len, 0), xlabel="key", ylabel="query")
    axes.set_title(f"{program.spec.name} on {program.arch.name}: tiles of {tile.block_m} queries x {tile.block_n} keys", fontsize=11)
    drawn.legend(handles=[Patch(color=c, label=label) for label, c in colors.items()], loc="outside lower center", ncols=3, frameon=False)
    try:
        drawn.savefig(path, dpi=150)
    except OSError as error:
        raise unwritable(path, error) from None
    except ValueError as error:  # a suffix that matplotlib does not know
        raise CommandError(f"cannot write {path}: {error}") from None
