// What templates may not do: constructs that levin does not implement are refused by name and line,
// hostile templates end in an Error instead of eating the machine.
#include <gtest/gtest.h>

#include <ctime>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "core/error.h"
#include "text/chat_template.h"

namespace levin::text {
namespace {

using nlohmann::ordered_json;

std::string error_of(const std::function<void()>& work, std::string* where = nullptr) {
  try {
    work();
  } catch (const Error& error) {
    if (where != nullptr) *where = error.parts().where;
    return error.parts().what;
  }
  return "no error";
}

std::string parse_error(const std::string& source, std::string* where = nullptr) {
  return error_of([&] { (void)ChatTemplate::parse(source, "t"); }, where);
}

std::string render_error(const std::string& source, const ordered_json& variables = {{"n", 1}},
                         std::string* where = nullptr) {
  return error_of([&] { (void)ChatTemplate::parse(source, "t").render(variables); }, where);
}

TEST(JinjaRefusals, NamesConstructsWhenParsing) {
  const std::pair<const char*, const char*> cases[] = {
      {"{% include 'x' %}", "the tag 'include' is not implemented"},
      {"{% import 'x' as y %}", "the tag 'import' is not implemented"},
      {"{% from 'x' import y %}", "the tag 'from' is not implemented"},
      {"{% extends 'x' %}", "the tag 'extends' is not implemented"},
      {"{% block x %}{% endblock %}", "the tag 'block' is not implemented"},
      {"{% call f() %}{% endcall %}", "the tag 'call' is not implemented"},
      {"{% filter upper %}{% endfilter %}", "the tag 'filter' is not implemented"},
      {"{% with %}{% endwith %}", "the tag 'with' is not implemented"},
      {"{% autoescape true %}{% endautoescape %}", "the tag 'autoescape' is not implemented"},
      {"{% do x %}", "the tag 'do' is not implemented"},
      {"{% for x in y recursive %}{% endfor %}", "a recursive loop is not implemented"},
      {"{{ x|urlize }}", "the filter 'urlize' is not implemented"},
      {"{{ x|groupby('a') }}", "the filter 'groupby' is not implemented"},
      {"{{ x|first.name }}", "the filter 'first.name' is not implemented"},
      {"{{ x is escaped }}", "the test 'escaped' is not implemented"},
      {"{{ strftime_now('%d') }}", "'strftime_now' is not implemented"},
      {"{{ cycler(1) }}", "'cycler' is not implemented"},
      {"{% macro f() %}{{ varargs }}{% endmacro %}", "'varargs' is not implemented"},
      {"{{ f(*x) }}", "*arguments are not implemented"},
      {"{{ f(**x) }}", "**arguments are not implemented"},
      {"{{ x[1, 2] }}", "a subscript with a comma is not implemented"},
      {"{{ '\\N{DASH}' }}", "the escape \\N{...} is not implemented"},
      {"{{ 9223372036854775808 }}", "does not fit 64 bits"},
  };
  for (const auto& [source, message] : cases) {
    std::string where;
    EXPECT_NE(parse_error(std::string("\n\n") + source, &where).find(message), std::string::npos)
        << source << ": " << parse_error(source);
    EXPECT_EQ(where, "t:3") << source;
  }
}

TEST(JinjaRefusals, NamesConstructsWhenRendering) {
  const std::pair<const char*, const char*> cases[] = {
      {"{{ '%s' % 1 }}", "string formatting with % is not implemented"},
      {"{{ 'a'.format(1) }}", "str.format is not implemented"},
      {"{{ [1].append(2) }}", "list.append is not implemented"},
      {"{{ {'a': 1}.update({}) }}", "dict.update is not implemented"},
      {"{{ n.real }}", "int.real is not implemented"},
      {"{{ 'a'.__class__ }}", "str.__class__ is not implemented"},
      {"{{ [1]|map('string') }}", "a generator cannot be printed"},
      {"{{ range(3) }}", "a range cannot be printed"},
      {"{{ [[1]|select] }}", "a generator cannot be an element"},
      {"{% set ns = namespace() %}{{ [ns] }}", "cannot be an element"},
      {"{% set ns = namespace() %}{% set ns.self = ns %}", "cannot be an element"},
      {"{% set ns = namespace() %}{% for x in [1] %}{% set ns.l = loop %}{% endfor %}",
       "cannot be an element"},
      {"{% for x in [1] %}{{ loop.parent }}{% endfor %}", "loop.parent is not known"},
      {"{{ 4611686018427387904 * 2 }}", "does not fit 64 bits"},
      {"{{ 9223372036854775807 + 1 }}", "does not fit 64 bits"},
      {"{{ 10 ** 30 }}", "does not fit 64 bits"},
      {"{{ '99999999999999999999' | int }}", "does not fit 64 bits"},
      {"{{ -9223372036854775807 - 2 }}", "does not fit 64 bits"},
      {"{{ {}.keys() == {}.keys() }}", "views of a dict cannot be compared"},
  };
  for (const auto& [source, message] : cases) {
    std::string where;
    const std::string error = render_error(std::string("\n") + source, {{"n", 1}}, &where);
    EXPECT_NE(error.find(message), std::string::npos) << source << ": " << error;
    EXPECT_EQ(where, "t:2") << source;
  }
}

TEST(JinjaRefusals, TellsTheLine) {
  std::string where;
  EXPECT_EQ(render_error("a\n{{ n }}\n{{ m.x }}\n", {{"n", 1}}, &where), "'m' is undefined");
  EXPECT_EQ(where, "t:3");
  EXPECT_EQ(render_error("{% if true %}\n\n{{ raise_exception('no ' ~ n) }}{% endif %}", {{"n", 1}},
                         &where),
            "no 1");
  EXPECT_EQ(where, "t:3");
  EXPECT_EQ(render_error("{{ messages[0].a.b }}", {{"messages", {{{"role", "x"}}}}}, &where),
            "'dict object' has no attribute 'a'");
}

TEST(JinjaLimits, BoundsNesting) {
  auto repeated = [](const std::string& text, int count) {
    std::string out;
    for (int i = 0; i < count; ++i) out += text;
    return out;
  };
  constexpr int kMany = 100'000;
  const std::string too_deep = "the template is nested too deeply";
  EXPECT_EQ(parse_error("{{ " + repeated("(", kMany)), too_deep);
  EXPECT_EQ(parse_error("{{ " + repeated("[", kMany)), too_deep);
  EXPECT_EQ(parse_error("{{ " + repeated("{1:", kMany)), too_deep);
  EXPECT_EQ(parse_error("{{ " + repeated("not ", kMany)), too_deep);
  EXPECT_EQ(parse_error("{{ " + repeated("-", kMany) + "1 }}"), too_deep);
  EXPECT_EQ(parse_error("{{ " + repeated("1 if 1 else ", kMany)), too_deep);
  EXPECT_EQ(parse_error("{{ " + repeated("a[", kMany)), too_deep);
  EXPECT_EQ(parse_error("{{ " + repeated("f(", kMany)), too_deep);
  EXPECT_EQ(parse_error("{{ " + repeated("x|default(", kMany)), too_deep);
  EXPECT_EQ(parse_error(repeated("{% if 1 %}", kMany)), too_deep);
  EXPECT_EQ(parse_error(repeated("{% for x in y %}", kMany)), too_deep);
  EXPECT_EQ(parse_error("{% set " + repeated("(", kMany)), too_deep);
  EXPECT_EQ(parse_error("{% for " + repeated("(", kMany)), too_deep);
}

TEST(JinjaLimits, TakesLongChains) {
  std::string sum = "{{ 0";
  std::string chain = "{{ 'x'";
  std::string choice = "{% if n == 0 %}";
  for (int i = 0; i < 20'000; ++i) {
    sum += " + 1";
    chain += "|upper";
    choice += "{% elif n == 0 %}";
  }
  EXPECT_EQ(ChatTemplate::parse(sum + " }}", "t").render({{"n", 1}}), "20000");
  EXPECT_EQ(ChatTemplate::parse(chain + " }}", "t").render({{"n", 1}}), "X");
  EXPECT_EQ(ChatTemplate::parse(choice + "{% else %}e{% endif %}", "t").render({{"n", 1}}), "e");
}

TEST(JinjaLimits, BoundsRecursion) {
  EXPECT_EQ(render_error("{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}"),
            "the template is nested too deeply");
  // What comes from JSON may be nested by whoever sends it.
  ordered_json deep = ordered_json::array();
  for (int i = 0; i < 150; ++i) deep = ordered_json::array({deep});
  EXPECT_EQ(ChatTemplate::parse("{{ x|tojson|length }}", "t").render({{"x", deep}}), "302");
  for (int i = 0; i < 100'000; ++i) deep = ordered_json::array({std::move(deep)});
  ordered_json variables = {{"n", 1}};
  variables["x"] = std::move(deep);
  EXPECT_EQ(render_error("{{ n }}", variables), "the template is nested too deeply");
  EXPECT_EQ(render_error("{% set ns = namespace(x=[]) %}{% for i in range(1000) %}"
                         "{% set ns.x = [ns.x] %}{% endfor %}"),
            "lists and dicts are nested too deeply");
}

TEST(JinjaLimits, BoundsWork) {
  const std::clock_t begin = std::clock();
  const std::string loops =
      "{% for a in range(100000) %}{% for b in range(100000) %}{% for c in range(100000) %}x"
      "{% endfor %}{% endfor %}{% endfor %}";
  EXPECT_NE(render_error(loops), "no error");
  EXPECT_EQ(render_error("{% set x = 'x' * 1000000 %}{% for a in range(100000) %}"
                         "{% for b in range(100000) %}{% if 'yy' in x %}{% endif %}"
                         "{% endfor %}{% endfor %}"),
            "the template does too much work");
  EXPECT_EQ(render_error("{% set x = range(100000)|list %}{% for a in x %}{{ x == x|list }}"
                         "{% endfor %}"),
            "the template does too much work");
  // Lists that share their parts are small, but not what is printed or compared of them.
  const std::string doubled =
      "{% set ns = namespace(x=[1]) %}{% for i in range(100) %}{% set ns.x = [ns.x, ns.x] %}"
      "{% endfor %}";
  EXPECT_NE(render_error(doubled + "{{ ns.x }}"), "no error");
  EXPECT_NE(render_error(doubled + "{{ ns.x|tojson }}"), "no error");
  EXPECT_NE(render_error(doubled + "{{ ns.x == [ns.x[0], ns.x[0]] }}"), "no error");
  EXPECT_LT((std::clock() - begin) / CLOCKS_PER_SEC, 60);
}

TEST(JinjaLimits, BoundsMemory) {
  const std::string too_much = "the template produces too much text";
  EXPECT_EQ(render_error("{{ 'x' * 1000000000000 }}"), too_much);
  EXPECT_EQ(render_error("{{ [1] * 1000000000000 }}"), too_much);
  EXPECT_EQ(render_error("{{ 'abc' * 9223372036854775807 }}"), "the repetition is too long");
  EXPECT_EQ(render_error("{% set ns = namespace(x='x') %}{% for i in range(64) %}"
                         "{% set ns.x = ns.x ~ ns.x %}{% endfor %}"),
            too_much);
  EXPECT_EQ(render_error("{{ ('x' * 100000)|replace('', 'y' * 100000) }}"), too_much);
  EXPECT_EQ(render_error("{{ ('x' * 10000).join('y' * 100000) }}"), too_much);
  EXPECT_EQ(render_error("{% for i in range(100000) %}{{ 'x' * 100000 }}{% endfor %}"), too_much);
  EXPECT_EQ(render_error("{{ 'a'|indent(99999999999) }}"), too_much);
  EXPECT_EQ(render_error("{{ [1]|tojson(indent=101) }}"), "the indent of tojson is too wide");
}

TEST(JinjaLimits, LeavesRoomForLongConversations) {
  ordered_json messages = ordered_json::array();
  for (int i = 0; i < 5000; ++i) {
    messages.push_back(
        {{"role", i % 2 == 0 ? "user" : "assistant"}, {"content", std::string(400, 'x')}});
  }
  const std::string source =
      "{% for m in messages %}<{{ m.role }}>{% set c = m['content']|trim %}"
      "{% if '</think>' in c %}{% set c = c.split('</think>')[-1] %}{% endif %}"
      "{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ c }}{% endif %}"
      "{% endfor %}";
  EXPECT_GT(ChatTemplate::parse(source, "t").render({{"messages", messages}}).size(), 2'000'000U);
}

}  // namespace
}  // namespace levin::text
