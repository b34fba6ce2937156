// Between the two, no multiplication is fused with an addition (FMA): the results are the
// same bits on all CPUs.

#ifndef RESNET_NATIVE_WITHOUT_FMA_H_
#define RESNET_NATIVE_WITHOUT_FMA_H_

#ifdef __clang__
#define RESNET_BEGIN_WITHOUT_FMA _Pragma("clang fp contract(off)")
#define RESNET_END_WITHOUT_FMA _Pragma("clang fp contract(on)")
#else
#define RESNET_BEGIN_WITHOUT_FMA \
  _Pragma("GCC push_options") _Pragma("GCC optimize(\"-ffp-contract=off\")")
#define RESNET_END_WITHOUT_FMA _Pragma("GCC pop_options")
#endif

#endif  // RESNET_NATIVE_WITHOUT_FMA_H_
