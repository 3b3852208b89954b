#include "embedps/kernels/requests/json_answer.h"

#include <charconv>
#include <cmath>
#include <cstring>
#include <vector>

#include "embedps/kernels/requests/json_text.h"

namespace embedps {
namespace {

template <typename T>
void AppendChars(T value, std::string* text) {
  char buffer[32];
  text->append(buffer, std::to_chars(buffer, buffer + sizeof(buffer), value).ptr - buffer);
}

// Writes as few digits as tell the number, as Python's `repr` does.
void AppendDouble(double value, std::string* text) {
  if (std::isnan(value)) {
    text->append("NaN");
  } else if (std::isinf(value)) {
    text->append(value < 0 ? "-Infinity" : "Infinity");
  } else {
    const double size = std::fabs(value);
    const bool is_fixed = size == 0 || (size >= 1e-4 && size < 1e16);
    char buffer[32];
    const auto format = is_fixed ? std::chars_format::fixed : std::chars_format::scientific;
    const char* end = std::to_chars(buffer, buffer + sizeof(buffer), value, format).ptr;
    text->append(buffer, end - buffer);
    if (is_fixed && std::memchr(buffer, '.', end - buffer) == nullptr) text->append(".0");
  }
}

class Output {
 public:
  explicit Output(const JsonOutput& output)
      : output_(output),
        values_(output.kind == kOutJson ? Text(output) : JsonText{kEmpty, kEmpty + 2}) {}

  void AppendRow(std::string* text) {
    if (output_.width < 0) return AppendNext(text);
    text->push_back('[');
    for (int64_t i = 0; i < output_.width; ++i) {
      if (i > 0) text->append(", ");
      AppendNext(text);
    }
    text->push_back(']');
  }

  const char* name() const { return output_.name; }

 private:
  static constexpr char kEmpty[] = "[]";

  static JsonText Text(const JsonOutput& output) {
    const char* at = static_cast<const char*>(output.data);
    return {at, at + output.data_size};
  }

  template <typename T>
  T Take() {
    return static_cast<const T*>(output_.data)[next_++];
  }

  void AppendNext(std::string* text) {
    switch (output_.kind) {
      case kOutInt64:
        return AppendChars(Take<int64_t>(), text);
      case kOutFloat32:
        return AppendDouble(Take<float>(), text);
      case kOutFloat64:
        return AppendDouble(Take<double>(), text);
      case kOutBool:
        text->append(Take<uint8_t>() ? "true" : "false");
        return;
      default:
        JsonText value;
        if (values_.Next(&value)) text->append(value.at, value.end);
    }
  }

  const JsonOutput& output_;
  JsonItems values_;
  int64_t next_ = 0;
};

}  // namespace

std::string WriteRows(const JsonOutput* outputs, int64_t num_outputs, int64_t rows,
                      bool as_objects) {
  std::vector<Output> each(outputs, outputs + num_outputs);
  std::string text;
  for (int64_t row = 0; row < rows; ++row) {
    if (row > 0) text.append(", ");
    if (as_objects) text.push_back('{');
    for (int64_t i = 0; i < num_outputs; ++i) {
      if (i > 0) text.append(", ");
      if (as_objects) text.append(each[i].name()).append(": ");
      each[i].AppendRow(&text);
    }
    if (as_objects) text.push_back('}');
  }
  return text;
}

}  // namespace embedps
