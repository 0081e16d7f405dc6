"""The attention of a layer, as transformers calls it."""

from typing import Any

import torch

from flashgen.attend import Sketch
from flashgen.errors import CallError
from flashgen.spec.layout import DEFAULT
from flashgen.torch.call import run
from flashgen.transformers.mask import Mask


def layer(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Mask | torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    position_bias: torch.Tensor | None = None,
    output_attentions: bool = False,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """o [B, S, H, D] of query, key and value [B, H, S, D], and None for the weights, which nobody has.

    `attention_mask`: what `mask` made; or one of the model's own, bool or to be added, [B or 1, H or 1, Sq, Sk]. `s_aux`: sinks [H];
    `position_bias`: [B or 1, H or 1, Sq, Sk]. Raises CallError for dropout, and where weights are asked for.
    """
    if dropout:
        raise CallError(f"dropout is {dropout}: there is none here. Set attention_dropout of the model's config to 0")
    if output_attentions:
        raise CallError("output_attentions is set, and no weights are kept here: take attn_implementation='eager'")
    values = {"softcap": softcap, "bias": position_bias, "sinks": s_aux, "scaling": scaling}
    values = {name: _read(x) if isinstance(x, torch.Tensor) else x for name, x in values.items() if x is not None}
    score = "s" if softcap is None else "softcap * tanh(s / softcap)"
    score += "" if position_bias is None else " + bias[b, h, q_idx, kv_idx]"
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    mask, more, of_mask = _masked(attention_mask, causal)
    sketch = Sketch(
        mask=mask,
        score=score + more,
        scale=None if scaling is None else "scaling",
        layout=DEFAULT,
        outputs=("o",),
        sink=None if s_aux is None else "sinks[h]",
        cache="contiguous" if "kv_lens" in of_mask else None,
    )
    return run(sketch, query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), {**values, **of_mask}), None


def _masked(mask: Mask | torch.Tensor | None, causal: bool) -> tuple[str, str, dict[str, Any]]:
    """The mask, what it adds to the score, and the values that both read. `causal`: where no mask was made."""
    if isinstance(mask, Mask):
        return mask.text, "", mask.values if mask.lengths is None else {**mask.values, "kv_lens": mask.lengths}
    if mask is None:
        return "causal" if causal else "full", "", {}
    if mask.dtype == torch.bool:
        return "seen[b, h, q_idx, kv_idx]", "", {"seen": mask}
    return "full", " + added[b, h, q_idx, kv_idx]", {"added": _read(mask)}


def _read(x: torch.Tensor) -> torch.Tensor:
    """A tensor as kernels read it: as it is, unless its gradient, which is float32, has to become one of its dtype."""
    return x if x.dtype in (torch.float16, torch.bfloat16) and not x.requires_grad else x.float()
