"""A torch model in four bits: convert it, see what became of it, save it, load it again.

    python examples/torch_model.py [FILE.pt]

The model learns two spirals in a second or two, so that there is something to lose.
"""

import sys
from pathlib import Path

import torch
from torch import nn

import mx_kernels as mx

POINTS, CLASSES, WIDTH = 1500, 2, 128


def spirals() -> tuple[torch.Tensor, torch.Tensor]:
    """Returns points on two spirals, in 32 coordinates, and which spiral each is on."""
    label = torch.arange(POINTS) % CLASSES
    angle = 3 * torch.pi * torch.rand(POINTS).sqrt()
    turn = angle + torch.pi * label
    point = torch.stack([turn.cos(), turn.sin()], 1) * angle[:, None] / 6
    point += 0.03 * torch.randn_like(point)
    # Sines of both coordinates: a row of weights is made of whole blocks of 32.
    waves = torch.arange(1, 9)[:, None, None] * point.T
    return torch.cat([waves.sin(), waves.cos()]).permute(2, 0, 1).reshape(POINTS, 32), label


def network() -> nn.Module:
    """Returns a small network of random weights."""
    return nn.Sequential(
        nn.Linear(32, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(),
        nn.Linear(WIDTH, CLASSES),
    ).eval()  # fmt: skip


def learned(x: torch.Tensor, label: torch.Tensor) -> nn.Module:
    """Returns one that tells the spirals apart."""
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(150):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), label).backward()
        optimizer.step()
    return model


def main() -> None:
    """Compares the model in floats, in four bits, and loaded from a file."""
    path = Path(sys.argv[1] if len(sys.argv) > 1 else "spirals.pt")
    torch.manual_seed(0)
    x, label = spirals()
    model = learned(x, label)
    with torch.no_grad():
        floats = model(x)
        # In place; `keep` names layers that stay in floats.
        model = mx.convert(model, keep=["0"])
        print(mx.conversion_report(model))
        four_bits = model(x)

        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(model.state_dict(), path)
        # The same layers with other numbers, in which those of the file take their places.
        loaded = mx.convert(network(), keep=["0"])
        loaded.load_state_dict(torch.load(path, weights_only=True))
        assert torch.equal(loaded(x), four_bits)
        assert torch.equal(torch.compile(loaded, fullgraph=True, backend="eager")(x), four_bits)

    for name, out in (("floats", floats), ("4-bit weights", four_bits)):
        print(f"{name:13}  {(out.argmax(1) == label).float().mean():.1%} of the points are right")
    print(f"{path.name} has {path.stat().st_size} bytes and gives the same numbers")


if __name__ == "__main__":
    main()
