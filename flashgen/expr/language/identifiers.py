"""Identifiers of a scope of emitted text: each hint becomes one that nothing else there has."""

from collections.abc import Iterable


class Names:
    """Names not taken yet."""

    def __init__(self, taken: Iterable[str] = ()):
        self.taken = set(taken)

    def fresh(self, hint: str) -> str:
        """The hint, with a number behind it if it is taken; taken from now on."""
        name, count = hint, 1
        while name in self.taken:
            count += 1
            name = f"{hint}_{count}"
        self.taken.add(name)
        return name
