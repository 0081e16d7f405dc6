"""Compiles the kernels of specs side by side, in processes, before anything is timed; the cache keeps them."""

import contextlib
import multiprocessing
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

from flashgen.errors import FlashgenError
from flashgen.plan import plan
from flashgen.plan.backward import plan_backward
from flashgen.render import render
from flashgen.runtime import cache
from flashgen.runtime.tuned import length_class, rows_class
from flashgen.spec import Spec


class Asked(NamedTuple):
    """A spec, the name of an architecture, and the length of the sequences."""

    spec: Spec
    arch: str
    length: int


def compiled(asked: Iterable[Asked]) -> None:
    """Compiles the forward of each, and its backward where it has one."""
    once = {(str(one.spec.to_json()), one.arch, rows_class(one.length)): one for one in asked}
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        list(pool.map(_compile, [(one, part) for one in once.values() for part in (False, True) if one.spec.backward or not part]))


def _compile(asked: tuple[Asked, bool]) -> None:
    """Compiles one program; one that cannot be compiled says so where it is called."""
    (spec, arch, length), backward = asked
    length = rows_class(length) if backward else length_class(length)
    with contextlib.suppress(FlashgenError):
        program = plan_backward(spec, arch, length=length) if backward else plan(spec, arch, length=length)
        cache.binary(program, render(program))
