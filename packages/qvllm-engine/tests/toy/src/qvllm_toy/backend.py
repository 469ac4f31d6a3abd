"""A third party's operator backend: what the toy model needs and no more, with code of its own."""

import numpy as np
import torch
from torch import Tensor

OPS_API = 1

prepared: list[tuple[str, tuple[int, ...]]] = []  # every call of prepare_weight


def unavailable_reason(device: torch.device) -> str | None:
    return None if device.type == "cpu" else "the toy backend runs on the CPU alone; pass device='cpu'"


def prepare_weight(kind: str, tensor: Tensor) -> Tensor:
    """Keep weights in float64, which the operators below rely on."""
    prepared.append((kind, tuple(tensor.shape)))
    return tensor.double()


def embedding(token_ids: Tensor, weight: Tensor, first_id: int = 0) -> Tensor:
    if weight.dtype != torch.float64:
        raise TypeError("prepare_weight was not called on the embedding")
    one_hot = token_ids[:, None] == torch.arange(first_id, first_id + len(weight))
    return (one_hot.double() @ weight).float()


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    if weight.dtype != torch.float64:
        raise TypeError("prepare_weight was not called on a linear weight")
    out = (x.double() @ weight.T).float()
    return out if bias is None else out + bias


def store_kv(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor) -> None:
    block_size = k_cache.shape[2]
    for token, slot in enumerate(slot_mapping.tolist()):
        if slot >= 0:
            k_cache[slot // block_size, :, slot % block_size] = k[token]
            v_cache[slot // block_size, :, slot % block_size] = v[token]


def sample(
    logits: Tensor,
    temperature: Tensor | None,
    top_k: Tensor | None,
    top_p: Tensor | None,
    min_p: Tensor | None,
    seeds: Tensor,
    steps: Tensor,
) -> Tensor:
    tokens = []
    for row, scores in enumerate(logits.numpy()):
        t = 0.0 if temperature is None else float(temperature[row])
        if t == 0.0:
            tokens.append(int(scores.argmax()))
            continue
        scaled = scores / np.float32(t)
        keep = np.argsort(-scaled, kind="stable")
        if top_k is not None and int(top_k[row]) > 0:
            keep = keep[: int(top_k[row])]
        probabilities = np.exp(scaled[keep].astype(np.float64) - scaled.max())
        probabilities /= probabilities.sum()
        if top_p is not None and float(top_p[row]) < 1.0:
            keep = keep[np.cumsum(probabilities) - probabilities < float(top_p[row])]
        if min_p is not None and float(min_p[row]) > 0.0:
            keep = keep[scaled[keep] >= scaled.max() + np.log(np.float32(min_p[row]))]
        noise = gumbel(int(seeds[row]), int(steps[row]), len(scores))
        tokens.append(int(keep[np.argmax((scaled + noise)[keep])]))
    return torch.tensor(tokens, dtype=torch.int32)


def gumbel(seed: int, step: int, vocab: int) -> np.ndarray:
    """``[vocab]`` float32 noise of one draw."""
    words = [word for quad in range(-(-vocab // 4)) for word in philox((quad, step, 0, 0), (seed & 0xFFFFFFFF, seed >> 32))]
    u = (np.array(words[:vocab], dtype=np.float32) + np.float32(0.5)) * np.float32(2.0**-32)
    return -np.log(-np.log1p(-u))


def philox(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Philox4x32-10 in plain integers (Salmon et al., 2011)."""
    a, b, c, d = counter
    low, high = key
    for _ in range(10):
        first, second = a * 0xD2511F53, c * 0xCD9E8D57
        a, b, c, d = second >> 32 ^ b ^ low, second & 0xFFFFFFFF, first >> 32 ^ d ^ high, first & 0xFFFFFFFF
        low, high = (low + 0x9E3779B9) & 0xFFFFFFFF, (high + 0xBB67AE85) & 0xFFFFFFFF
    return a, b, c, d
