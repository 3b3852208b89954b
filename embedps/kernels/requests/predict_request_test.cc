#include "embedps/kernels/requests/predict_request.h"

#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "embedps/kernels/testing/testing.h"

namespace embedps {
namespace {

const int64_t kEnds[] = {2, 4, 7};
const RequestColumns kColumns = {"I1C1C10", kEnds, 1, 3, 4};  // I1, C1, C10

std::string Field(int number, const std::string& bytes) {
  return std::string{static_cast<char>(number << 3 | 2), static_cast<char>(bytes.size())} + bytes;
}

template <typename T>
std::string Content(const std::vector<T>& values) {
  return Field(
      4, std::string(reinterpret_cast<const char*>(values.data()), sizeof(T) * values.size()));
}

std::string Entry(const std::string& name, char dtype, char rows, const std::string& values) {
  const std::string shape = Field(2, Field(2, std::string{'\x08', rows}));
  return Field(2, Field(1, name) + Field(2, std::string{'\x08', dtype} + shape + values));
}

const std::string kSpec = Field(1, Field(1, "model"));
const std::string kFloats = Entry("I1", 1, 2, Content<float>({0.5f, -2.0f}));
const std::string kOne = Entry("C1", 9, 1, Field(10, std::string("\x96\x01")));  // 150, packed
const std::string kTwo = Entry("C10", 9, 2, Content<int64_t>({-1, int64_t{1} << 40}));

int64_t Find(const std::string& request, std::vector<ColumnPlace>* places) {
  places->assign(kColumns.num_columns, {});
  const std::vector<char> exact(request.begin(), request.end());  // an overrun is seen
  return FindColumns(exact.data(), exact.size(), kColumns, places->data());
}

int64_t Rows(const std::string& request) {
  std::vector<ColumnPlace> places;
  return Find(request, &places);
}

TEST(ReadsContentAndPackedValuesInAnyOrder) {
  for (const std::string& request :
       {kSpec + kFloats + kOne + kTwo, kTwo + kOne + kFloats, kOne + kSpec + kTwo + kFloats}) {
    std::vector<ColumnPlace> places;
    EXPECT_EQ(Find(request, &places), 2);
    std::vector<float> floats(2);
    std::vector<int64_t> integers(4);
    CopyColumns(request.data(), kColumns, places.data(), 2, floats.data(), integers.data());
    EXPECT_EQ(floats, (std::vector<float>{0.5f, -2.0f}));
    EXPECT_EQ(integers, (std::vector<int64_t>{150, 150, -1, int64_t{1} << 40}));
  }
}

TEST(SkipsFieldsThatItDoesNotKnow) {
  const std::string skipped = Field(15, std::string(90, 'x')) + "\x20\x07" + "\x2d....";
  EXPECT_EQ(Rows(skipped + kSpec + kFloats + skipped + kOne + kTwo + skipped), 2);
  std::string many;
  for (int i = 0; i < 1024; ++i) many += "\x20\x07";
  EXPECT_EQ(Rows(kSpec + kFloats + kOne + kTwo + many), 2);
  EXPECT_EQ(Rows(kSpec + kFloats + kOne + kTwo + many + "\x20\x07"), -1);
  EXPECT_EQ(Rows(kSpec + kFloats + kOne + kTwo + "\x20"), -1);                    // cut
  EXPECT_EQ(Rows(kSpec + kFloats + kOne + kTwo + "\x23\x24"), -1);                // a group
  EXPECT_EQ(Rows(kSpec + kFloats + kOne + kTwo + std::string("\x02\0", 2)), -1);  // number 0
  EXPECT_EQ(Rows(kSpec + kFloats + kOne + kTwo + "\xfa\xff\xff\xff\x1f" + std::string(1, 0)), -1);
}

TEST(DeclinesWhatIsNotUsual) {
  EXPECT_EQ(Rows(kSpec + kFloats + kOne), -1);                                 // one is absent
  EXPECT_EQ(Rows(kFloats + kOne + kTwo + kTwo), -1);                           // one comes twice
  EXPECT_EQ(Rows(kSpec + kSpec + kFloats + kOne + kTwo), -1);                  // two models
  EXPECT_EQ(Rows(kFloats + kOne + kTwo + Field(3, "score")), -1);              // a filter
  EXPECT_EQ(Rows(kFloats + kOne + Entry("C2", 9, 1, Field(10, "\x01"))), -1);  // unknown
  EXPECT_EQ(Rows(kFloats + kOne + Entry("C10", 1, 2, Content<float>({1, 2}))), -1);  // its dtype
  EXPECT_EQ(Rows(kFloats + kOne + Entry("C10", 9, 3, Content<int64_t>({1, 2}))), -1);
  EXPECT_EQ(Rows(kFloats + kOne + Entry("C10", 9, 2, Field(10, "\x01"))), -1);  // of one for both
  EXPECT_EQ(Rows(kFloats + kOne + Entry("C10", 9, 1, Content<int64_t>({1}) + Field(10, "\x01"))),
            -1);
  EXPECT_EQ(Rows(kFloats + kOne + Entry("C10", 9, 3, Content<int64_t>({1, 2, 3}))), -1);  // 2, 3
  EXPECT_EQ(Rows(kFloats + kOne + Entry("C10", 9, 5, Content<int64_t>({1, 2, 3, 4, 5}))), -1);
  EXPECT_EQ(Rows(kFloats + kOne + Entry("C10", 9, 0, "")), -1);
  EXPECT_EQ(Rows(""), -1);
}

TEST(DamagedBytesAreNeverReadBeyond) {
  const std::string whole = kSpec + kFloats + kOne + kTwo;
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_EQ(Rows(whole.substr(0, size)), -1);
  }
  std::mt19937 random(1);
  for (int turn = 0; turn < 20000; ++turn) {
    std::string damaged = whole;
    for (int i = 0; i < 1 + turn % 3; ++i) {
      damaged[random() % damaged.size()] = static_cast<char>(random());
    }
    std::vector<ColumnPlace> places;
    const int64_t rows = Find(damaged, &places);
    if (rows < 0) continue;
    std::vector<float> floats(rows);
    std::vector<int64_t> integers(2 * rows);
    CopyColumns(damaged.data(), kColumns, places.data(), rows, floats.data(), integers.data());
    for (const ColumnPlace& place : places) {
      EXPECT_TRUE(place.offset + place.num_bytes <= static_cast<int64_t>(damaged.size()));
    }
  }
}

}  // namespace
}  // namespace embedps

int main() { return embedps::testing::RunAllTests(); }
