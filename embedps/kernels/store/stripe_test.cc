#include "embedps/kernels/store/stripe.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "embedps/kernels/runtime/hash.h"
#include "embedps/kernels/testing/chosen_ids.h"
#include "embedps/kernels/testing/testing.h"

namespace embedps {
namespace {

constexpr size_t kRowBytes = kHeaderBytes + 4;

const uint64_t kSalt = TableSalt("t");

uint64_t Hash(int64_t id) { return PlaceHash(RowHash(kSalt, id)); }

// Returns ids of which every seventh is a number in order, and the others were chosen to be in one
// stripe and to share bits of their hashes.
std::vector<int64_t> IdsOfAStripe(size_t n) {
  std::vector<int64_t> ids = testing::ChosenIds(kSalt, n);
  for (size_t i = 0; i < n; i += 7) ids[i] = static_cast<int64_t>(i);
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

float* FloatsOf(const Stripe& stripe, uint32_t number) {
  return reinterpret_cast<float*>(stripe.Row(number) + 1);  // after the header
}

TEST(RowsAreFoundThroughEveryGrowthOfTheIndexAndEveryRemoval) {
  const std::vector<int64_t> ids = IdsOfAStripe(60000);
  PagePool pool;
  Stripe stripe(kRowBytes, &pool, kSalt);
  std::unordered_map<int64_t, uint32_t> numbers;  // the plain twin
  uint64_t random = 1;
  for (size_t i = 0; i < ids.size(); ++i) {
    EXPECT_EQ(stripe.Find(Hash(ids[i]), ids[i]), kNone);
    numbers[ids[i]] = stripe.Insert(Hash(ids[i]), ids[i]);
    *FloatsOf(stripe, numbers[ids[i]]) = static_cast<float>(i);
    random = Mix64(random);
    if (random % 3 != 0) continue;
    const int64_t id = ids[random / 3 % (i + 1)];
    EXPECT_EQ(stripe.Remove(Hash(id), id), numbers.erase(id) == 1);
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
    const uint64_t home = Hash(id) & (kSegmentEntries - 1);
    if ((home + 16) % kSegmentEntries < 32) ids.push_back(id);
  }
  PagePool pool;
  Stripe stripe(kRowBytes, &pool, kSalt);
  std::unordered_map<int64_t, uint32_t> numbers;  // the plain twin
  uint64_t random = 1;
  for (int i = 0; i < 6000; ++i) {
    random = Mix64(random);
    const int64_t changed = ids[random % ids.size()];
    const auto found = numbers.find(changed);
    if (found == numbers.end()) {
      numbers[changed] = stripe.Insert(Hash(changed), changed);
    } else {
      stripe.RemoveRow(Hash(changed), found->second);
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
    Stripe grown(kRowBytes, &pool, kSalt), reserved(kRowBytes, &pool, kSalt);
    reserved.Reserve(count);
    const int64_t index_bytes = reserved.MemoryBytes();
    EXPECT_TRUE(index_bytes < static_cast<int64_t>(sizeof(Stripe) + 100 + 12 * count));
    for (size_t i = 0; i < count; ++i) {
      EXPECT_EQ(grown.Insert(Hash(ids[i]), ids[i]), i);
      EXPECT_EQ(reserved.Insert(Hash(ids[i]), ids[i]), i);
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
  Stripe stripe(kRowBytes, &pool, kSalt);
  int64_t before = stripe.MemoryBytes(), most = 0;
  for (const int64_t id : ids) {
    stripe.Insert(Hash(id), id);
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
  Stripe stripe(kRowBytes, &pool, kSalt);
  const uint32_t number = stripe.Insert(Hash(64), 64);
  const std::vector<uint32_t> alone = {number};
  stripe.Touch(number);
  stripe.Touch(number);
  EXPECT_TRUE(stripe.open.Numbers() == alone);
  EXPECT_TRUE(stripe.open.Take() == alone);  // as a cut does
  stripe.Touch(number);                      // which has not copied the row yet
  EXPECT_TRUE(stripe.open.empty());
  stripe.Remove(Hash(64), 64);
  EXPECT_EQ(stripe.Insert(Hash(64), 64), number);
  stripe.Touch(number);
  EXPECT_TRUE(stripe.open.Numbers() == alone);
  stripe.ForgetTouches();
  EXPECT_TRUE(stripe.open.empty());
  stripe.Touch(number);
  EXPECT_TRUE(stripe.open.Numbers() == alone);
}

TEST(TheLastStripeHasTwiceTheRowsOfTheFirst) {
  constexpr int kRows = 1 << 20;
  std::vector<int> rows(kStripes, 0);
  for (int id = 0; id < kRows; ++id) ++rows[StripeOf(RowHash(kSalt, id))];
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
  Stripe stripe(kRowBytes, &pool, kSalt);
  for (const int64_t id : ids) stripe.Insert(Hash(id), id);
  // Plus an index entry of 4 bytes at a load factor between 0.4 and 0.8.
  EXPECT_TRUE(stripe.MemoryBytes() < 50000 * static_cast<int64_t>(kRowBytes + 10) + 100000);
}

TEST(IdsChosenToShareBitsOfTheirHashesTakeTheMemoryOfOthers) {
  for (const int64_t count : {3277, 5000, 100000}) {
    const std::vector<int64_t> chosen = testing::ChosenIds(kSalt, count);
    PagePool pool;
    Stripe of_chosen(kRowBytes, &pool, kSalt), of_others(kRowBytes, &pool, kSalt);
    for (int64_t i = 0; i < count; ++i) {
      of_chosen.Insert(Hash(chosen[i]), chosen[i]);
      of_others.Insert(Hash(i), i);
    }
    EXPECT_EQ(of_chosen.live(), count);
    EXPECT_TRUE(4 * of_chosen.MemoryBytes() < 5 * of_others.MemoryBytes());
  }
}

TEST(WhoKnewTheSecretWouldGetNoMemoryBeyondHisRows) {
  // Ids that share 12 bits of the directory, so that a segment of more of them cannot be split.
  std::vector<int64_t> ids;
  for (int64_t id = 0; ids.size() < 3300; ++id) {
    if ((Hash(id) >> kSegmentBits & 0xFFF) == 0) ids.push_back(id);
  }
  PagePool pool;
  Stripe stripe(kRowBytes, &pool, kSalt);
  int64_t refused = 0;
  for (const int64_t id : ids) refused += stripe.Insert(Hash(id), id) == kNone;
  EXPECT_EQ(refused, int64_t{3300 - kSegmentEntries * 4 / 5});
  EXPECT_EQ(stripe.live(), 3300 - refused);
  EXPECT_TRUE(stripe.MemoryBytes() < RowsBytes(3300) + 10 * int64_t{4 * kSegmentEntries});
  // The others have a place still.
  for (int64_t id = -1000; id < 0; ++id) refused += stripe.Insert(Hash(id), id) == kNone;
  EXPECT_TRUE(stripe.live() > 3300 - 100 + 1000 - 100);
  for (const int64_t id : ids) EXPECT_TRUE(stripe.Find(Hash(id), id) != kNone || refused > 0);
}

}  // namespace
}  // namespace embedps

int main() { return embedps::testing::RunAllTests(); }
