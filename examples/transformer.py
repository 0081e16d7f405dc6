"""A small transformer in PyTorch that reads the documentation of Python by bytes; its attention is left to the caller.

The text is `pydoc_data.topics`, which every Python has. On a GPU the model is larger, and so are its batches.
"""

from collections.abc import Callable
from pydoc_data.topics import topics

import torch
from torch.nn import functional

GPU = torch.cuda.is_available()
DEVICE, DTYPE = ("cuda", torch.bfloat16) if GPU else ("cpu", torch.float32)
STEPS, BATCH, LENGTH = (300, 32, 512) if GPU else (20, 4, 64)
LAYERS, HEADS, HEAD_DIM = (6, 6, 64) if GPU else (2, 2, 32)
WIDTH = HEADS * HEAD_DIM
TEXT = torch.tensor(list("".join(topics[name] for name in sorted(topics)).encode()))


class Layer(torch.nn.Module):
    """`attend(q, k, v)`: a module; q, k, v, o [B, S, H, D]."""

    def __init__(self, attend: torch.nn.Module):
        super().__init__()
        self.before, self.after = torch.nn.RMSNorm(WIDTH), torch.nn.RMSNorm(WIDTH)
        self.qkv, self.out = torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Linear(WIDTH, WIDTH)
        self.up, self.down = torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.Linear(4 * WIDTH, WIDTH)
        self.attend = attend

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.before(x)).unflatten(-1, (3, HEADS, HEAD_DIM)).to(DTYPE).unbind(2)
        x = x + self.out(self.attend(q, k, v).flatten(2).to(x.dtype))
        return x + self.down(functional.gelu(self.up(self.after(x))))


def losses(attention: Callable[[], torch.nn.Module]) -> list[float]:
    """The loss of each step, nats a byte. Weights at first and batches are the same for every attention."""
    torch.manual_seed(0)
    layers = [Layer(attention()) for _ in range(LAYERS)]
    model = torch.nn.Sequential(torch.nn.Embedding(256, WIDTH), *layers, torch.nn.RMSNorm(WIDTH), torch.nn.Linear(WIDTH, 256)).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    random, found = torch.Generator().manual_seed(1), []
    for _ in range(STEPS):
        begin = torch.randint(len(TEXT) - LENGTH - 1, (BATCH, 1), generator=random)
        batch = TEXT[begin + torch.arange(LENGTH + 1)].to(DEVICE)
        loss = functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found
