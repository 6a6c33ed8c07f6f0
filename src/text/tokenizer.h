// Bytes <-> tokens: the byte-level BPE of tokenizer.json, with everything (split regex, added
// tokens, merges, ignore_merges) taken from the file and nothing assumed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/interrupt.h"

namespace levin::text {

class Tokenizer {
 public:
  // Reads tokenizer.json of a Hugging Face folder. Throws Error for a file that is malformed or
  // that uses a construct levin does not implement (named in the message).
  static Tokenizer load(const std::filesystem::path& folder);
  static Tokenizer parse(std::string_view tokenizer_json, const std::string& where);

  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;

  // Text to ids. Added tokens in the text ("<|im_end|>") become their single id when
  // `parse_special`; otherwise they are plain text. Nothing is prepended or appended. Bytes that
  // are not UTF-8 are an Error naming the offset.
  std::vector<int32_t> encode(std::string_view text, bool parse_special = true,
                              const Interrupt& interrupt = {}) const;
  // The most bytes of text that one token stands for; nothing when that has no bound, because the
  // tokenizer drops or shortens text.
  std::optional<std::size_t> longest_token_bytes() const;

  // Ids to bytes (which may be invalid UTF-8 when a sequence was cut inside a character). Ids out
  // of range are an Error. With `skip_special`, added tokens flagged special are left out.
  std::string decode(std::span<const int32_t> ids, bool skip_special = false) const;

  // The bytes of one id.
  std::string_view bytes_of(int32_t id) const;
  bool is_special(int32_t id) const;
  // The id of an added or vocabulary token by its content, as it stands in text: " the", not
  // "Ġthe".
  std::optional<int32_t> find(std::string_view content) const;
  int32_t vocab_size() const;
  // The file asks for tokens around every text (a post_processor), which encode() does not add.
  bool surrounds_text() const;

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Turns a stream of ids into text that is always whole UTF-8 characters: bytes of an unfinished
// character are kept back until it is complete.
class StreamDecoder {
 public:
  // With `skip_special`, added tokens flagged special are left out, but for those in `shown`.
  explicit StreamDecoder(const Tokenizer& tokenizer, bool skip_special = false,
                         std::vector<int32_t> shown = {});
  // The text that this id completes, possibly empty.
  std::string push(int32_t id);
  // What is left at the end; incomplete bytes become U+FFFD.
  std::string finish();

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_;
  std::vector<int32_t> shown_;
  std::string pending_;
};

}  // namespace levin::text
