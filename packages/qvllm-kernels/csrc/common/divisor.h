// Division by a number that only the host knows, as a multiplication and a shift (Granlund and Montgomery, 1994).
#pragma once
#include <cstdint>

#include "common/row_strides.h"

namespace qvllm {

struct Divisor {
  uint32_t value = 1, multiplier = 1, shift = 0;

  Divisor() = default;
  explicit Divisor(uint32_t divisor) : value(divisor) {  // 1 to 2^31
    while (uint64_t{1} << shift < divisor) ++shift;
    multiplier = static_cast<uint32_t>(((uint64_t{1} << 32) * ((uint64_t{1} << shift) - divisor)) / divisor + 1);
  }

  // n / value for n below 2^31.
  QVLLM_HOST_DEVICE int quotient(int n) const {
    const auto high = static_cast<uint32_t>((uint64_t{static_cast<uint32_t>(n)} * multiplier) >> 32);
    return static_cast<int>((high + static_cast<uint32_t>(n)) >> shift);
  }
};

}  // namespace qvllm
