#include "bench/client/http.h"

#include <fmt/format.h>

#include <new>

#include "bench/client/curl_handle.h"
#include "core/error.h"

namespace levin::bench::client {
namespace {

constexpr std::size_t kMostAnswerBytes = std::size_t{64} << 20;
constexpr long kConnectSeconds = 10;

// libcurl wants this once, before there are threads.
void set_up_curl() {
  static const CURLcode code = curl_global_init(CURL_GLOBAL_DEFAULT);
  if (code != CURLE_OK) throw std::bad_alloc();
}

std::size_t append(char* data, std::size_t /*one*/, std::size_t bytes, void* body) {
  auto& text = *static_cast<std::string*>(body);
  if (text.size() + bytes > kMostAnswerBytes) return 0;
  text.append(data, bytes);
  return bytes;
}

HttpAnswer perform(const Target& target, CURL* easy) {
  HttpAnswer answer;
  curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, append);
  curl_easy_setopt(easy, CURLOPT_WRITEDATA, &answer.body);
  const CURLcode code = curl_easy_perform(easy);
  if (code != CURLE_OK) {
    const bool no_url = code == CURLE_URL_MALFORMAT || code == CURLE_UNSUPPORTED_PROTOCOL;
    throw Error({.what = "the server does not answer",
                 .where = target.url,
                 .expected = no_url ? "a URL like http://localhost:8000" : "",
                 .found = transfer_error(code, target),
                 .hint = no_url ? "" : "is it running, and is this its address?",
                 .exit_code = no_url ? ExitCode::kBadInput : ExitCode::kMachine});
  }
  long status = 0;
  curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &status);
  answer.status = static_cast<int>(status);
  return answer;
}

}  // namespace

CurlHeaders make_headers(const Target& target) {
  curl_slist* list = curl_slist_append(nullptr, "Content-Type: application/json");
  list = curl_slist_append(list, "Expect:");  // large bodies are sent at once
  if (!target.api_key.empty()) {
    list = curl_slist_append(list, ("Authorization: Bearer " + target.api_key).c_str());
  }
  return CurlHeaders(list);
}

CurlEasy make_easy(const Target& target, const std::string& path, const curl_slist* headers) {
  set_up_curl();
  CurlEasy easy(curl_easy_init());
  if (!easy) throw std::bad_alloc();
  curl_easy_setopt(easy.get(), CURLOPT_URL, (target.url + path).c_str());
  curl_easy_setopt(easy.get(), CURLOPT_HTTPHEADER, headers);
  curl_easy_setopt(easy.get(), CURLOPT_PROTOCOLS_STR, "http,https");
  // A stream each: one connection for all would make them wait for each other.
  curl_easy_setopt(easy.get(), CURLOPT_HTTP_VERSION, CURL_HTTP_VERSION_1_1);
  curl_easy_setopt(easy.get(), CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(easy.get(), CURLOPT_CONNECTTIMEOUT, kConnectSeconds);
  curl_easy_setopt(easy.get(), CURLOPT_TIMEOUT_MS,
                   static_cast<long>(target.timeout_seconds * 1000));
  return easy;
}

std::string transfer_error(CURLcode code, const Target& target) {
  switch (code) {
    case CURLE_OPERATION_TIMEDOUT:
      return fmt::format("no end within {:g} s, or no connection within {} s",
                         target.timeout_seconds, kConnectSeconds);
    case CURLE_PARTIAL_FILE:
    case CURLE_RECV_ERROR:
    case CURLE_GOT_NOTHING:
      return "the server closed the connection in the middle of the answer";
    default:
      return curl_easy_strerror(code);
  }
}

HttpAnswer http_get(const Target& target, const std::string& path) {
  const CurlHeaders headers = make_headers(target);
  const CurlEasy easy = make_easy(target, path, headers.get());
  return perform(target, easy.get());
}

HttpAnswer http_post(const Target& target, const std::string& path, const std::string& body) {
  const CurlHeaders headers = make_headers(target);
  const CurlEasy easy = make_easy(target, path, headers.get());
  curl_easy_setopt(easy.get(), CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(body.size()));
  curl_easy_setopt(easy.get(), CURLOPT_POSTFIELDS, body.data());
  return perform(target, easy.get());
}

}  // namespace levin::bench::client
