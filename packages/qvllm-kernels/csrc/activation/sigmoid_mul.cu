// The output gate of attention: x * sigmoid(y).
#include "activation/two_inputs.cuh"
#include "common/sigmoid.cuh"

namespace qvllm {
namespace {

struct SigmoidMul {
  __device__ float operator()(float x, float gate) const { return x * sigmoid(gate); }
};

}  // namespace

cudaError_t launch_sigmoid_mul(const TwoInputsArguments& a, cudaStream_t stream) {
  return launch_two_inputs<SigmoidMul>(a, stream);
}

}  // namespace qvllm
