// The memory of this process, and what is left for it. Plain C++17.
#ifndef EMBEDPS_KERNELS_RUNTIME_PROCESS_MEMORY_H_
#define EMBEDPS_KERNELS_RUNTIME_PROCESS_MEMORY_H_

#include <cstdint>
#include <string>

namespace embedps {

struct ProcessMemory {
  int64_t resident_bytes = 0;
  // What the machine can still give without swapping, or the control group of a container if that
  // is less. -1 if the kernel does not tell.
  int64_t available_bytes = -1;
};

// Reads /proc and /sys below `root`, which is empty except in tests.
ProcessMemory ReadProcessMemory(const std::string& root = "");

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_RUNTIME_PROCESS_MEMORY_H_
