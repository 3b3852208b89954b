// Finds the items whose vectors have the highest dot products with a query, exactly.
//
// A search reads the codes of all items (item_codes.h), a quarter of the bytes. Of those blocks
// that may have one of the best, it reads the vectors.
//
// An index never changes. A change makes another index that shares the blocks of items that stay
// as they were. So searches go on beside a change, and each sees all of it or nothing.
#ifndef EMBEDPS_KERNELS_RETRIEVAL_ITEM_INDEX_H_
#define EMBEDPS_KERNELS_RETRIEVAL_ITEM_INDEX_H_

#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "embedps/kernels/runtime/parallel.h"

namespace embedps {

// The score of a place in an answer for which there is no item; its id is kNoItem.
constexpr float kNoScore = std::numeric_limits<float>::lowest();
constexpr int64_t kNoItem = -1;

// What a query may find. Ids may repeat; those of no item do nothing.
struct ItemFilter {
  const int64_t* seen = nullptr;  // to leave out
  int64_t num_seen = 0;
  bool is_limited = false;           // only `allowed` may be found
  const int64_t* allowed = nullptr;  // counts if is_limited
  int64_t num_allowed = 0;
};

class ItemIndex {
 public:
  // Makes an index without items, for vectors of `dim` floats.
  explicit ItemIndex(int dim) : dim_(dim) {}

  // Makes an index from which `removed` are gone, and in which then the items `ids` have the rows
  // of `vectors` [num_ids, dim]. Of an id that comes twice the last vector counts.
  std::shared_ptr<const ItemIndex> Changed(const int64_t* ids, int64_t num_ids,
                                           const float* vectors, const int64_t* removed,
                                           int64_t num_removed) const;

  // Finds the best k items of each query, float [num_queries, dim], the best first. Among equal
  // scores the smaller id is first. A score is a sum in order of the dimensions, by fused
  // multiply-adds where the processor has them: it does not depend on what else is asked.
  // `filters` has one per query. Writes `scores` and `found` [num_queries, k].
  void Search(const float* queries, int64_t num_queries, int k,
              const std::vector<ItemFilter>& filters, const ParallelFor& parallel, float* scores,
              int64_t* found) const;

  // Copies the vectors of items to rows of `vectors` [num_ids, dim]; zeros where there is none.
  void Read(const int64_t* ids, int64_t num_ids, float* vectors) const;

  int dim() const { return dim_; }
  int64_t num_items() const { return static_cast<int64_t>(places_.size()); }
  // Of the memory that it holds, alone or together with other indexes.
  int64_t num_bytes() const;

 private:
  struct Block;
  struct Place {
    int64_t id;
    int32_t slot;
  };
  struct BlockMask;
  class Best;
  class Change;

  int32_t SlotOf(int64_t id) const;  // -1 if there is no such item
  std::vector<BlockMask> AllowedIn(const ItemFilter& filter) const;
  void ScoreBlock(int64_t block, uint64_t lanes, const float* query, Best* best) const;

  int dim_;
  std::vector<std::shared_ptr<const Block>> blocks_;
  std::vector<Place> places_;  // by id
  std::vector<int32_t> free_;  // slots below blocks_.size() blocks that have no item
};

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_RETRIEVAL_ITEM_INDEX_H_
