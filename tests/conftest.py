"""Sets what all tests share: hypothesis without deadlines, as the first example pays for imports and caches.

`pytest --hypothesis-profile=thorough` runs twenty times the examples.
"""

import os

from hypothesis import settings

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before NumPy loads: its threads wait for each other where tests run side by side

settings.register_profile("quick", deadline=None)
settings.register_profile("thorough", deadline=None, max_examples=2000)
settings.load_profile("quick")
