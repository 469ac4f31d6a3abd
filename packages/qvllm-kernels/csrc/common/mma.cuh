// Tensor-core products of one warp, and the loads that bring tiles of shared memory into the registers they expect.
//
// A fragment spreads an 8 x 8 tile of bfloat16 over the warp: lane 4 * row + pair holds columns 2 * pair and 2 * pair + 1 of a
// row, packed in one register. Larger operands are several such tiles.
#pragma once
#include <cuda_bf16.h>

#include <cstdint>

namespace qvllm {

// The address of shared memory that the instructions below take.
__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// Four 8 x 8 tiles. Lane 8 * i + row gives the address of a row of tile i, 16 bytes; a[i] gets the fragment of tile i.
__device__ __forceinline__ void load_tiles(uint32_t (&a)[4], uint32_t row_address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
               : "r"(row_address)
               : "memory");
}

// The same, and each tile is transposed.
__device__ __forceinline__ void load_tiles_transposed(uint32_t (&a)[4], uint32_t row_address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
               : "r"(row_address)
               : "memory");
}

// The fragment of the transposed tile.
__device__ __forceinline__ uint32_t transposed(uint32_t tile) {
  uint32_t result;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;\n" : "=r"(result) : "r"(tile));
  return result;
}

// d += a b, with a [16, 16], b [16, 8] and d [16, 8] in float32. The tiles of a lie in the order top left, bottom left, top
// right, bottom right; b0 and b1 are the upper and the lower tile of b, each transposed (a lane holds two rows of one column).
// d[0] and d[1] are two columns of row lane / 4, d[2] and d[3] those of the row eight further down.
__device__ __forceinline__ void multiply_add(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Two values of a fragment; `first` is the lower column.
__device__ __forceinline__ uint32_t packed_bf16(float first, float second) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
  return reinterpret_cast<const uint32_t&>(pair);
}

}  // namespace qvllm
