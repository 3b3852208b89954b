#include "embedps/kernels/requests/json_text.h"

#include <bitset>
#include <cstring>

namespace embedps {
namespace {

bool IsDigit(const JsonText& text) {
  return text.at < text.end && *text.at >= '0' && *text.at <= '9';
}

bool SkipDigits(JsonText* text) {
  if (!IsDigit(*text)) return false;
  while (IsDigit(*text)) ++text->at;
  return true;
}

bool SkipWord(JsonText* text, const char* word) {
  const int64_t size = static_cast<int64_t>(std::strlen(word));
  if (text->size() < size || std::memcmp(text->at, word, size) != 0) return false;
  text->at += size;
  return true;
}

bool CheckNumber(JsonText* text) {
  if (text->starts('-')) ++text->at;
  if (text->starts('I')) return SkipWord(text, "Infinity");
  if (text->starts('0')) {
    ++text->at;
  } else if (!SkipDigits(text)) {
    return false;
  }
  if (text->starts('.')) {
    ++text->at;
    if (!SkipDigits(text)) return false;
  }
  if (text->starts('e') || text->starts('E')) {
    ++text->at;
    if (text->starts('+') || text->starts('-')) ++text->at;
    if (!SkipDigits(text)) return false;
  }
  return true;
}

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

// Moves behind a character of two or more bytes of UTF-8.
bool CheckCharacter(JsonText* text) {
  const auto byte = [text](int i) { return static_cast<unsigned char>(text->at[i]); };
  const unsigned first = byte(0);
  const int size = first < 0xC2 ? 0 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : first < 0xF5 ? 4 : 0;
  if (size == 0 || text->size() < size) return false;
  for (int i = 1; i < size; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return false;
  }
  if (first == 0xE0 && byte(1) < 0xA0) return false;  // longer than it must be
  if (first == 0xF0 && byte(1) < 0x90) return false;
  if (first == 0xF4 && byte(1) >= 0x90) return false;  // above U+10FFFF
  text->at += size;
  return true;
}

bool CheckEscape(JsonText* text) {
  ++text->at;
  if (text->size() == 0) return false;
  const char kind = *text->at++;
  if (kind != 'u') return kind != '\0' && std::strchr("\"\\/bfnrt", kind) != nullptr;
  if (text->size() < 4) return false;
  for (int i = 0; i < 4; ++i) {
    if (HexDigit(text->at[i]) < 0) return false;
  }
  text->at += 4;
  return true;
}

bool CheckString(JsonText* text) {
  ++text->at;
  while (text->at < text->end) {
    const unsigned char c = static_cast<unsigned char>(*text->at);
    if (c == '"') {
      ++text->at;
      return true;
    }
    if (c < 0x20) return false;
    if (c == '\\') {
      if (!CheckEscape(text)) return false;
    } else if (c < 0x80) {
      ++text->at;
    } else if (!CheckCharacter(text)) {
      return false;
    }
  }
  return false;
}

bool CheckScalar(JsonText* text) {
  if (text->size() == 0) return false;
  switch (*text->at) {
    case '"':
      return CheckString(text);
    case 't':
      return SkipWord(text, "true");
    case 'f':
      return SkipWord(text, "false");
    case 'n':
      return SkipWord(text, "null");
    case 'N':
      return SkipWord(text, "NaN");
    default:
      return CheckNumber(text);
  }
}

unsigned ReadHex(const char* at) {
  unsigned code = 0;
  for (int i = 0; i < 4; ++i) code = code << 4 | static_cast<unsigned>(HexDigit(at[i]));
  return code;
}

void AppendCode(unsigned code, std::string* text) {
  const auto add = [text](unsigned byte) { text->push_back(static_cast<char>(byte)); };
  if (code < 0x80) {
    add(code);
  } else if (code < 0x800) {
    add(0xC0 | code >> 6);
    add(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    add(0xE0 | code >> 12);
    add(0x80 | (code >> 6 & 0x3F));
    add(0x80 | (code & 0x3F));
  } else {
    add(0xF0 | code >> 18);
    add(0x80 | (code >> 12 & 0x3F));
    add(0x80 | (code >> 6 & 0x3F));
    add(0x80 | (code & 0x3F));
  }
}

}  // namespace

bool JsonText::CheckValue() {
  std::bitset<kMaxJsonDepth> is_object;
  int depth = 0;
  bool may_end = false;  // the list or the object has no item yet
  while (true) {
    SkipSpace();
    const bool ends = may_end && at < end && *at == (is_object[depth - 1] ? '}' : ']');
    may_end = false;
    if (ends) {
      ++at;
      --depth;
    } else {
      if (depth > 0 && is_object[depth - 1]) {
        if (!starts('"') || !CheckString(this)) return false;
        SkipSpace();
        if (!starts(':')) return false;
        ++at;
        SkipSpace();
      }
      if (starts('{') || starts('[')) {
        if (depth == kMaxJsonDepth) return false;
        is_object[depth++] = *at++ == '{';
        may_end = true;
        continue;
      }
      if (!CheckScalar(this)) return false;
    }
    // Behind a value: what is whole is closed.
    while (true) {
      if (depth == 0) return true;
      SkipSpace();
      if (at == end) return false;
      const char c = *at;
      if (c == ',') {
        ++at;
        break;
      }
      if (c != (is_object[depth - 1] ? '}' : ']')) return false;
      ++at;
      --depth;
    }
  }
}

JsonText JsonText::Take() {
  SkipSpace();
  const char* begin = at;
  int64_t depth = 0;
  do {
    const char c = *at;
    if (c == '"') {
      for (++at; *at != '"'; ++at) at += *at == '\\';
      ++at;
    } else if (c == '{' || c == '[') {
      ++depth;
      ++at;
    } else if (c == '}' || c == ']') {
      --depth;
      ++at;
    } else if (depth > 0) {
      ++at;
    } else {
      while (at < end && std::memchr(",]} \n\t\r", *at, 7) == nullptr) ++at;
    }
  } while (depth > 0);
  return {begin, at};
}

bool JsonItems::Next(JsonText* value) {
  text_.SkipSpace();
  if (text_.starts(',')) ++text_.at;
  text_.SkipSpace();
  if (text_.starts(']') || text_.starts('}')) return false;
  *value = text_.Take();
  return true;
}

bool JsonItems::Next(JsonText* key, JsonText* value) {
  if (!Next(key)) return false;
  text_.SkipSpace();
  ++text_.at;  // the colon
  *value = text_.Take();
  return true;
}

void AppendString(JsonText value, std::string* text) {
  const char *at = value.at + 1, *end = value.end - 1;
  while (at < end) {
    const void* found = std::memchr(at, '\\', end - at);
    const char* stop = found == nullptr ? end : static_cast<const char*>(found);
    text->append(at, stop);
    if (stop == end) return;
    const char kind = stop[1];
    at = stop + 2;
    if (kind == 'u') {
      unsigned code = ReadHex(at);
      at += 4;
      if (code >= 0xD800 && code < 0xDC00 && end - at >= 6 && at[0] == '\\' && at[1] == 'u') {
        const unsigned low = ReadHex(at + 2);
        if (low >= 0xDC00 && low < 0xE000) {
          code = 0x10000 + ((code - 0xD800) << 10 | (low - 0xDC00));
          at += 6;
        }
      }
      AppendCode(code, text);
    } else {
      static constexpr char kNames[] = "bfnrt", kCodes[] = "\b\f\n\r\t";
      const char* name = std::strchr(kNames, kind);
      text->push_back(name == nullptr ? kind : kCodes[name - kNames]);
    }
  }
}

bool HasSurrogate(const char* text, int64_t size) {
  for (const char *at = text, *end = text + size; at < end; ++at) {
    at = static_cast<const char*>(std::memchr(at, '\xED', end - at));
    if (at == nullptr) return false;
    if (end - at > 1 && static_cast<unsigned char>(at[1]) >= 0xA0) return true;
  }
  return false;
}

}  // namespace embedps
