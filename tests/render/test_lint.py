"""Every text that is emitted tells the compiler what its asm statements do, and makes addresses of 64 bits."""

import pytest

from flashgen.emulate import findings, int_products, narrowings
from flashgen.render import template_root
from tests.render.products import COLUMNS, KINDS, product
from tests.render.test_golden import LIKE, WHOLE, text_of
from tests.render.test_templates import emitted


def test_what_is_emitted():
    assert not {key: found for key, text in emitted().items() if (found := findings(text) + int_products(text))}


@pytest.mark.parametrize("pair", [*WHOLE, *LIKE])
def test_goldens(pair):
    assert not findings(text_of(pair)) + int_products(text_of(pair))


@pytest.mark.parametrize("pair", WHOLE)
def test_no_number_of_64_bits_is_narrowed(pair):
    assert not narrowings(text_of(pair))


@pytest.mark.parametrize("path", sorted((template_root() / "device").glob("*.cuh")), ids=lambda path: path.name)
def test_the_device_vocabulary(path):
    assert not findings(path.read_text())


@pytest.mark.parametrize("kind", KINDS)
def test_products_of_every_width(kind):
    assert not [findings(product(kind, columns, "bfloat16")) for columns in COLUMNS if findings(product(kind, columns, "bfloat16"))]
