// Cuts the images of a 3x3 convolution into the tiles of Winograd's algorithm F(4x4, 3x3).
//
// A tile is 4x4 outputs, which read 6x6 inputs. If the images' size isn't a multiple of 4,
// several images may be arranged side by side with one row or column of zeros between
// them, which pads both: 16 images of 14x14 pixels then take 225 tiles instead of 256.

#ifndef RESNET_NATIVE_WINOGRAD_TILES_H_
#define RESNET_NATIVE_WINOGRAD_TILES_H_

#include <algorithm>
#include <cstdint>

#include "resnet/native/context.h"
#include "resnet/native/convolution.h"
#include "resnet/native/rounding.h"
#include "resnet/native/vector.h"

namespace resnet::RESNET_ISA {
namespace winograd {

constexpr int kTileOut = 4;
constexpr int kTileIn = 6;
constexpr int kPoints = kTileIn * kTileIn;  // Multiplications instead of 9 * 16.

// The rows, or the columns, that a tile reads; its outputs are at the middle four.
struct Span {
  int64_t pixel[kTileIn];  // A pixel's index is its row's plus its column's.
  uint16_t mask[kTileIn];  // 0 outside the images, else 0xffff.
  bool inside;             // No mask is 0.
};

struct Tiles {
  int64_t count;
  int64_t num_columns;  // Tiles are numbered row by row.
  const Span* rows;
  const Span* columns;

  const Span& row(int64_t tile) const { return rows[tile / num_columns]; }
  const Span& column(int64_t tile) const { return columns[tile % num_columns]; }
};

inline int64_t CountApart(int64_t size, int64_t images) {
  return images * CeilDivide(size, kTileOut);
}

inline int64_t CountJoined(int64_t size, int64_t images) {
  return CeilDivide(images * (size + 1) - 1, kTileOut);
}

inline int64_t CountSpans(int64_t size, int64_t images) {
  return std::min(CountApart(size, images), CountJoined(size, images));
}

// Writes the spans of `images` images in one dimension.
inline void MakeSpans(int64_t size, int64_t images, int64_t pixels_per_step,
                      int64_t pixels_per_image, Span* spans) {
  const int64_t count = CountSpans(size, images);
  const bool joined = count < CountApart(size, images);
  for (int64_t s = 0; s < count; ++s) {
    Span& span = spans[s];
    span.inside = true;
    for (int i = 0; i < kTileIn; ++i) {
      int64_t image, place;
      if (joined) {
        const int64_t at = kTileOut * s + i - 1 + (size + 1);  // In the previous image.
        image = at / (size + 1) - 1;
        place = at % (size + 1);
      } else {
        const int64_t spans_per_image = CeilDivide(size, kTileOut);
        image = s / spans_per_image;
        place = kTileOut * (s % spans_per_image) + i - 1;
      }
      const bool valid =
          image >= 0 && image < images && place >= 0 && place < size;
      span.pixel[i] = valid ? image * pixels_per_image + place * pixels_per_step : 0;
      span.mask[i] = valid ? 0xffff : 0;
      span.inside &= valid;
    }
  }
}

inline Tiles MakeTiles(const ConvShape& shape, Context& context) {
  const int64_t height = shape.in_height, width = shape.in_width;
  int64_t across = 1;  // Images per row of the arrangement, which has batch / across rows.
  int64_t count = CountSpans(height, shape.batch) * CountSpans(width, 1);
  for (int64_t i = 2; i <= shape.batch; ++i) {
    if (shape.batch % i != 0) continue;
    const int64_t tiles = CountSpans(height, shape.batch / i) * CountSpans(width, i);
    if (tiles < count) {
      count = tiles;
      across = i;
    }
  }
  const int64_t num_rows = CountSpans(height, shape.batch / across);
  const int64_t num_columns = CountSpans(width, across);
  Span* rows = AllocateFor<Span>(context, num_rows);
  Span* columns = AllocateFor<Span>(context, num_columns);
  MakeSpans(height, shape.batch / across, width, across * height * width, rows);
  MakeSpans(width, across, 1, height * width, columns);
  return {count, num_columns, rows, columns};
}

}  // namespace winograd
}  // namespace resnet::RESNET_ISA

#endif  // RESNET_NATIVE_WINOGRAD_TILES_H_
