// Makes a *_fuzz_test.cc a fuzz target. The test defines FuzzFile and names the folder of its
// seeds:
//
//   void FuzzFile(const std::string& path) { ... }
//   EMBEDPS_FUZZ_MAIN("row_file", FuzzFile)
//
// With -DEMBEDPS_LIBFUZZER, libFuzzer runs it (`python -m tools.fuzz`). Otherwise it is a test: it
// reads each seed in tests/fuzz_seeds/<folder> unchanged, truncated, and with changed bytes. The
// changes are the same in every run. Run it from the repository's root.
#ifndef EMBEDPS_KERNELS_TESTING_FUZZING_H_
#define EMBEDPS_KERNELS_TESTING_FUZZING_H_

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

namespace embedps {
namespace fuzzing {

using FuzzFunction = void (*)(const std::string& path);

// Calls `fuzz` with bytes as a file in memory.
inline void RunOn(const uint8_t* data, size_t size, FuzzFunction fuzz) {
  const int fd = ::memfd_create("fuzz", 0);
  if (fd < 0) std::abort();
  for (size_t done = 0; done < size;) {
    const ssize_t written = ::write(fd, data + done, size - done);
    if (written <= 0) std::abort();
    done += static_cast<size_t>(written);
  }
  fuzz("/proc/self/fd/" + std::to_string(fd));
  ::close(fd);
}

inline void RunOn(const std::vector<uint8_t>& bytes, FuzzFunction fuzz) {
  RunOn(bytes.data(), bytes.size(), fuzz);
}

// Makes one to four changes: flips a bit, sets a byte, sets a word to an extreme value, repeats a
// piece or removes one.
inline std::vector<uint8_t> Change(std::vector<uint8_t> bytes, std::mt19937_64& random) {
  static constexpr uint64_t kExtremes[] = {
      0, 1, 0x7f, 0xff, 0x7fffffff, 0xffffffff, 0x7fffffffffffffff, 0xffffffffffffffff};
  for (uint64_t left = 1 + random() % 4; left > 0 && !bytes.empty(); --left) {
    const size_t at = random() % bytes.size();
    const size_t length = std::min<size_t>(bytes.size() - at, 1 + random() % 16);
    const auto first = bytes.begin() + static_cast<std::ptrdiff_t>(at);
    const auto last = first + static_cast<std::ptrdiff_t>(length);
    switch (random() % 5) {
      case 0:
        bytes[at] ^= static_cast<uint8_t>(1u << (random() % 8));
        break;
      case 1:
        bytes[at] = static_cast<uint8_t>(random());
        break;
      case 2: {
        const uint64_t word = kExtremes[random() % std::size(kExtremes)];
        for (size_t i = 0; i < std::min<size_t>(8, bytes.size() - at); ++i) {
          bytes[at + i] = static_cast<uint8_t>(word >> (8 * i));
        }
        break;
      }
      case 3: {
        const std::vector<uint8_t> piece(first, last);
        bytes.insert(last, piece.begin(), piece.end());
        break;
      }
      default:
        bytes.erase(first, last);
    }
  }
  return bytes;
}

inline int ReplaySeeds(const char* folder, FuzzFunction fuzz) {
  constexpr int kChangesPerSeed = 300;
  std::vector<std::filesystem::path> seeds;
  std::error_code absent;
  const auto root = std::filesystem::path("tests/fuzz_seeds") / folder;
  for (const auto& entry : std::filesystem::directory_iterator(root, absent)) {
    seeds.push_back(entry.path());
  }
  if (seeds.empty()) {
    std::fprintf(stderr, "no seeds in %s: run from the repository's root\n", root.c_str());
    return 1;
  }
  std::sort(seeds.begin(), seeds.end());
  for (const auto& seed : seeds) {
    std::ifstream file(seed, std::ios::binary);
    const std::vector<uint8_t> bytes{std::istreambuf_iterator<char>(file), {}};
    RunOn(bytes, fuzz);
    std::mt19937_64 random(bytes.size());
    for (int i = 0; i < kChangesPerSeed; ++i) {
      RunOn(Change(bytes, random), fuzz);
      if (!bytes.empty()) RunOn(bytes.data(), random() % bytes.size(), fuzz);
    }
  }
  std::printf("%zu seeds\n", seeds.size());
  return 0;
}

}  // namespace fuzzing
}  // namespace embedps

#ifdef EMBEDPS_LIBFUZZER
#define EMBEDPS_FUZZ_MAIN(folder, fuzz)                                     \
  extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) { \
    embedps::fuzzing::RunOn(data, size, fuzz);                              \
    return 0;                                                               \
  }
#else
#define EMBEDPS_FUZZ_MAIN(folder, fuzz) \
  int main() { return embedps::fuzzing::ReplaySeeds(folder, fuzz); }
#endif

#endif  // EMBEDPS_KERNELS_TESTING_FUZZING_H_
