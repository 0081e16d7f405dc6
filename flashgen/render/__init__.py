"""Renders a Program as CUDA text."""

from flashgen.render.environment import template_root
from flashgen.render.source import Source, render

__all__ = ["Source", "render", "template_root"]
