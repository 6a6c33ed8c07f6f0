#include "checkpoint/names.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/merged_experts.h"
#include "checkpoint/name_pattern.h"
#include "support/tiny_checkpoint.h"

namespace levin::checkpoint {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

TEST(Names, Canonical) {
  EXPECT_EQ(canonical_name("backbone.layers.0.norm.weight"), "backbone.layers.0.norm.weight");
  EXPECT_EQ(canonical_name("model.layers.0.norm.weight"), "backbone.layers.0.norm.weight");
  EXPECT_EQ(canonical_name("language_model.backbone.norm_f"), "backbone.norm_f");
  EXPECT_EQ(canonical_name("language_model.model.embedding"), "backbone.embeddings");
  EXPECT_EQ(canonical_name("backbone.embedding.weight"), "backbone.embeddings.weight");
  EXPECT_EQ(canonical_name("backbone.embeddings.weight"), "backbone.embeddings.weight");
  EXPECT_EQ(canonical_name("backbone.embedding_extra"), "backbone.embedding_extra");
  EXPECT_EQ(canonical_name("language_model.mtp.layers.0"), "mtp.layers.0");
  EXPECT_EQ(canonical_name("models.x"), "models.x");
  EXPECT_EQ(canonical_name(""), "");
}

TEST(Names, EverySpellingIsCanonicalizedBack) {
  for (const std::string module :
       {"backbone.embeddings", "backbone.layers.3.mixer.in_proj", "lm_head", "mtp.layers.0"}) {
    const auto names = spellings(module);
    EXPECT_EQ(names.front(), module);
    for (const std::string& name : names) EXPECT_EQ(canonical_name(name), module);
  }
  EXPECT_THAT(spellings("backbone.embeddings"), Contains("language_model.backbone.embedding"));
}

TEST(Names, MergedExperts) {
  const auto name = parse_merged_name("backbone.layers.1.mixer.experts.up_proj");
  ASSERT_TRUE(name.has_value());
  EXPECT_EQ(name->part(7), "backbone.layers.1.mixer.experts.7.up_proj.weight");
  EXPECT_EQ(parse_merged_name("mtp.layers.1.mixer.experts.down_proj.weight_scale")->part(0),
            "mtp.layers.1.mixer.experts.0.down_proj.weight_scale");
  for (const char* other :
       {"backbone.layers.1.mixer.experts.7.up_proj.weight",
        "backbone.layers.1.mixer.up_proj.weight", "backbone.layers.1.mixer.experts.up_project",
        "backbone.layers.1.mixer.experts.up_proj.",
        "backbone.layers.1.mixer.shared_experts.up_proj.weight"}) {
    EXPECT_FALSE(parse_merged_name(other).has_value()) << other;
  }
}

TEST(Glob, MatchesAsPythonsFnmatch) {
  const auto yes = [](const char* pattern, const char* text) {
    EXPECT_TRUE(glob_matches(pattern, text)) << pattern << " " << text;
  };
  const auto no = [](const char* pattern, const char* text) {
    EXPECT_FALSE(glob_matches(pattern, text)) << pattern << " " << text;
  };
  yes("mtp*", "mtp.layers.0.mixer.q_proj");
  yes("*", "");
  yes("", "");
  no("", "a");
  yes("*.gate", "backbone.layers.1.mixer.gate");
  no("*.gate", "backbone.layers.1.mixer.gates");
  yes("a?c", "abc");
  no("a?c", "ac");
  yes("layers.[0-3].x", "layers.2.x");
  no("layers.[!0-3].x", "layers.2.x");
  yes("layers.[!0-3].x", "layers.7.x");
  yes("[]]", "]");
  yes("[", "[");
  yes("a[b", "a[b");
  yes("[a-]", "-");
  yes("*a*b*c*", "xxaxxbxxcxx");
  no("*a*b*c*", "xxaxxcxxbxx");
  no("backbone.layers.1", "backbone.layers.12");
}

TEST(Glob, TakesNoExponentialTime) {
  std::string pattern;
  for (int i = 0; i < 500; ++i) pattern += "*a";
  EXPECT_FALSE(glob_matches(pattern + "b", std::string(2000, 'a')));
}

TEST(NamePattern, ExactNamesAreNeverSubstrings) {
  EXPECT_TRUE(NamePattern("backbone.layers.1").matches("backbone.layers.1"));
  EXPECT_FALSE(NamePattern("backbone.layers.1").matches("backbone.layers.12"));
  EXPECT_FALSE(NamePattern("lm_head").matches("xlm_head"));
}

TEST(NamePattern, RegularExpressionsAreAnchoredAtTheStartOnly) {
  EXPECT_TRUE(NamePattern("re:lm_head").matches("lm_head_extra"));
  EXPECT_FALSE(NamePattern("re:head").matches("lm_head"));
  EXPECT_TRUE(NamePattern("re:.*\\.gate$").matches("backbone.layers.1.mixer.gate"));
  EXPECT_FALSE(NamePattern("re:.*\\.gate$").matches("backbone.layers.1.mixer.gate.x"));
  EXPECT_TRUE(NamePattern("re:.*mtp.*").matches("mtp.layers.0.eh_proj"));
  // Without "re:" it is a name, and matches nothing.
  EXPECT_FALSE(NamePattern("backbone\\.embeddings").matches("backbone.embeddings"));
}

TEST(NamePattern, AnySpellingCounts) {
  EXPECT_TRUE(NamePattern("language_model.mtp.layers.0*").matches("mtp.layers.0.mixer.q_proj"));
  EXPECT_TRUE(NamePattern("model.layers.3.mixer*").matches("backbone.layers.3.mixer.in_proj"));
  EXPECT_TRUE(NamePattern("re:^model\\.layers").matches("backbone.layers.3.mixer.in_proj"));
}

TEST(NamePattern, BadAndExpensiveExpressionsAreErrors) {
  const auto message = [](const std::string& text) {
    return std::string(test::error_of([&] { NamePattern{text}; }).what());
  };
  EXPECT_THAT(message("re:("), HasSubstr("does not compile"));
  EXPECT_THAT(message("re:" + std::string(5000, 'a')), HasSubstr("longer than"));
  EXPECT_THAT(message("re:" + std::string(1000, '(')), HasSubstr("does not compile"));
  const NamePattern trap("re:(a+)+$");
  EXPECT_THAT(test::error_of([&] { trap.matches(std::string(200, 'a') + "b"); }).what(),
              HasSubstr("too expensive"));
}

TEST(Printable, IsShortAndHarmless) {
  EXPECT_EQ(printable("a\nb\x7f"), "a\\x0ab\\x7f");
  EXPECT_EQ(printable(std::string(300, 'a'), 3), "aaa... (300 bytes)");
}

}  // namespace
}  // namespace levin::checkpoint
