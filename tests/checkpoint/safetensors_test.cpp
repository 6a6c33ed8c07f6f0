#include "checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "support/tiny_checkpoint.h"

namespace levin::checkpoint {
namespace {

using test::error_of;
using test::filled_tensor;
using test::raw_safetensors;
using ::testing::HasSubstr;

SafetensorsHeader parse(const std::string& bytes) {
  return parse_safetensors_header(std::as_bytes(std::span(bytes)), "file.safetensors");
}

// The whole message of the refusal.
std::string refusal(const std::string& bytes) {
  return error_of([&] { parse(bytes); }).what();
}

std::string refusal(const std::string& header, const std::string& data) {
  return refusal(raw_safetensors(header, data));
}

TEST(Safetensors, ReadsWhatWasWritten) {
  const auto header = parse(test::safetensors(
      {filled_tensor("b", DType::kF32, {2, 3}), filled_tensor("scalar", DType::kF32, {}),
       filled_tensor("none", DType::kBF16, {0, 4}), filled_tensor("a", DType::kU8, {5})}));
  ASSERT_EQ(header.tensors.size(), 4U);
  EXPECT_EQ(header.tensors[0].name, "b");
  EXPECT_EQ(header.tensors[0].shape, (Shape{2, 3}));
  EXPECT_EQ(header.tensors[0].end, 24U);
  EXPECT_EQ(header.tensors[1].shape, Shape{});
  EXPECT_EQ(header.tensors[2].begin, header.tensors[2].end);
  EXPECT_EQ(header.tensors[3].name, "a");
  EXPECT_EQ(header.metadata.at("format"), "pt");
  EXPECT_EQ(header.data_start % 8, 0U);
}

TEST(Safetensors, SortsByOffset) {
  const auto header = parse(raw_safetensors(
      R"({"x":{"dtype":"U8","shape":[2],"data_offsets":[1,3]},
          "y":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
      "abc"));
  EXPECT_EQ(header.tensors[0].name, "y");
  EXPECT_EQ(header.tensors[1].name, "x");
}

TEST(Safetensors, EmptyHeaderIsAFileWithoutTensors) {
  EXPECT_TRUE(parse(raw_safetensors("{}", "")).tensors.empty());
}

TEST(Safetensors, RefusesEmptyAndShortFiles) {
  EXPECT_THAT(refusal(std::string()), HasSubstr("too short"));
  EXPECT_THAT(refusal(std::string("\x01\0\0", 3)), HasSubstr("too short"));
}

TEST(Safetensors, RefusesEveryTruncation) {
  const std::string whole = test::safetensors({filled_tensor("a", DType::kF32, {4})});
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_THROW(parse(whole.substr(0, size)), Error) << size;
  }
  EXPECT_NO_THROW(parse(whole));
}

TEST(Safetensors, RefusesHeaderLengthNear2To64) {
  for (const uint64_t length : {~uint64_t{0}, ~uint64_t{0} - 7, uint64_t{1} << 63}) {
    std::string bytes(16, '\0');
    for (unsigned i = 0; i < 8; ++i) bytes[i] = static_cast<char>(length >> (8 * i));
    EXPECT_THAT(refusal(bytes), HasSubstr("header is too long"));
  }
}

TEST(Safetensors, RefusesHeaderBeyondTheFileAndBeyondTheCap) {
  std::string bytes("\x20\0\0\0\0\0\0\0{}", 10);
  EXPECT_THAT(refusal(bytes), HasSubstr("reaches beyond the end"));
  const uint64_t cap = kMaxHeaderBytes + 1;
  for (unsigned i = 0; i < 8; ++i) bytes[i] = static_cast<char>(cap >> (8 * i));
  EXPECT_THAT(refusal(bytes), HasSubstr("header is too long"));
}

TEST(Safetensors, RefusesWhatIsNotTheFormatsJson) {
  EXPECT_THAT(refusal("", ""), HasSubstr("not valid JSON"));
  EXPECT_THAT(refusal("{", ""), HasSubstr("not valid JSON"));
  EXPECT_THAT(refusal("{} x", ""), HasSubstr("not valid JSON"));
  EXPECT_THAT(refusal("[]", ""), HasSubstr("expected: a JSON object"));
  EXPECT_THAT(refusal("7", ""), HasSubstr("expected: a JSON object"));
  EXPECT_THAT(refusal(R"({"a":null})", ""), HasSubstr("found:    null"));
  EXPECT_THAT(refusal(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"extra":1}})", "x"),
              HasSubstr("unknown key"));
  EXPECT_THAT(refusal(R"({"a":{"dtype":"U8","shape":[1]}})", "x"), HasSubstr("lacks a key"));
  EXPECT_THAT(refusal(R"({"a":{"dtype":["U8"],"shape":[1],"data_offsets":[0,1]}})", "x"),
              HasSubstr("unexpected value"));
  EXPECT_THAT(refusal(R"({"a":{"dtype":"U8","shape":[[1]],"data_offsets":[0,1]}})", "x"),
              HasSubstr("unexpected value"));
  EXPECT_THAT(refusal("{\"a\xff\":{}}", ""), HasSubstr("not valid JSON"));
}

// It would be a tensor like any other, and fill screens wherever its shape is shown.
TEST(Safetensors, RefusesAHundredThousandDimensions) {
  const auto header = [](int dimensions) {
    std::string shape = "1";
    for (int i = 1; i < dimensions; ++i) shape += ",1";
    return R"({"a":{"dtype":"U8","shape":[)" + shape + R"(],"data_offsets":[0,1]}})";
  };
  EXPECT_THAT(refusal(header(100'000), "x"),
              testing::AllOf(HasSubstr("too many dimensions"), HasSubstr("tensor \"a\""),
                             HasSubstr("at most 64")));
  EXPECT_LT(refusal(header(100'000), "x").size(), 500u);
  EXPECT_THAT(refusal(header(65), "x"), HasSubstr("too many dimensions"));
}

TEST(Safetensors, RefusesDuplicateNames) {
  const std::string tensor = R"({"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  EXPECT_THAT(refusal(R"({"a":)" + tensor + R"(,"a":)" + tensor + "}", ""),
              HasSubstr("names a tensor twice"));
  EXPECT_THAT(refusal(R"({"a":{"dtype":"U8","dtype":"U8","shape":[0],"data_offsets":[0,0]}})", ""),
              HasSubstr("same key twice"));
  EXPECT_THAT(refusal(R"({"__metadata__":{"k":"1","k":"2"}})", ""), HasSubstr("same key twice"));
}

TEST(Safetensors, RefusesMetadataThatIsNotStrings) {
  EXPECT_THAT(refusal(R"({"__metadata__":{"format":1}})", ""), HasSubstr("string values only"));
  EXPECT_THAT(refusal(R"({"__metadata__":{"format":{}}})", ""), HasSubstr("string values only"));
  EXPECT_THAT(refusal(R"({"__metadata__":"pt"})", ""), HasSubstr("unexpected value"));
}

TEST(Safetensors, RefusesNumbersThatAreNotSizes) {
  const auto offsets = [](const std::string& pair) {
    return R"({"a":{"dtype":"U8","shape":[1],"data_offsets":)" + pair + "}}";
  };
  EXPECT_THAT(refusal(offsets("[-1,0]"), "x"), HasSubstr("found:    -1"));
  EXPECT_THAT(refusal(offsets("[0,1.0]"), "x"), HasSubstr("found:    1.0"));
  EXPECT_THAT(refusal(offsets("[0,1e0]"), "x"), HasSubstr("found:    1e0"));
  EXPECT_THAT(refusal(offsets("[0,18446744073709551616]"), "x"), HasSubstr("unexpected value"));
  EXPECT_THAT(refusal(offsets("[0]"), "x"), HasSubstr("two numbers"));
  EXPECT_THAT(refusal(offsets("[0,1,2]"), "x"), HasSubstr("two numbers"));
  EXPECT_THAT(refusal(offsets("[\"0\",1]"), "x"), HasSubstr("unexpected value"));
  EXPECT_THAT(refusal(offsets("[1,0]"), "x"), HasSubstr("do not fit"));
  EXPECT_THAT(refusal(offsets("[18446744073709551615,0]"), "x"), HasSubstr("do not fit"));
}

TEST(Safetensors, RefusesShapesThatLie) {
  const auto shape = [](const std::string& dimensions) {
    return R"({"a":{"dtype":"F32","shape":)" + dimensions + R"(,"data_offsets":[0,4]}})";
  };
  EXPECT_NO_THROW(parse(raw_safetensors(shape("[1]"), "abcd")));
  EXPECT_THAT(refusal(shape("[2]"), "abcd"), HasSubstr("do not fit shape and dtype"));
  EXPECT_THAT(refusal(shape("[-1]"), "abcd"), HasSubstr("unexpected value"));
  EXPECT_THAT(refusal(shape("[9223372036854775808]"), "abcd"), HasSubstr("unexpected value"));
  EXPECT_THAT(refusal(shape("[9223372036854775807]"), "abcd"), HasSubstr("too large"));
  EXPECT_THAT(refusal(shape("[4294967296,4294967296,4294967296]"), "abcd"), HasSubstr("too large"));
  // 2^32 * 2^32 wraps to 0 in 64 bits.
  EXPECT_THAT(
      refusal(R"({"a":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", ""),
      HasSubstr("too large"));
}

TEST(Safetensors, RefusesUnknownTypes) {
  EXPECT_THAT(refusal(R"({"a":{"dtype":"F4","shape":[1],"data_offsets":[0,1]}})", "x"),
              HasSubstr("unknown element type"));
  EXPECT_THAT(refusal(R"({"a":{"dtype":"bf16","shape":[1],"data_offsets":[0,2]}})", "xx"),
              HasSubstr("unknown element type"));
}

TEST(Safetensors, RefusesOverlapsGapsAndTrailingBytes) {
  const auto two = [](const std::string& first, const std::string& second) {
    return R"({"a":{"dtype":"U8","shape":[2],"data_offsets":)" + first +
           R"(},"b":{"dtype":"U8","shape":[2],"data_offsets":)" + second + "}}";
  };
  EXPECT_NO_THROW(parse(raw_safetensors(two("[0,2]", "[2,4]"), "abcd")));
  EXPECT_THAT(refusal(two("[0,2]", "[1,3]"), "abc"), HasSubstr("overlap"));
  EXPECT_THAT(refusal(two("[0,2]", "[0,2]"), "ab"), HasSubstr("overlap"));
  EXPECT_THAT(refusal(two("[0,2]", "[3,5]"), "abcde"), HasSubstr("belong to no tensor"));
  EXPECT_THAT(refusal(two("[0,2]", "[2,4]"), "abcde"), HasSubstr("after the last tensor"));
  EXPECT_THAT(refusal(two("[0,2]", "[2,4]"), "abc"), HasSubstr("beyond the end of the file"));
}

TEST(Safetensors, NamesInMessagesAreHarmless) {
  const std::string message = refusal(R"({"\u001b[2J)" + std::string(5000, 'x') +
                                          R"(":{"dtype":"?","shape":[1],"data_offsets":[0,1]}})",
                                      "x");
  EXPECT_EQ(message.find('\x1b'), std::string::npos);
  EXPECT_LT(message.size(), 1000U);
}

TEST(Safetensors, DeepNestingIsRefusedWithoutRecursion) {
  EXPECT_THAT(refusal(std::string(1'000'000, '['), ""), HasSubstr("unexpected value"));
  EXPECT_THAT(refusal(R"({"a":)" + std::string(1'000'000, '{'), ""), HasSubstr("not valid JSON"));
}

// Whatever the tensors, the header says where their bytes are.
TEST(Safetensors, PropertyEveryTensorIsFoundWhereItWasPut) {
  std::mt19937 random(7);
  for (int round = 0; round < 50; ++round) {
    std::vector<test::TestTensor> tensors;
    const auto count = random() % 20;
    for (unsigned i = 0; i < count; ++i) {
      const DType dtype = static_cast<DType>(random() % 12);
      Shape shape(random() % 4);
      for (int64_t& dimension : shape) dimension = static_cast<int64_t>(random() % 5);
      tensors.push_back(
          filled_tensor("t" + std::to_string(i), dtype, shape, static_cast<char>(random())));
    }
    const std::string bytes = test::safetensors(tensors);
    const auto header = parse(bytes);
    ASSERT_EQ(header.tensors.size(), tensors.size());
    for (const auto& tensor : tensors) {
      const auto place =
          std::find_if(header.tensors.begin(), header.tensors.end(),
                       [&](const StoredTensor& stored) { return stored.name == tensor.name; });
      ASSERT_NE(place, header.tensors.end());
      EXPECT_EQ(place->dtype, tensor.dtype);
      EXPECT_EQ(place->shape, tensor.shape);
      EXPECT_EQ(bytes.substr(header.data_start + place->begin, place->end - place->begin),
                tensor.bytes);
    }
  }
}

}  // namespace
}  // namespace levin::checkpoint
