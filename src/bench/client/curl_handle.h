// Owners of libcurl's handles, and what all requests have in common.
#pragma once

#include <curl/curl.h>

#include <memory>
#include <string>

#include "bench/client/http.h"

namespace levin::bench::client {

struct EasyDeleter {
  void operator()(CURL* easy) const { curl_easy_cleanup(easy); }
};
struct ListDeleter {
  void operator()(curl_slist* list) const { curl_slist_free_all(list); }
};
using CurlEasy = std::unique_ptr<CURL, EasyDeleter>;
using CurlHeaders = std::unique_ptr<curl_slist, ListDeleter>;

CurlHeaders make_headers(const Target& target);

// A handle for requests of `path`; `headers` must outlive it.
CurlEasy make_easy(const Target& target, const std::string& path, const curl_slist* headers);

// What went wrong.
std::string transfer_error(CURLcode code, const Target& target);

}  // namespace levin::bench::client
