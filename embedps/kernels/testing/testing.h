// The macros of the C++ unit tests. A *_test.cc is a plain executable: it needs only a compiler and
// runs under any sanitizer.
//
//   TEST(RowsComeBackInOrder) { EXPECT_EQ(reader.rows(), 3); }
//   int main() { return embedps::testing::RunAllTests(); }
#ifndef EMBEDPS_KERNELS_TESTING_TESTING_H_
#define EMBEDPS_KERNELS_TESTING_TESTING_H_

#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <iostream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "embedps/kernels/runtime/status.h"

namespace embedps {
namespace testing {

struct Test {
  const char* name;
  void (*body)();
};

inline std::vector<Test>& Tests() {
  static auto* tests = new std::vector<Test>;
  return *tests;
}

// Counts the failures of all tests so far. Threads of a test may add to it.
inline std::atomic<int>& Failures() {
  static auto* failures = new std::atomic<int>(0);
  return *failures;
}

struct Registration {
  Registration(const char* name, void (*body)()) { Tests().push_back({name, body}); }
};

inline void Fail(const char* file, int line, const std::string& message) {
  ++Failures();
  std::ostringstream text;
  text << file << ":" << line << ": " << message << "\n";
  std::cerr << text.str();
}

template <typename T>
auto Show(std::ostream& out, const T& value, int) -> decltype(out << value, void()) {
  out << value;
}
template <typename T>
void Show(std::ostream& out, const T&, long) {
  out << "<" << sizeof(T) << " bytes>";
}
template <typename T>
std::string ToText(const T& value) {
  std::ostringstream out;
  out.precision(17);
  Show(out, value, 0);
  return out.str();
}
template <typename T>
std::string ToText(const std::vector<T>& values) {
  constexpr size_t kShown = 16;
  std::string text = "{";
  for (size_t i = 0; i < values.size() && i < kShown; ++i) {
    text += (i == 0 ? "" : ", ") + ToText(values[i]);
  }
  return text + (values.size() > kShown ? ", ...}" : "}") + " (" + std::to_string(values.size()) +
         ")";
}

inline bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Makes an empty directory and removes it with the object.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string pattern = (std::filesystem::temp_directory_path() / "embedps_test.XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) std::abort();
    path_ = pattern;
  }
  ~TemporaryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  std::string Path(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

// Runs every test, or those whose name contains argv[1]. Returns 0 if all passed.
inline int RunAllTests(int argc = 0, char** argv = nullptr) {
  int num_run = 0;
  for (const Test& test : Tests()) {
    if (argc > 1 && !Contains(test.name, argv[1])) continue;
    const int failures_before = Failures();
    try {
      test.body();
    } catch (const std::exception& error) {
      Fail(test.name, 0, std::string("exception: ") + error.what());
    }
    ++num_run;
    std::cerr << (Failures() == failures_before ? "ok     " : "FAILED ") << test.name << "\n";
  }
  std::cerr << num_run << " tests, " << Failures() << " failures\n";
  return num_run > 0 && Failures() == 0 ? 0 : 1;
}

}  // namespace testing
}  // namespace embedps

#define TEST(name)                                                                   \
  static void name();                                                                \
  static ::embedps::testing::Registration embedps_registration_##name(#name, &name); \
  static void name()

#define EXPECT_TRUE(condition)                                              \
  do {                                                                      \
    if (!(condition)) {                                                     \
      ::embedps::testing::Fail(__FILE__, __LINE__, "expected " #condition); \
    }                                                                       \
  } while (0)

#define EXPECT_FALSE(condition) EXPECT_TRUE(!(condition))

#define EXPECT_EQ(found, expected)                                                                \
  do {                                                                                            \
    const auto& embedps_found = (found);                                                          \
    const auto& embedps_expected = (expected);                                                    \
    if (!(embedps_found == embedps_expected)) {                                                   \
      ::embedps::testing::Fail(                                                                   \
          __FILE__, __LINE__,                                                                     \
          "expected " #found " == " + ::embedps::testing::ToText(embedps_expected) + ", found " + \
              ::embedps::testing::ToText(embedps_found));                                         \
    }                                                                                             \
  } while (0)

#define EXPECT_NEAR(found, expected, tolerance)                                                \
  do {                                                                                         \
    const double embedps_found = (found);                                                      \
    const double embedps_expected = (expected);                                                \
    if (!(std::abs(embedps_found - embedps_expected) <= (tolerance))) {                        \
      ::embedps::testing::Fail(__FILE__, __LINE__,                                             \
                               "expected " #found " within " #tolerance " of " +               \
                                   ::embedps::testing::ToText(embedps_expected) + ", found " + \
                                   ::embedps::testing::ToText(embedps_found));                 \
    }                                                                                          \
  } while (0)

// Expects `part` in the text.
#define EXPECT_CONTAINS(text, part)                                                         \
  do {                                                                                      \
    const std::string embedps_text = (text);                                                \
    if (!::embedps::testing::Contains(embedps_text, (part))) {                              \
      ::embedps::testing::Fail(__FILE__, __LINE__,                                          \
                               "expected '" + std::string(part) + "' in: " + embedps_text); \
    }                                                                                       \
  } while (0)

#define EXPECT_OK(expr)                                                              \
  do {                                                                               \
    const ::embedps::Status embedps_expect_status = (expr);                          \
    if (!embedps_expect_status.ok()) {                                               \
      ::embedps::testing::Fail(__FILE__, __LINE__,                                   \
                               #expr " failed: " + embedps_expect_status.message()); \
    }                                                                                \
  } while (0)

// Like EXPECT_OK, but a failure ends the test.
#define ASSERT_OK(expr)                                                              \
  do {                                                                               \
    const ::embedps::Status embedps_expect_status = (expr);                          \
    if (!embedps_expect_status.ok()) {                                               \
      ::embedps::testing::Fail(__FILE__, __LINE__,                                   \
                               #expr " failed: " + embedps_expect_status.message()); \
      return;                                                                        \
    }                                                                                \
  } while (0)

// Expects the status code, and every given part in the message.
#define EXPECT_STATUS(expr, expected_code, ...)                                       \
  do {                                                                                \
    const ::embedps::Status embedps_expect_status = (expr);                           \
    if (embedps_expect_status.code() != (expected_code)) {                            \
      ::embedps::testing::Fail(                                                       \
          __FILE__, __LINE__,                                                         \
          #expr ": expected " #expected_code ", found code " +                        \
              std::to_string(static_cast<int>(embedps_expect_status.code())) + ": " + \
              embedps_expect_status.message());                                       \
    }                                                                                 \
    for (const std::string& embedps_part : std::vector<std::string>{__VA_ARGS__}) {   \
      EXPECT_CONTAINS(embedps_expect_status.message(), embedps_part);                 \
    }                                                                                 \
  } while (0)

#endif  // EMBEDPS_KERNELS_TESTING_TESTING_H_
