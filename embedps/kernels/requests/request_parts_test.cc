#include "embedps/kernels/requests/request_parts.h"

#include <cstdint>
#include <string>
#include <vector>

#include "embedps/kernels/testing/testing.h"

namespace embedps {
namespace {

std::string Field(int number, const std::string& bytes) {
  return std::string{static_cast<char>(number << 3 | 2), static_cast<char>(bytes.size())} + bytes;
}

std::string Tensor(const std::string& fields) {
  return Field(2, Field(1, "C1") + Field(2, fields));
}

constexpr int64_t kTensorObjects = 3;  // the entry, its name and the tensor

bool Count(const std::string& request, RequestParts* parts) {
  const std::vector<char> exact(request.begin(), request.end());  // an overrun is seen
  return CountParts(exact.data(), exact.size(), parts);
}

TEST(CountsObjectsTextsAndNumbers) {
  RequestParts parts;
  EXPECT_TRUE(Count("", &parts));
  EXPECT_EQ(parts.objects, 0);
  EXPECT_TRUE(Count(Field(1, Field(1, "model")) + Field(3, "score"), &parts));
  EXPECT_EQ(parts.objects, 3);
  EXPECT_EQ(parts.name_bytes, 7 + 5);  // the whole model_spec, and the filter
  const std::string dims = Field(2, Field(2, "\x08\x02") + Field(2, ""));
  EXPECT_TRUE(Count(Tensor("\x08\x09" + dims + Field(8, "a") + Field(8, "")), &parts));
  EXPECT_EQ(parts.objects, kTensorObjects + 3);
  EXPECT_EQ(parts.texts, 2);
  EXPECT_EQ(parts.name_bytes, 2 + 6);  // of the input, and the whole shape
  const std::string packed = Field(5, std::string(8, 'x')) + Field(10, std::string("\x96\x01\x05"));
  EXPECT_TRUE(Count(Tensor(packed + "\x50\x07" + "\x2d...."), &parts));
  EXPECT_EQ(parts.numbers, 2 + 2 + 1 + 1);
  EXPECT_EQ(parts.name_bytes, 2);
  EXPECT_TRUE(Count(Tensor(Field(14, "....")), &parts));  // a handle, of four messages at most
  EXPECT_EQ(parts.objects, kTensorObjects + 5);
}

TEST(RefusesGroupsAndCutMessages) {
  RequestParts parts;
  EXPECT_TRUE(!Count("\x13\x14", &parts));
  const std::string whole = Field(1, Field(1, "model")) + Tensor(Field(10, "\x05"));
  const int64_t first = Field(1, Field(1, "model")).size();
  for (int64_t size = 1; size < static_cast<int64_t>(whole.size()); ++size) {
    EXPECT_EQ(Count(whole.substr(0, size), &parts), size == first);
  }
}

}  // namespace
}  // namespace embedps

int main() { return embedps::testing::RunAllTests(); }
