// What the programs that try random cases share.
#ifndef TESTS_NATIVE_RANDOM_CASES_H_
#define TESTS_NATIVE_RANDOM_CASES_H_

#include <cstdint>
#include <random>
#include <string>

inline std::mt19937_64 generator;
inline std::string now;  // What is being tried.

inline int64_t Draw(int64_t least, int64_t most) {
  return std::uniform_int_distribution<int64_t>(least, most)(generator);
}
inline bool OneIn(int64_t number) { return Draw(1, number) == 1; }

#endif  // TESTS_NATIVE_RANDOM_CASES_H_
