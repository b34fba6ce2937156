// The arithmetic of SGD with momentum.

#ifndef RESNET_NATIVE_MOMENTUM_KERNELS_H_
#define RESNET_NATIVE_MOMENTUM_KERNELS_H_

#include <cstdint>

#include "resnet/native/vector.h"

namespace resnet {

// The hyperparameters of an update.
struct MomentumStep {
  float learning_rate;
  float momentum;
  float nesterov_momentum;
  bool nesterov;
};

// The memory that one task reads and writes.
struct MomentumPiece {
  const float* gradient;
  float* variable;
  float* velocity;
  int64_t size;
  float weight_decay;
};

// Updates the variable and the velocity of a piece.
using MoveFunction = void(const MomentumPiece& piece, const MomentumStep& step);

namespace RESNET_ISA {

MoveFunction Move;

}  // namespace RESNET_ISA
}  // namespace resnet

#endif  // RESNET_NATIVE_MOMENTUM_KERNELS_H_
