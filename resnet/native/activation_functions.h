// ReLU, SiLU, Mish and GELU of one value, and their derivatives, in float32.
//
// Without branches, so that the compiler makes vectors of the loops around them.

#ifndef RESNET_NATIVE_ACTIVATION_FUNCTIONS_H_
#define RESNET_NATIVE_ACTIVATION_FUNCTIONS_H_

#include <cstdint>
#include <cstring>

#include "resnet/native/activation.h"
#include "resnet/native/strips.h"

namespace resnet {

// e^x with a relative error of some 1e-7, x cut to [-87, 87]; NaN stays NaN.
//
// x = n ln 2 + r with |r| <= ln 2 / 2, and e^r by its Taylor series to the sixth power,
// whose next term is below 2e-7 / 1.5.
INLINED float Exp(float x) {
  x = x < -87.0f ? -87.0f : x;
  x = x > 87.0f ? 87.0f : x;
  const float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to a whole number.
  const float shifted = x * 1.44269504f + magic;
  const float n = shifted - magic;
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;  // ln 2 in two parts.
  float sum = 1.0f / 720;
  sum = sum * r + 1.0f / 120;
  sum = sum * r + 1.0f / 24;
  sum = sum * r + 1.0f / 6;
  sum = sum * r + 0.5f;
  sum = sum * r + 1.0f;
  sum = sum * r + 1.0f;
  int32_t bits;
  std::memcpy(&bits, &shifted, sizeof(bits));
  const uint32_t exponent = static_cast<uint32_t>(bits - 0x4b400000 + 127);
  return sum * FloatOfBits(exponent << 23);
}

// SiLU, Mish and GELU are 0 in float32 below -kFar, like their derivatives, where products of
// x and a cut e^x would not be. The limit is put in place of a result, whose bits stay: the
// compiler fuses other operations if the argument is cut.
constexpr float kFar = 104.0f;
INLINED float OrLimit(float x, float y) { return x < -kFar ? 0.0f : y; }

// Mish is x tanh(ln(1 + e^x)) = x u / (u + 2) with u = e^x (e^x + 2), and tanh is 1 in
// float32 from x = 20 on.
INLINED float ExpForMish(float x) { return Exp(x > 20.0f ? 20.0f : x); }

// The normal distribution at x: P(X <= x), with an error of 8e-8, and its density.
//
// Source: Abramowitz and Stegun 1964, 7.1.26 for erf(z), where P(X <= x) is
// (1 + erf(x / sqrt(2))) / 2 and z = |x| / sqrt(2).
struct Normal {
  float distribution, density;
};
INLINED Normal NormalAt(float x) {
  const float z = 0.70710678f * (x < 0.0f ? -x : x);
  const float t = 1.0f / (1.0f + 0.3275911f * z);
  const float e = Exp(-z * z);
  float sum = 1.061405429f;
  sum = sum * t - 1.453152027f;
  sum = sum * t + 1.421413741f;
  sum = sum * t - 0.284496736f;
  sum = sum * t + 0.254829592f;
  const float above = 0.5f * sum * t * e;  // P(X > |x|).
  return {x < 0.0f ? above : 1.0f - above, 0.39894228f * e};
}

INLINED float GeluOf(float x) { return OrLimit(x, x * NormalAt(x).distribution); }
INLINED float GeluDerivative(float x) {
  const Normal normal = NormalAt(x);
  return OrLimit(x, normal.distribution + x * normal.density);
}

template <Kind kind>
INLINED float ActivationOf(float x) {
  if constexpr (kind == Kind::kRelu) return x < 0.0f ? 0.0f : x;  // NaN stays NaN.
  if constexpr (kind == Kind::kSilu) return OrLimit(x, x / (1.0f + Exp(-x)));
  const float e = ExpForMish(x);
  const float u = e * (e + 2.0f);
  return OrLimit(x, x * (u / (u + 2.0f)));
}

template <Kind kind>
INLINED float Derivative(float x) {
  if constexpr (kind == Kind::kRelu) return x > 0.0f ? 1.0f : 0.0f;
  if constexpr (kind == Kind::kSilu) {
    const float s = 1.0f / (1.0f + Exp(-x));
    return OrLimit(x, s * (1.0f + x * (1.0f - s)));
  }
  // tanh' = 4 (u + 1) / (u + 2)^2, u + 1 = (e^x + 1)^2, and the derivative of
  // ln(1 + e^x) is e^x / (e^x + 1).
  const float e = ExpForMish(x);
  const float u = e * (e + 2.0f);
  const float inverse = 1.0f / (u + 2.0f);
  return OrLimit(x, inverse * (u + 4.0f * x * e * (e + 1.0f) * inverse));
}

}  // namespace resnet

#endif  // RESNET_NATIVE_ACTIVATION_FUNCTIONS_H_
