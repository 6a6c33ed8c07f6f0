#include "serve/web/page.h"

namespace levin::serve::web {

std::string_view page() {
  return R"(<!doctype html>
<html lang="en"><meta charset="utf-8"><title>levin</title>
<body style="font-family: sans-serif; max-width: 40em; margin: 3em auto">
<h1>levin</h1>
<p>This server speaks OpenAI's API: point a client at <code>/v1</code> of this address.</p>
<ul>
<li><a href="v1/models">/v1/models</a>: what is served</li>
<li><a href="health">/health</a>: whether it is ready</li>
<li><a href="metrics">/metrics</a>: for Prometheus</li>
</ul>
</body></html>
)";
}

}  // namespace levin::serve::web
