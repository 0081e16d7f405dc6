"""Pages for people, from templates as everything that is emitted."""

from typing import Any

from flashgen.render.environment import environment


def page(template: str, **context: Any) -> str:
    """The text of a page. The template escapes what is not markup."""
    return environment().get_template(template).render(**context)
