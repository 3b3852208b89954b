// One dispatch point for loops that gain from wide vectors. The compiler builds a function for each
// instruction set, and the loader picks one.
#ifndef EMBEDPS_KERNELS_RUNTIME_SIMD_H_
#define EMBEDPS_KERNELS_RUNTIME_SIMD_H_

// The sanitizers' runtimes do not run yet when the loader picks a clone.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && !defined(EMBEDPS_NO_SIMD)
#define EMBEDPS_SIMD __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define EMBEDPS_SIMD
#endif

#endif  // EMBEDPS_KERNELS_RUNTIME_SIMD_H_
