#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bench/client/sse.h"

namespace levin::bench::client {
namespace {

using testing::ElementsAre;

std::vector<std::string> parse(const std::vector<std::string>& pieces) {
  std::vector<std::string> events;
  SseParser parser([&](std::string_view data) { events.emplace_back(data); });
  for (const std::string& piece : pieces) EXPECT_TRUE(parser.feed(piece));
  return events;
}

TEST(Sse, EventsEndWithABlankLineHoweverLinesEnd) {
  EXPECT_THAT(parse({"data: a\n\ndata: b\r\n\r\ndata: c\r\r"}), ElementsAre("a", "b", "c"));
}

TEST(Sse, LinesOfDataAreJoined) {
  EXPECT_THAT(parse({"data: a\ndata:b\ndata\ndata:  c\n\n"}), ElementsAre("a\nb\n\n c"));
}

TEST(Sse, CommentsNamesAndEmptyEventsSayNothing) {
  EXPECT_THAT(parse({": keep-alive\n\nevent: x\nid: 7\n\nevent: y\ndata: a\ndatum: b\n\n"}),
              ElementsAre("a"));
}

TEST(Sse, PiecesMayEndAnywhere) {
  const std::string stream = ": hi\r\ndata: {\"a\": 1}\r\ndata: \xc3\xa9\r\n\r\ndata: [DONE]\n\n";
  for (std::size_t first = 0; first <= stream.size(); ++first) {
    for (std::size_t second = first; second <= stream.size(); ++second) {
      EXPECT_THAT(parse({stream.substr(0, first), stream.substr(first, second - first),
                         stream.substr(second)}),
                  ElementsAre("{\"a\": 1}\n\xc3\xa9", "[DONE]"))
          << first << " " << second;
    }
  }
}

TEST(Sse, KnowsWhetherAnEventIsIncomplete) {
  SseParser parser([](std::string_view) {});
  EXPECT_TRUE(parser.between_events());
  parser.feed("data: a");
  EXPECT_FALSE(parser.between_events());
  parser.feed("\n");
  EXPECT_FALSE(parser.between_events());
  parser.feed("\n");
  EXPECT_TRUE(parser.between_events());
}

TEST(Sse, EndlessEventsAreRefused) {
  int events = 0;
  SseParser parser([&](std::string_view) { ++events; });
  const std::string line = "data: " + std::string(1 << 20, 'x') + "\n";
  int fed = 0;
  while (parser.feed(line) && fed < 100) ++fed;
  EXPECT_EQ(fed, 7);
  EXPECT_FALSE(parser.feed("\n\ndata: a\n\n"));
  EXPECT_EQ(events, 0);
}

}  // namespace
}  // namespace levin::bench::client
