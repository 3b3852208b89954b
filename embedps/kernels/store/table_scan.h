// Statistics of a table that are found by a walk over its rows. No lookup pays for them.
#ifndef EMBEDPS_KERNELS_STORE_TABLE_SCAN_H_
#define EMBEDPS_KERNELS_STORE_TABLE_SCAN_H_

#include <cstdint>
#include <vector>

namespace embedps {

// Counts values in bins of equal ratios: exact below kPerDoubling units, above it kPerDoubling bins
// per doubling.
class LogBins {
 public:
  static constexpr int kPerDoubling = 32;
  static constexpr int kDoublings = 26;
  static constexpr int kNumBins = kPerDoubling * (kDoublings + 1);

  explicit LogBins(double unit) : unit_(unit), counts_(kNumBins) {}

  // Counts a value of at least 0, or NaN. What is too large for the bins counts in the last one.
  void Add(double value) { ++counts_[BinOf(value / unit_)]; }

  const std::vector<int64_t>& counts() const { return counts_; }

  // Returns a bin's value: the middle of the whole multiples that it counts.
  double Value(int bin) const;

 private:
  static int BinOf(double units);

  double unit_;
  std::vector<int64_t> counts_;
};

struct TableScan {
  struct HotId {
    int64_t id;
    uint32_t frequency;
  };
  static constexpr int kNumHottest = 1000;
  // The norm of every 16th row is taken: it reads the whole row, not only the header.
  static constexpr uint32_t kNormStride = 16;
  // Of a table with rows on disk about as many at most: each may be a random read.
  static constexpr int64_t kMostNorms = 4096;
  static uint32_t NormStrideOf(int64_t rows) {
    uint32_t stride = kNormStride;
    while (rows / stride > kMostNorms) stride *= 2;
    return stride;
  }
  static constexpr double kNormUnit = 1e-4;

  int64_t rows = 0;
  int64_t updates = 0;         // of these rows
  LogBins frequencies{1};      // updates of each row
  LogBins norms{kNormUnit};    // L2 norms of embeddings
  std::vector<HotId> hottest;  // the most frequent, and of equals those of the least id, in order
};

// Collects the most frequent ids.
class HottestIds {
 public:
  void Add(int64_t id, uint32_t frequency) {
    if (heap_.size() == TableScan::kNumHottest) {
      if (!IsHotter({id, frequency}, heap_.front())) return;
      Replace({id, frequency});
    } else {
      Push({id, frequency});
    }
  }
  std::vector<TableScan::HotId> Take();

 private:
  static bool IsHotter(const TableScan::HotId& a, const TableScan::HotId& b) {
    return a.frequency != b.frequency ? a.frequency > b.frequency : a.id < b.id;
  }
  void Push(const TableScan::HotId& id);
  void Replace(const TableScan::HotId& id);

  std::vector<TableScan::HotId> heap_;  // the least hot is in front
};

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_STORE_TABLE_SCAN_H_
