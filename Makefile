# Two commands matter: `make demo` and `make test`. Both set everything up by themselves.
SHELL := /bin/bash
JOBS  ?= $(shell nproc)
# The CUDA runtime: AUTO (where nvcc is found), ON or OFF. Not given, a build folder keeps what it was
# made with, and a new one gets AUTO.
CUDA  ?=
$(if $(filter-out AUTO ON OFF,$(CUDA)),$(error CUDA=$(CUDA): expected AUTO, ON or OFF))
BUILD := build/release
LEVIN := $(BUILD)/levin
MADE_WITH := $(shell sed -n 's/^LEVIN_CUDA:STRING=//p' $(BUILD)/CMakeCache.txt 2>/dev/null)

# Test programs of the rooms that run threads.
THREADED := test_core test_checkpoint test_runtime test_engine test_quantize test_evaluate test_serve

.PHONY: other-cuda all setup packages build demo test test-asan test-tsan test-web fuzz soak format lint clean help

all: build

help:
	@sed -n 's/^## //p' Makefile

## make setup      install the Debian packages that are missing (says which; nothing when complete)
setup:
	@tools/setup.sh

# What building takes, without the packages for lint and fuzzing.
packages:
	@tools/setup.sh build

$(BUILD)/build.ninja: CMakeLists.txt $(if $(filter-out $(MADE_WITH),$(CUDA)),other-cuda) | packages
	@cmake --preset release $(if $(CUDA),-DLEVIN_CUDA=$(CUDA))

## make build      build the levin program in build/release (here and below CUDA=OFF: without CUDA; JOBS=1: one file at a time)
build: packages $(BUILD)/build.ninja
	@cmake --build $(BUILD) -j$(JOBS) --target levin

## make demo       climb the ladder on the bundled model; the report lands in out/demo
demo: build
	@tools/demo.sh $(LEVIN) out/demo

## make test       build and run every test
test: packages $(BUILD)/build.ninja
	@cmake --build $(BUILD) -j$(JOBS)
	@tools/run_tests.sh $(BUILD)

## make test-asan  every test under AddressSanitizer and UndefinedBehaviorSanitizer
test-asan: packages
	@cmake --preset asan && cmake --build build/asan -j$(JOBS) && tools/run_tests.sh build/asan

## make test-tsan  the multi-threaded tests under ThreadSanitizer
test-tsan: packages
	@cmake --preset tsan && cmake --build build/tsan -j$(JOBS) --target $(THREADED) && \
	  for test in $(THREADED); do TSAN_OPTIONS=halt_on_error=1 build/tsan/tests/$$test --gtest_brief=1 \
	  || exit 1; done

## make test-web   the web page in headless Chromium (not part of make test: needs chromium)
test-web: build
	@test -x build/webvenv/bin/python || python3 -m venv build/webvenv
	@build/webvenv/bin/pip -q install websockets
	@build/webvenv/bin/python tests/web/test_page.py
	@build/webvenv/bin/python tests/web/test_page.py --levin $(LEVIN)

## make fuzz       coverage-guided fuzzing of every parser (FUZZ_SECONDS each, default 60)
fuzz: setup
	@tools/fuzz.sh $${FUZZ_SECONDS:-60}

## make soak       5000 requests, 512 at once, a fifth of whose clients vanish; memory must not grow
soak: build
	@tools/soak.py $(LEVIN)

## make bench      the CPU kernels beside a streaming read and a plain loop, then a whole model's passes
bench: setup $(BUILD)/build.ninja
	@cmake --build $(BUILD) -j$(JOBS) --target levin_kernels_bench levin_cpu_step
	@$(BUILD)/benchmarks/levin_kernels_bench --benchmark_filter='read|control|/(bf16|fp8|nvfp4_w4a16|int4_g64|f32_router)/' \
	  --benchmark_counters_tabular=true
	@$(BUILD)/benchmarks/levin_cpu_step configs/nemotron-3-eighth --recipe coverage

## make format     clang-format every source file
format: setup
	@git ls-files -z '*.h' '*.cpp' '*.cu' '*.cuh' | xargs -0 clang-format-14 -i

## make lint       clang-format and clang-tidy, errors only
lint: setup $(BUILD)/build.ninja
	@tools/lint.sh $(BUILD)

## make clean      remove everything that was built
clean:
	@rm -rf build out
