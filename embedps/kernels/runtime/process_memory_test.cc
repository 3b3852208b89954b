// Tests what is read of the machine's and of a container's memory.
#include "embedps/kernels/runtime/process_memory.h"

#include <filesystem>
#include <fstream>
#include <string>

#include "embedps/kernels/testing/testing.h"

namespace embedps {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

// A folder with files of /proc and /sys, as the kernel writes them.
class Kernel {
 public:
  Kernel() { Write("/proc/meminfo", "MemTotal: 8388608 kB\nMemAvailable: 4194304 kB\n"); }
  ~Kernel() { std::filesystem::remove_all(root()); }

  void Write(const std::string& path, const std::string& text) const {
    const std::filesystem::path file = root() + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  std::string root() const { return "/tmp/process_memory_test-" + std::to_string(::getpid()); }
};

TEST(ThisProcessHasMemory) {
  const ProcessMemory memory = ReadProcessMemory();
  EXPECT_TRUE(memory.resident_bytes > 100000);
  EXPECT_TRUE(memory.available_bytes > 0);
}

TEST(WithoutAContainerTheMachineIsTheLimit) {
  const Kernel kernel;
  kernel.Write("/proc/self/statm", "1000 250 100 1 0 300 0\n");
  kernel.Write("/sys/fs/cgroup/memory.max", "max\n");
  kernel.Write("/sys/fs/cgroup/memory.current", "123\n");
  const ProcessMemory memory = ReadProcessMemory(kernel.root());
  EXPECT_EQ(memory.resident_bytes, 250 * ::sysconf(_SC_PAGESIZE));
  EXPECT_EQ(memory.available_bytes, 4 * kGiB);
}

TEST(AContainersLimitLeavesWhatFilesDoNotNeed) {
  const Kernel kernel;
  kernel.Write("/sys/fs/cgroup/memory.max", std::to_string(2 * kGiB));
  kernel.Write("/sys/fs/cgroup/memory.current", std::to_string(kGiB));
  kernel.Write("/sys/fs/cgroup/memory.stat", "anon 5\ninactive_file 1000\nactive_file 7\n");
  EXPECT_EQ(ReadProcessMemory(kernel.root()).available_bytes, kGiB + 1000);
}

TEST(ControlGroupsOfVersion1AreRead) {
  const Kernel kernel;
  kernel.Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", std::to_string(kGiB));
  kernel.Write("/sys/fs/cgroup/memory/memory.usage_in_bytes", std::to_string(kGiB + 5));
  EXPECT_EQ(ReadProcessMemory(kernel.root()).available_bytes, 0);
}

TEST(WhatTheKernelDoesNotTellIsUnknown) {
  EXPECT_EQ(ReadProcessMemory("/nowhere").available_bytes, -1);
  EXPECT_EQ(ReadProcessMemory("/nowhere").resident_bytes, 0);
}

}  // namespace
}  // namespace embedps

int main() { return embedps::testing::RunAllTests(); }
