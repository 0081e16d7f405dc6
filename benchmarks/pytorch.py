"""Times what flashgen costs and gives in PyTorch: host time of a call, and a compiled block of a Llama layer beside SDPA.

    python benchmarks/pytorch.py                            # both; needs a GPU and PyTorch
    python benchmarks/pytorch.py --calls                    # host times alone
    python benchmarks/pytorch.py --lengths 2048 8192 32768  # of the block, which is compiled anew for each

A call's host time is that of 400 calls that nothing waits for, over 400, on [1, 128, 1, 64]: the best and the median of ten rounds, in
which all ways to call take turns, and the median of what it is above another way in the same round. A block is attention and feed-forward
of Llama 3 8B (hidden size 4096, 32 heads, 8 for keys and values, head dim 128) in bfloat16, one sequence, compiled with `fullgraph=True`:
milliseconds a call of several in a row, as the layers of a model follow each other, so that the host is ahead; medians of turns, and
their quartiles; forward alone and with the gradients of everything.
"""

import argparse
import itertools
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

import flashgen
from flashgen.torch import Attention, attention

CALLS, ROUNDS, TURNS = 400, 10, 11
TOKENS_IN_A_ROW = 16384
HIDDEN, HEADS, KV_HEADS, HEAD_DIM, FEED_FORWARD = 4096, 32, 8, 128, 14336


def host(run: Callable[[], Any]) -> float:
    """Microseconds a call."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(CALLS):
        run()
    return (time.perf_counter() - start) / CALLS * 1e6


def calls() -> None:
    """Prints the host time of each way to call."""
    q, k, v = (torch.randn(1, 128, 1, 64, dtype=torch.bfloat16, device="cuda") for _ in range(3))
    spec = {"dtype": "bfloat16", "head_dim": 64, "mask": "causal"}
    direct, module = flashgen.compile(spec), Attention(spec)
    differentiable, learning = flashgen.compile(spec | {"backward": True}), Attention(spec | {"backward": True})
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    runs: dict[str, tuple[Callable[[], Any], str]] = {  # and what each is above
        "compiled spec": (lambda: direct(q, k, v), ""),
        "as a module": (lambda: module(q, k, v), "compiled spec"),
        "flashgen.attention": (lambda: flashgen.attention(q, k, v), ""),
        "flashgen.torch.attention": (lambda: attention(q, k, v), "flashgen.attention"),
        "backward: true, no gradient": (lambda: differentiable(q, k, v), "compiled spec"),
        "backward: true, a gradient": (lambda: differentiable(*leaves), "backward: true, no gradient"),
        "as a module, a gradient": (lambda: learning(*leaves), "backward: true, no gradient"),
        "flashgen.torch.attention, a gradient": (lambda: attention(*leaves), "flashgen.torch.attention"),
        "SDPA": (lambda: sdpa(q, k, v), ""),
        "SDPA, a gradient": (lambda: sdpa(*leaves), "SDPA"),
    }
    for run, _ in runs.values():
        host(run)
    rounds = [{name: host(run) for name, (run, _) in runs.items()} for _ in range(ROUNDS)]
    for name, (_, other) in runs.items():
        found = [one[name] for one in rounds]
        above = f", {statistics.median(one[name] - one[other] for one in rounds):5.1f} above {other}" if other else ""
        print(f"{min(found):7.1f} us, median {statistics.median(found):6.1f}  {name}{above}", flush=True)


class Block(torch.nn.Module):
    """A layer of Llama around an attention of q, k, v [B, S, H, D]."""

    def __init__(self, attend: Callable[..., torch.Tensor]):
        super().__init__()
        linear = lambda a, b: torch.nn.Linear(a, b, bias=False)  # noqa: E731
        self.attend, self.qkv = attend, linear(HIDDEN, (HEADS + 2 * KV_HEADS) * HEAD_DIM)
        self.out, self.up, self.down = linear(HEADS * HEAD_DIM, HIDDEN), linear(HIDDEN, 2 * FEED_FORWARD), linear(FEED_FORWARD, HIDDEN)
        self.before, self.after = torch.nn.RMSNorm(HIDDEN), torch.nn.RMSNorm(HIDDEN)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """The block's output."""
        b, s, _ = x.shape
        q, k, v = self.qkv(self.before(x)).view(b, s, -1, HEAD_DIM).split((HEADS, KV_HEADS, KV_HEADS), 2)
        q, k = (y * cos + torch.cat((-y[..., HEAD_DIM // 2 :], y[..., : HEAD_DIM // 2]), -1) * sin for y in (q, k))
        x = x + self.out(self.attend(q, k, v).reshape(b, s, -1))
        gate, up = self.up(self.after(x)).chunk(2, -1)
        return x + self.down(torch.nn.functional.silu(gate) * up)


def sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """PyTorch's attention, for arrays [B, S, H, D]."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2)


def milliseconds(run: Callable[[], Any], calls: int) -> float:
    """The milliseconds of a call of several in a row on the device."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(calls):
        run()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / calls


def block(length: int) -> None:
    """Prints forward and backward of a compiled block with both attentions, at a length."""
    torch.manual_seed(0)
    base = Block(sdpa).to("cuda", torch.bfloat16)
    ours = Block(attention).to("cuda", torch.bfloat16)
    ours.load_state_dict(base.state_dict())
    x = torch.randn(1, length, HIDDEN, dtype=torch.bfloat16, device="cuda")
    angles = torch.arange(length)[:, None, None] * 500000.0 ** (-torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    cos, sin = (f(torch.cat((angles, angles), -1)).to("cuda", torch.bfloat16) for f in (torch.cos, torch.sin))
    compiled = {name: torch.compile(one, fullgraph=True, dynamic=False) for name, one in (("SDPA", base), ("flashgen", ours))}

    def forward(one: Any) -> Any:
        with torch.no_grad():
            return one(x, cos, sin)

    def both(one: Any) -> None:
        one(x.requires_grad_(), cos, sin).sum().backward()

    far = (forward(compiled["flashgen"]) - forward(compiled["SDPA"])).float().norm() / forward(compiled["SDPA"]).float().norm()
    for run, one in itertools.product((forward, both), compiled.values()):  # compiles all before anything is timed
        run(one)
    for what, run in (("forward", forward), ("forward and backward", both)):
        times: dict[str, list[float]] = {name: [] for name in compiled}
        for turn in range(TURNS + 2):
            for name, one in compiled.items():
                took = milliseconds(lambda run=run, one=one: run(one), max(1, TOKENS_IN_A_ROW // length))
                if turn > 1:
                    times[name].append(took)
        (low, theirs, high), (least, mine, most) = (statistics.quantiles(found, n=4) for found in times.values())
        rows = f"SDPA {theirs:8.3f} ({low:.3f} to {high:.3f}) ms  flashgen {mine:8.3f} ({least:.3f} to {most:.3f}) ms"
        print(f"{length:6}  {what:21} {rows}  {theirs / mine:5.3f} times as fast; off {far:.1e}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", action="store_true", help="host times alone")
    parser.add_argument("--lengths", type=int, nargs="+", default=[2048, 4096, 8192, 16384, 32768])
    given = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    calls()
    for length in [] if given.calls else given.lengths:
        torch._dynamo.reset()
        block(length)


if __name__ == "__main__":
    main()
