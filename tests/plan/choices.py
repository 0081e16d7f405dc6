"""Every candidate that the planner may choose, for specs that differ in what candidates depend on."""

from flashgen.plan import candidates
from flashgen.spec import Spec

ALIBI = {"score": "s + slopes[h] * (kv_idx - q_idx)", "tensors": {"slopes": {"shape": ["hq"], "dtype": "float32"}}}
SPECS = {
    "causal 64": Spec(head_dim=64, dtype="bfloat16", mask="causal", outputs=["o", "lse"]),
    "causal 128": Spec(head_dim=128, dtype="bfloat16", mask="causal", outputs=["o", "lse"]),
    "causal 256": Spec(head_dim=256, dtype="bfloat16", mask="causal", outputs=["o", "lse"]),
    "causal 192/128": Spec(head_dim={"qk": 192, "v": 128}, dtype="bfloat16", mask="causal", outputs=["o", "lse"]),
    "window 64": Spec(head_dim=64, dtype="float16", mask="causal & window(70, 0)", outputs=["o", "lse"]),
    "alibi 128": Spec(head_dim=128, dtype="bfloat16", outputs=["o", "lse"], **ALIBI),
}
CHOICES = [(name, arch, text) for name, spec in SPECS.items() for arch in ("sm_90a", "sm_80") for text in candidates(spec, arch)]
