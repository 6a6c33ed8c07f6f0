// The tokens of a template, read one after the other.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/failure.h"
#include "text/jinja/lexer.h"

namespace levin::text::jinja {

class TokenStream {
 public:
  explicit TokenStream(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  // The current token, or one further on; at the end always kEnd.
  const Token& peek(std::size_t ahead = 0) const {
    return tokens_[std::min(at_ + ahead, tokens_.size() - 1)];
  }
  int line() const { return peek().line; }

  bool is(TokenKind kind) const { return peek().kind == kind; }
  bool is(TokenKind kind, std::string_view text, std::size_t ahead = 0) const {
    return peek(ahead).kind == kind && peek(ahead).text == text;
  }
  bool is_operator(std::string_view text) const { return is(TokenKind::kOperator, text); }
  bool is_name(std::string_view text) const { return is(TokenKind::kName, text); }

  Token take() {
    Token token = peek();
    if (at_ + 1 < tokens_.size()) ++at_;
    return token;
  }
  bool skip(TokenKind kind, std::string_view text) {
    if (!is(kind, text)) return false;
    take();
    return true;
  }
  bool skip_operator(std::string_view text) { return skip(TokenKind::kOperator, text); }
  bool skip_name(std::string_view text) { return skip(TokenKind::kName, text); }

  Token expect(TokenKind kind, std::string_view what) {
    if (!is(kind)) fail_expected(what);
    return take();
  }
  void expect_operator(std::string_view text) {
    if (!skip_operator(text)) fail_expected(fmt::format("'{}'", text));
  }
  void expect_name(std::string_view text) {
    if (!skip_name(text)) fail_expected(fmt::format("'{}'", text));
  }

  [[noreturn]] void fail_expected(std::string_view what) const {
    throw Failure(fmt::format("expected {}, got {}", what, describe()), line());
  }

  // The current token as the author wrote it.
  std::string describe() const {
    switch (peek().kind) {
      case TokenKind::kText:
        return "text";
      case TokenKind::kOutputBegin:
        return "'{{'";
      case TokenKind::kOutputEnd:
        return "'}}'";
      case TokenKind::kTagBegin:
        return "'{%'";
      case TokenKind::kTagEnd:
        return "'%}'";
      case TokenKind::kString:
        return "a string";
      case TokenKind::kEnd:
        return "the end of the template";
      default:
        return fmt::format("'{}'", peek().text);
    }
  }

 private:
  std::vector<Token> tokens_;
  std::size_t at_ = 0;
};

}  // namespace levin::text::jinja
