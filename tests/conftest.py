"""What all tests share: hypothesis without deadlines, as the first example pays for imports and caches.

`pytest --hypothesis-profile=thorough` runs twenty times the examples.
"""

from hypothesis import settings

settings.register_profile("quick", deadline=None)
settings.register_profile("thorough", deadline=None, max_examples=2000)
settings.load_profile("quick")
