// The windows of max pooling.

#ifndef RESNET_NATIVE_POOLING_H_
#define RESNET_NATIVE_POOLING_H_

#include <algorithm>
#include <cstdint>

namespace resnet {

// Windows along the height or the width of images.
struct Windows {
  int64_t in, out, size, stride, before;

  // The inputs of window `i`, from `Begin` up to `End`, without those outside.
  int64_t Begin(int64_t i) const { return std::max<int64_t>(i * stride - before, 0); }
  int64_t End(int64_t i) const { return std::min(i * stride - before + size, in); }
  // The place of an input in window `i`.
  int64_t Place(int64_t input, int64_t i) const { return input + before - i * stride; }
  // The windows that have an input, from `First` to `Last`.
  int64_t First(int64_t input) const {
    return std::max<int64_t>((input + before - size + stride) / stride, 0);
  }
  int64_t Last(int64_t input) const {
    return std::min((input + before) / stride, out - 1);
  }
};

struct PoolShape {
  int64_t batch, channels;
  Windows rows, columns;
};

}  // namespace resnet

#endif  // RESNET_NATIVE_POOLING_H_
