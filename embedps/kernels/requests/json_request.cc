#include "embedps/kernels/requests/json_request.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string_view>
#include <system_error>
#include <unordered_map>

#include "embedps/kernels/requests/json_text.h"

namespace embedps {
namespace {

constexpr int64_t kMaxDigits = 20;
constexpr uint64_t kMaxUnsignedId = 0xFFFFFFFFFFFFFFFD;  // MAX_UNSIGNED_ID of text_values.py

bool Is(const JsonText& value, const char* word) {
  return value.size() == static_cast<int64_t>(std::strlen(word)) &&
         std::memcmp(value.at, word, value.size()) == 0;
}

// Reads a whole number of at most kMaxDigits digits. From 2^63 on it is that of the same bits, if
// `is_id`; the two largest are none, as their bits mean a missing id and a rare one.
bool ReadInteger(const char* at, const char* end, bool is_id, int64_t* value) {
  const bool is_negative = at < end && *at == '-';
  at += is_negative;
  if (at == end || end - at > kMaxDigits) return false;
  uint64_t size = 0;
  for (; at < end; ++at) {
    if (*at < '0' || *at > '9') return false;
    if (__builtin_mul_overflow(size, uint64_t{10}, &size)) return false;
    if (__builtin_add_overflow(size, static_cast<uint64_t>(*at - '0'), &size)) return false;
  }
  constexpr uint64_t kHalf = uint64_t{1} << 63;
  const uint64_t most = is_negative ? kHalf : is_id ? kMaxUnsignedId : kHalf - 1;
  if (size > most) return false;
  *value = static_cast<int64_t>(is_negative ? 0 - size : size);
  return true;
}

// Reads a number as Python does: what is too large is infinite, unless it is a whole number.
bool ReadDouble(const JsonText& value, double* number) {
  if (Is(value, "null") || Is(value, "NaN")) {
    *number = std::numeric_limits<double>::quiet_NaN();
    return true;
  }
  const bool is_negative = value.starts('-');
  const char* at = value.at + is_negative;
  if (at < value.end && *at == 'I') {
    *number = is_negative ? -HUGE_VAL : HUGE_VAL;
    return true;
  }
  if (at == value.end || *at < '0' || *at > '9') return false;
  if (Is(value, "-0")) {  // a whole number
    *number = 0.0;
    return true;
  }
  const auto [stop, error] = std::from_chars(value.at, value.end, *number);
  if (error == std::errc()) return stop == value.end;
  // Too large, or nearly 0.
  *number = std::strtod(std::string(value.at, value.end).c_str(), nullptr);
  const bool is_whole = std::all_of(at, value.end, [](char c) { return c >= '0' && c <= '9'; });
  return !(is_whole && std::isinf(*number));
}

int Base64Digit(unsigned char c) {
  if (c >= 'A' && c <= 'Z') return c - 'A';
  if (c >= 'a' && c <= 'z') return c - 'a' + 26;
  if (c >= '0' && c <= '9') return c - '0' + 52;
  return c == '+' ? 62 : c == '/' ? 63 : -1;
}

// Adds what Base64 says.
bool AppendBase64(const std::string& text, std::string* bytes) {
  const size_t found = text.find('=');
  const size_t size = found == std::string::npos ? text.size() : found;
  const size_t padding = text.size() - size;
  if (padding > 2 || text.find_first_not_of('=', size) != std::string::npos) return false;
  if (size % 4 == 1 || text.size() % 4 != 0) return false;
  uint32_t bits = 0;
  for (size_t i = 0; i < size; ++i) {
    const int digit = Base64Digit(static_cast<unsigned char>(text[i]));
    if (digit < 0) return false;
    bits = bits << 6 | static_cast<uint32_t>(digit);
    if (i % 4 != 0) bytes->push_back(static_cast<char>(bits >> (6 - 2 * (i % 4))));
  }
  return true;
}

class Reader {
 public:
  Reader(const char* data, const JsonForm& form, std::vector<JsonValues>* values)
      : data_(data), form_(form), values_(*values), found_(form.num_columns) {
    values_.assign(form.num_columns, {});
    for (int64_t column = 0; column < form.num_columns; ++column) {
      columns_.emplace(NameOf(column), column);
    }
  }

  JsonError ReadInputs(JsonText given) {
    if (given.starts('{')) {
      JsonItems items(given);
      for (JsonText key, value; items.Next(&key, &value);) {
        const int64_t column = Find(key);
        if (column < 0) return Fault(kOtherName, -1, 0, key);
        found_[column] = value;
        values_[column].is_there = true;
      }
    } else if (form_.num_columns == 1) {
      found_[0] = given;
      values_[0].is_there = true;
    } else {
      return Fault(kNoObject, -1, 0, given);
    }
    for (int64_t column = 0; column < form_.num_columns; ++column) {
      if (!values_[column].is_there) continue;
      int64_t count;
      const JsonError error = ReadList(column, found_[column], &count);
      if (error.fault != kNoFault) return error;
    }
    return {};
  }

  JsonError ReadInstances(JsonText given) {
    if (!given.starts('[')) return Fault(kNoList, -1, 0, given);
    JsonItems rows(given);
    int64_t row = 0;
    for (JsonText value; rows.Next(&value); ++row) {
      if (row >= form_.max_rows) continue;  // how many there are
      const JsonError error = ReadInstance(row, value);
      if (error.fault != kNoFault) return error;
    }
    if (row > form_.max_rows) return Fault(kTooMany, -1, row, given);
    if (row > 0) return {};
    for (JsonValues& each : values_) each.is_there = true;
    return {};
  }

 private:
  JsonError Fault(JsonFault fault, int64_t column, int64_t count, const JsonText& at) const {
    return {fault, column, count, {at.at - data_, at.end - data_}};
  }

  std::string_view NameOf(int64_t column) const {
    const int64_t begin = column == 0 ? 0 : form_.columns[column - 1].name_end;
    return {form_.names + begin, static_cast<size_t>(form_.columns[column].name_end - begin)};
  }

  // Gives the column of a name, or -1. The one after the last is looked at first.
  int64_t Find(const JsonText& key) {
    const char *name = key.at + 1, *end = key.end - 1;
    if (std::memchr(name, '\\', end - name) != nullptr) {
      name_.clear();
      AppendString(key, &name_);
      name = name_.data();
      end = name + name_.size();
    }
    const std::string_view wanted(name, end - name);
    if (next_ == form_.num_columns) next_ = 0;
    if (NameOf(next_) == wanted) return next_++;
    const auto found = columns_.find(wanted);
    if (found == columns_.end()) return -1;
    next_ = found->second + 1;
    return found->second;
  }

  // Finds the members of an instance; those of the first are those of all.
  JsonError FindMembers(int64_t row, JsonText instance) {
    int64_t num_found = 0;
    std::fill(found_.begin(), found_.end(), JsonText{});
    JsonItems items(instance);
    for (JsonText key, value; items.Next(&key, &value);) {
      const int64_t column = Find(key);
      if (column < 0 && row == 0) return Fault(kOtherName, -1, 0, key);
      if (column < 0) return Fault(kOtherNames, -1, row, instance);
      num_found += found_[column].at == nullptr;
      found_[column] = value;
      if (row == 0) values_[column].is_there = true;
      if (!values_[column].is_there) return Fault(kOtherNames, -1, row, instance);
    }
    if (row == 0) num_names_ = num_found;
    if (num_found != num_names_) return Fault(kOtherNames, -1, row, instance);
    return {};
  }

  // Tells whether an instance of the only column is its value, and not an object with its name.
  bool IsValue(const JsonText& instance) {
    if (form_.num_columns != 1 || !instance.starts('{')) return form_.num_columns == 1;
    JsonItems items(instance);
    for (JsonText key, value; items.Next(&key, &value);) {
      if (Find(key) == 0) return false;
    }
    return true;
  }

  JsonError ReadInstance(int64_t row, JsonText instance) {
    if (IsValue(instance)) {
      found_[0] = instance;
      values_[0].is_there = true;
      num_names_ = 1;
    } else {
      if (!instance.starts('{')) return Fault(kNoObject, -1, row, instance);
      const JsonError error = FindMembers(row, instance);
      if (error.fault != kNoFault) return error;
    }
    for (int64_t column = 0; column < form_.num_columns; ++column) {
      if (found_[column].at == nullptr) continue;
      const int64_t lengths = form_.columns[column].lengths_place;
      if (lengths < 0) {
        if (!ReadValue(column, found_[column])) return Fault(kValue, column, row, found_[column]);
        continue;
      }
      // The lengths of a list that is there are no member of their own.
      if (found_[lengths].at != nullptr) return Fault(kOtherNames, lengths, row, instance);
      int64_t count;
      const JsonError error = ReadList(column, found_[column], &count);
      if (error.fault != kNoFault) return error;
      values_[lengths].integers.push_back(count);
    }
    return {};
  }

  JsonError ReadList(int64_t column, JsonText list, int64_t* count) {
    if (!list.starts('[')) return Fault(kNoList, column, 0, list);
    const int64_t before = values_[column].size(), most = form_.columns[column].max_values;
    *count = 0;
    JsonItems items(list);
    for (JsonText value; items.Next(&value); ++*count) {
      if (before + *count >= most) continue;
      if (!ReadValue(column, value)) return Fault(kValue, column, *count, value);
    }
    if (before + *count > most) return Fault(kTooMany, column, before + *count, list);
    return {};
  }

  bool ReadValue(int64_t column, const JsonText& value) {
    const JsonColumn& form = form_.columns[column];
    JsonValues& values = values_[column];
    const bool is_missing = form.takes_null && Is(value, "null");
    if (form.kind == kJsonInt64) {
      int64_t number = form.missing;
      if (!is_missing && !ReadInt64(value, form.takes_null, &number)) return false;
      values.integers.push_back(number);
    } else if (form.kind == kJsonBytes) {
      if (!is_missing && !AppendBytes(value, &values.bytes)) return false;
      const int64_t end = static_cast<int64_t>(values.bytes.size());
      values.bytes_end.push_back(is_missing ? -1 - end : end);
    } else {
      double number;
      if (!ReadDouble(value, &number)) return false;
      if (form.kind == kJsonFloat32) {
        values.floats.push_back(static_cast<float>(number));
      } else {
        values.doubles.push_back(number);
      }
    }
    return true;
  }

  bool ReadInt64(const JsonText& value, bool is_id, int64_t* number) {
    if (!value.starts('"')) return ReadInteger(value.at, value.end, is_id, number);
    name_.clear();
    AppendString(value, &name_);
    return ReadInteger(name_.data(), name_.data() + name_.size(), is_id, number);
  }

  // Adds a text, or bytes as {"b64": TEXT}.
  bool AppendBytes(const JsonText& value, std::string* bytes) {
    const size_t before = bytes->size();
    if (value.starts('"')) {
      AppendString(value, bytes);
      return !HasSurrogate(bytes->data() + before, bytes->size() - before);
    }
    if (!value.starts('{')) return false;
    JsonText base64 = {};
    JsonItems items(value);
    for (JsonText key, member; items.Next(&key, &member);) {
      name_.clear();
      AppendString(key, &name_);
      if (name_ != "b64") return false;
      base64 = member;
    }
    if (!base64.starts('"')) return false;
    name_.clear();
    AppendString(base64, &name_);
    return AppendBase64(name_, bytes);
  }

  const char* data_;
  const JsonForm& form_;
  std::vector<JsonValues>& values_;
  std::unordered_map<std::string_view, int64_t> columns_;
  std::vector<JsonText> found_;  // of an instance, or of the inputs, by column
  std::string name_;             // what was read last
  int64_t next_ = 0, num_names_ = 0;
};

}  // namespace

void CheckBody(const char* data, int64_t size, JsonBody* body) {
  *body = {};
  body->wrong_at = -1;
  JsonText text = {data, data + size};
  if (size >= 3 && std::memcmp(data, "\xEF\xBB\xBF", 3) == 0) text.at += 3;
  JsonText checked = text;
  const bool is_json = checked.CheckValue();
  checked.SkipSpace();
  if (!is_json || checked.size() != 0) {
    body->wrong_at = checked.at - data;
    return;
  }
  body->num_commas = std::count(data, data + size, ',');
  text.SkipSpace();
  body->is_object = text.starts('{');
  if (!body->is_object) return;
  JsonItems items(text);
  std::string name;
  for (JsonText key, value; items.Next(&key, &value);) {
    name.clear();
    AppendString(key, &name);
    JsonPlace* place = name == "instances"        ? &body->instances
                       : name == "inputs"         ? &body->inputs
                       : name == "signature_name" ? &body->signature
                                                  : nullptr;
    if (place != nullptr) *place = {value.at - data, value.end - data};
  }
}

JsonError ReadColumns(const char* data, const JsonPlace& place, bool by_row, const JsonForm& form,
                      std::vector<JsonValues>* values) {
  Reader reader(data, form, values);
  const JsonText given = {data + place.begin, data + place.end};
  return by_row ? reader.ReadInstances(given) : reader.ReadInputs(given);
}

}  // namespace embedps
