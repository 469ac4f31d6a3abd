"""The operator contract: what a backend module offers, by name, shape and dtype.

A backend is a module whose functions are the operators below, with ``OPS_API = 1`` and
``unavailable_reason(device) -> str | None``. It is registered in the entry-point group ``qvllm.backends``.

Rules for every operator:

- Plain functions on torch tensors. The output's dtype is the input's unless stated. bfloat16 with float32 accumulation is
  what matters; float32 inputs are accepted by backends that serve reference runs.
- The last dimension of an input is contiguous, the others may have any stride (q, k and v are slices of one projection).
- What an operator returns is new and contiguous, and it writes only into arguments that it is said to write (``norm_linear``
  may pass x on as the new residual).
- Index tensors are int32, except ``slot_mapping``, which is int64. Offsets into a pool are computed in int64.
- No operator synchronises with the host, so every one can be captured in a CUDA graph.

Names used in shapes: ``tokens`` rows of a batch (all sequences side by side), ``seqs`` sequences, ``dim`` a model width,
``q_heads`` and ``kv_heads`` attention heads (``q_heads`` is a multiple of ``kv_heads``).
"""

from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

if TYPE_CHECKING:
    from qvllm_engine.distributed.groups import Group

OPS_API = 1


class BackendModule(Protocol):
    """What a backend module must define beside its operators.

    It may also define ``prepare_weight(kind, tensor) -> tensor``, called once per weight after loading, to repack it for its
    own operators: the result is what they are given as that weight, and may have any shape. Kinds: "linear", "qkv", "gate_up",
    "embedding" (an output head tied to it too), "lm_head" and "norm".

    ``decode_workspace(max_seqs, num_q_heads, num_kv_heads, head_dim, max_kv_len, device) -> tensor``, called once per engine
    and shape of attention, makes the scratch memory that ``decode_attention`` is given as ``workspace``.

    ``DTYPES``, a tuple of torch dtypes, says which dtypes of weights and activations the operators take; without it, all that
    the engine has.

    ``CUDA_GRAPHS = True`` asks the engine to capture decode steps. A captured step has the block table of the longest
    sequence there can be, so the backend's decode attention must cost what the lengths say, not what the table's width says.
    """

    OPS_API: int

    def unavailable_reason(self, device: torch.device) -> str | None:
        """None if the operators run on ``device`` here and now, else one sentence that says why not and what to do."""
        ...


class RequiredOps(Protocol):
    """Operators of dense models. There is no fallback: a model that needs one which a backend lacks is refused."""

    def embedding(self, token_ids: Tensor, weight: Tensor, first_id: int = 0) -> Tensor:
        """Rows of an embedding table, or of one shard of it.

        Args:
            token_ids: ``[tokens]`` int32.
            weight: ``[rows, dim]``, the rows of ids ``first_id`` to ``first_id + rows - 1``.
            first_id: the id of the table's first row.

        Returns:
            ``[tokens, dim]``; zeros where the id lies outside the shard.
        """
        ...

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """``x @ weight.T + bias``. x ``[..., in]``, weight ``[out, in]``, bias ``[out]`` -> ``[..., out]``."""
        ...

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """``x + y``, same shapes."""
        ...

    def silu_and_mul(self, x: Tensor) -> Tensor:
        """SwiGLU's product: x ``[..., 2 * dim]`` -> ``silu(x[..., :dim]) * x[..., dim:]``, computed in float32."""
        ...

    def sigmoid_mul(self, x: Tensor, gate: Tensor) -> Tensor:
        """``x * sigmoid(gate)``, same shapes."""
        ...

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, weight_offset: float = 0.0) -> Tensor:
        """Normalise the last dimension by its root mean square (Zhang and Sennrich, 2019).

        With ``weight_offset`` 0 the normalised value is rounded to x's dtype before it meets the weight, as Qwen3 was
        trained; otherwise the product with ``weight_offset + weight`` is formed in float32 (Qwen3.5 stores weight - 1).

        Args:
            x: ``[..., dim]``.
            weight: ``[dim]``.
            eps: added to the mean square.
            weight_offset: added to the weight.
        """
        ...

    def add_rms_norm(
        self, x: Tensor, residual: Tensor, weight: Tensor, eps: float, weight_offset: float = 0.0
    ) -> tuple[Tensor, Tensor]:
        """``(rms_norm(x + residual), x + residual)``; the sum is rounded to x's dtype before it is normalised."""
        ...

    def gated_rms_norm(self, x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
        """``rms_norm(x, weight, eps) * silu(gate)``, the gate and the product in float32. All ``[..., dim]``."""
        ...

    def rotary_embedding(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Rotate pairs (i, i + rotary_dim / 2) of the first ``rotary_dim`` elements of every head (Su et al., 2021).

        Args:
            q: ``[tokens, q_heads, head_dim]``.
            k: ``[tokens, kv_heads, head_dim]``.
            cos: ``[tokens, rotary_dim / 2]`` float32, one row per token.
            sin: like ``cos``.

        Returns:
            New q and k, contiguous; elements past ``rotary_dim`` are copied.
        """
        ...

    def store_kv(self, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor) -> None:
        """Write keys and values into the paged cache, in place.

        Args:
            k: ``[tokens, kv_heads, head_dim]``; v alike.
            v: see k.
            k_cache: ``[num_blocks, kv_heads, block_size, head_dim]``; v_cache alike.
            v_cache: see k_cache.
            slot_mapping: ``[tokens]`` int64, ``block * block_size + offset``; -1 stores nothing.
        """
        ...

    def prefill_attention(
        self,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        block_tables: Tensor,
        cu_seqlens_q: Tensor,
        kv_lens: Tensor,
        max_seqlen_q: int,
        scale: float,
    ) -> Tensor:
        """Causal attention of several query tokens per sequence over the paged cache (Kwon et al., 2023).

        The chunk's own keys and values are already stored: query i of a sequence with ``n`` queries sees keys
        ``0 .. kv_len - n + i``.

        Args:
            q: ``[tokens, q_heads, head_dim]``, the sequences side by side; head_dim 64, 128 or 256.
            k_cache: ``[num_blocks, kv_heads, block_size, head_dim]``; v_cache alike.
            v_cache: see k_cache.
            block_tables: ``[seqs, width]`` int32; entries past a sequence's last block may hold anything.
            cu_seqlens_q: ``[seqs + 1]`` int32, where each sequence's queries start.
            kv_lens: ``[seqs]`` int32, keys of each sequence, the chunk's own included.
            max_seqlen_q: the longest chunk.
            scale: factor of the scores.

        Returns:
            ``[tokens, q_heads, head_dim]``, contiguous.
        """
        ...

    def decode_attention(
        self,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        block_tables: Tensor,
        kv_lens: Tensor,
        scale: float,
        workspace: Tensor | None = None,
    ) -> Tensor:
        """Attention of one query per sequence over the paged cache; arguments as in ``prefill_attention``.

        Args:
            q: ``[seqs, q_heads, head_dim]``.
            workspace: scratch memory owned by the engine, of the backend's own ``decode_workspace``; None where it has none.

        Returns:
            ``[seqs, q_heads, head_dim]``; zeros where kv_len is 0 (a padding row).
        """
        ...

    def sample(
        self,
        logits: Tensor,
        temperature: Tensor | None,
        top_k: Tensor | None,
        top_p: Tensor | None,
        min_p: Tensor | None,
        seeds: Tensor,
        steps: Tensor,
    ) -> Tensor:
        """Draw one token per row: temperature, then top_k, then top_p over what remains, then min_p.

        The draw is ``argmax(logit / T - log(-log1p(-u)))`` in float32 over the ids that remain, with
        ``u = (word + 0.5) * 2^-32`` and ``word`` from Philox4x32-10 (Salmon et al., 2011) with key = seed (low, high word),
        counter = (id // 4, step, 0, 0), output word id % 4. So a request draws the same alone or in any batch. u is at most
        1 - 2^-24: the 128 highest words would round to 1, and an id whose score is -inf looks like one that was removed.

        Args:
            logits: ``[rows, vocab]`` float32; -inf excludes an id.
            temperature: ``[rows]`` float32; 0 is exact argmax of the logits, ties to the lowest id. None: all rows greedy.
            top_k: ``[rows]`` int32; 0 or less keeps all, ties at the edge keep the lowest ids. None: no row uses it.
            top_p: ``[rows]`` float32 in (0, 1]; keeps the ids, by falling probability and rising id, before which less than
                top_p has been summed, so the token that crosses it stays; 1 keeps all. None: no row uses it.
            min_p: ``[rows]`` float32 in [0, 1]; removes ids less likely than min_p times the most likely one; 0 keeps all.
                None: no row uses it.
            seeds: ``[rows]`` int64, one per request, negative ones too; the key is its 64 bits.
            steps: ``[rows]`` int32, the index of this token in its request's output.

        Returns:
            ``[rows]`` int32; -1 for a row that holds NaN, whatever its settings.
        """
        ...


class FusedOps(Protocol):
    """Operators that models call and a backend may offer; ``composites`` builds each from required ones."""

    def qk_norm_rope_store(
        self,
        qkv: Tensor,
        q_weight: Tensor,
        k_weight: Tensor,
        eps: float,
        weight_offset: float,
        cos: Tensor,
        sin: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        slot_mapping: Tensor,
        num_q_heads: int,
        num_kv_heads: int,
    ) -> Tensor:
        """Per-head norms of q and k, rotary embedding, and store_kv, from one projection.

        Args:
            qkv: ``[tokens, (num_q_heads + 2 * num_kv_heads) * head_dim]``: q, k, v side by side.
            q_weight: ``[head_dim]``; k_weight alike.

        Returns:
            q, ``[tokens, num_q_heads, head_dim]``, contiguous.
        """
        ...

    def norm_linear(
        self, x: Tensor, residual: Tensor | None, norm_weight: Tensor, eps: float, weight_offset: float, weight: Tensor
    ) -> tuple[Tensor, Tensor]:
        """``(linear(rms_norm(x + residual), weight), x + residual)``; residual None stands for zeros."""
        ...

    def gate_up_silu(self, x: Tensor, weight: Tensor) -> Tensor:
        """``silu_and_mul(linear(x, weight))``; weight ``[2 * dim, in]``, gate rows first."""
        ...

    def linear_add(self, x: Tensor, weight: Tensor, residual: Tensor) -> Tensor:
        """``linear(x, weight) + residual``. Not for tensor parallelism: the sum must come after the all-reduce."""
        ...

    def lm_head_sample(self, x: Tensor, weight: Tensor, temperature: Tensor | None, seeds: Tensor, steps: Tensor) -> Tensor:
        """``sample`` of ``linear(x, weight)`` by temperature alone, with float32 maxima -> ``[rows]`` int32."""
        ...

    def all_reduce_add_rms_norm(
        self, x: Tensor, residual: Tensor, weight: Tensor, eps: float, weight_offset: float, group: "Group"
    ) -> tuple[Tensor, Tensor]:
        """``add_rms_norm`` of x summed over the ranks of ``group``: where a row-parallel layer meets the next norm.

        Args:
            x: ``[tokens, dim]``, this rank's part of the sum; with more than one rank it may be overwritten.
            residual: ``[tokens, dim]``, whole on every rank.
            weight: ``[dim]``.
            eps: added to the mean square.
            weight_offset: added to the weight.
            group: the ranks.

        Returns:
            The normed rows and the new residual, whole on every rank.
        """
        ...
