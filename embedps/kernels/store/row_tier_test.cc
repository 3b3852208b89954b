// Tests that a store whose coldest rows are on disk is the same as one without a disk, bit for bit.
#include "embedps/kernels/store/row_tier.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "embedps/kernels/store/row_store.h"
#include "embedps/kernels/store/row_store_testing.h"
#include "embedps/kernels/testing/testing.h"

namespace embedps {
namespace {

using testing::TemporaryDirectory;

constexpr int kDim = 48;  // 20 slots per stripe with Adagrad

std::shared_ptr<TierMemory> MakeMemory(const std::string& directory, int64_t bytes = 1,
                                       int64_t many_rows = 1 << 20) {
  TierConfig config = SmallTier(directory);
  config.max_memory_bytes = bytes;
  config.many_rows = many_rows;
  return std::make_shared<TierMemory>(config);
}

// The rows with a disk and those without.
struct Twins {
  Twins(RowStoreConfig config, const std::string& directory, int64_t bytes = 1,
        int64_t many_rows = 1 << 20) {
    plain = std::make_unique<RowStore>(config);
    config.tier_memory = MakeMemory(directory, bytes, many_rows);
    tiered = std::make_unique<RowStore>(config);
  }

  void Step(const Batch& batch, uint32_t step, std::mt19937_64* random) {
    const std::vector<float> rows = Lookup(plain.get(), batch);
    EXPECT_TRUE(rows == Lookup(tiered.get(), batch));
    std::vector<float> gradients(batch.ids.size() * kDim);
    for (float& g : gradients) g = static_cast<float>((*random)() % 2000) / 1000 - 0.9995f;
    for (RowStore* store : {plain.get(), tiered.get()}) {
      store->Update(batch.view(), gradients.data(), 0.1f, step, SerialFor);
      EXPECT_OK(store->failure());
    }
  }

  void ExpectSameRecords(CutKind kind, int64_t since, int64_t* cut) {
    int64_t other = -1;
    const auto a = RecordsOf(plain.get(), kind, since, cut);
    const auto b = RecordsOf(tiered.get(), kind, since, &other);
    EXPECT_EQ(other, *cut);
    EXPECT_EQ(b.size(), a.size());
    for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
      EXPECT_TRUE(a[i].table == b[i].table && a[i].id == b[i].id);
      EXPECT_TRUE(a[i].embedding == b[i].embedding);
      EXPECT_TRUE(a[i].optimizer_slots == b[i].optimizer_slots);
      EXPECT_TRUE(a[i].last_step == b[i].last_step && a[i].frequency == b[i].frequency);
      EXPECT_TRUE(a[i].removed == b[i].removed);
    }
  }

  void ExpectSame() {
    EXPECT_EQ(tiered->Stats().rows, plain->Stats().rows);
    EXPECT_EQ(tiered->Stats().skipped_updates, plain->Stats().skipped_updates);
    for (int t = 0; t < plain->num_tables(); ++t) {
      EXPECT_TRUE(tiered->Ids(t) == plain->Ids(t));
      EXPECT_TRUE(tiered->Evicted(t) == plain->Evicted(t));
      const TableScan a = plain->Scan(t, [] {}), b = tiered->Scan(t, [] {});
      EXPECT_EQ(b.rows, a.rows);
      EXPECT_EQ(b.updates, a.updates);
      EXPECT_TRUE(b.norms.counts() == a.norms.counts());
    }
  }

  std::unique_ptr<RowStore> plain, tiered;
};

std::vector<int64_t> SomeIds(std::mt19937_64* random, int64_t count, int64_t range) {
  std::set<int64_t> ids;
  for (int64_t i = 0; i < count; ++i) {
    const double u = static_cast<double>((*random)() >> 11) * 0x1p-53;
    ids.insert(static_cast<int64_t>(static_cast<double>(range) * u * u));  // hot and cold
  }
  return std::vector<int64_t>(ids.begin(), ids.end());
}

RowStoreConfig Config(int policies) {
  RowStoreConfig config = MakeConfig(kDim, 2, OptimizerKind::kAdagrad);
  config.tables[0].initializer.kind = InitializerConfig::Kind::kUniform;
  config.tables[0].initializer.low = -0.1f;
  config.tables[0].initializer.high = 0.1f;
  EvictionConfig& eviction = config.tables[0].eviction;
  if (policies & 1) eviction.max_rows = 3000;
  if (policies & 2) eviction.ttl_steps = 40;
  if (policies & 4) eviction.min_norm = 0.55f;
  if (policies & 8) {
    config.row_dtype = FloatDtype::kBfloat16;
    config.slot_dtype = FloatDtype::kBfloat16;
  }
  return config;
}

void RunTrace(int seed, int policies, int steps) {
  const TemporaryDirectory directory;
  // With some memory beyond a chunk of each stripe, chunks move between stripes.
  Twins twins(Config(policies), directory.Path(""), seed % 2 == 0 ? 1 << 20 : 1);
  std::mt19937_64 random(seed);
  int64_t cut = -1;
  twins.ExpectSameRecords(CutKind::kBase, -1, &cut);
  for (int step = 1; step <= steps; ++step) {
    const Batch batch{SomeIds(&random, 400, 9000), SomeIds(&random, 200, 3000)};
    twins.Step(batch, step, &random);
    const Batch read{SomeIds(&random, 50, 12000), {}};
    EXPECT_TRUE(Lookup(twins.plain.get(), read, false) == Lookup(twins.tiered.get(), read, false));
    switch (random() % 8) {
      case 0:
        twins.ExpectSameRecords(CutKind::kDelta, cut, &cut);
        break;
      case 1: {
        const auto ids = SomeIds(&random, 20, 9000);
        const auto count = static_cast<int64_t>(ids.size());
        EXPECT_EQ(twins.tiered->Remove(0, ids.data(), count),
                  twins.plain->Remove(0, ids.data(), count));
        break;
      }
      case 2:
        twins.plain->Sweep([] { return true; });
        twins.tiered->Sweep([] { return true; });
        break;
      case 3:
        EXPECT_EQ(twins.tiered->Evict(1, step - 30, 2), twins.plain->Evict(1, step - 30, 2));
        break;
      default:
        break;
    }
  }
  twins.ExpectSame();
  twins.ExpectSameRecords(CutKind::kDelta, cut, &cut);
  twins.ExpectSameRecords(CutKind::kBase, -1, &cut);
  EXPECT_TRUE(BaseOf(twins.plain.get()) == BaseOf(twins.tiered.get()));
  const RowTier::Stats stats = twins.tiered->tier()->stats();
  EXPECT_TRUE(stats.rows_on_disk[0] + stats.rows_on_disk[1] > 500);
  // Compaction may have one of them twice at the moment.
  const int64_t needed = stats.log.live - stats.log.spare;
  const int64_t twice = needed - stats.rows_on_disk[0] - stats.rows_on_disk[1];
  EXPECT_TRUE(twice == 0 || twice == 1);
  EXPECT_TRUE(stats.log.read > 1000);
  EXPECT_EQ(stats.evicted, 0);
  EXPECT_EQ(stats.log.error, "");
}

TEST(ATraceHasTheSameBits) {
  const char* more = std::getenv("EMBEDPS_TRACES");
  const int traces = more == nullptr ? 2 : std::atoi(more);
  for (int seed = 0; seed < traces; ++seed) {
    for (int policies = 0; policies < 16; policies += traces > 2 ? 1 : 5) {
      RunTrace(seed, policies, 60);
    }
  }
}

TEST(RowsThatAreReadAheadAreInMemoryAndHaveTheSameBits) {
  const TemporaryDirectory directory;
  Twins twins(Config(0), directory.Path(""));
  std::mt19937_64 random(2);
  for (int step = 1; step <= 20; ++step) {
    twins.Step(Batch{Range(step * 300, step * 300 + 600), {}}, step, &random);
  }
  const Batch batch{Range(500, 600), {}};
  twins.tiered->ReadAhead(batch.view());
  twins.tiered->WaitForAhead();
  const int64_t read = twins.tiered->tier()->stats().log.read;
  twins.Step(batch, 21, &random);
  // Of 100: a stripe with more of them than its small queue has room for reads some again.
  EXPECT_TRUE(twins.tiered->tier()->stats().log.read - read < 50);
  // Beside steps, absent ids among them.
  for (int step = 22; step <= 40; ++step) {
    twins.tiered->ReadAhead(Batch{SomeIds(&random, 300, 12000), SomeIds(&random, 9, 90)}.view());
    twins.Step(Batch{SomeIds(&random, 300, 9000), {}}, step, &random);
  }
  twins.tiered->WaitForAhead();
  twins.ExpectSame();
  EXPECT_TRUE(BaseOf(twins.plain.get()) == BaseOf(twins.tiered.get()));
}

TEST(RowsThatAreReadAheadPushOutNoneInUse) {
  // Each step needs half the memory, so three steps ahead would need all of it and more.
  const TemporaryDirectory directory;
  int64_t reads[2];
  for (const bool reads_ahead : {false, true}) {
    Twins twins(Config(0), directory.Path(""));
    std::mt19937_64 random(4);
    std::vector<Batch> batches;
    for (int i = 0; i < 80; ++i) batches.push_back(Batch{SomeIds(&random, 700, 9000), {}});
    for (size_t i = 0; i < batches.size(); ++i) {
      for (size_t later = i + 1; reads_ahead && i % 4 == 0 && later < i + 4; ++later) {
        twins.tiered->ReadAhead(batches[later].view());
      }
      twins.tiered->WaitForAhead();
      twins.Step(batches[i], static_cast<uint32_t>(i + 1), &random);
    }
    reads[reads_ahead ? 1 : 0] = twins.tiered->tier()->stats().log.read;
    twins.ExpectSame();
  }
  EXPECT_TRUE(reads[1] < reads[0] + reads[0] / 10);
}

TEST(BasesAndCopiesReadTheDiskInItsOrder) {
  const TemporaryDirectory directory;
  Twins twins(Config(0), directory.Path(""), 1, 1);
  constexpr int64_t kRows = 60000;
  std::mt19937_64 random(3);
  for (int64_t id = 0; id < kRows; id += 1000) {
    twins.Step(Batch{Range(id, id + 1000), {}}, 1, &random);
  }
  const auto disk_reads = [&] { return twins.tiered->tier()->stats().log.disk_reads; };
  const int64_t buffers = twins.tiered->tier()->stats().log.bytes / (4 << 10);
  int64_t before = disk_reads();
  const Rows all = BaseOf(twins.tiered.get());
  EXPECT_TRUE(all == BaseOf(twins.plain.get()));
  // Those of the buffers, and of the last segment's rows.
  EXPECT_TRUE(disk_reads() - before < buffers + 400);
  before = disk_reads();
  Rows copied;
  EXPECT_OK(twins.tiered->Copy([&](const RowColumns& columns) {
    Apply(columns, kDim, &copied);
    return Status::Ok();
  }));
  EXPECT_TRUE(copied == all);
  EXPECT_TRUE(disk_reads() - before < buffers + 400);
}

// Rows change, come, go, and move between memory and disk while they are copied.
TEST(ABaseBesideStepsIsBroughtUpToDateByTheNextDelta) {
  for (const bool is_copy : {false, true}) {
    const TemporaryDirectory directory;
    Twins twins(Config(0), directory.Path(""), 1, 1);
    std::mt19937_64 random(4);
    uint32_t step = 1;
    for (int64_t id = 0; id < 40000; id += 1000) {
      twins.Step(Batch{Range(id, id + 1000), Range(id, id + 100)}, step, &random);
    }
    Rows rows, others;
    int64_t cut = CutOnto(twins.tiered.get(), CutKind::kBase, -1, &others);
    const int64_t since = cut;
    int batches = 0;
    const RowSink train = [&](const RowColumns& columns) {
      Apply(columns, kDim, &rows);
      ++batches;
      const auto gone = SomeIds(&random, 40, 40000);
      const auto count = static_cast<int64_t>(gone.size());
      for (RowStore* store : {twins.plain.get(), twins.tiered.get()}) {
        store->Remove(0, gone.data(), count);
      }
      const Batch batch{SomeIds(&random, 900, 45000), SomeIds(&random, 300, 5000)};
      twins.Step(batch, ++step, &random);
      return Status::Ok();
    };
    if (is_copy) {
      EXPECT_OK(twins.tiered->Copy(train));
    } else {
      EXPECT_OK(twins.tiered->Cut(CutKind::kBase, -1, train, &cut));
    }
    EXPECT_TRUE(batches > 10);
    CutOnto(twins.tiered.get(), CutKind::kDelta, is_copy ? since : cut, &rows);
    EXPECT_TRUE(rows == BaseOf(twins.plain.get()));
  }
}

TEST(ACopyThatIsStoppedEndsOnTheDiskToo) {
  const TemporaryDirectory directory;
  RowStoreConfig config = Config(0);
  config.tier_memory = MakeMemory(directory.Path(""), 1, 1);
  RowStore store(config);
  for (int64_t id = 0; id < 60000; id += 1000) Lookup(&store, Batch{Range(id, id + 1000), {}});
  const int64_t in_memory = 60000 - store.tier()->stats().rows_on_disk[0];
  int64_t rows = 0;
  EXPECT_STATUS(store.Copy([&](const RowColumns& columns) {
    rows += columns.num_rows;
    if (rows > in_memory + 2000) store.StopCopies();
    return Status::Ok();
  }),
                StatusCode::kIoError, "the copy was stopped");
  EXPECT_TRUE(rows > in_memory + 2000 && rows < 50000);
}

TEST(RowsMoveWhenMemoryShrinksForHeads) {
  const TemporaryDirectory directory;
  // Heads of 40,000 rows take 1 MiB: chunks of floats that were taken before go.
  Twins twins(Config(0), directory.Path(""), 4 << 20);
  std::mt19937_64 random(1);
  for (int step = 1; step <= 80; ++step) {
    const int64_t first = step * 500;
    twins.Step(Batch{Range(first, first + 500), Range(0, 100)}, step, &random);
  }
  twins.ExpectSame();
  int64_t cut;
  twins.ExpectSameRecords(CutKind::kBase, -1, &cut);
  EXPECT_TRUE(twins.tiered->config().tier_memory->used_bytes() < (4 << 20) + (64 << 10));
}

TEST(HotRowsStayWhenOthersComeOnce) {
  const TemporaryDirectory directory;
  RowStoreConfig config = Config(0);
  config.tier_memory = MakeMemory(directory.Path(""));
  RowStore store(config);
  const Batch hot{Range(0, 500), {}};
  uint32_t step = 1;
  for (int i = 0; i < 5; ++i) {
    Lookup(&store, hot);
    Update(&store, hot, 1, 0.1f, step++);
  }
  int64_t once = 1000;
  for (int i = 0; i < 40; ++i, once += 200) {
    Lookup(&store, Batch{Range(once, once + 200), {}});
    if (i % 4 == 0) Lookup(&store, hot);
  }
  const int64_t before = store.tier()->stats().log.read;
  Lookup(&store, hot);
  EXPECT_TRUE(store.tier()->stats().log.read - before < 25);  // of 500, of which LRU had none
}

TEST(ARestoreThatDoesNotFitGoesToDisk) {
  const TemporaryDirectory directory;
  RowStoreConfig config = Config(0);
  RowStore from(config);
  std::mt19937_64 random(3);
  const Batch all{Range(0, 6000), Range(0, 2000)};
  Lookup(&from, all);
  Update(&from, all, 0.5f, 0.1f, 7);
  int64_t cut;
  config.tier_memory = MakeMemory(directory.Path(""));
  RowStore to(config);
  for (int i = 0; i < 2; ++i) {  // the second overwrites rows on either tier
    Update(&from, Batch{Range(0, 3000), {}}, 0.5f, 0.1f, 8);
    for (const RowColumns& columns : RecordsOf(&from, CutKind::kBase, -1, &cut)) {
      to.Load(columns, {0, 1}, 0, 1, true, SerialFor);
    }
  }
  to.MarkClean();
  EXPECT_OK(to.failure());
  EXPECT_TRUE(to.tier()->stats().rows_on_disk[0] > 3000);
  EXPECT_TRUE(BaseOf(&from) == BaseOf(&to));
  to.Clear();
  EXPECT_EQ(to.tier()->stats().log.live, 0);
  Lookup(&to, all);
  Update(&to, all, 0.5f, 0.1f, 7);
  EXPECT_EQ(NumRows(to, 0), 6000);
}

// The descriptors of files without a name, which the log has.
std::vector<std::string> OpenSpillFiles(const std::string& directory) {
  std::vector<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code ignored;
    const auto target = std::filesystem::read_symlink(entry.path(), ignored).string();
    if (target.rfind(directory, 0) == 0) found.push_back(entry.path().string());
  }
  return found;
}

TEST(AFlippedBitIsFoundAndNamed) {
  const TemporaryDirectory directory;
  RowStoreConfig config = Config(0);
  config.tier_memory = MakeMemory(directory.Path(""));
  RowStore store(config);
  Lookup(&store, Batch{Range(0, 6000), {}});
  const auto files = OpenSpillFiles(directory.Path(""));
  EXPECT_TRUE(files.size() > 5);
  for (const std::string& file : files) {
    const int fd = ::open(file.c_str(), O_RDWR);
    char byte;
    for (off_t at = 100; ::pread(fd, &byte, 1, at) == 1; at += 200) {
      byte ^= 4;
      EXPECT_EQ(::pwrite(fd, &byte, 1, at), 1);
    }
    ::close(fd);
  }
  std::vector<float> rows(6000 * kDim);
  const Batch all{Range(0, 6000), {}};
  EXPECT_STATUS(store.Lookup(all.view(), true, SerialFor, rows.data()), StatusCode::kDataLoss,
                "embedps-spill-", "offset", "its checksum is wrong", "checkpoint");
  int64_t cut;
  const RowSink sink = [](const RowColumns&) { return Status::Ok(); };
  EXPECT_STATUS(store.Cut(CutKind::kBase, -1, sink, &cut), StatusCode::kDataLoss, "checksum");
}

TEST(AFileThatEndsIsFoundAndNamed) {
  const TemporaryDirectory directory;
  RowStoreConfig config = Config(0);
  config.tier_memory = MakeMemory(directory.Path(""));
  RowStore store(config);
  Lookup(&store, Batch{Range(0, 6000), {}});
  for (const std::string& file : OpenSpillFiles(directory.Path(""))) {
    EXPECT_EQ(::truncate(file.c_str(), 8 << 10), 0);
  }
  std::vector<float> rows(6000 * kDim);
  const Batch all{Range(0, 6000), {}};
  EXPECT_STATUS(store.Lookup(all.view(), true, SerialFor, rows.data()), StatusCode::kDataLoss,
                "embedps-spill-", "cannot read", "the file ends", "checkpoint");
}

// While it lives no file may be as large as a segment, so none is reserved and no buffer is
// written. With RLIMIT_NOFILE no file is made, but what is reserved is written, as on a disk
// without space.
class FullDisk {
 public:
  using Resource = decltype(RLIMIT_FSIZE);
  explicit FullDisk(Resource resource = RLIMIT_FSIZE) : resource_(resource) {
    std::signal(SIGXFSZ, SIG_IGN);
    getrlimit(resource_, &limit_);
    rlimit least = limit_;
    least.rlim_cur = resource_ == RLIMIT_FSIZE ? 1024 : 0;
    setrlimit(resource_, &least);
  }
  ~FullDisk() { setrlimit(resource_, &limit_); }

 private:
  const Resource resource_;
  rlimit limit_{};
};

TEST(CompactionOnAFullDiskLosesNoRow) {
  for (const FullDisk::Resource resource : {RLIMIT_NOFILE, RLIMIT_FSIZE}) {
    const TemporaryDirectory directory;
    Twins twins(Config(0), directory.Path(""));
    std::mt19937_64 random(4);
    for (int step = 1; step <= 16; ++step) {
      twins.Step(Batch{Range(step * 500, step * 500 + 500), {}}, step, &random);
    }
    std::vector<int64_t> gone;
    for (int64_t id = 500; id < 8500; ++id) {
      if (id % 5 != 0) gone.push_back(id);
    }
    const auto log = [&] { return twins.tiered->tier()->stats().log; };
    const int64_t before = log().bytes;
    {
      const FullDisk full(resource);
      for (RowStore* store : {twins.plain.get(), twins.tiered.get()}) {
        EXPECT_EQ(store->Remove(0, gone.data(), static_cast<int64_t>(gone.size())), 6400);
      }
      while (log().full == 0) std::this_thread::yield();
      // Who fails first, the writer of a buffer or whoever needs a segment, differs.
      EXPECT_CONTAINS(log().error,
                      resource == RLIMIT_FSIZE ? "cannot" : "cannot make a spill file");
      EXPECT_TRUE(BaseOf(twins.plain.get()) == BaseOf(twins.tiered.get()));
    }
    while (log().bytes > before / 2) std::this_thread::yield();
    EXPECT_TRUE(BaseOf(twins.plain.get()) == BaseOf(twins.tiered.get()));
    EXPECT_EQ(twins.tiered->tier()->stats().evicted, 0);
  }
}

TEST(ADiskThatIsFullFromTheBeginningIsNamed) {
  const TemporaryDirectory directory;
  RowStoreConfig config = Config(0);
  config.tier_memory = MakeMemory(directory.Path(""));
  RowStore store(config);
  const FullDisk full;
  Lookup(&store, Batch{Range(0, 4000), {}});
  EXPECT_CONTAINS(store.tier()->stats().log.error, "cannot reserve 65536 bytes");
  EXPECT_EQ(NumRows(store, 0), 4000 - store.tier()->stats().evicted);
}

// Stripes could give chunks of floats to heads if the rows had a place.
TEST(AFullDiskIsAskedForFewPlacesPerNewRow) {
  const TemporaryDirectory directory;
  RowStoreConfig config = Config(0);
  config.tier_memory = MakeMemory(directory.Path(""), 4 << 20);
  RowStore store(config);
  for (int64_t id = 0; id < 20000; id += 1000) Lookup(&store, Batch{Range(id, id + 1000), {}});
  const FullDisk full;
  Lookup(&store, Batch{Range(20000, 22000), {}});
  const RowTier::Stats stats = store.tier()->stats();
  EXPECT_TRUE(stats.evicted > 1000);
  EXPECT_TRUE(stats.log.full <= 3 * 2000);
}

TEST(AFullDiskEvictsAndSaysSo) {
  const TemporaryDirectory directory;
  RowStoreConfig config = Config(0);
  config.tier_memory = MakeMemory(directory.Path(""));
  RowStore store(config);
  Lookup(&store, Batch{Range(0, 4000), {}});
  Rows rows;
  int64_t cut = CutOnto(&store, CutKind::kBase, -1, &rows);
  const int64_t before = NumRows(store, 0);
  EXPECT_EQ(before, 4000);
  auto full = std::make_unique<FullDisk>();
  for (int i = 0; i < 10; ++i) {
    const Batch batch{Range(4000 + 500 * i, 4500 + 500 * i), {}};
    Lookup(&store, batch);
    Update(&store, batch, 1, 0.1f, i + 1);
    Lookup(&store, Batch{Range(0, 500), {}}, false);  // reads, and evicts nothing
  }
  const RowTier::Stats stats = store.tier()->stats();
  EXPECT_CONTAINS(stats.log.error, "cannot");
  EXPECT_TRUE(stats.evicted > 3000);
  const auto evicted = store.Evicted(0);
  EXPECT_EQ(evicted[static_cast<int>(EvictionCause::kLimit)], stats.evicted);
  EXPECT_EQ(NumRows(store, 0), 9000 - stats.evicted);
  CutOnto(&store, CutKind::kDelta, cut, &rows);
  EXPECT_TRUE(rows == BaseOf(&store));
  full.reset();
  std::this_thread::sleep_for(std::chrono::milliseconds(1100));
  Lookup(&store, Batch{Range(20000, 22000), {}});
  EXPECT_EQ(store.tier()->stats().log.error, "");
  EXPECT_EQ(store.tier()->stats().evicted, stats.evicted);
}

TEST(TheDiskHasAtMostThreeTimesTheRows) {
  const TemporaryDirectory directory;
  RowStoreConfig config = Config(0);
  config.tier_memory = MakeMemory(directory.Path(""));
  RowStore store(config);
  std::mt19937_64 random(5);
  const int64_t row = (4 << 10) / 9;  // of 424 bytes, in buffers of a page
  for (uint32_t step = 1; step <= 150; ++step) {
    std::set<int64_t> ids;
    while (ids.size() < 600) ids.insert(static_cast<int64_t>(random() % 8000));
    const Batch batch{std::vector<int64_t>(ids.begin(), ids.end()), {}};
    Lookup(&store, batch);
    Update(&store, batch, 1, 0.1f, step);
    const SpillLog::Stats stats = store.tier()->stats().log;
    // And what one batch writes.
    EXPECT_TRUE(stats.bytes <= 3 * stats.live * row + (SpillLog::kSlackSegments + 2) * (64 << 10) +
                                   int64_t{1200} * row);
  }
  EXPECT_TRUE(store.tier()->stats().log.moved > 0);
}

TEST(ThreadsShareTheDisk) {
  const TemporaryDirectory directory;
  RowStoreConfig config = MakeConfig(kDim, 1, OptimizerKind::kSgd);
  config.tier_memory = MakeMemory(directory.Path(""));
  RowStore store(config);
  std::atomic<uint32_t> step{1};
  std::vector<std::thread> threads;
  for (int k = 0; k < 3; ++k) {
    threads.emplace_back([&, k] {
      std::mt19937_64 random(k);
      for (int i = 0; i < 60; ++i) {
        const Batch batch{SomeIds(&random, 200, 5000)};
        const std::vector<float> rows = Lookup(&store, batch);
        for (size_t r = 0; r < batch.ids.size(); ++r) {
          EXPECT_EQ(rows[r * kDim], rows[r * kDim + kDim - 1]);
        }
        Update(&store, batch, 1, -1, step++);
      }
    });
  }
  threads.emplace_back([&] {
    for (int i = 0; i < 5; ++i) {
      for (const auto& [key, record] : BaseOf(&store)) {
        EXPECT_EQ(record.floats[0], static_cast<float>(record.frequency));
        EXPECT_EQ(record.floats[kDim - 1], static_cast<float>(record.frequency));
      }
    }
  });
  for (std::thread& thread : threads) thread.join();
  EXPECT_OK(store.failure());
  for (const auto& [key, record] : BaseOf(&store)) {
    EXPECT_EQ(record.floats[0], static_cast<float>(record.frequency));
  }
}

TEST(MemoryFollowsUseFromTableToTable) {
  const TemporaryDirectory directory;
  RowStoreConfig config = MakeConfig(kDim, 2, OptimizerKind::kSgd);
  constexpr int64_t kHot =
      4000;  // of table 1, of which 1280 fit the chunks that stripes begin with
  config.tier_memory = MakeMemory(directory.Path(""), 4 << 20);
  RowStore store(config);
  for (int64_t id = 0; id < 30000; id += 1000) Lookup(&store, Batch{Range(id, id + 1000), {}});
  Lookup(&store, Batch{{}, Range(0, kHot)});
  const int64_t used = config.tier_memory->used_bytes();
  const auto on_disk = [&] { return store.tier()->stats().rows_on_disk; };
  EXPECT_TRUE(on_disk()[1] > kHot / 2);
  std::atomic<uint32_t> step{1};
  std::vector<std::thread> threads;
  for (int k = 0; k < 3; ++k) {
    threads.emplace_back([&, k] {
      std::mt19937_64 random(k);
      for (int i = 0; i < 100; ++i) {
        std::set<int64_t> cold, hot;
        while (cold.size() < 100) cold.insert(static_cast<int64_t>(random() % 30000));
        while (hot.size() < 600) hot.insert(static_cast<int64_t>(random() % kHot));
        const Batch batch{{cold.begin(), cold.end()}, {hot.begin(), hot.end()}};
        Lookup(&store, batch);
        Update(&store, batch, 1, -1, step++);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_OK(store.failure());
  EXPECT_TRUE(on_disk()[1] < kHot / 10);
  EXPECT_TRUE(config.tier_memory->used_bytes() < used + (64 << 10));
  for (const auto& [key, record] : BaseOf(&store)) {
    EXPECT_EQ(record.floats[0], static_cast<float>(record.frequency));
    EXPECT_EQ(record.floats[kDim - 1], static_cast<float>(record.frequency));
  }
}

}  // namespace
}  // namespace embedps

int main(int argc, char** argv) { return embedps::testing::RunAllTests(argc, argv); }
