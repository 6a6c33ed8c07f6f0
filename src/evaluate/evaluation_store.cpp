// save() and load_evaluation() of evaluate/evaluation.h.
#include <limits>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "evaluate/evaluation.h"

namespace levin::evaluate {
namespace {

using Json = nlohmann::ordered_json;

// JSON has no NaN or infinity; they were saved as null, and all that counts is that they are none.
double number(const nlohmann::json& json) {
  return json.is_null() ? std::numeric_limits<double>::quiet_NaN() : json.get<double>();
}

Json save(const TextScore& text) {
  Json windows = Json::array();
  for (const WindowScore& window : text.windows) {
    windows.push_back(
        {window.predictions, window.nll, window.baseline_nll, window.kl, window.agreements});
  }
  return {{"kind", text.kind},         {"documents", text.documents},  {"tokens", text.tokens},
          {"leftover", text.leftover}, {"unscored", text.unscored},    {"window", text.window},
          {"compared", text.compared}, {"windows", std::move(windows)}};
}

TextScore load_text_score(const nlohmann::json& json) {
  TextScore text{.kind = json.at("kind"),
                 .documents = json.at("documents"),
                 .tokens = json.at("tokens"),
                 .leftover = json.at("leftover"),
                 .unscored = json.at("unscored"),
                 .window = json.at("window"),
                 .compared = json.at("compared"),
                 .windows = {}};
  for (const nlohmann::json& window : json.at("windows")) {
    text.windows.push_back({.predictions = window.at(0),
                            .nll = number(window.at(1)),
                            .baseline_nll = number(window.at(2)),
                            .kl = number(window.at(3)),
                            .agreements = window.at(4)});
  }
  return text;
}

Json save(const ItemResult& item) {
  return {item.id,          item.task,      item.thinking, item.correct,
          item.same_tokens, item.hit_limit, item.loops,    item.output_tokens};
}

ItemResult load_item(const nlohmann::json& json) {
  return {.id = json.at(0),
          .task = json.at(1),
          .thinking = json.at(2),
          .correct = json.at(3),
          .same_tokens = json.at(4),
          .hit_limit = json.at(5),
          .loops = json.at(6),
          .output_tokens = json.at(7),
          .output = {}};
}

}  // namespace

Json save(const Evaluation& evaluation) {
  Json texts = Json::array();
  for (const TextScore& text : evaluation.texts) texts.push_back(save(text));
  Json items = Json::array();
  for (const ItemResult& item : evaluation.items) items.push_back(save(item));
  return {{"texts", std::move(texts)}, {"items", std::move(items)}};
}

Evaluation load_evaluation(const nlohmann::json& json, const std::string& where) {
  try {
    Evaluation evaluation;
    for (const nlohmann::json& text : json.at("texts")) {
      evaluation.texts.push_back(load_text_score(text));
    }
    for (const nlohmann::json& item : json.at("items")) {
      evaluation.items.push_back(load_item(item));
    }
    return evaluation;
  } catch (const nlohmann::json::exception& e) {
    throw Error({.what = "not a saved evaluation",
                 .where = where,
                 .expected = {},
                 .found = e.what(),
                 .hint = "delete the file and run again"});
  }
}

}  // namespace levin::evaluate
