"""The warpgroup products of templates/device, by their number of columns."""

from flashgen.dtypes import DTYPES
from flashgen.render.environment import environment

COLUMNS = range(8, 257, 8)
KINDS = ("product_qk", "product_pv", "product_across")


def product(kind: str, columns: int, dtype: str) -> str:
    """The text of a product: with a in shared memory `product_qk`, along its rows `product_across`, in registers `product_pv`."""
    return str(getattr(environment().get_template("device/wgmma_product.j2").module, kind)(columns, DTYPES[dtype]))
