// Powers of two, for softmax.
#pragma once
#include <math_constants.h>

namespace qvllm {

// 2^x to about 2 ulp; results below 2^-126 are 0.
__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace qvllm
