"""Attention in vLLM: a plug-in, which vLLM finds where flashgen is installed.

$ vllm serve meta-llama/Llama-3.2-1B --attention-backend CUSTOM
"""

import warnings

BACKEND = "flashgen.vllm.backend.FlashgenBackend"


def register() -> None:
    """Makes vLLM's backend CUSTOM ours, where no other plug-in has taken it; vLLM calls this in each of its processes."""
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    custom = AttentionBackendEnum.CUSTOM
    if custom.is_overridden() and custom.get_path() != BACKEND:
        taken = f"vLLM's attention backend CUSTOM is {custom.get_path()} already"
        warnings.warn(f"{taken}: to have flashgen's, set VLLM_PLUGINS=flashgen", stacklevel=2)
        return
    register_backend(custom, BACKEND)
