// Gathers the patches of images that a convolution reads into the rows of a matrix
// (im2col).

#ifndef RESNET_NATIVE_PATCHES_H_
#define RESNET_NATIVE_PATCHES_H_

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "resnet/native/vector.h"
#include "resnet/native/windows.h"

RESNET_BEGIN_TARGET

namespace resnet::RESNET_ISA {

// Copies in steps of kStep bytes; the last step may overlap the previous one.
template <int64_t kStep>
inline void CopySteps(const char* from, int64_t bytes, char* to) {
  for (int64_t done = 0; done + kStep < bytes; done += kStep) {
    std::memcpy(to + done, from + done, kStep);
  }
  std::memcpy(to + bytes - kStep, from + bytes - kStep, kStep);
}

// Like memcpy, whose call costs more than the copy itself for a few dozen bytes.
inline void CopyRun(const void* source, int64_t bytes, void* target) {
  const char* from = static_cast<const char*>(source);
  char* to = static_cast<char*>(target);
  if (bytes > 4096 || bytes < 8) {
    std::memcpy(to, from, bytes);
  } else if (bytes >= 32) {
    CopySteps<32>(from, bytes, to);
  } else if (bytes >= 16) {
    CopySteps<16>(from, bytes, to);
  } else {
    CopySteps<8>(from, bytes, to);
  }
}

// Writes one row of a patch; pixels outside the image's row `from` are zeros.
template <typename T>
void GatherRow(const Window& window, const T* from, int64_t left, T* to) {
  const int64_t first = std::clamp<int64_t>(-left, 0, window.columns);
  const int64_t last = std::clamp<int64_t>(window.width - left, first, window.columns);
  const int64_t before = first * window.channels, inside = (last - first) * window.channels;
  const int64_t behind = (window.columns - last) * window.channels;
  std::memset(to, 0, before * sizeof(T));
  std::memcpy(to + before, from + (left + first) * window.channels, inside * sizeof(T));
  std::memset(to + before + inside, 0, behind * sizeof(T));
}

// Writes the patches of `count` output positions, numbered over all images, from `begin`
// on. Each patch is a row [rows, columns, channels] with zeros outside the image.
template <typename T>
void GatherPatches(const Window& window, const T* images, int64_t begin, int64_t count,
                   T* patches) {
  const int64_t run = window.columns * window.channels;
  const int64_t image_row = window.width * window.channels;
  for (const int64_t end = begin + count; begin < end;) {
    const int64_t line = begin / window.out_width;
    const int64_t line_end = std::min(end, (line + 1) * window.out_width);
    const int64_t top = line % window.out_height * window.stride - window.top_pad;
    const int64_t first = std::clamp<int64_t>(-top, 0, window.rows);
    const int64_t last = std::clamp<int64_t>(window.height - top, first, window.rows);
    const T* const from =
        images + line / window.out_height * window.image_size() + (top + first) * image_row;
    int64_t left = begin % window.out_width * window.stride - window.left_pad;
    for (; begin < line_end; ++begin, left += window.stride) {
      std::memset(patches, 0, first * run * sizeof(T));
      patches += first * run;
      if (left >= 0 && left + window.columns <= window.width) {
        const T* row = from + left * window.channels;
        for (int64_t i = first; i < last; ++i, row += image_row, patches += run) {
          CopyRun(row, run * sizeof(T), patches);
        }
      } else {
        const T* row = from;
        for (int64_t i = first; i < last; ++i, row += image_row, patches += run) {
          GatherRow(window, row, left, patches);
        }
      }
      std::memset(patches, 0, (window.rows - last) * run * sizeof(T));
      patches += (window.rows - last) * run;
    }
  }
}

}  // namespace resnet::RESNET_ISA

RESNET_END_TARGET

#endif  // RESNET_NATIVE_PATCHES_H_
