#include "embedps/kernels/store/stripe.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <set>
#include <unordered_map>
#include <vector>

#include "embedps/kernels/testing/testing.h"

namespace embedps {
namespace {

constexpr uint64_t kSalt = 7;
constexpr size_t kRowBytes = kHeaderBytes + 4;

uint64_t Hash(int64_t id) { return RowHash(kSalt, id); }

// Returns ids whose hashes belong to the first stripe.
std::vector<int64_t> IdsOfAStripe(size_t n) {
  std::vector<int64_t> ids;
  for (int64_t id = 0; ids.size() < n; ++id) {
    if (StripeOf(Hash(id)) == 0) ids.push_back(id);
  }
  return ids;
}

// Returns a stripe's memory for `rows` rows without its index.
int64_t RowsBytes(size_t count) {
  size_t room = 16;
  while (room < count) room = room < kChunkRows ? 2 * room : room + kChunkRows;
  size_t pointers = 1;
  while (pointers * kChunkRows < room) pointers *= 2;
  return static_cast<int64_t>(room * kRowBytes + pointers * sizeof(char*));
}

TEST(RowNumbersAreSortedAndEachOnceHoweverManyTheyAre) {
  uint64_t random = 1;
  for (const uint32_t limit : {1u, 63u, 64u, 65u, 5000u, 200000u}) {
    for (const uint32_t count :
         {0u, 1u, limit / 2048, limit / 1024, limit / 64, limit, 2 * limit}) {
      std::vector<uint32_t> numbers = {0, limit - 1, 0};
      for (uint32_t i = 0; i < count; ++i) {
        random = Mix64(random);
        numbers.push_back(random % limit);
      }
      const std::set<uint32_t> sorted(numbers.begin(), numbers.end());
      SortRows(limit, &numbers);
      EXPECT_TRUE(numbers == std::vector<uint32_t>(sorted.begin(), sorted.end()));
    }
  }
  std::vector<uint32_t> none;
  SortRows(0, &none);
  EXPECT_TRUE(none.empty());
}

float* FloatsOf(const Stripe& stripe, uint32_t number) {
  return reinterpret_cast<float*>(stripe.Row(number) + 1);  // after the header
}

TEST(RowsAreFoundThroughEveryGrowthOfTheIndexAndEveryRemoval) {
  const std::vector<int64_t> ids = IdsOfAStripe(60000);
  PagePool pool;
  Stripe stripe(kRowBytes, &pool);
  std::unordered_map<int64_t, uint32_t> numbers;  // the plain twin
  uint64_t random = 1;
  for (size_t i = 0; i < ids.size(); ++i) {
    EXPECT_EQ(stripe.Find(Hash(ids[i]), ids[i]), kNone);
    numbers[ids[i]] = stripe.Insert(Hash(ids[i]), ids[i], kSalt);
    *FloatsOf(stripe, numbers[ids[i]]) = static_cast<float>(i);
    random = Mix64(random);
    if (random % 3 != 0) continue;
    const int64_t id = ids[random / 3 % (i + 1)];
    EXPECT_EQ(stripe.Remove(Hash(id), id, kSalt), numbers.erase(id) == 1);
  }
  EXPECT_EQ(stripe.live(), static_cast<int64_t>(numbers.size()));
  for (size_t i = 0; i < ids.size(); ++i) {
    const uint32_t found = stripe.Find(Hash(ids[i]), ids[i]);
    const auto expected = numbers.find(ids[i]);
    EXPECT_EQ(found, expected == numbers.end() ? kNone : expected->second);
    if (found != kNone) EXPECT_EQ(*FloatsOf(stripe, found), static_cast<float>(i));
  }
}

TEST(RowsOfFewHomesAreFoundAfterEveryRemoval) {
  // Their probe sequences are long, and wrap in each size of the index.
  std::vector<int64_t> ids;
  for (int64_t id = 0; ids.size() < 300; ++id) {
    const uint64_t home = Hash(id) >> kStripeBits & (kSegmentEntries - 1);
    if (StripeOf(Hash(id)) == 0 && (home + 16) % kSegmentEntries < 32) ids.push_back(id);
  }
  PagePool pool;
  Stripe stripe(kRowBytes, &pool);
  std::unordered_map<int64_t, uint32_t> numbers;  // the plain twin
  uint64_t random = 1;
  for (int i = 0; i < 6000; ++i) {
    random = Mix64(random);
    const int64_t changed = ids[random % ids.size()];
    const auto found = numbers.find(changed);
    if (found == numbers.end()) {
      numbers[changed] = stripe.Insert(Hash(changed), changed, kSalt);
    } else {
      stripe.RemoveRow(Hash(changed), found->second, kSalt);
      numbers.erase(found);
    }
    if (i % 20 > 0) continue;
    for (const int64_t id : ids) {
      const auto expected = numbers.find(id);
      EXPECT_EQ(stripe.Find(Hash(id), id), expected == numbers.end() ? kNone : expected->second);
    }
  }
  EXPECT_TRUE(numbers.size() > 100);
}

TEST(AnIndexThatWasReservedHoldsItsRowsAsOneThatGrew) {
  const std::vector<int64_t> ids = IdsOfAStripe(30000);
  for (const size_t count : {1, 6, 7, 12, 3000, 3200, 3277, 6144, 6145, 30000}) {
    PagePool pool;
    Stripe grown(kRowBytes, &pool), reserved(kRowBytes, &pool);
    reserved.Reserve(count);
    const int64_t index_bytes = reserved.MemoryBytes();
    EXPECT_TRUE(index_bytes < static_cast<int64_t>(sizeof(Stripe) + 100 + 12 * count));
    for (size_t i = 0; i < count; ++i) {
      EXPECT_EQ(grown.Insert(Hash(ids[i]), ids[i], kSalt), i);
      EXPECT_EQ(reserved.Insert(Hash(ids[i]), ids[i], kSalt), i);
    }
    // The index did not grow. Only chunks of rows were added, as in the other stripe.
    EXPECT_EQ(reserved.MemoryBytes() - index_bytes, RowsBytes(count));
    for (size_t i = 0; i < ids.size(); ++i) {
      const uint32_t found = reserved.Find(Hash(ids[i]), ids[i]);
      EXPECT_EQ(found, grown.Find(Hash(ids[i]), ids[i]));
      EXPECT_EQ(found, i < count ? i : kNone);
    }
    reserved.Reserve(10 * count);  // changes nothing where there is an index
    EXPECT_EQ(reserved.MemoryBytes() - index_bytes, RowsBytes(count));
    reserved.Clear();
    EXPECT_EQ(reserved.Find(Hash(ids[0]), ids[0]), kNone);
  }
}

TEST(AnInsertNeverMovesMoreThanASegmentsEntries) {
  const std::vector<int64_t> ids = IdsOfAStripe(60000);
  PagePool pool;
  Stripe stripe(kRowBytes, &pool);
  int64_t before = stripe.MemoryBytes(), most = 0;
  for (const int64_t id : ids) {
    stripe.Insert(Hash(id), id, kSalt);
    const int64_t now = stripe.MemoryBytes();
    most = std::max(most, now - before);
    before = now;
  }
  // A segment, a chunk of rows and a directory of 32 entries may come at once. Doubling the whole
  // index would add 256 KiB here.
  EXPECT_TRUE(most <= static_cast<int64_t>(kSegmentEntries * 4 + kChunkRows * kRowBytes + 1024));
}

TEST(ARowIsListedOnceACutAndAnewWhenItComesBack) {
  PagePool pool;
  Stripe stripe(kRowBytes, &pool);
  const uint32_t number = stripe.Insert(Hash(64), 64, kSalt);
  stripe.Touch(number);
  stripe.Touch(number);
  EXPECT_EQ(stripe.open.size(), size_t{1});
  stripe.Remove(Hash(64), 64, kSalt);
  EXPECT_EQ(stripe.Insert(Hash(64), 64, kSalt), number);
  stripe.Touch(number);
  EXPECT_EQ(stripe.open.size(), size_t{2});
  stripe.ForgetTouches();
  stripe.Touch(number);
  EXPECT_EQ(stripe.open.size(), size_t{1});
}

TEST(TheLastStripeHasTwiceTheRowsOfTheFirst) {
  constexpr int kRows = 1 << 20;
  std::vector<int> rows(kStripes, 0);
  for (int id = 0; id < kRows; ++id) ++rows[StripeOf(Hash(id))];
  for (int k = 0; k < kStripes; ++k) {
    // The integral of the share from 0 to x is x (4 - x) / 3. The stripes are equal parts of it.
    const auto below = [](double part) { return 2 - std::sqrt(4 - 3 * part); };
    const double share = below((k + 1.0) / kStripes) - below(static_cast<double>(k) / kStripes);
    EXPECT_TRUE(std::abs(rows[k] - share * kRows) < 0.05 * share * kRows);
  }
  EXPECT_TRUE(rows[kStripes - 1] > 1.8 * rows[0]);
}

TEST(ARowTakesSixteenBytesBesideItsFloats) {
  const std::vector<int64_t> ids = IdsOfAStripe(50000);
  PagePool pool;
  Stripe stripe(kRowBytes, &pool);
  for (const int64_t id : ids) stripe.Insert(Hash(id), id, kSalt);
  // Plus an index entry of 4 bytes at a load factor between 0.4 and 0.8.
  EXPECT_TRUE(stripe.MemoryBytes() < 50000 * static_cast<int64_t>(kRowBytes + 10) + 100000);
}

}  // namespace
}  // namespace embedps

int main() { return embedps::testing::RunAllTests(); }
