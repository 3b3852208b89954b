#include "embedps/kernels/store/row_tier.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace embedps {
namespace {

constexpr uint32_t kNoSlot = BodyArena::kNoSlot;
// Of a stripe's first heads, its index and its lists.
constexpr int64_t kStripeBytes = 3072;

}  // namespace

const SpillLog::Read* RowTier::Fetched::Find(int64_t key) const {
  const auto found =
      std::lower_bound(reads_.begin(), reads_.end(), key,
                       [](const SpillLog::Read& read, int64_t of) { return read.key < of; });
  return found != reads_.end() && found->key == key ? &*found : nullptr;
}

RowTier::Image::~Image() {
  if (slot_ == kNoSlot) return;
  const MutexLock lock(&tier_->mutex_);
  tier_->image_slots_.push_back(slot_);
}

RowTier::RowTier(std::shared_ptr<TierMemory> memory, Owner owner)
    : memory_(std::move(memory)),
      owner_(std::move(owner)),
      log_(memory_->config(), owner_.group, owner_.arena->body_bytes(), memory_->readers()),
      spilled_(owner_.min_norms.size()) {
  memory_->MustTake(log_.MemoryBytes());
  for (size_t bin = 0; bin < owner_.stripes->size(); ++bin) {
    stripes_.push_back(std::make_unique<OfStripe>(this, static_cast<int>(bin)));
    (*owner_.stripes)[bin]->tier = stripes_.back().get();
  }
  memory_->Add(this);
  log_.Start([this](const SpillLog::OnDisk& record) { return MoveRecord(record); }, owner_.is_busy);
}

RowTier::~RowTier() {
  Stop();
  memory_->Remove(this);
  for (const auto& stripe : *owner_.stripes) stripe->tier = nullptr;
  memory_->Release(log_.MemoryBytes());
}

int64_t RowTier::LeastBytes(const RowLayout& layout, int num_tables, const TierConfig& config) {
  const int64_t chunk = BodyArena::ChunkBytes(layout.body_bytes());
  return num_tables * int64_t{kStripes} * (chunk + chunk / 8 + kStripeBytes) +
         SpillLog::kMostBuffers * config.buffer_bytes;
}

// The caller holds the stripe's lock.
RowHeader* RowTier::RowAt(int bin, uint32_t number) const NO_THREAD_SAFETY_ANALYSIS {
  return (*owner_.stripes)[bin]->Row(number);
}

void RowTier::AddSpilled(int bin, int64_t rows) {
  stripes_[bin]->hot.spilled += rows;
  spilled_[bin / kStripes].fetch_add(rows, std::memory_order_relaxed);
  num_spilled_.fetch_add(rows, std::memory_order_relaxed);
}

void RowTier::Want(int bin, uint32_t number, int64_t key, Fetched* fetched) const {
  const RowHeader& row = *RowAt(bin, number);
  const uint32_t place = PlaceOf(row);
  if ((place & kOnDisk) == 0) return;
  SpillLog::Read read;
  read.key = key;
  read.bin = bin;
  read.location = place & kPlaceMask;
  read.id = row.id;
  fetched->reads_.push_back(std::move(read));
}

Status RowTier::Fetch(Fetched* fetched) {
  std::vector<SpillLog::Read>& reads = fetched->reads_;
  if (reads.empty()) return failure();
  const size_t bytes = log_.payload_bytes();
  fetched->payloads_.reset(new char[reads.size() * bytes]);
  std::sort(reads.begin(), reads.end(),
            [](const SpillLog::Read& a, const SpillLog::Read& b) { return a.key < b.key; });
  for (size_t i = 0; i < reads.size(); ++i) {
    reads[i].payload = fetched->payloads_.get() + i * bytes;
  }
  const Status status = log_.ReadAll(&reads);
  if (!status.ok()) Fail(status);
  return failure();
}

void RowTier::Scan(const std::function<bool(int64_t rows)>& begins,
                   const std::function<bool(int bin, uint32_t number, const char* floats)>& visit) {
  log_.Scan(begins, [&](const SpillLog::OnDisk& record) {
    Stripe& stripe = *(*owner_.stripes)[record.bin];
    const MutexLock lock(&stripe.mutex);
    const uint32_t number = stripe.Find(stripe.HashOf(record.id), record.id);
    if (number == kNone) return false;
    const uint32_t place = PlaceOf(*stripe.Row(number));
    const bool is_live = (place & kOnDisk) != 0 && (place & kPlaceMask) == record.location;
    return is_live && log_.IsCurrent(record) && visit(record.bin, number, record.payload);
  });
}

void RowTier::Begin(int bin, uint32_t number, bool is_training) {
  RowHeader* const row = RowAt(bin, number);
  SetPlace(kNoPlace, row);
  if (memory_->IsOver() && !memory_->FreeSome(this, bin)) Shrink(bin);
  const uint32_t slot = TakeSlot(bin, /*may_evict=*/true);
  stripes_[bin]->hot.Add(slot, number, /*is_main=*/false);
  if (is_training) stripes_[bin]->hot.Await(slot, BodyArena::Awaited::kUpdate);
  SetPlace(slot, row);
}

void RowTier::Renew(int bin, uint32_t number) {
  RowHeader* const row = RowAt(bin, number);
  const uint32_t place = PlaceOf(*row);
  if ((place & kOnDisk) == 0) return ForgetRecord(bin, place);
  SetPlace(kNoPlace, row);
  log_.Kill(place & kPlaceMask);
  AddSpilled(bin, -1);
  const uint32_t slot = TakeSlot(bin, /*may_evict=*/true);
  stripes_[bin]->hot.Add(slot, number, /*is_main=*/false);
  SetPlace(slot, row);
}

bool RowTier::BringIn(int bin, uint32_t number, const Fetched& fetched, int64_t key) {
  const RowHeader* const row = RowAt(bin, number);
  if (PlaceOf(*row) & kOnDisk) {
    thread_local std::vector<char> own;
    const char* const payload = Payload(bin, *row, fetched, key, &own);
    if (payload == nullptr) return false;
    ComeIn(bin, number, payload, /*may_evict=*/true);
  }
  stripes_[bin]->hot.Await(PlaceOf(*row), BodyArena::Awaited::kNothing);
  ForgetRecord(bin, PlaceOf(*row));
  return true;
}

void RowTier::BringInAhead(int bin, uint32_t number, const Fetched& fetched, int64_t key) {
  const RowHeader* const row = RowAt(bin, number);
  if ((PlaceOf(*row) & kOnDisk) == 0 || fetched.Find(key) == nullptr) return;
  thread_local std::vector<char> own;
  const char* const payload = Payload(bin, *row, fetched, key, &own);
  if (payload == nullptr) return;
  const uint32_t slot = ComeIn(bin, number, payload, /*may_evict=*/false);
  if (slot != kNoSlot) stripes_[bin]->hot.Await(slot, BodyArena::Awaited::kLookup);
}

const RowHeader* RowTier::LookUp(int bin, uint32_t number, const Fetched& fetched, int64_t key,
                                 bool is_training, Image* image) {
  const RowHeader* const row = RowAt(bin, number);
  HotRows& hot = stripes_[bin]->hot;
  const uint32_t place = PlaceOf(*row);
  if ((place & kOnDisk) == 0) {
    hot.Use(place, is_training);
    return row;
  }
  thread_local std::vector<char> own;
  const char* const payload = Payload(bin, *row, fetched, key, &own);
  if (payload == nullptr) return nullptr;
  const uint32_t slot = ComeIn(bin, number, payload, /*may_evict=*/false);
  if (slot == kNoSlot) return Copy(*row, payload, image);
  if (is_training) hot.Await(slot, BodyArena::Awaited::kUpdate);
  return row;
}

const RowHeader* RowTier::View(int bin, uint32_t number, const Fetched& fetched, int64_t key,
                               Image* image) {
  const RowHeader* const row = RowAt(bin, number);
  if ((PlaceOf(*row) & kOnDisk) == 0) return row;
  thread_local std::vector<char> own;
  const char* const payload = Payload(bin, *row, fetched, key, &own);
  return payload == nullptr ? nullptr : Copy(*row, payload, image);
}

const RowHeader* RowTier::ViewOnDisk(int bin, const RowHeader& row, Image* image) {
  thread_local std::vector<char> own;
  const char* const payload = Payload(bin, row, Fetched(), 0, &own);
  return payload == nullptr ? nullptr : Copy(row, payload, image);
}

const RowHeader* RowTier::Copy(const RowHeader& row, const char* floats, Image* image) {
  if (image->slot_ == kNoSlot) {
    const MutexLock lock(&mutex_);
    if (image_slots_.empty()) {
      const uint32_t first = owner_.arena->NewChunk(BodyArena::kNobody);
      if (first == kNoSlot) return nullptr;
      for (uint32_t i = 0; i < owner_.arena->chunk_slots(); ++i) image_slots_.push_back(first + i);
    }
    image->slot_ = image_slots_.back();
    image_slots_.pop_back();
  }
  image->head_.header = row;
  image->head_.place = image->slot_;
  std::memcpy(owner_.arena->At(image->slot_)->floats(), floats, owner_.arena->body_bytes());
  return &image->head_.header;
}

const char* RowTier::Payload(int bin, const RowHeader& row, const Fetched& fetched, int64_t key,
                             std::vector<char>* own) {
  const uint32_t location = PlaceOf(row) & kPlaceMask;
  const SpillLog::Read* const read = fetched.Find(key);
  if (read != nullptr && read->location == location && log_.IsCurrent(*read)) return read->payload;
  late_reads_.fetch_add(1, std::memory_order_relaxed);
  own->resize(log_.payload_bytes());
  std::vector<SpillLog::Read> reads(1);
  reads[0].bin = bin;
  reads[0].location = location;
  reads[0].id = row.id;
  reads[0].payload = own->data();
  Status status = log_.ReadAll(&reads);
  if (status.ok() && !reads[0].found) {
    status = Status::DataLoss("the spill files of group '" + owner_.group +
                              "' have another record where that of id " + std::to_string(row.id) +
                              " must be");
  }
  if (status.ok()) return own->data();
  Fail(status);
  return nullptr;
}

uint32_t RowTier::ComeIn(int bin, uint32_t number, const char* payload, bool may_evict) {
  RowHeader* const row = RowAt(bin, number);
  HotRows& hot = stripes_[bin]->hot;
  const bool is_soon = AgeOf(*row) <= memory_->main_age();
  if (is_soon && hot.NeedsChunk() && memory_->IsFull(hot.ChargedBytes())) {
    (void)memory_->FreeSome(this, bin);
  }
  const uint32_t slot = TakeSlot(bin, may_evict);
  if (slot == kNoSlot) return slot;
  std::memcpy(owner_.arena->At(slot)->floats(), payload, owner_.arena->body_bytes());
  const uint32_t record = PlaceOf(*row);
  log_.Spare(record & kPlaceMask);
  AddSpilled(bin, -1);
  hot.Add(slot, number, /*is_main=*/is_soon);
  hot.SetRecord(slot, record);
  SetPlace(slot, row);
  return slot;
}

uint32_t RowTier::TakeSlot(int bin, bool may_evict) {
  HotRows& hot = stripes_[bin]->hot;
  const uint32_t free = hot.TakeFree();
  if (free != kNoSlot) return free;
  const uint32_t victim = hot.Victim();
  if (victim == kNoSlot || LetGo(bin, victim)) return hot.TakeFree();
  if (!may_evict) return kNoSlot;
  evicted_.fetch_add(1, std::memory_order_relaxed);
  owner_.evict(bin, owner_.arena->At(victim)->row);
  return hot.TakeFree();
}

bool RowTier::Spill(int bin, uint32_t slot) {
  HotRows& hot = stripes_[bin]->hot;
  BodyArena::Slot* const at = owner_.arena->At(slot);
  RowHeader* const row = RowAt(bin, at->row);
  uint32_t place = at->record;
  if (place != 0) {
    log_.Need(place & kPlaceMask);
  } else {
    const uint32_t location = log_.Append(bin, row->id, at->floats());
    if (location == SpillLog::kNowhere) return false;
    const double norm = owner_.min_norms[bin / kStripes];
    const bool is_small = norm > 0 && owner_.layout->SquaredNorm(*row, norm * norm) < norm * norm;
    place = kOnDisk | (is_small ? kSmallNorm : 0) | location;
  }
  if (at->queue == BodyArena::Queue::kMain) memory_->NoteMainAge(AgeOf(*row));
  SetPlace(place, row);
  hot.Free(slot);
  AddSpilled(bin, 1);
  return true;
}

bool RowTier::LetGo(int bin, uint32_t victim) {
  if (Spill(bin, victim)) return true;
  HotRows& hot = stripes_[bin]->hot;
  hot.Keep(victim);
  const uint32_t clean = hot.AnyClean();
  return clean != kNoSlot && Spill(bin, clean);
}

void RowTier::ForgetRecord(int bin, uint32_t slot) {
  const uint32_t record = slot == kNoSlot ? 0 : owner_.arena->At(slot)->record;
  if (record == 0) return;
  log_.KillSpare(record & kPlaceMask);
  stripes_[bin]->hot.SetRecord(slot, 0);
}

RowTier::Freed RowTier::Shrink(int bin) {
  HotRows& hot = stripes_[bin]->hot;
  const uint32_t first = hot.LastChunk();
  if (first == kNoSlot) return Freed::kNothing;
  const uint32_t end = first + owner_.arena->chunk_slots();
  for (uint32_t slot = first; slot < end; ++slot) {
    // Rows leave by the policy, and those of the chunk take their slots.
    while (owner_.arena->At(slot)->queue != BodyArena::Queue::kFree) {
      const uint32_t to = hot.TakeOther(first, end);
      if (to != kNoSlot) {
        const uint32_t number = owner_.arena->At(slot)->row;
        hot.Move(slot, to);
        SetPlace(to, RowAt(bin, number));
        break;
      }
      const uint32_t victim = hot.Victim();
      if (victim == kNoSlot) return Freed::kNothing;
      if (LetGo(bin, victim)) continue;
      return Freed::kNothingAsDiskIsFull;
    }
  }
  hot.DropLastChunk();
  return Freed::kChunk;
}

// The caller holds one stripe's lock, and waits for no other.
RowTier::Freed RowTier::FreeChunk(uint64_t random, int locked) NO_THREAD_SAFETY_ANALYSIS {
  const int bin = owner_.arena->HolderOfAny(random);
  if (bin == BodyArena::kNobody) return Freed::kNothing;
  if (bin == locked) return Shrink(bin);
  Mutex* const mutex = &(*owner_.stripes)[bin]->mutex;
  if (!mutex->TryLock()) return Freed::kNothing;
  const MutexLock lock(mutex, std::adopt_lock);
  return Shrink(bin);
}

void RowTier::Drop(int bin, uint32_t number) {
  const uint32_t place = PlaceOf(*RowAt(bin, number));
  if (place & kOnDisk) {
    log_.Kill(place & kPlaceMask);
    AddSpilled(bin, -1);
  } else if (place != kNoPlace) {
    ForgetRecord(bin, place);
    stripes_[bin]->hot.Free(place);
  }
}

// The caller holds the stripe's lock.
void RowTier::Clear(int bin) NO_THREAD_SAFETY_ANALYSIS {
  const Stripe& stripe = *(*owner_.stripes)[bin];
  for (uint32_t number = 0; number < stripe.used(); ++number) {
    const RowHeader& row = *stripe.Row(number);
    if (!row.live) continue;
    const uint32_t place = PlaceOf(row);
    if (place & kOnDisk) {
      log_.Kill(place & kPlaceMask);
    } else {
      ForgetRecord(bin, place);
    }
  }
  AddSpilled(bin, -stripes_[bin]->hot.spilled);
  stripes_[bin]->hot.Clear();
}

bool RowTier::MoveRecord(const SpillLog::OnDisk& record) {
  Stripe& stripe = *(*owner_.stripes)[record.bin];
  const MutexLock lock(&stripe.mutex);
  const uint32_t number = stripe.Find(stripe.HashOf(record.id), record.id);
  if (number == kNone) return true;
  RowHeader* const row = stripe.Row(number);
  const uint32_t place = PlaceOf(*row);
  const bool is_on_disk = (place & kOnDisk) != 0;
  if (!is_on_disk && place == kNoPlace) return true;
  const uint32_t of_row = is_on_disk ? place : owner_.arena->At(place)->record;
  // A row that changed since the record was read may be at the same location of a later segment.
  if ((of_row & kPlaceMask) != record.location || !log_.IsCurrent(record)) return true;
  if (!is_on_disk) {
    ForgetRecord(record.bin, place);
    return true;
  }
  const uint32_t moved = log_.Append(record.bin, record.id, record.payload);
  if (moved == SpillLog::kNowhere) return false;
  SetPlace((place & ~kPlaceMask) | moved, row);
  log_.Kill(record.location);
  log_.CountMove();
  return true;
}

void RowTier::Fail(const Status& status) {
  const MutexLock lock(&mutex_);
  if (failure_.ok()) {
    failure_ = Status(status.code(), "group '" + owner_.group + "': " + status.message() +
                                         ": the server's rows must come from a checkpoint again");
  }
  failed_ = true;
}

Status RowTier::failure() const {
  if (!failed_.load(std::memory_order_relaxed)) return Status::Ok();
  const MutexLock lock(&mutex_);
  return failure_;
}

RowTier::Stats RowTier::stats() const {
  Stats stats;
  for (const auto& rows : spilled_) {
    stats.rows_on_disk.push_back(rows.load(std::memory_order_relaxed));
  }
  stats.log = log_.stats();
  stats.late_reads = late_reads_.load(std::memory_order_relaxed);
  stats.evicted = evicted_.load(std::memory_order_relaxed);
  return stats;
}

}  // namespace embedps
