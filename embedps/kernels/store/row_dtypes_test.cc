// Rows of bfloat16 and float16: their bytes, their rounding, and their way through records.
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <thread>
#include <vector>

#include "embedps/kernels/runtime/hash.h"
#include "embedps/kernels/store/row_store.h"
#include "embedps/kernels/store/row_store_testing.h"
#include "embedps/kernels/store/row_updater.h"
#include "embedps/kernels/testing/testing.h"

namespace embedps {
namespace {

constexpr FloatDtype kHalves[] = {FloatDtype::kBfloat16, FloatDtype::kFloat16};

RowStoreConfig ConfigOf(int dim, OptimizerKind kind, FloatDtype row_dtype, FloatDtype slot_dtype) {
  RowStoreConfig config = MakeConfig(dim, 1, kind);
  config.row_dtype = row_dtype;
  config.slot_dtype = slot_dtype;
  config.optimizer.epsilon = 1e-8f;
  config.optimizer.beta1 = 0.9f;
  config.optimizer.beta2 = 0.999f;
  config.optimizer.initial_accumulator = 0.1f;
  config.tables[0].seed = 5;
  config.tables[0].initializer = {InitializerConfig::Kind::kUniform, -0.25, 0.25};
  return config;
}

RowLayout Layout(int dim, FloatDtype row_dtype, FloatDtype slot_dtype, int slot_floats = 1) {
  return RowLayout(dim, slot_floats, row_dtype, slot_dtype);
}

TEST(RowsTakeTheBytesThatTheGuideStates) {
  constexpr auto kFloat = FloatDtype::kFloat32, kHalf = FloatDtype::kBfloat16;
  EXPECT_EQ(Layout(16, kFloat, kFloat).row_bytes(), size_t{84});
  EXPECT_EQ(Layout(16, kHalf, kFloat).row_bytes(), size_t{52});
  EXPECT_EQ(Layout(64, kFloat, kFloat).row_bytes(), size_t{276});
  EXPECT_EQ(Layout(64, kHalf, kFloat).row_bytes(), size_t{148});
  EXPECT_EQ(Layout(64, FloatDtype::kFloat16, kFloat).row_bytes(), size_t{148});
  EXPECT_EQ(Layout(64, kHalf, kHalf, 128).row_bytes(), size_t{16 + 128 + 256});  // lazy Adam
  EXPECT_EQ(Layout(3, kHalf, kHalf, 3).row_bytes(), size_t{16 + 8 + 8});         // parts are padded
}

TEST(NewRowsAreTheNearestOfTheirInitialValues) {
  const Batch batch{Range(-20, 20)};
  for (const FloatDtype dtype : kHalves) {
    RowStoreConfig config = ConfigOf(5, OptimizerKind::kAdagrad, FloatDtype::kFloat32, dtype);
    config.slot_dtype = FloatDtype::kFloat32;
    RowStore exact(config);
    config.row_dtype = dtype;
    RowStore store(config);
    config.tables[0].max_rows = 1;
    config.tables[0].absent_reads_initial = true;
    RowStore full(config);
    std::vector<float> expected = Lookup(&exact, batch);
    RoundInPlace(dtype, static_cast<int>(expected.size()), expected.data());
    EXPECT_TRUE(Lookup(&store, batch) == expected);
    EXPECT_TRUE(Lookup(&store, batch) == expected);
    EXPECT_TRUE(Lookup(&full, batch) == expected);  // also those that get no row
    EXPECT_EQ(NumRows(full, 0), 1);
  }
}

TEST(AnUpdateIsThatOfFloat32RoundedAtRandom) {
  for (const FloatDtype dtype : kHalves) {
    for (const FloatDtype slots : {FloatDtype::kFloat32, FloatDtype::kBfloat16}) {
      for (const OptimizerKind kind : {OptimizerKind::kSgd, OptimizerKind::kAdagrad,
                                       OptimizerKind::kRowwiseAdagrad, OptimizerKind::kLazyAdam}) {
        constexpr int kDim = 7;
        const RowStoreConfig config = ConfigOf(kDim, kind, dtype, slots);
        RowStore store(config);
        const Batch batch{Range(0, 30)};
        Lookup(&store, batch);
        for (uint32_t step = 1; step < 6; ++step) {
          Rows expected = BaseOf(&store);
          for (auto& [key, record] : expected) {
            float* floats = record.floats.data();
            std::vector<float> gradient(kDim, 0.01f * step);
            const uint32_t passed = StepsPassed(record.frequency, record.last_step, step);
            ++record.frequency;
            record.last_step = step;
            ApplyUpdate(config.optimizer, kDim, 0.1f, record.frequency, passed, gradient.data(),
                        floats, floats + kDim);
            const uint64_t hash = RowHash(TableSalt("t0"), key.second);
            const uint64_t seed = RoundingKey(5, hash, step);
            std::vector<float> rounded(record.floats.size());
            const int num_slots = static_cast<int>(rounded.size()) - kDim;
            std::vector<uint16_t> halves(rounded.size());
            RoundAtRandom(dtype, floats, kDim, seed, 0, halves.data());
            Widen(dtype, halves.data(), kDim, floats);
            if (slots == FloatDtype::kFloat32) continue;
            RoundAtRandom(slots, floats + kDim, num_slots, seed, (kDim + 1) / 2, halves.data());
            Widen(slots, halves.data(), num_slots, floats + kDim);
          }
          Update(&store, batch, 0.01f * step, 0.1f, step);
          EXPECT_TRUE(BaseOf(&store) == expected);
        }
      }
    }
  }
}

TEST(SmallChangesAddUpOverManySteps) {
  // Each step takes a hundredth of the distance to the next value. Rounded to the nearest, no
  // weight would move.
  for (const FloatDtype dtype : kHalves) {
    RowStoreConfig config = ConfigOf(64, OptimizerKind::kSgd, dtype, FloatDtype::kFloat32);
    config.tables[0].initializer = {InitializerConfig::Kind::kConstant, 1, 0};
    RowStore store(config);
    const Batch batch{Range(0, 50)};
    Lookup(&store, batch);
    const float change = (dtype == FloatDtype::kBfloat16 ? 0x1p-7f : 0x1p-10f) / 100;
    constexpr int kSteps = 400;
    for (uint32_t step = 0; step < kSteps; ++step) Update(&store, batch, -change, 1, step);
    const std::vector<float> found = Lookup(&store, batch);
    double sum = 0;
    for (const float value : found) sum += value - 1;
    EXPECT_NEAR(sum / static_cast<double>(found.size()), kSteps * change, 0.02 * kSteps * change);
  }
}

TEST(AnAccumulatorOfBfloat16KeepsGrowing) {
  // The accumulator of gradients of 1 must count the steps. Rounded to the nearest it stays at 256,
  // where 1 is half of its last bit.
  RowStoreConfig config =
      ConfigOf(64, OptimizerKind::kAdagrad, FloatDtype::kBfloat16, FloatDtype::kBfloat16);
  config.optimizer.initial_accumulator = 0;
  RowStore store(config);
  const Batch batch{Range(0, 20)};
  Lookup(&store, batch);
  constexpr int kSteps = 2000;
  for (uint32_t step = 0; step < kSteps; ++step) Update(&store, batch, 1, 0.01f, step);
  double sum = 0;
  for (const auto& [key, record] : BaseOf(&store)) {
    for (int i = 64; i < 128; ++i) sum += record.floats[i];
  }
  EXPECT_NEAR(sum / (20 * 64), kSteps, 0.02 * kSteps);
}

TEST(Float16StopsAtItsGreatestValue) {
  RowStoreConfig config =
      ConfigOf(4, OptimizerKind::kSgd, FloatDtype::kFloat16, FloatDtype::kFloat32);
  RowStore store(config);
  const Batch batch{{1}};
  Lookup(&store, batch);
  Update(&store, batch, -1e6f, 1, 1);
  EXPECT_EQ(Lookup(&store, batch), std::vector<float>(4, 65504.0f));
  Update(&store, batch, 1e6f, 1, 2);
  EXPECT_EQ(Lookup(&store, batch), std::vector<float>(4, -65504.0f));
  Update(&store, batch, -65504.0f, 1, 3);  // and it comes back
  EXPECT_EQ(Lookup(&store, batch), std::vector<float>(4, 0.0f));
  Update(&store, batch, std::numeric_limits<float>::infinity(), 1, 4);  // which shows a mistake
  EXPECT_TRUE(std::isinf(Lookup(&store, batch)[0]));
}

TEST(RowsDoNotDependOnThreadsOrOnWhoElseIsUpdated) {
  const auto threads_for = [](int64_t n, int64_t, const auto& work) {
    std::vector<std::thread> threads;
    for (int64_t i = 0; i < 3; ++i) {
      const int64_t begin = n * i / 3, end = n * (i + 1) / 3;
      if (begin < end) threads.emplace_back([&work, begin, end] { work(begin, end); });
    }
    for (std::thread& thread : threads) thread.join();
  };
  const RowStoreConfig config =
      ConfigOf(6, OptimizerKind::kLazyAdam, FloatDtype::kBfloat16, FloatDtype::kBfloat16);
  RowStore whole(config), even(config), odd(config);
  for (uint32_t step = 1; step < 8; ++step) {
    for (auto [store, every] : {std::pair(&whole, 1), {&even, 2}, {&odd, -2}}) {
      std::vector<int64_t> ids;
      for (int64_t id = 0; id < 500; ++id) {
        if (every == 1 || id % 2 == (every < 0)) ids.push_back(id);
      }
      const Batch batch{ids};
      std::vector<float> rows(ids.size() * 6), gradients(ids.size() * 6);
      for (size_t i = 0; i < ids.size() * 6; ++i) {
        gradients[i] = std::sin(static_cast<float>(ids[i / 6] * 6 + i % 6 + step));
      }
      EXPECT_OK(store->Lookup(batch.view(), true, SerialFor, rows.data()));
      const ParallelFor parallel = every == 1 ? ParallelFor(threads_for) : ParallelFor(SerialFor);
      store->Update(batch.view(), gradients.data(), 0.1f, step, parallel);
    }
  }
  Rows apart = BaseOf(&even);
  for (const auto& row : BaseOf(&odd)) apart.insert(row);
  EXPECT_TRUE(BaseOf(&whole) == apart);
}

TEST(RecordsGiveTheSameRowsAgainAndOtherDtypesRoundToTheNearest) {
  for (const FloatDtype dtype : kHalves) {
    const RowStoreConfig config =
        ConfigOf(5, OptimizerKind::kAdagrad, dtype, FloatDtype::kBfloat16);
    RowStore store(config);
    const Batch batch{Range(0, 100)};
    Lookup(&store, batch);
    Update(&store, batch, 0.3f, 0.1f, 1);
    const RowFileSchema schema = store.FileSchema();
    EXPECT_TRUE(schema.embedding_encoding == (dtype == FloatDtype::kBfloat16
                                                  ? EmbeddingEncoding::kBfloat16
                                                  : EmbeddingEncoding::kFloat16));
    EXPECT_TRUE(schema.optimizer_slot_encoding == OptimizerSlotEncoding::kBfloat16);
    int64_t cut;
    const auto records = RecordsOf(&store, CutKind::kBase, -1, &cut);
    RowStore again(config);
    for (const RowColumns& columns : records) again.Load(columns, {0}, 0, 1, true, SerialFor);
    EXPECT_TRUE(BaseOf(&again) == BaseOf(&store));

    // From float32: both parts round to the nearest.
    RowStore wide(ConfigOf(5, OptimizerKind::kAdagrad, FloatDtype::kFloat32, FloatDtype::kFloat32));
    Lookup(&wide, batch);
    Update(&wide, batch, 0.3f, 0.1f, 1);
    Rows expected = BaseOf(&wide);
    for (auto& [key, record] : expected) {
      RoundInPlace(dtype, 5, record.floats.data());
      RoundInPlace(FloatDtype::kBfloat16, 5, record.floats.data() + 5);
    }
    RowStore narrow(config);
    for (const RowColumns& columns : RecordsOf(&wide, CutKind::kBase, -1, &cut)) {
      narrow.Load(columns, {0}, 0, 1, true, SerialFor);
    }
    EXPECT_TRUE(BaseOf(&narrow) == expected);
  }
}

}  // namespace
}  // namespace embedps

int main(int argc, char** argv) { return embedps::testing::RunAllTests(argc, argv); }
