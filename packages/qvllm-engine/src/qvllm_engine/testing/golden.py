"""Golden vectors of sampling: seeds, steps and exact logits with the ids that every backend must draw.

``golden_sampling.json`` holds them; ``dump`` writes them anew from the plain Python reference.
"""

import json
from dataclasses import asdict, dataclass, replace
from importlib.resources import files

import torch
from torch import Tensor

from qvllm_engine.testing.references_sampling import draw


@dataclass(frozen=True)
class Vector:
    """One call of ``sample``; logit of id i in row r is ``((i * 40503 + (r + salt) * 977) % 4096) / 256 - 8``."""

    name: str
    vocab: int
    salt: int
    temperature: float
    top_k: int | None
    top_p: float | None
    min_p: float | None
    seeds: list[int]
    steps: list[int]
    ids: list[int]


def logits(vector: Vector) -> Tensor:
    """``[rows, vocab]`` float32; every value is exact in float32."""
    ids = torch.arange(vector.vocab) * 40503
    rows = (torch.arange(len(vector.seeds)) + vector.salt)[:, None] * 977
    return ((ids + rows) % 4096).float() / 256 - 8


def load() -> list[Vector]:
    """The committed vectors."""
    text = files("qvllm_engine.testing").joinpath("golden_sampling.json").read_text()
    return [Vector(**entry) for entry in json.loads(text)]


_RECIPES = (
    Vector("temperature 1", 1000, 0, 1.0, None, None, None, [0, 1, 2**40 + 7, -5, 2**63 - 1], [0, 1, 2, 1000, 2**31 - 1], []),
    Vector("temperature 4", 4097, 5, 4.0, None, None, None, [42] * 6, [0, 1, 2, 3, 4, 5], []),
    Vector("top_k 20, top_p 0.9", 2048, 9, 1.5, 20, 0.9, None, [7, 8, 9, 10, 11], [0] * 5, []),
    Vector("min_p 0.2", 515, 3, 2.0, None, None, 0.2, [100, 200, 300, 400], [11, 12, 13, 14], []),
    Vector("one id remains, whose word rounds to u = 1", 64, 1, 1.0, 1, None, None, [0], [8_190_757], []),
)


def make() -> list[Vector]:
    """The vectors, drawn by the plain Python reference.

    Raises:
        ValueError: a draw is so close that rounding could turn it; change the recipe.
    """
    made = []
    for vector in _RECIPES:
        filters = (vector.temperature, vector.top_k or 0, vector.top_p or 1.0, vector.min_p or 0.0)
        rows = zip(logits(vector).double().tolist(), vector.seeds, vector.steps, strict=True)
        draws = [draw(row, *filters, seed, step) for row, seed, step in rows]
        if min(outcome.margin for outcome in draws) < 1e-4:
            raise ValueError(f"a draw of {vector.name!r} is too close to call")
        made.append(replace(vector, ids=[outcome.token for outcome in draws]))
    return made


def dump() -> str:
    """The text of ``golden_sampling.json``."""
    return "[\n" + ",\n".join(json.dumps(asdict(vector)) for vector in make()) + "\n]\n"
