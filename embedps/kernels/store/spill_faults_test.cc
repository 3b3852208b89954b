// Tests a store whose coldest rows are on a disk that is slow, breaks, or answers in pieces. The
// disk is a real one: this program's pread stands before the system's.
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "embedps/kernels/store/row_store.h"
#include "embedps/kernels/store/row_store_testing.h"
#include "embedps/kernels/testing/testing.h"

namespace {

enum class Fault { kNone, kSlow, kError, kInterrupted, kPieces, kEnds };
std::atomic<Fault> fault{Fault::kNone};
std::atomic<int64_t> reads_until_fault{0};
std::atomic<int64_t> faults{0};

}  // namespace

extern "C" ssize_t pread(int fd, void* to, size_t bytes, off_t offset) {
  if (fault != Fault::kNone && reads_until_fault.fetch_sub(1) <= 0) {
    const int64_t before = faults.fetch_add(1);
    switch (fault.load()) {
      case Fault::kSlow:
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        break;
      case Fault::kError:
        errno = EIO;
        return -1;
      case Fault::kInterrupted:
        if (before % 2 == 0) {
          errno = EINTR;
          return -1;
        }
        break;
      case Fault::kPieces:  // of pages, as O_DIRECT has them
        if (bytes > 4096) bytes = 4096;
        break;
      case Fault::kEnds:
        return 0;
      case Fault::kNone:
        break;
    }
  }
  return syscall(SYS_pread64, fd, to, bytes, offset);
}

namespace embedps {
namespace {

using testing::TemporaryDirectory;

constexpr int kDim = 48;

// Rows of which few are in memory, and the same rows without a disk.
struct Stores {
  explicit Stores(int64_t max_rows = 0) {
    RowStoreConfig config = MakeConfig(kDim, 1, OptimizerKind::kAdagrad);
    config.tables[0].eviction.max_rows = max_rows;
    plain = std::make_unique<RowStore>(config);
    config.tier_memory = std::make_shared<TierMemory>(SmallTier(directory.Path("")));
    tiered = std::make_unique<RowStore>(config);
    Step(Batch{Range(0, 6000)}, 1);
    faults = 0;
  }
  ~Stores() { fault = Fault::kNone; }

  void Begin(Fault begun, int64_t after = 0) {
    reads_until_fault = after;
    fault = begun;
  }

  void Step(const Batch& batch, uint32_t step) {
    EXPECT_TRUE(Lookup(plain.get(), batch) == Lookup(tiered.get(), batch));
    for (RowStore* store : {plain.get(), tiered.get()}) Update(store, batch, 1, 0.1f, step);
    EXPECT_OK(tiered->failure());
  }

  void ExpectSame() {
    fault = Fault::kNone;
    EXPECT_OK(tiered->failure());
    EXPECT_TRUE(BaseOf(plain.get()) == BaseOf(tiered.get()));
  }

  TemporaryDirectory directory;
  std::unique_ptr<RowStore> plain, tiered;
};

TEST(ASlowDiskGivesTheSameRows) {
  Stores stores;
  stores.Begin(Fault::kSlow);  // each read takes 100 ms
  for (uint32_t step = 2; step < 6; ++step) {
    const int64_t first = 700 * step;
    stores.tiered->ReadAhead(Batch{Range(first + 20, first + 40)}.view());
    stores.Step(Batch{Range(first, first + 40)}, step);
  }
  EXPECT_TRUE(faults > 20);
  stores.ExpectSame();
}

// Whoever comes second waits, or leaves them out.
TEST(RowsThatALookupAndAReadAheadNeedAreReadOnce) {
  for (const bool displaces : {false, true}) {
    for (const bool is_ahead_first : {false, true}) {
      Stores stores(displaces ? 6000 : 0);
      const auto read = [&] { return stores.tiered->tier()->stats().log.read; };
      const Batch batch{Range(1000, 1040)};
      const int64_t before = read();
      stores.Begin(Fault::kSlow);
      std::thread step;
      if (is_ahead_first) {
        stores.tiered->ReadAhead(batch.view());
      } else {
        step = std::thread([&] { stores.Step(batch, 2); });
      }
      while (faults == 0) std::this_thread::yield();
      const int64_t by_first = read() - before;
      EXPECT_TRUE(by_first > 30);
      if (is_ahead_first) {
        stores.Step(batch, 2);
      } else {
        stores.tiered->ReadAhead(batch.view());
        step.join();
      }
      stores.tiered->WaitForAhead();
      EXPECT_EQ(read() - before, by_first);
      stores.ExpectSame();
    }
  }
}

TEST(ADiskThatAnswersInPiecesOrIsInterruptedGivesTheSameRows) {
  for (const Fault each : {Fault::kPieces, Fault::kInterrupted}) {
    Stores stores;
    stores.Begin(each);
    for (uint32_t step = 2; step < 8; ++step) {
      stores.Step(Batch{Range(500 * step, 500 * step + 400)}, step);
    }
    EXPECT_TRUE(faults > 20);
    stores.ExpectSame();
  }
}

// Whatever asks first is told, and so is whatever asks after it: the rows are lost for good.
TEST(AReadErrorIsNamedByWhoMeetsItAndByAllAfterIt) {
  for (const Fault each : {Fault::kError, Fault::kEnds}) {
    const std::string why = each == Fault::kError ? "Input/output error" : "the file ends";
    const auto expect_named = [&](const Status& status) {
      EXPECT_STATUS(status, StatusCode::kDataLoss, "group ", "embedps-spill-", "cannot read",
                    "offset", why, "must come from a checkpoint again");
    };
    const Batch all{Range(0, 6000)};
    std::vector<float> rows(6000 * kDim, 0.5f);
    const RowSink sink = [](const RowColumns&) { return Status::Ok(); };
    int64_t cut;
    for (int who = 0; who < 4; ++who) {
      Stores stores;
      RowStore* const store = stores.tiered.get();
      stores.Begin(each, /*after=*/3);
      if (who == 0) expect_named(store->Lookup(all.view(), true, SerialFor, rows.data()));
      if (who == 1) store->Update(all.view(), rows.data(), 0.1f, 2, SerialFor);
      if (who == 2) expect_named(store->Cut(CutKind::kBase, -1, sink, &cut));
      if (who == 3) {
        store->ReadAhead(all.view());
        store->WaitForAhead();
      }
      fault = Fault::kNone;  // the disk is well again, but what was lost may be anywhere
      expect_named(store->failure());
      expect_named(store->Lookup(Batch{Range(0, 1)}.view(), false, SerialFor, rows.data()));
      expect_named(store->Cut(CutKind::kDelta, -1, sink, &cut));
      expect_named(store->Copy(sink));
    }
  }
}

// The compactor reads whole segments. It leaves one that it cannot read, and loses nothing.
TEST(AReadErrorOfTheCompactorLosesNoRow) {
  Stores stores;
  std::vector<int64_t> gone;
  for (int64_t id = 0; id < 6000; ++id) {
    if (id % 5 != 0) gone.push_back(id);
  }
  stores.Begin(Fault::kError);
  for (RowStore* store : {stores.plain.get(), stores.tiered.get()}) {
    store->Remove(0, gone.data(), static_cast<int64_t>(gone.size()));
  }
  while (faults == 0) std::this_thread::yield();
  stores.ExpectSame();
}

}  // namespace
}  // namespace embedps

int main(int argc, char** argv) { return embedps::testing::RunAllTests(argc, argv); }
