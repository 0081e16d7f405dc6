"""Attention in models of Hugging Face transformers.

>>> import flashgen.transformers
>>> name = flashgen.transformers.register()
>>> model = AutoModelForCausalLM.from_pretrained("meta-llama/Llama-3.2-1B", attn_implementation=name)
"""

try:
    import transformers
except ImportError as error:
    raise ImportError("flashgen.transformers works in Hugging Face transformers, which is not here: pip install transformers") from error

from flashgen.transformers.layer import layer
from flashgen.transformers.mask import mask

NAME = "fgen"  # not flashgen: by a name with "flash" in it transformers takes an implementation for FlashAttention


def register() -> str:
    """The name by which models have flashgen's attention, which is registered by it, with its masks."""
    transformers.AttentionInterface.register(NAME, layer)
    transformers.AttentionMaskInterface.register(NAME, mask)
    return NAME


__all__ = ["NAME", "register"]
