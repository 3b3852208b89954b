#include "embedps/kernels/runtime/process_memory.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>

namespace embedps {
namespace {

// Returns the number behind a word of a file, or the first number if the word is empty; -1 if there
// is none.
int64_t ReadNumber(const std::string& path, const std::string& word = "") {
  std::ifstream file(path);
  int64_t number = -1;
  if (word.empty()) {
    file >> number;
    return file ? number : -1;
  }
  for (std::string text; file >> text;) {
    if (text == word && file >> number) return number;
  }
  return -1;
}

// What a control group of one version may still use; -1 if it has no limit. Pages of files that
// were not used lately count as free: the kernel takes them back first.
int64_t LeftInGroup(const std::string& folder, const char* limit, const char* usage,
                    const char* files) {
  const int64_t most = ReadNumber(folder + limit), used = ReadNumber(folder + usage);
  if (most < 0 || used < 0) return -1;
  const int64_t reclaimable = std::max<int64_t>(0, ReadNumber(folder + "memory.stat", files));
  return std::max<int64_t>(0, most - used + reclaimable);
}

}  // namespace

ProcessMemory ReadProcessMemory(const std::string& root) {
  ProcessMemory memory;
  std::ifstream statm(root + "/proc/self/statm");
  int64_t total_pages, resident_pages;
  if (statm >> total_pages >> resident_pages) {
    memory.resident_bytes = resident_pages * ::sysconf(_SC_PAGESIZE);
  }
  const int64_t of_machine = ReadNumber(root + "/proc/meminfo", "MemAvailable:");
  const std::string groups = root + "/sys/fs/cgroup/";
  const int64_t left[] = {
      of_machine < 0 ? -1 : of_machine * 1024,
      LeftInGroup(groups, "memory.max", "memory.current", "inactive_file"),
      LeftInGroup(groups + "memory/", "memory.limit_in_bytes", "memory.usage_in_bytes",
                  "total_inactive_file"),
  };
  for (const int64_t bytes : left) {
    if (bytes >= 0 && (memory.available_bytes < 0 || bytes < memory.available_bytes)) {
      memory.available_bytes = bytes;
    }
  }
  return memory;
}

}  // namespace embedps
