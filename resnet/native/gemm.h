// Single-threaded matrix products, in float32 and in bfloat16 with float32 accumulation.

#ifndef RESNET_NATIVE_GEMM_H_
#define RESNET_NATIVE_GEMM_H_

#include <cstddef>
#include <cstdint>

#include "resnet/native/convolution.h"
#include "resnet/native/vector.h"

namespace resnet::RESNET_ISA {

// Returns the number of bytes that `Pack` writes for a [k, n] matrix.
template <typename T>
size_t PackedBytes(int64_t k, int64_t n);

// Rounds a float32 matrix to T and packs it as the right operand of `Multiply`.
//
// Element (i, j) of the [k, n] matrix is b[i * row_stride + j * column_stride]: one of the
// strides must be 1, so a matrix or its transpose can be packed. With a column stride of 1,
// column j is multiplied by scale[j] before it is rounded, unless scale is nullptr.
template <typename T>
void Pack(const float* b, int64_t row_stride, int64_t column_stride, int64_t k, int64_t n,
          const float* scale, void* packed);

// Returns the number of bytes of scratch memory for one call of `Multiply`.
template <typename T>
size_t MultiplyScratchBytes(int64_t m, int64_t n, int64_t k);

// c[m, n] = epilogue(a[m, k] * b[k, n]); rows of a, c and epilogue.residual start lda,
// ldc and ldc elements apart. The elements between the rows are neither read nor written.
template <typename T>
void Multiply(int64_t m, int64_t n, int64_t k, const T* a, int64_t lda, const void* packed_b,
              T* c, int64_t ldc, const Epilogue<T>& epilogue, void* scratch);

// Returns the number of bytes of scratch memory for one call of `MultiplyTransposed`.
template <typename T>
size_t MultiplyTransposedScratchBytes(int64_t m, int64_t k, int64_t n);

// c[k, n] = transposed(a[m, k]) * b[m, n], added to c if `accumulate`; c is float32.
// Optimized for m much larger than k and n: rows of activations and of gradients.
template <typename T>
void MultiplyTransposed(int64_t m, int64_t k, int64_t n, const T* a, int64_t lda, const T* b,
                        int64_t ldb, float* c, int64_t ldc, bool accumulate, void* scratch);

}  // namespace resnet::RESNET_ISA

#endif  // RESNET_NATIVE_GEMM_H_
