// Reads JSON as Python's `json` takes it: with NaN, Infinity and -Infinity, in UTF-8, a lone
// surrogate being three bytes.
#ifndef EMBEDPS_KERNELS_REQUESTS_JSON_TEXT_H_
#define EMBEDPS_KERNELS_REQUESTS_JSON_TEXT_H_

#include <cstdint>
#include <string>

namespace embedps {

constexpr int kMaxJsonDepth = 512;

// A part of a text, read from its front.
struct JsonText {
  const char* at;
  const char* end;

  int64_t size() const { return end - at; }
  bool starts(char c) const { return at < end && *at == c; }

  void SkipSpace() {
    while (at < end && (*at == ' ' || *at == '\n' || *at == '\t' || *at == '\r')) ++at;
  }

  // Moves behind a value and the space before it. Returns false at what is no JSON.
  bool CheckValue();

  // Gives a value of checked JSON, and moves behind it.
  JsonText Take();
};

// The members of an object, or the elements of a list, of checked JSON.
class JsonItems {
 public:
  explicit JsonItems(JsonText value) : text_(value) { ++text_.at; }

  // Moves to the next one. Returns false after the last.
  bool Next(JsonText* value);
  bool Next(JsonText* key, JsonText* value);

 private:
  JsonText text_;
};

// Adds what a string of checked JSON says, in UTF-8.
void AppendString(JsonText value, std::string* text);

// Tells whether UTF-8 has a lone surrogate, which is no text.
bool HasSurrogate(const char* text, int64_t size);

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_REQUESTS_JSON_TEXT_H_
