#include "embedps/kernels/runtime/settings.h"

#include <cstdint>

#include "embedps/kernels/testing/testing.h"

namespace embedps {
namespace {

constexpr const char* kColours[] = {"red", "green"};
enum class Colour { kRed, kGreen };

TEST(SettingsAreReadByName) {
  Settings settings("table 't': ", "low=-1e-07\nrows=9223372036854775807\nis_on=1\ncolour=green");
  float low = 0, kept = 3;
  int64_t rows = 0;
  bool is_on = false;
  Colour colour = Colour::kRed;
  settings.Number("low", -1, 1, &low);
  settings.Number("high", 0, 1, &kept);  // is not given
  settings.Number("rows", 0, INT64_MAX, &rows);
  settings.Flag("is_on", &is_on);
  settings.Name("colour", kColours, &colour);
  EXPECT_OK(settings.Check());
  EXPECT_EQ(low, static_cast<float>(-1e-07));
  EXPECT_EQ(kept, 3.0f);
  EXPECT_EQ(rows, INT64_MAX);
  EXPECT_TRUE(is_on);
  EXPECT_TRUE(colour == Colour::kGreen);
}

TEST(FirstFailureIsTold) {
  float rate = 0;
  for (const char* text : {"rate=2", "rate=-0.5", "rate=nan", "rate=", "rate=1x", "rate= 1"}) {
    Settings settings("table 't': ", std::string(text) + "\nother=1");
    settings.Number("rate", 0, 1, &rate);
    EXPECT_STATUS(settings.Check(), StatusCode::kInvalidArgument,
                  "table 't': rate must be in [0, 1] but got '" + std::string(text + 5) + "'");
  }
  int64_t whole = 0;
  Settings broken("", "whole=1.5");
  broken.Number("whole", 0, 9, &whole);
  EXPECT_STATUS(broken.Check(), StatusCode::kInvalidArgument, "whole must be in [0, 9]");
  Colour colour;
  Settings wrong("table 't': ", "colour=blue");
  wrong.Name("colour", kColours, &colour);
  EXPECT_STATUS(wrong.Check(), StatusCode::kInvalidArgument,
                "table 't': colour must be red or green but got 'blue'");
}

TEST(SettingThatNoKindReadsIsRefused) {
  EXPECT_STATUS(Settings("table 't': ", "Dislike.much=1").Check(), StatusCode::kInvalidArgument,
                "table 't': there is no setting Dislike.much");
  EXPECT_STATUS(Settings("table 't': ", "nothing").Check(), StatusCode::kInvalidArgument,
                "a setting must be name=value but got 'nothing'");
}

}  // namespace
}  // namespace embedps

int main() { return embedps::testing::RunAllTests(); }
