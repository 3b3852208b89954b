// What a lock guards, said so that Clang checks it (`make thread-safety`); for GCC, nothing. The
// names are those of Abseil. https://clang.llvm.org/docs/ThreadSafetyAnalysis.html
#ifndef EMBEDPS_KERNELS_RUNTIME_THREAD_ANNOTATIONS_H_
#define EMBEDPS_KERNELS_RUNTIME_THREAD_ANNOTATIONS_H_

#if defined(__clang__)
#define EMBEDPS_THREAD_ANNOTATION(x) __attribute__((x))
#else
#define EMBEDPS_THREAD_ANNOTATION(x)
#endif

// Of a member: who reads or writes it holds the mutex.
#define GUARDED_BY(mutex) EMBEDPS_THREAD_ANNOTATION(guarded_by(mutex))

// Of a function: the caller holds the mutexes; or must not, as the function takes them.
#define EXCLUSIVE_LOCKS_REQUIRED(...) EMBEDPS_THREAD_ANNOTATION(requires_capability(__VA_ARGS__))
#define LOCKS_EXCLUDED(...) EMBEDPS_THREAD_ANNOTATION(locks_excluded(__VA_ARGS__))
// Of a function that holds the mutex in a way that the analysis cannot see; a comment says which.
#define NO_THREAD_SAFETY_ANALYSIS EMBEDPS_THREAD_ANNOTATION(no_thread_safety_analysis)

// Of a class that is a mutex, or holds one as long as it lives, and of their functions.
#define LOCKABLE EMBEDPS_THREAD_ANNOTATION(capability("mutex"))
#define SCOPED_LOCKABLE EMBEDPS_THREAD_ANNOTATION(scoped_lockable)
#define EXCLUSIVE_LOCK_FUNCTION(...) EMBEDPS_THREAD_ANNOTATION(acquire_capability(__VA_ARGS__))
#define EXCLUSIVE_TRYLOCK_FUNCTION(...) \
  EMBEDPS_THREAD_ANNOTATION(try_acquire_capability(__VA_ARGS__))
#define UNLOCK_FUNCTION(...) EMBEDPS_THREAD_ANNOTATION(release_capability(__VA_ARGS__))

#endif  // EMBEDPS_KERNELS_RUNTIME_THREAD_ANNOTATIONS_H_
