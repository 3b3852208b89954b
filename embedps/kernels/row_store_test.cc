#include "embedps/kernels/row_store.h"

#include <atomic>
#include <cmath>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "embedps/kernels/hash.h"
#include "embedps/kernels/testing.h"

namespace embedps {
namespace {

constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
using CutKind = RowStore::CutKind;

RowStoreConfig MakeConfig(int dim, int num_tables, OptimizerKind kind = OptimizerKind::kSgd) {
  RowStoreConfig config;
  config.group = "test-group";
  config.dim = dim;
  config.optimizer.kind = kind;
  for (int t = 0; t < num_tables; ++t) {
    TableConfig table;
    table.name = "t" + std::to_string(t);
    config.tables.push_back(table);
  }
  return config;
}

// A batch that owns its ids, given by table.
struct Batch {
  Batch(std::initializer_list<std::vector<int64_t>> by_table) {
    splits.push_back(0);
    for (const auto& table : by_table) {
      ids.insert(ids.end(), table.begin(), table.end());
      splits.push_back(static_cast<int32_t>(ids.size()));
    }
  }
  IdBatch view() const { return {ids.data(), static_cast<int64_t>(ids.size()), splits.data()}; }

  std::vector<int64_t> ids;
  std::vector<int32_t> splits;
};

std::vector<float> Lookup(RowStore* store, const Batch& batch, bool insert = true) {
  std::vector<float> rows(batch.ids.size() * store->config().dim);
  store->Lookup(batch.view(), insert, SerialFor, rows.data());
  return rows;
}

void Update(RowStore* store, const Batch& batch, float gradient, float learning_rate,
            uint32_t step) {
  const std::vector<float> gradients(batch.ids.size() * store->config().dim, gradient);
  store->Update(batch.view(), gradients.data(), learning_rate, step, SerialFor);
}

int64_t NumRows(const RowStore& store, int table) { return store.Stats().rows[table]; }

// One range a thread, so that neighbouring ranges run at the same time.
void ThreadsFor(int64_t n, int64_t, const std::function<void(int64_t, int64_t)>& work) {
  constexpr int64_t kThreads = 3;
  std::vector<std::thread> threads;
  for (int64_t i = 0; i < kThreads; ++i) {
    const int64_t begin = n * i / kThreads, end = n * (i + 1) / kThreads;
    if (begin < end) threads.emplace_back([&work, begin, end] { work(begin, end); });
  }
  for (std::thread& thread : threads) thread.join();
}

struct Record {
  std::vector<float> floats;  // embedding, then slots
  uint32_t last_step = 0;
  uint32_t frequency = 0;
  bool operator==(const Record& other) const {
    return floats == other.floats && last_step == other.last_step && frequency == other.frequency;
  }
};
using Rows = std::map<std::pair<int, int64_t>, Record>;

// What a reader that applies records in order has after these.
void Apply(const RowColumns& columns, int dim, Rows* rows) {
  for (int64_t i = 0; i < columns.num_rows; ++i) {
    const std::pair<int, int64_t> key(columns.table[i], columns.id[i]);
    if (columns.removed[i]) {
      rows->erase(key);
      continue;
    }
    Record record;
    const float* embedding = &columns.embedding[i * dim];
    record.floats.assign(embedding, embedding + dim);
    for (const auto& slot : columns.optimizer_slots) {
      const int64_t width = static_cast<int64_t>(slot.size()) / columns.num_rows;
      record.floats.insert(record.floats.end(), &slot[i * width], &slot[i * width] + width);
    }
    record.last_step = columns.last_step[i];
    record.frequency = columns.frequency[i];
    (*rows)[key] = record;
  }
}

// Cuts onto `rows`; gives the cut, and how many records came.
int64_t CutOnto(RowStore* store, CutKind kind, int64_t since, Rows* rows,
                int64_t* records = nullptr) {
  int64_t cut = -100, count = 0;
  EXPECT_OK(store->Cut(
      kind, since,
      [&](const RowColumns& columns) {
        count += columns.num_rows;
        Apply(columns, store->config().dim, rows);
        return Status::Ok();
      },
      &cut));
  if (records != nullptr) *records = count;
  return cut;
}

Rows BaseOf(RowStore* store) {
  Rows rows;
  int64_t records;
  CutOnto(store, CutKind::kBase, -1, &rows, &records);
  EXPECT_EQ(records, static_cast<int64_t>(rows.size()));  // each once
  return rows;
}

std::vector<int64_t> Range(int64_t first, int64_t last) {
  std::vector<int64_t> ids;
  for (int64_t i = first; i < last; ++i) ids.push_back(i);
  return ids;
}

TEST(InitialValuesDependOnSeedTableAndIdAlone) {
  TableConfig table;
  table.name = "C1";
  table.initializer = {InitializerConfig::Kind::kUniform, -0.5f, 0.25f};
  const auto values = [](const TableConfig& t, int64_t id) {
    std::vector<float> v(9);
    InitializeEmbedding(t, id, 9, v.data());
    return v;
  };
  std::set<std::vector<float>> distinct;
  for (const int64_t id : {kMin, int64_t{-1}, int64_t{0}, int64_t{1}, kMax}) {
    const std::vector<float> v = values(table, id);
    EXPECT_EQ(v, values(table, id));
    for (const float x : v) EXPECT_TRUE(x >= -0.5f && x < 0.25f);
    distinct.insert(v);
    TableConfig other = table;
    other.seed = 1;
    distinct.insert(values(other, id));
    other = table;
    other.name = "C2";
    distinct.insert(values(other, id));
  }
  EXPECT_EQ(distinct.size(), size_t{15});
}

TEST(NormalInitialValuesHaveTheirMoments) {
  TableConfig table;
  table.name = "C1";
  table.initializer = {InitializerConfig::Kind::kNormal, 0.5f, 2.0f};
  double sum = 0, squares = 0;
  constexpr int kIds = 20000, kDim = 5;
  for (int64_t id = 0; id < kIds; ++id) {
    float v[kDim];
    InitializeEmbedding(table, id, kDim, v);
    for (const float x : v) {
      sum += x;
      squares += double{x} * x;
    }
  }
  const double n = kIds * kDim, mean = sum / n;
  // Five standard errors of each.
  EXPECT_NEAR(mean, 0.5, 5 * 2.0 / std::sqrt(n));
  EXPECT_NEAR(std::sqrt(squares / n - mean * mean), 2.0, 5 * 2.0 / std::sqrt(2 * n));
}

TEST(LookupCreatesRowsOnlyWhenAsked) {
  RowStoreConfig config = MakeConfig(2, 2);
  config.tables[0].initializer.low = 3;
  config.tables[1].initializer.low = 4;
  RowStore store(config);
  const Batch batch{{kMin, -1, 0, kMax}, {-1, 7}};
  EXPECT_EQ(Lookup(&store, batch, false), std::vector<float>(12, 0.0f));
  EXPECT_EQ(store.Stats().rows, (std::vector<int64_t>{0, 0}));
  const std::vector<float> expected{3, 3, 3, 3, 3, 3, 3, 3, 4, 4, 4, 4};
  EXPECT_EQ(Lookup(&store, batch), expected);
  EXPECT_EQ(Lookup(&store, batch, false), expected);
  EXPECT_EQ(store.Stats().rows, (std::vector<int64_t>{4, 2}));
  EXPECT_EQ(Lookup(&store, Batch{{}, {}}), std::vector<float>{});
}

TEST(UpdatesPassOverAbsentRows) {
  RowStore store(MakeConfig(2, 1));
  Lookup(&store, Batch{{1, 2}});
  Update(&store, Batch{{2, 3, 4}}, 1, -1, 9);
  EXPECT_EQ(store.Stats().skipped_updates, 2);
  const Rows expected{{{0, 1}, {{0, 0}, 0, 0}}, {{0, 2}, {{1, 1}, 9, 1}}};
  EXPECT_TRUE(BaseOf(&store) == expected);
}

TEST(FullTableGivesInitialValuesAndKeepsNoMore) {
  RowStoreConfig config = MakeConfig(1, 2);
  config.tables[0].max_rows = 10;
  config.tables[0].initializer.low = 5;
  RowStore store(config);
  const std::vector<float> found = Lookup(&store, Batch{Range(0, 30), Range(0, 30)});
  EXPECT_EQ(found[29], 5.0f);
  EXPECT_EQ(store.Stats().rows, (std::vector<int64_t>{10, 30}));
  EXPECT_EQ(store.Stats().rejected_inserts, 20);
  // What is removed makes room.
  std::vector<int64_t> kept;
  for (const auto& row : BaseOf(&store)) {
    if (row.first.first == 0) kept.push_back(row.first.second);
  }
  EXPECT_EQ(kept.size(), size_t{10});
  EXPECT_EQ(store.Remove(0, kept.data(), 3), 3);
  Lookup(&store, Batch{Range(100, 110), {}});
  EXPECT_EQ(store.Stats().rows, (std::vector<int64_t>{10, 30}));
}

TEST(CapacityHoldsUnderConcurrentInserts) {
  RowStoreConfig config = MakeConfig(1, 1);
  config.tables[0].max_rows = 500;
  RowStore store(config);
  std::vector<std::thread> threads;
  for (int64_t k = 0; k < 4; ++k) {
    threads.emplace_back([&store, k] {
      for (int64_t i = 0; i < 40; ++i) {
        Lookup(&store, Batch{Range(k * 2000 + i * 50, k * 2000 + i * 50 + 50)});
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(NumRows(store, 0), 500);
  EXPECT_EQ(BaseOf(&store).size(), size_t{500});
  EXPECT_EQ(store.Stats().rejected_inserts, 4 * 40 * 50 - 500);
}

TEST(IndexEqualsAMapUnderGrowthAndDeletion) {
  RowStore store(MakeConfig(1, 1));
  std::unordered_map<int64_t, uint32_t> model;  // id to updates
  std::mt19937_64 random(7);
  for (int round = 0; round < 400; ++round) {
    // Phases of growth and of shrinkage, over ids dense, far apart and extreme.
    const bool shrinking = (round / 50) % 2 == 1;
    std::set<int64_t> ids;
    for (int i = 0; i < 200; ++i) {
      const int64_t small = static_cast<int64_t>(random() % 20000);
      const int64_t id = i % 3 == 0   ? small
                         : i % 3 == 1 ? kMin + small
                                      : static_cast<int64_t>(Mix64(small));
      ids.insert(i == 0 ? kMax : id);
    }
    const std::vector<int64_t> list(ids.begin(), ids.end());
    const Batch batch{list};
    if (random() % 4 < (shrinking ? 3u : 1u)) {
      int64_t there = 0;
      for (const int64_t id : list) there += static_cast<int64_t>(model.erase(id));
      EXPECT_EQ(store.Remove(0, list.data(), static_cast<int64_t>(list.size())), there);
    } else {
      const std::vector<float> found = Lookup(&store, batch);
      for (size_t i = 0; i < list.size(); ++i) {
        const auto at = model.find(list[i]);
        EXPECT_EQ(found[i], at == model.end() ? 0.0f : static_cast<float>(at->second));
      }
      Update(&store, batch, 1, -1, round);
      for (const int64_t id : list) ++model[id];
    }
    EXPECT_EQ(NumRows(store, 0), static_cast<int64_t>(model.size()));
  }
  const Rows rows = BaseOf(&store);
  EXPECT_EQ(rows.size(), model.size());
  for (const auto& [id, updates] : model) {
    const auto at = rows.find({0, id});
    EXPECT_TRUE(at != rows.end() && at->second.frequency == updates &&
                at->second.floats[0] == static_cast<float>(updates));
  }
}

TEST(ParallelStepsEqualSerialOnes) {
  RowStoreConfig config = MakeConfig(3, 3, OptimizerKind::kLazyAdam);
  config.optimizer.beta1 = 0.9f;
  config.optimizer.beta2 = 0.99f;
  config.optimizer.epsilon = 1e-7f;
  for (TableConfig& table : config.tables) {
    table.initializer = {InitializerConfig::Kind::kUniform, -1, 1};
  }
  RowStore serial(config), parallel(config);
  for (int step = 1; step < 5; ++step) {
    const Batch batch{Range(-1, 700), {}, Range(step, 50 * step)};
    const size_t n = batch.ids.size() * 3;
    std::vector<float> a(n), b(n), gradients(n);
    for (size_t i = 0; i < n; ++i) gradients[i] = std::sin(static_cast<float>(i + step));
    serial.Lookup(batch.view(), true, SerialFor, a.data());
    parallel.Lookup(batch.view(), true, ThreadsFor, b.data());
    EXPECT_TRUE(a == b);
    serial.Update(batch.view(), gradients.data(), 0.1f, step, SerialFor);
    parallel.Update(batch.view(), gradients.data(), 0.1f, step, ThreadsFor);
  }
  EXPECT_TRUE(BaseOf(&serial) == BaseOf(&parallel));
}

TEST(CutsOfManySlicesGiveEachRowOnce) {
  RowStore store(MakeConfig(1, 1, OptimizerKind::kAdagrad));
  constexpr int64_t kRows = 64 * 1024 * 5 / 2;  // two and a half slices a stripe
  Lookup(&store, Batch{Range(0, kRows)});
  Rows rows;
  int64_t records;
  const int64_t base = CutOnto(&store, CutKind::kBase, -1, &rows, &records);
  EXPECT_EQ(records, kRows);
  EXPECT_EQ(static_cast<int64_t>(rows.size()), kRows);
  Update(&store, Batch{Range(kRows / 8, kRows)}, 1, -1, 3);
  CutOnto(&store, CutKind::kDelta, base, &rows, &records);
  EXPECT_EQ(records, kRows - kRows / 8);
  EXPECT_TRUE(rows == BaseOf(&store));
}

TEST(DeltasOfAnyShareOfTheRowsGiveEachOnce) {
  RowStore store(MakeConfig(3, 1, OptimizerKind::kAdagrad));
  constexpr int64_t kRows = 200000;
  Lookup(&store, Batch{Range(0, kRows)});
  Rows rows;
  int64_t cut = CutOnto(&store, CutKind::kBase, -1, &rows);
  for (const int64_t stride : {20000, 300, 7, 1}) {
    std::vector<int64_t> touched;
    for (int64_t id = 0; id < kRows; id += stride) touched.push_back(id);
    Update(&store, Batch{touched}, 1, -1, static_cast<uint32_t>(stride));
    Rows lost;  // not committed: its rows come again, among others
    CutOnto(&store, CutKind::kDelta, cut, &lost);
    Update(&store, Batch{{0, 1}}, 1, -1, static_cast<uint32_t>(stride));
    int64_t records;
    cut = CutOnto(&store, CutKind::kDelta, cut, &rows, &records);
    EXPECT_EQ(records, static_cast<int64_t>(touched.size()) + (stride > 1 ? 1 : 0));
  }
  EXPECT_TRUE(rows == BaseOf(&store));
}

TEST(CopyBesideDeltasIsBroughtUpToDateByThem) {
  RowStore store(MakeConfig(1, 1, OptimizerKind::kAdagrad));
  constexpr int64_t kRows = 64 * 1024 * 3;
  Lookup(&store, Batch{Range(0, kRows)});
  Rows rows, replayed;
  int64_t cut = CutOnto(&store, CutKind::kBase, -1, &rows);
  uint32_t step = 1;
  const auto train = [&] {
    Update(&store, Batch{Range(step * 1000, step * 1000 + 5000)}, 1, -1, step);
    std::vector<int64_t> gone = Range(step * 7000, step * 7000 + 50);
    store.Remove(0, gone.data(), gone.size());
    Lookup(&store, Batch{Range(kRows + step * 100, kRows + step * 100 + 50)});
    ++step;
  };
  train();  // after the cut that the first delta is since
  std::vector<RowColumns> records;
  const auto delta = [&] {
    EXPECT_OK(store.Cut(
        CutKind::kDelta, cut,
        [&](const RowColumns& columns) {
          records.push_back(columns);
          return Status::Ok();
        },
        &cut));
  };
  int times = 0;
  EXPECT_OK(store.Copy([&](const RowColumns& columns) {
    Apply(columns, store.config().dim, &replayed);
    train();
    if (++times % 2 == 0) delta();  // is not held up by the copy, nor the copy by it
    train();
    return Status::Ok();
  }));
  EXPECT_TRUE(times > 1);
  delta();
  for (const RowColumns& columns : records) Apply(columns, store.config().dim, &replayed);
  EXPECT_TRUE(replayed == BaseOf(&store));
}

TEST(CopyThatIsToldToEndFails) {
  RowStore store(MakeConfig(1, 1));
  Lookup(&store, Batch{Range(0, 64 * 1024 * 3)});
  int times = 0;
  const auto sink = [&](const RowColumns&) {
    ++times;
    store.StopCopies();
    return Status::Ok();
  };
  EXPECT_STATUS(store.Copy(sink), StatusCode::kIoError, "told to end");
  EXPECT_EQ(times, 1);
  EXPECT_OK(store.Copy([](const RowColumns&) { return Status::Ok(); }));  // a later one is another
}

TEST(DeltaGivesWhatWasTouchedAndRemoved) {
  RowStore store(MakeConfig(2, 2));
  Lookup(&store, Batch{Range(0, 1000), Range(0, 10)});
  Rows rows;
  int64_t records;
  int64_t cut = CutOnto(&store, CutKind::kBase, -1, &rows, &records);
  EXPECT_EQ(records, 1010);

  cut = CutOnto(&store, CutKind::kDelta, cut, &rows, &records);
  EXPECT_EQ(records, 0);
  Lookup(&store, Batch{Range(0, 1000), {}});  // reading alone touches nothing
  Update(&store, Batch{{1, 2, 3}, {3}}, 1, -1, 1);
  Update(&store, Batch{{1}, {}}, 1, -1, 2);
  cut = CutOnto(&store, CutKind::kDelta, cut, &rows, &records);
  EXPECT_EQ(records, 4);
  EXPECT_TRUE(rows == BaseOf(&store));

  // Removed; removed and created again; created and removed again; removed and another created.
  RowStore again(MakeConfig(2, 2));
  rows.clear();
  Lookup(&again, Batch{Range(0, 10), {}});
  cut = CutOnto(&again, CutKind::kBase, -1, &rows);
  const int64_t two[] = {4, 5};
  EXPECT_EQ(again.Remove(0, two, 2), 2);
  EXPECT_EQ(again.Remove(0, two, 2), 0);
  Lookup(&again, Batch{{5, 77}, {88}});
  const int64_t gone[] = {77};
  EXPECT_EQ(again.Remove(0, gone, 1), 1);
  Lookup(&again, Batch{{99}, {}});
  cut = CutOnto(&again, CutKind::kDelta, cut, &rows, &records);
  EXPECT_EQ(records, 3 + 3);  // 4, 5, 77 removed; 5, 99 and table 1's 88 there
  EXPECT_EQ(rows.count({0, 4}), size_t{0});
  EXPECT_TRUE(rows == BaseOf(&again));
}

TEST(MemoryOfACutIsABatchAndFourBytesATouchedRow) {
  constexpr int kDim = 2;
  constexpr int64_t kRows = 100000;            // too little for a thread that makes pages meanwhile
  constexpr int64_t kBatchRows = 32768 + 256;  // what is given at once, and what a slice adds
  RowStore store(MakeConfig(kDim, 1, OptimizerKind::kAdagrad));
  Lookup(&store, Batch{Range(0, kRows)});
  EXPECT_TRUE(store.Stats().memory_bytes < static_cast<int64_t>(PagePool::kMakeFromBytes));
  for (const CutKind kind : {CutKind::kBase, CutKind::kDelta}) {
    int64_t since = -1, given = 0;
    if (kind == CutKind::kDelta) {
      since = store.MarkClean();
      Update(&store, Batch{Range(0, kRows)}, 1, 0.5f, 1);
    }
    const int64_t before = store.Stats().memory_bytes;
    const auto sink = [&](const RowColumns& columns) {
      given += columns.num_rows;
      EXPECT_TRUE(columns.num_rows <= kBatchRows);
      const size_t floats = columns.embedding.capacity() + columns.optimizer_slots.at(0).capacity();
      EXPECT_TRUE(floats <= 2 * kBatchRows * 2 * kDim);  // a vector that grew may be half empty
      EXPECT_TRUE(store.Stats().memory_bytes <= before + 4 * kRows);
      return Status::Ok();
    };
    int64_t cut;
    ASSERT_OK(store.Cut(kind, since, sink, &cut));
    EXPECT_EQ(given, kRows);
    EXPECT_TRUE(store.Stats().memory_bytes <= before + 4 * kRows);
  }
}

TEST(RowsUpdatedOftenAreListedOnce) {
  RowStore store(MakeConfig(2, 1));
  const Batch batch{Range(0, 500)};
  Lookup(&store, batch);
  const int64_t memory = store.Stats().memory_bytes;
  for (int i = 1; i < 200; ++i) Update(&store, batch, 1, -1, i);
  EXPECT_EQ(store.Stats().memory_bytes, memory);
}

TEST(UncommittedCutsAreGivenAgain) {
  RowStore store(MakeConfig(1, 1));
  Lookup(&store, Batch{Range(0, 100)});
  Rows rows, lost;
  int64_t records;
  const int64_t base = CutOnto(&store, CutKind::kBase, -1, &rows);
  Update(&store, Batch{{1, 2}}, 1, -1, 1);
  CutOnto(&store, CutKind::kDelta, base, &lost, &records);
  EXPECT_EQ(records, 2);
  Update(&store, Batch{{2, 3}}, 1, -1, 2);
  const int64_t five[] = {5};
  store.Remove(0, five, 1);
  CutOnto(&store, CutKind::kDelta, base, &lost, &records);
  EXPECT_EQ(records, 4);
  CutOnto(&store, CutKind::kBase, base, &lost, &records);  // nor is a base's failure a loss
  EXPECT_EQ(records, 99);
  const int64_t committed = CutOnto(&store, CutKind::kDelta, base, &rows, &records);
  EXPECT_EQ(records, 4);  // 1, 2, 3 and the removal of 5
  Update(&store, Batch{{4}}, 1, -1, 3);
  const int64_t last = CutOnto(&store, CutKind::kDelta, committed, &rows, &records);
  EXPECT_EQ(records, 1);
  EXPECT_EQ(last, committed + 1);
  EXPECT_TRUE(rows == BaseOf(&store));
}

TEST(FailedSinkLosesNothing) {
  RowStore store(MakeConfig(1, 1));
  Lookup(&store, Batch{Range(0, 100000)});
  Rows rows;
  const int64_t base = CutOnto(&store, CutKind::kBase, -1, &rows);
  Update(&store, Batch{Range(0, 90000)}, 1, -1, 1);
  const std::vector<int64_t> removed = Range(95000, 99000);
  store.Remove(0, removed.data(), static_cast<int64_t>(removed.size()));
  for (int good = 0; good < 3; ++good) {  // batches taken before the disk is full
    int batches = 0;
    int64_t cut;
    EXPECT_STATUS(store.Cut(
                      CutKind::kDelta, base,
                      [&](const RowColumns&) {
                        return batches++ < good ? Status::Ok() : Status::IoError("disk full");
                      },
                      &cut),
                  StatusCode::kIoError, "disk full");
    EXPECT_EQ(batches, good + 1);
    Update(&store, Batch{{good}}, 1, -1, 2);
  }
  int64_t records;
  const int64_t cut = CutOnto(&store, CutKind::kDelta, base, &rows, &records);
  EXPECT_EQ(records, 94000);
  CutOnto(&store, CutKind::kDelta, cut, &rows, &records);
  EXPECT_EQ(records, 0);
  EXPECT_TRUE(rows == BaseOf(&store));
}

TEST(DeltaSinceAnUnknownCutIsRefusedAndABaseHelps) {
  RowStore store(MakeConfig(1, 1));
  Lookup(&store, Batch{Range(0, 10)});
  Rows rows;
  int64_t cut = CutOnto(&store, CutKind::kBase, -1, &rows);
  for (int i = 0; i < 3; ++i) cut = CutOnto(&store, CutKind::kDelta, cut, &rows);
  const auto sink = [](const RowColumns&) { return Status::Ok(); };
  int64_t ignored;
  for (const int64_t unknown : {int64_t{-1}, cut - 2, cut + 1}) {
    EXPECT_STATUS(store.Cut(CutKind::kDelta, unknown, sink, &ignored), StatusCode::kInvalidArgument,
                  "test-group", "a delta must be since " + std::to_string(cut),
                  "but got " + std::to_string(unknown), "write a base");
  }
  Update(&store, Batch{{1}}, 1, -1, 1);
  rows.clear();
  cut = CutOnto(&store, CutKind::kBase, -1, &rows);
  EXPECT_EQ(rows.size(), size_t{10});
  Update(&store, Batch{{2}}, 1, -1, 2);
  int64_t records;
  CutOnto(&store, CutKind::kDelta, cut, &rows, &records);
  EXPECT_EQ(records, 1);
  EXPECT_TRUE(rows == BaseOf(&store));
}

std::vector<RowColumns> RecordsOf(RowStore* store, CutKind kind, int64_t since, int64_t* cut) {
  std::vector<RowColumns> batches;
  EXPECT_OK(store->Cut(
      kind, since,
      [&](const RowColumns& columns) {
        batches.push_back(columns);
        return Status::Ok();
      },
      cut));
  return batches;
}

TEST(LoadsOntoAnyNumberOfShardsTogetherEqualTheSource) {
  RowStoreConfig config = MakeConfig(3, 2, OptimizerKind::kFtrl);
  config.optimizer.initial_accumulator = 0.1f;
  RowStore source(config);
  const Batch batch{Range(-50, 3000), {kMin, -1, kMax}};
  Lookup(&source, batch);
  Update(&source, batch, 0.5f, 0.1f, 7);
  int64_t cut;
  const std::vector<RowColumns> base = RecordsOf(&source, CutKind::kBase, -1, &cut);
  std::vector<int64_t> removed = Range(0, 200);
  source.Remove(0, removed.data(), 200);
  Lookup(&source, Batch{Range(100, 120), {}});
  Update(&source, Batch{Range(1000, 1100), {-1}}, 0.25f, 0.1f, 8);
  const std::vector<RowColumns> delta = RecordsOf(&source, CutKind::kDelta, cut, &cut);
  const Rows expected = BaseOf(&source);
  for (const int num_shards : {1, 2, 3, 5}) {
    Rows all;
    int64_t taken = 0;
    for (int shard = 0; shard < num_shards; ++shard) {
      RowStore store(config);
      for (const auto* batches : {&base, &delta}) {
        for (const RowColumns& columns : *batches) {
          taken += store.Load(columns, {0, 1}, shard, num_shards, true, SerialFor);
        }
      }
      for (auto& row : BaseOf(&store)) {
        const uint64_t hash =
            RowHash(TableSalt(config.tables[row.first.first].name), row.first.second);
        EXPECT_EQ(ShardOf(hash, num_shards), shard);
        all.insert(row);
      }
    }
    EXPECT_TRUE(all == expected);
    int64_t records = 0;
    for (const auto* batches : {&base, &delta}) {
      for (const RowColumns& columns : *batches) records += columns.num_rows;
    }
    EXPECT_EQ(taken, records);
  }
}

TEST(LoadMapsTablesAndMayLeaveSlotsAlone) {
  RowStoreConfig config = MakeConfig(2, 2, OptimizerKind::kAdagrad);
  config.optimizer.initial_accumulator = 0.5f;
  RowStore source(config), store(config);
  Lookup(&source, Batch{{1, 2}, {3}});
  Update(&source, Batch{{1, 2}, {3}}, 1, 0.5f, 4);
  int64_t cut;
  const std::vector<RowColumns> base = RecordsOf(&source, CutKind::kBase, -1, &cut);
  EXPECT_EQ(store.Load(base.at(0), {1, -1}, 0, 1, false, SerialFor), 2);
  const Rows from = BaseOf(&source), to = BaseOf(&store);
  EXPECT_EQ(to.size(), size_t{2});
  for (const int64_t id : {1, 2}) {
    Record expected = from.at({0, id});
    EXPECT_EQ(expected.floats[2], 1.5f);
    expected.floats[2] = expected.floats[3] = 0.5f;
    EXPECT_TRUE(to.at({1, id}) == expected);
  }
}

TEST(LoadsListNothingForTheNextCut) {
  // A reader that follows deltas for ever must not gather a list of their removals.
  RowStore source(MakeConfig(1, 1)), store(MakeConfig(1, 1));
  Lookup(&source, Batch{Range(0, 5000)});
  int64_t cut;
  for (const RowColumns& columns : RecordsOf(&source, CutKind::kBase, -1, &cut)) {
    store.Load(columns, {0}, 0, 1, true, SerialFor);
  }
  const std::vector<int64_t> ids = Range(0, 4000);
  source.Remove(0, ids.data(), 4000);
  for (const RowColumns& columns : RecordsOf(&source, CutKind::kDelta, cut, &cut)) {
    store.Load(columns, {0}, 0, 1, true, SerialFor);
  }
  EXPECT_EQ(NumRows(store, 0), 1000);
  Rows rows;
  int64_t records;
  CutOnto(&store, CutKind::kDelta, -1, &rows, &records);
  EXPECT_EQ(records, 0);
}

TEST(MarkCleanForgetsTouchesAndClearForgetsRows) {
  RowStore store(MakeConfig(1, 2));
  Lookup(&store, Batch{Range(0, 100), Range(0, 5)});
  const int64_t one[] = {1};
  store.Remove(0, one, 1);
  const int64_t clean = store.MarkClean();
  Rows rows;
  int64_t records;
  const int64_t cut = CutOnto(&store, CutKind::kDelta, clean, &rows, &records);
  EXPECT_EQ(records, 0);
  Update(&store, Batch{{2}, {}}, 1, -1, 1);
  CutOnto(&store, CutKind::kDelta, cut, &rows, &records);
  EXPECT_EQ(records, 1);
  store.Clear();
  EXPECT_EQ(store.Stats().rows, (std::vector<int64_t>{0, 0}));
  EXPECT_EQ(Lookup(&store, Batch{{2}, {}}, false), std::vector<float>{0});
  EXPECT_EQ(BaseOf(&store).size(), size_t{0});
}

TEST(LookupsAndUpdatesKeepAStoreBusyAndNothingElse) {
  RowStore store(MakeConfig(2, 1));
  EXPECT_FALSE(store.IsBusy());
  BaseOf(&store);
  store.Remove(0, std::vector<int64_t>{1}.data(), 1);
  EXPECT_FALSE(store.IsBusy());
  Update(&store, Batch{{1}}, 1, 1, 1);
  EXPECT_TRUE(store.IsBusy());
  RowStore other(MakeConfig(2, 1));
  Lookup(&other, Batch{{1}}, false);
  EXPECT_TRUE(other.IsBusy());
}

TEST(EvictsByLastStepAndFrequency) {
  RowStore store(MakeConfig(1, 2));
  const Batch all{Range(0, 4000), Range(0, 10)};
  Lookup(&store, all);
  Update(&store, all, 1, -1, 10);
  Update(&store, Batch{Range(0, 1000), {}}, 1, -1, 11);     // twice, late
  Update(&store, Batch{Range(1000, 2000), {}}, 1, -1, 10);  // twice, early
  Rows rows;
  const int64_t cut = CutOnto(&store, CutKind::kBase, -1, &rows);
  EXPECT_EQ(store.Evict(0, 10, 100), 0);   // none is before step 10
  EXPECT_EQ(store.Evict(0, 11, 2), 2000);  // once only
  EXPECT_EQ(store.Evict(0, 11, 3), 1000);  // twice, before 11
  EXPECT_EQ(store.Evict(0, 4e9, 2), 0);    // the rest have two updates
  EXPECT_EQ(store.Stats().rows, (std::vector<int64_t>{1000, 10}));
  int64_t records;
  CutOnto(&store, CutKind::kDelta, cut, &rows, &records);
  EXPECT_EQ(records, 3000);
  EXPECT_TRUE(rows == BaseOf(&store));
}

// Every update adds 1 to a number of the row that must then equal its frequency: with SGD all of
// the embedding, with Adagrad all of the accumulator.
bool IsWhole(const Record& record, int dim, OptimizerKind kind) {
  const bool sgd = kind == OptimizerKind::kSgd;
  for (int i = 0; i < dim; ++i) {
    if (record.floats[i] != (sgd ? static_cast<float>(record.frequency) : 0.0f)) return false;
    if (!sgd && record.floats[dim + i] != static_cast<float>(record.frequency)) return false;
  }
  return (record.frequency == 0) == (record.last_step == 0);
}

struct Traffic {
  std::vector<std::thread> threads;
  std::atomic<int> running{0};

  void Run(std::function<void()> work) {
    ++running;
    threads.emplace_back([this, work = std::move(work)] {
      work();
      --running;
    });
  }
  void Join() {
    for (std::thread& thread : threads) thread.join();
  }
};

std::vector<int64_t> SomeIds(std::mt19937_64* random, int64_t range) {
  std::set<int64_t> ids{-1};
  while (ids.size() < 60) {
    const double u = static_cast<double>((*random)() >> 11) * 0x1p-53;
    ids.insert(static_cast<int64_t>(static_cast<double>(range) * u * u * u));  // hot and cold
  }
  return std::vector<int64_t>(ids.begin(), ids.end());
}

void ExpectWholeRowsUnderTraffic(OptimizerKind kind) {
  constexpr int kDim = 8;
  constexpr int kRounds = 250;
  RowStore store(MakeConfig(kDim, 2, kind));
  const float learning_rate = kind == OptimizerKind::kSgd ? -1 : 0;
  std::atomic<uint32_t> step{1};
  Traffic traffic;
  for (int k = 0; k < 2; ++k) {
    traffic.Run([&, k] {
      std::mt19937_64 random(k);
      for (int i = 0; i < kRounds; ++i) {
        // The range grows, and the index with it.
        const Batch batch{SomeIds(&random, 100 + 40 * i), SomeIds(&random, 100)};
        const std::vector<float> rows = Lookup(&store, batch);
        for (size_t r = 0; r < batch.ids.size(); ++r) {
          for (int d = 1; d < kDim; ++d) EXPECT_EQ(rows[r * kDim + d], rows[r * kDim]);
        }
        Update(&store, batch, 1, learning_rate, step++);
      }
    });
  }
  traffic.Run([&] {
    std::mt19937_64 random(99);
    for (int i = 0; i < kRounds; ++i) {
      const std::vector<int64_t> ids = SomeIds(&random, 100 + 40 * i);
      store.Remove(i % 2, ids.data(), 20);
      if (i % 16 == 0) store.Evict(0, step.load() / 2, 2);
      Lookup(&store, Batch{ids, {}}, false);
      EXPECT_TRUE(store.Stats().memory_bytes > 0);
    }
  });
  // The chain of what was committed; every third cut fails, early or late.
  Rows chain;
  int64_t committed = -1, cuts = 0;
  const auto cut_once = [&](CutKind kind_of_cut, bool fails) {
    Rows rows = kind_of_cut == CutKind::kBase ? Rows() : chain;
    int64_t cut = 0, batches = 0;
    const Status status = store.Cut(
        kind_of_cut, committed,
        [&](const RowColumns& columns) {
          if (fails && (cuts % 2 == 0 || ++batches > 1)) return Status::IoError("disk full");
          Rows given;
          Apply(columns, kDim, &given);
          for (const auto& row : given) EXPECT_TRUE(IsWhole(row.second, kDim, kind));
          Apply(columns, kDim, &rows);
          return Status::Ok();
        },
        &cut);
    ++cuts;
    if (!status.ok() || fails) return;
    chain = std::move(rows);
    committed = cut;
  };
  cut_once(CutKind::kBase, false);
  while (traffic.running > 0) {
    cut_once(cuts % 11 == 10 ? CutKind::kBase : CutKind::kDelta, cuts % 3 == 2);
  }
  traffic.Join();
  cut_once(CutKind::kDelta, false);
  const Rows base = BaseOf(&store);
  EXPECT_TRUE(chain == base);
  EXPECT_TRUE(base.size() > 1000);
  EXPECT_EQ(NumRows(store, 0) + NumRows(store, 1), static_cast<int64_t>(base.size()));
}

TEST(SgdRowsStayWholeUnderTraffic) { ExpectWholeRowsUnderTraffic(OptimizerKind::kSgd); }
TEST(AdagradRowsStayWholeUnderTraffic) { ExpectWholeRowsUnderTraffic(OptimizerKind::kAdagrad); }

TEST(LoadsRunBesideLookupsUpdatesAndCuts) {
  constexpr int kDim = 4;
  RowStore store(MakeConfig(kDim, 1)), source(MakeConfig(kDim, 1));
  const std::vector<int64_t> ids = Range(0, 2000);
  Lookup(&source, Batch{ids});
  for (int i = 1; i < 4; ++i) Update(&source, Batch{ids}, 1, -1, i);
  source.Remove(0, ids.data(), 500);
  int64_t cut;
  const std::vector<RowColumns> records = RecordsOf(&source, CutKind::kDelta, -1, &cut);
  Traffic traffic;
  for (int k = 0; k < 2; ++k) {
    traffic.Run([&store, k] {
      std::mt19937_64 random(k);
      for (int i = 0; i < 150; ++i) {
        const Batch batch{SomeIds(&random, 3000)};
        const std::vector<float> rows = Lookup(&store, batch, k == 0);
        for (size_t r = 0; r < rows.size(); ++r) EXPECT_EQ(rows[r], rows[r / kDim * kDim]);
        Update(&store, batch, 1, -1, 5);
      }
    });
  }
  traffic.Run([&] {
    for (int i = 0; i < 8; ++i) {
      for (const RowColumns& columns : records) store.Load(columns, {0}, 0, 1, true, SerialFor);
    }
  });
  do {
    Rows rows;
    CutOnto(&store, CutKind::kBase, -1, &rows);
    for (const auto& row : rows) EXPECT_TRUE(IsWhole(row.second, kDim, OptimizerKind::kSgd));
  } while (traffic.running > 0);
  traffic.Join();
  for (const auto& row : BaseOf(&store)) {
    EXPECT_TRUE(IsWhole(row.second, kDim, OptimizerKind::kSgd));
  }
}

}  // namespace
}  // namespace embedps

int main(int argc, char** argv) { return embedps::testing::RunAllTests(argc, argv); }
