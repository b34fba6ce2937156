// The loops of SGD with momentum, which the compiler turns into vectors.
//
// All ranks must update their weights to the same bits, also on CPUs of different kinds.
// So no multiplication is fused with an addition (FMA), which not all CPUs support.

#include "resnet/native/momentum_kernels.h"

#include "resnet/native/vector.h"
#include "resnet/native/without_fma.h"

RESNET_BEGIN_TARGET
RESNET_BEGIN_WITHOUT_FMA

namespace resnet::RESNET_ISA {
namespace {

void MoveNesterov(const float* gradient, int64_t size, float learning_rate, float momentum,
                  float nesterov_momentum, float weight_decay, float* __restrict__ variable,
                  float* __restrict__ velocity) {
  for (int64_t i = 0; i < size; ++i) {
    const float step = gradient[i] + weight_decay * variable[i];
    velocity[i] = momentum * velocity[i] + step;
    variable[i] -= learning_rate * (step + nesterov_momentum * velocity[i]);
  }
}

void MovePlain(const float* gradient, int64_t size, float learning_rate, float momentum,
               float weight_decay, float* __restrict__ variable,
               float* __restrict__ velocity) {
  for (int64_t i = 0; i < size; ++i) {
    velocity[i] = momentum * velocity[i] + (gradient[i] + weight_decay * variable[i]);
    variable[i] -= learning_rate * velocity[i];
  }
}

}  // namespace

void Move(const MomentumPiece& piece, const MomentumStep& step) {
  if (step.nesterov) {
    MoveNesterov(piece.gradient, piece.size, step.learning_rate, step.momentum,
                 step.nesterov_momentum, piece.weight_decay, piece.variable, piece.velocity);
  } else {
    MovePlain(piece.gradient, piece.size, step.learning_rate, step.momentum,
              piece.weight_decay, piece.variable, piece.velocity);
  }
}

}  // namespace resnet::RESNET_ISA

RESNET_END_WITHOUT_FMA
RESNET_END_TARGET
