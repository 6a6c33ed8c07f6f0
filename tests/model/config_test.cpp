#include "model/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "core/files.h"
#include "support/tiny_checkpoint.h"

namespace levin::model {
namespace {

using nlohmann::json;
using test::small_config;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Config parse(const json& config) {
  return parse_config(config, "config.json");
}

Config with(const std::function<void(json&)>& change) {
  json config = small_config();
  change(config);
  return parse(config);
}

std::string refusal(const std::function<void(json&)>& change) {
  return test::error_of([&] { with(change); }).what();
}

Config parse_folder(const std::string& folder) {
  const auto path = std::filesystem::path(LEVIN_SOURCE_DIR) / folder / "config.json";
  return parse_config(read_json(path), path.string());
}

TEST(Config, PublicModels) {
  const Config nano = parse_folder("configs/nemotron-3-nano-30b-a3b");
  const Config lightning = parse_folder("configs/nemotron-3.5-lightning-30b-a3b");
  EXPECT_EQ(pattern_of(nano.layers), "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME");
  EXPECT_EQ(nano.layers, lightning.layers);
  EXPECT_EQ(pattern_of(nano.mtp_layers), "");
  EXPECT_EQ(pattern_of(lightning.mtp_layers), "*E");
  EXPECT_EQ(lightning.max_position_embeddings, 1048576);
  EXPECT_EQ(nano.max_position_embeddings, 262144);
  EXPECT_EQ(lightning.d_inner(), 4096);
  EXPECT_EQ(lightning.conv_dim(), 6144);
  EXPECT_EQ(lightning.in_proj_rows(), 10304);
  EXPECT_EQ(lightning.q_rows(), 4096);
  EXPECT_EQ(lightning.kv_rows(), 256);
  EXPECT_EQ(lightning.moe_latent_size, 0);
  EXPECT_EQ(lightning.routed_scaling_factor, 2.5);
  EXPECT_EQ(lightning.norm_eps, 1e-5);

  const Config super = parse_folder("configs/nemotron-3-super-120b-a12b");
  EXPECT_EQ(super.num_layers(), 88);
  std::vector<std::size_t> attention;
  for (std::size_t i = 0; i < super.layers.size(); ++i) {
    if (super.layers[i] == BlockKind::kAttention) attention.push_back(i);
  }
  EXPECT_THAT(attention, ElementsAre(7, 16, 25, 36, 47, 58, 69, 78));
  EXPECT_EQ(super.d_inner(), 8192);
  EXPECT_EQ(super.conv_dim(), 10240);
  EXPECT_EQ(super.in_proj_rows(), 18560);
  EXPECT_EQ(super.expert_width(), 1024);
  EXPECT_EQ(super.num_experts_per_tok, 22);
}

// One row per alias: {modern key, older key, value of the older, member}. Each spelling works
// alone; both must say the same.
struct Alias {
  const char* modern;
  const char* legacy;
  json value;
  json other;
  std::function<bool(const Config&)> took_legacy;
};

class Aliases : public ::testing::TestWithParam<Alias> {};

TEST_P(Aliases, EitherAloneAndNeverTwoValues) {
  const Alias& alias = GetParam();
  EXPECT_TRUE(alias.took_legacy(with([&](json& c) {
    c.erase(alias.modern);
    c[alias.legacy] = alias.value;
  }))) << alias.legacy;
  EXPECT_TRUE(alias.took_legacy(with([&](json& c) {
    c[alias.modern] = alias.value;
    c[alias.legacy] = alias.value;
  })));
  EXPECT_THAT(
      refusal([&](json& c) {
        c[alias.modern] = alias.other;
        c[alias.legacy] = alias.value;
      }),
      AllOf(HasSubstr("contradict each other"), HasSubstr(alias.legacy), HasSubstr(alias.modern),
            HasSubstr(alias.value.dump()), HasSubstr(alias.other.dump())));
  // null is the same as absent.
  EXPECT_FALSE(alias.took_legacy(with([&](json& c) { c[alias.legacy] = nullptr; })));
}

INSTANTIATE_TEST_SUITE_P(
    Config, Aliases,
    ::testing::Values(
        Alias{"n_groups", "mamba_n_groups", 4, 2, [](const Config& c) { return c.n_groups == 4; }},
        Alias{"conv_kernel", "mamba_d_conv", 3, 4,
              [](const Config& c) { return c.conv_kernel == 3; }},
        Alias{"time_step_limit", "mamba_dt_limit", json::array({0.5, 2.0}), json::array({0.5, 3.0}),
              [](const Config& c) {
                return c.time_step_limit_min == 0.5 && c.time_step_limit_max == 2.0;
              }},
        Alias{"use_conv_bias", "mamba_conv_bias", false, true,
              [](const Config& c) { return !c.use_conv_bias; }},
        Alias{"chunk_size", "mamba_chunk_size", 32, 64,
              [](const Config& c) { return c.chunk_size == 32; }},
        Alias{"layer_norm_epsilon", "norm_eps", 1e-6, 1e-5,
              [](const Config& c) { return c.norm_eps == 1e-6; }},
        Alias{"head_dim", "attention_head_dim", 32, 64,
              [](const Config& c) { return c.head_dim == 32; }},
        Alias{"dtype", "torch_dtype", "float32", "bfloat16",
              [](const Config& c) { return c.torch_dtype == "float32"; }}),
    [](const auto& row) { return std::string(row.param.legacy); });

TEST(Config, ExpandAndTimeStepInitializationAreDead) {
  const Config plain = with([](json&) {});
  const Config config = with([](json& c) {
    c["expand"] = 17;
    c["mamba_expand"] = 19;
    c["time_step_min"] = 0.5;
    c["mamba_dt_min"] = 0.6;
    c["time_step_max"] = 0.7;
    c["mamba_dt_max"] = 0.8;
    c["time_step_floor"] = 0.1;
    c["mamba_dt_init_floor"] = 0.2;
    c["rope_theta"] = 1;
  });
  EXPECT_EQ(config.d_inner(), plain.d_inner());
  EXPECT_EQ(config.time_step_limit_min, 0);
  EXPECT_TRUE(std::isinf(config.time_step_limit_max));
}

TEST(Config, OtherSpellings) {
  EXPECT_EQ(with([](json& c) {
              c.erase("n_routed_experts");
              c["num_local_experts"] = 8;
            }).n_routed_experts,
            8);
  EXPECT_EQ(with([](json& c) {
              c.erase("n_routed_experts");
              c["num_experts"] = 8;
            }).n_routed_experts,
            8);
  EXPECT_EQ(with([](json& c) {
              c.erase("head_dim");
              c["attention_head_dim"] = 32;
            }).head_dim,
            32);
  EXPECT_EQ(with([](json& c) { c["norm_eps"] = 1e-6; }).norm_eps, 1e-6);
  EXPECT_EQ(with([](json& c) { c["rms_norm_eps"] = 1e-6; }).norm_eps, 1e-6);
  EXPECT_EQ(with([](json& c) {
              c["norm_eps"] = 1e-3;
              c["layer_norm_epsilon"] = 1e-3;
            }).norm_eps,
            1e-3);
  EXPECT_EQ(with([](json& c) { c["dtype"] = "float16"; }).torch_dtype, "float16");
  EXPECT_EQ(with([](json& c) { c["torch_dtype"] = "float32"; }).torch_dtype, "float32");
  EXPECT_THAT(refusal([](json& c) {
                c["dtype"] = "float16";
                c["torch_dtype"] = "bfloat16";
              }),
              HasSubstr("contradict each other"));
}

TEST(Config, ScheduleSpellings) {
  const auto schedule = [](const char* key, const json& value) {
    return pattern_of(with([&](json& c) {
                        c.erase("hybrid_override_pattern");
                        c[key] = value;
                      }).layers);
  };
  EXPECT_EQ(schedule("hybrid_override_pattern", "ME*-E"), "ME*-E");
  EXPECT_EQ(schedule("hybrid_override_pattern", {"M", "E", "*", "-", "E"}), "ME*-E");
  EXPECT_EQ(schedule("hybrid_override_pattern", {"ME", "*-E"}), "ME*-E");
  EXPECT_EQ(schedule("hybrid_override_pattern", "ME|*-|E"), "ME*-E");
  EXPECT_EQ(schedule("hybrid_override_pattern", "ME*-E/*E/*E"), "ME*-E");
  EXPECT_EQ(schedule("hybrid_override_pattern", {"ME*-E/*E", "M"}), "ME*-E");
  for (const char* key : {"layers_block_type", "layer_types"}) {
    EXPECT_EQ(schedule(key, {"mamba", "moe", "attention", "mlp", "moe"}), "ME*-E");
    EXPECT_EQ(schedule(key, {"linear_attention", "moe", "full_attention", "mlp", "moe"}), "ME*-E");
    EXPECT_EQ(schedule(key, {"M", "E", "*", "-", "E"}), "ME*-E");
  }
}

TEST(Config, ModernScheduleWins) {
  const Config config = with([](json& c) {
    c["layers_block_type"] = {"moe", "moe", "attention", "mlp", "mamba"};
  });
  EXPECT_EQ(pattern_of(config.layers), "EE*-M");
  EXPECT_THAT(refusal([](json& c) {
                c["layers_block_type"] = {"moe", "moe", "attention", "mlp", "mamba"};
                c["layer_types"] = {"mamba", "moe", "attention", "mlp", "mamba"};
              }),
              HasSubstr("two layer schedules disagree"));
}

TEST(Config, BadSchedules) {
  const auto bad = [](const json& value) {
    return refusal([&](json& c) { c["hybrid_override_pattern"] = value; });
  };
  EXPECT_THAT(bad("MEX"), HasSubstr("found:    \"X\""));
  EXPECT_THAT(bad({"mamba", "sliding_attention"}), HasSubstr("unknown block type"));
  EXPECT_THAT(bad({"mamba", 7}), HasSubstr("unknown block type"));
  EXPECT_THAT(bad(7), HasSubstr("wrong type"));
  EXPECT_THAT(bad(""), HasSubstr("impossible length"));
  EXPECT_THAT(bad("/ME"), HasSubstr("impossible length"));
  EXPECT_THAT(bad(std::string(5000, 'M')), HasSubstr("impossible length"));
  EXPECT_THAT(refusal([](json& c) { c.erase("hybrid_override_pattern"); }),
              HasSubstr("no layer schedule"));
}

TEST(Config, NumHiddenLayers) {
  EXPECT_EQ(with([](json& c) { c.erase("num_hidden_layers"); }).num_layers(), 5);
  EXPECT_EQ(with([](json& c) { c["num_hidden_layers"] = nullptr; }).num_layers(), 5);
  EXPECT_THAT(refusal([](json& c) { c["num_hidden_layers"] = 6; }),
              HasSubstr("layer schedule and num_hidden_layers disagree"));
}

TEST(Config, MtpSchedule) {
  const auto mtp = [](const std::function<void(json&)>& change) {
    return pattern_of(with(change).mtp_layers);
  };
  EXPECT_EQ(mtp([](json&) {}), "*E");
  EXPECT_EQ(mtp([](json& c) { c["num_nextn_predict_layers"] = 0; }), "");
  EXPECT_EQ(mtp([](json& c) { c["num_nextn_predict_layers"] = nullptr; }), "");
  EXPECT_EQ(mtp([](json& c) { c.erase("num_nextn_predict_layers"); }), "");
  // Neither key: the pair of every public model.
  EXPECT_EQ(mtp([](json& c) { c.erase("mtp_hybrid_override_pattern"); }), "*E");
  EXPECT_EQ(mtp([](json& c) { c["mtp_hybrid_override_pattern"] = "E"; }), "E");
  // The modern key wins unless it is transformers' default pair.
  EXPECT_EQ(mtp([](json& c) {
              c["mtp_layers_block_type"] = {"moe", "attention"};
              c["mtp_hybrid_override_pattern"] = "E";
            }),
            "E*");
  EXPECT_EQ(mtp([](json& c) {
              c["mtp_layers_block_type"] = {"attention", "moe"};
              c["mtp_hybrid_override_pattern"] = "E";
            }),
            "E");
  EXPECT_THAT(refusal([](json& c) { c["num_nextn_predict_layers"] = 2; }),
              HasSubstr("more than one physical MTP layer"));
  EXPECT_THAT(refusal([](json& c) { c["mtp_hybrid_override_pattern"] = "M"; }),
              HasSubstr("Mamba layers in the MTP head"));
}

TEST(Config, ModelTypes) {
  EXPECT_THAT(refusal([](json& c) { c["model_type"] = "nemotron_h_puzzle"; }), HasSubstr("puzzle"));
  EXPECT_THAT(refusal([](json& c) { c["block_configs"] = json::array(); }), HasSubstr("puzzle"));
  EXPECT_THAT(refusal([](json& c) { c["model_type"] = "llama"; }), HasSubstr("\"llama\""));
  EXPECT_THAT(refusal([](json& c) { c.erase("model_type"); }), HasSubstr("found:    nothing"));
  EXPECT_NO_THROW(with([](json& c) {
    c.erase("model_type");
    c["architectures"] = {"NemotronHForCausalLM"};
  }));
}

TEST(Config, MultimodalWrappers) {
  for (const char* key : {"llm_config", "text_config"}) {
    json wrapper = {{"model_type", "nemotron_omni"}, {"vision_config", json::object()}};
    wrapper[key] = small_config();
    EXPECT_EQ(parse(wrapper).hidden_size, 64);
    wrapper[key].erase("vocab_size");
    EXPECT_THAT(test::error_of([&] { parse(wrapper); }).what(),
                HasSubstr(std::string(key) + ", vocab_size"));
    wrapper[key] = 7;
    EXPECT_THROW(parse(wrapper), Error);
  }
  json both = {{"llm_config", small_config()}, {"text_config", small_config()}};
  EXPECT_NO_THROW(parse(both));
  both["text_config"]["vocab_size"] = 128;
  EXPECT_THAT(test::error_of([&] { parse(both); }).what(), HasSubstr("disagree"));
}

TEST(Config, ALanguageModelMayNotHoldAnotherThatDiffers) {
  for (const char* key : {"llm_config", "text_config"}) {
    json config = small_config();
    config[key] = small_config();
    EXPECT_NO_THROW(parse(config));
    config[key]["num_experts_per_tok"] = 1;
    EXPECT_THAT(test::error_of([&] { parse(config); }).what(),
                AllOf(HasSubstr(std::string("config.json and its ") + key + " disagree"),
                      HasSubstr(std::string(key) + ", num_experts_per_tok")));
    config["model_type"] = "nemotron_omni";
    EXPECT_EQ(parse(config).num_experts_per_tok, 1);
  }
}

TEST(Config, OtherActivationsAndWindowsAreRefused) {
  EXPECT_THAT(refusal([](json& c) { c["mlp_hidden_act"] = "silu"; }),
              HasSubstr("unsupported activation"));
  EXPECT_THAT(refusal([](json& c) { c["mamba_hidden_act"] = "gelu"; }),
              HasSubstr("unsupported activation"));
  EXPECT_THAT(refusal([](json& c) { c["sliding_window"] = 4096; }), HasSubstr("sliding-window"));
  EXPECT_NO_THROW(with([](json& c) { c["sliding_window"] = nullptr; }));
}

TEST(Config, ShapeKeysHaveNoDefaults) {
  for (const char* key :
       {"vocab_size", "hidden_size", "max_position_embeddings", "num_attention_heads",
        "num_key_value_heads", "head_dim", "mamba_num_heads", "mamba_head_dim", "n_groups",
        "ssm_state_size", "conv_kernel", "n_routed_experts", "num_experts_per_tok",
        "n_shared_experts", "moe_intermediate_size", "moe_shared_expert_intermediate_size",
        "intermediate_size"}) {
    EXPECT_THAT(refusal([&](json& c) { c.erase(key); }), HasSubstr(key));
  }
}

TEST(Config, KeysOfAbsentBlocksAreNotNeeded) {
  const Config config = parse({{"model_type", "nemotron_h"},
                               {"hybrid_override_pattern", "-"},
                               {"vocab_size", 10},
                               {"hidden_size", 8},
                               {"max_position_embeddings", 16},
                               {"intermediate_size", 12}});
  EXPECT_THAT(config.intermediate_size, ElementsAre(12));
}

TEST(Config, TimeStepLimit) {
  const auto limit = [](const json& value) {
    return with([&](json& c) { c["time_step_limit"] = value; });
  };
  const Config newer = limit({0.0, {{"__float__", "Infinity"}}});
  EXPECT_EQ(newer.time_step_limit_min, 0);
  EXPECT_TRUE(std::isinf(newer.time_step_limit_max));
  EXPECT_TRUE(std::isinf(limit(nullptr).time_step_limit_max));
  // As Python writes it.
  const json bare = parse_json(R"({"x": [0.0, Infinity]})", "test");
  EXPECT_TRUE(std::isinf(limit(bare["x"]).time_step_limit_max));
  for (const json& bad :
       {json::array({1.0}), json::array({2.0, 1.0}), json::array({-1.0, 1.0}), json(3.0),
        json::array({"0", "1"}), json::array({0.0, {{"__float__", "NaN"}}}),
        json::array({0.0, {{"__float__", "x"}}})}) {
    EXPECT_THAT(refusal([&](json& c) { c["time_step_limit"] = bad; }),
                HasSubstr("time_step_limit is not a range"))
        << bad;
  }
}

TEST(Config, SsmCacheTypeHasItsOwnKey) {
  EXPECT_EQ(with([](json&) {}).mamba_ssm_cache_dtype, "float32");
  EXPECT_EQ(with([](json& c) { c["mamba_ssm_cache_dtype"] = "float16"; }).mamba_ssm_cache_dtype,
            "float16");
  // The key of another model family must not halve the precision.
  EXPECT_EQ(with([](json& c) { c["mamba_ssm_dtype"] = "float16"; }).mamba_ssm_cache_dtype,
            "float32");
  EXPECT_THAT(refusal([](json& c) { c["mamba_ssm_cache_dtype"] = "int8"; }), HasSubstr("int8"));
}

TEST(Config, EndTokens) {
  EXPECT_THAT(with([](json&) {}).eos_token_ids, ElementsAre(2));
  EXPECT_THAT(with([](json& c) { c["eos_token_id"] = {2, 11}; }).eos_token_ids, ElementsAre(2, 11));
  EXPECT_THAT(with([](json& c) { c["eos_token_id"] = nullptr; }).eos_token_ids, ElementsAre());
  for (const json& bad : {json(96), json(-1), json("2"), json(2.0), json::array({2, "x"}),
                          json::array({json::array({2})})}) {
    EXPECT_THAT(refusal([&](json& c) { c["eos_token_id"] = bad; }), HasSubstr("eos_token_id"))
        << bad;
  }
  EXPECT_THAT(refusal([](json& c) {
                c["eos_token_id"] = json::array({2, -1});
              }),
              HasSubstr("config.json, eos_token_id[1]"));
}

TEST(Config, OptionalPieces) {
  EXPECT_EQ(with([](json& c) { c["moe_latent_size"] = nullptr; }).moe_latent_size, 0);
  EXPECT_EQ(with([](json& c) { c["moe_latent_size"] = 32; }).expert_width(), 32);
  EXPECT_EQ(with([](json& c) { c["n_shared_experts"] = 0; }).shared_intermediate(), 0);
  EXPECT_EQ(with([](json& c) { c["n_shared_experts"] = 2; }).shared_intermediate(), 128);
  EXPECT_TRUE(with([](json& c) { c["tie_word_embeddings"] = true; }).tie_word_embeddings);
  EXPECT_TRUE(with([](json& c) { c["attention_bias"] = true; }).attention_bias);
  EXPECT_TRUE(with([](json& c) { c["mlp_bias"] = true; }).mlp_bias);
  EXPECT_TRUE(with([](json& c) { c["use_bias"] = true; }).mamba_proj_bias);
  EXPECT_TRUE(with([](json& c) { c["mamba_proj_bias"] = true; }).mamba_proj_bias);
  EXPECT_THAT(refusal([](json& c) {
                c["use_bias"] = false;
                c["mamba_proj_bias"] = true;
              }),
              HasSubstr("contradict each other"));
}

TEST(Config, IntermediateSizeMayBeAList) {
  const auto sizes = [](const json& value) {
    return with([&](json& c) {
      c["hybrid_override_pattern"] = "-M-E*";
      c["intermediate_size"] = value;
    });
  };
  EXPECT_THAT(sizes({96, 128}).intermediate_size, ElementsAre(96, 128));
  EXPECT_THAT(sizes(96).intermediate_size, ElementsAre(96, 96));
  EXPECT_THROW(sizes({96}), Error);
  EXPECT_THROW(sizes({96, 0}), Error);
  EXPECT_THROW(sizes({96, "x"}), Error);
  EXPECT_THAT(test::error_of([&] {
                sizes({96, "x"});
              }).what(),
              HasSubstr("config.json, intermediate_size[1]"));
}

TEST(Config, ValuesThatContradictEachOther) {
  EXPECT_THAT(refusal([](json& c) { c["num_key_value_heads"] = 3; }), HasSubstr("do not divide"));
  EXPECT_THAT(refusal([](json& c) { c["n_groups"] = 3; }), HasSubstr("do not divide"));
  EXPECT_THAT(refusal([](json& c) { c["num_experts_per_tok"] = 5; }),
              HasSubstr("more experts per token"));
  EXPECT_THAT(refusal([](json& c) { c["n_group"] = 3; }), HasSubstr("do not divide experts"));
  EXPECT_THAT(refusal([](json& c) {
                c["n_group"] = 4;
                c["topk_group"] = 1;
              }),
              HasSubstr("more experts per token"));
  EXPECT_THAT(refusal([](json& c) { c["topk_group"] = 2; }), HasSubstr("topk_group"));
}

TEST(Config, HostileSizesAreRefusedBeforeAnyArithmeticOverflows) {
  for (const json& value : {json(0), json(-1), json(int64_t{1} << 62), json(~uint64_t{0}),
                            json(1.5), json(64.0), json("64"), json(true), json::array({64})}) {
    for (const char* key : {"hidden_size", "vocab_size", "mamba_num_heads", "n_routed_experts",
                            "head_dim", "conv_kernel", "moe_intermediate_size", "chunk_size"}) {
      EXPECT_THROW(with([&](json& c) { c[key] = value; }), Error) << key << " " << value;
    }
  }
  // Each legal alone, together larger than any model.
  EXPECT_THAT(refusal([](json& c) {
                c["hybrid_override_pattern"] = std::string(4000, 'E');
                c["num_hidden_layers"] = 4000;
                c["n_routed_experts"] = 65536;
              }),
              HasSubstr("too many experts"));
  EXPECT_THAT(refusal([](json& c) {
                c["hidden_size"] = 1 << 20;
                c["moe_intermediate_size"] = 1 << 20;
                c["n_routed_experts"] = 65536;
              }),
              HasSubstr("larger than any"));
}

TEST(Config, NumbersOutOfRange) {
  for (const json& bad :
       {json(0), json(-1e-5), json(1), json("1e-5"), json({{"__float__", "NaN"}})}) {
    EXPECT_THROW(with([&](json& c) { c["layer_norm_epsilon"] = bad; }), Error) << bad;
  }
  for (const json& bad : {json(0), json(-2.5), json({{"__float__", "Infinity"}})}) {
    EXPECT_THROW(with([&](json& c) { c["routed_scaling_factor"] = bad; }), Error) << bad;
  }
  EXPECT_THROW(parse(json::array()), Error);
}

}  // namespace
}  // namespace levin::model
