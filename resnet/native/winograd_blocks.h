// Blocks of transformed tiles in the layout that Winograd's products read.

#ifndef RESNET_NATIVE_WINOGRAD_BLOCKS_H_
#define RESNET_NATIVE_WINOGRAD_BLOCKS_H_

#include <algorithm>
#include <cstdint>

#include "resnet/native/ranges.h"
#include "resnet/native/winograd_tiles.h"
#include "resnet/native/winograd_transforms.h"

RESNET_BEGIN_TARGET

namespace resnet::RESNET_ISA {
namespace winograd {

// The distance between points is one cache line more than a power of two, at which they
// would compete for the same cache set.
constexpr int64_t kPadding = 16;

// A block of tiles at all points: [kPoints][groups][channels / kLanes][tiles per group]
// [kLanes], with zeros after the last channel. A product reads the groups one after the other.
struct BlockLayout {
  int64_t tiles, group_tiles, channels;

  int64_t chunks() const { return CeilDivide(channels, kLanes); }
  int64_t chunk_stride() const { return group_tiles * kLanes; }
  int64_t group_stride() const { return chunks() * chunk_stride(); }
  int64_t point_stride() const {
    return CeilDivide(tiles, group_tiles) * group_stride() + kPadding;
  }
  int64_t size() const { return kPoints * point_stride(); }
  int64_t TileOffset(int64_t tile) const {
    return tile / group_tiles * group_stride() + tile % group_tiles * kLanes;
  }
};

// Number of tiles that are transformed together, so that their values at a point are
// stored side by side.
constexpr int64_t kStripe = 8;

// Transforms all channels of an image's tiles with transform(patch, to, stride). The block
// starts at tile `first`; the tiles of `range` are written.
template <typename T, typename Transform>
void TransformBlock(const T* image, const Tiles& tiles, int64_t first, const Range& range,
                    const BlockLayout& layout, float* block, const Transform& transform) {
  for (int64_t stripe = range.begin; stripe < range.end; stripe += kStripe) {
    const int64_t end = std::min(stripe + kStripe, range.end);
    for (int64_t chunk = 0; chunk < layout.chunks(); ++chunk) {
      for (int64_t tile = stripe; tile < end; ++tile) {
        const Patch<const T> patch(image, layout.channels, chunk * kLanes, tiles.row(tile),
                                   tiles.column(tile));
        float* to = block + layout.TileOffset(tile - first) + chunk * layout.chunk_stride();
        transform(patch, to, layout.point_stride());
      }
    }
  }
}

// The division of all tiles into blocks of almost the same size.
struct Blocks {
  int64_t tiles, count;

  int64_t max_tiles() const { return CeilDivide(tiles, count); }
  Range Tiles(int64_t block) const { return Part(tiles, count, block); }

  // Calls task(block, tiles) for ranges of tiles of all blocks, on the context's threads.
  template <typename Task>
  void RunStripes(const Context& context, const Task& task) const {
    const int64_t stripes = CeilDivide(max_tiles(), kStripe);
    context.Run(count * stripes, [&](int64_t i) {
      const int64_t block = i / stripes, offset = i % stripes * kStripe;
      const Range range = Tiles(block);
      const int64_t begin = std::min(range.begin + offset, range.end);
      task(block, Range{begin, std::min(begin + kStripe, range.end)});
    });
  }
};

// Prefetches a number of bytes into the L2 cache.
inline void Prefetch(const void* from, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) {
    __builtin_prefetch(static_cast<const char*>(from) + i, 0, 2);
    asm volatile("");  // Else GCC drops calls of functions that only prefetch.
  }
}

// Prefetches part number `part` of the columns (channels) of the tiles' middle pixels.
template <typename T>
void PrefetchTiles(const T* image, int64_t channels, const Range& columns, const Tiles& tiles,
                   const Range& range, int64_t parts, int64_t part) {
  const Range lines = Part(range.size() * kTileOut, parts, part);
  for (int64_t i = lines.begin; i < lines.end; ++i) {
    const int64_t tile = range.begin + i / kTileOut;
    const int64_t pixel =
        tiles.row(tile).pixel[i % kTileOut + 1] + tiles.column(tile).pixel[1];
    const T* from = image + pixel * channels + columns.begin;
    for (int j = 0; j < kTileOut; ++j, from += channels) {
      Prefetch(from, columns.size() * sizeof(T));
    }
  }
}

}  // namespace winograd
}  // namespace resnet::RESNET_ISA

RESNET_END_TARGET

#endif  // RESNET_NATIVE_WINOGRAD_BLOCKS_H_
