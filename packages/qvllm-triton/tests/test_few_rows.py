"""The layouts of products of few rows: they cover the weight, and fit."""

from hypothesis import given
from hypothesis import strategies as st

from qvllm_triton import few_rows
from qvllm_triton.few_rows import MOST_OUT, MOST_ROWS, MOST_ROWS_LARGE, VECTOR_ROWS, faster_here, few_rows_tiling, norm_tiling

SMALLEST_SHARED = 99 << 10  # of compute capability 8.6 and 12.0


@given(st.integers(1, MOST_ROWS), st.integers(1, 60_000), st.integers(1, 300_000), st.sampled_from([2, 4]))
def test_every_shape_has_a_layout_that_fits(rows: int, in_dim: int, out_dim: int, itemsize: int) -> None:
    tile = few_rows_tiling(rows, in_dim, out_dim, itemsize)
    assert rows <= tile.ROWS
    assert tile.BLOCK_OUT % 2 == 0
    if tile.DOT:
        buffer = (tile.ROWS + tile.BLOCK_OUT) * tile.CHUNKS * tile.CHUNK * itemsize
        assert (tile.num_stages - 1) * buffer <= SMALLEST_SHARED
        assert tile.ROWS % 16 == tile.BLOCK_OUT % 8 == tile.CHUNK % 16 == 0
        assert tile.num_warps == tile.CHUNKS
    else:
        assert rows <= VECTOR_ROWS
        assert in_dim <= tile.CHUNKS * tile.CHUNK
        weight_bytes = tile.CHUNKS * tile.CHUNK * tile.BLOCK_OUT * itemsize / (32 * tile.num_warps)
        assert weight_bytes <= 2 * few_rows.THREAD_BYTES
        assert tile.num_warps <= few_rows.MOST_WARPS


@given(st.integers(1, VECTOR_ROWS), st.integers(1, 60_000), st.sampled_from([2, 4]))
def test_rows_to_be_normalised_fit_in_registers(rows: int, in_dim: int, itemsize: int) -> None:
    tile = norm_tiling(rows, in_dim, itemsize)
    if tile is not None:
        assert in_dim <= tile.CHUNKS * tile.CHUNK
        bytes_per_thread = tile.ROWS * tile.CHUNKS * tile.CHUNK * itemsize / (32 * tile.num_warps)
        assert bytes_per_thread <= few_rows.NORM_BYTES


def test_a_hidden_size_of_qwen3_is_normalised_in_the_projection() -> None:
    assert norm_tiling(1, 1024, 2) is not None
    assert norm_tiling(VECTOR_ROWS, 1024, 2) is not None
    assert norm_tiling(VECTOR_ROWS + 1, 1024, 2) is None


def test_large_weights_go_to_torch_sooner() -> None:
    assert faster_here(MOST_ROWS, MOST_OUT)
    assert faster_here(MOST_ROWS_LARGE, 151_936)
    assert not faster_here(MOST_ROWS_LARGE + 1, MOST_OUT + 1)
    assert not faster_here(MOST_ROWS + 1, 16)
    assert not faster_here(0, 16)
    assert not faster_here(1, 0)
