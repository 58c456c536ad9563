# epd. `make help` lists the targets. Sources are found by folder; nothing here names a file.
.DEFAULT_GOAL := all
VERSION := 0.1.0
O ?= build
PREFIX ?= /usr/local
SYSCONFDIR ?= /etc
DESTDIR ?=
RETRY ?= 0
T ?=
J ?= 1
FUZZ_SECONDS ?= 60
PYTHON := /usr/bin/python3
comma := ,
Q := $(if $(V),,@)
say = $(if $(V),,@printf '  %-6s %s\n' $(1) $(2))

# ---- layers: who may include whom (`make lint` checks every edge). A layer is a folder of the tree
# ---- or one header of it; "main" is daemon/main.c. The part after the colon is what it may include.
LAYERS := \
    proto: \
    base:proto \
    ipc:base,proto \
    core:base,ipc,proto \
    rpc:core,base,ipc,proto \
    engine:base,ipc,kernels,proto \
    kernels:proto \
    client/rpc/table.h:proto \
    client:client/rpc/table.h,proto \
    client/rpc:client/rpc/table.h,client,proto \
    client/epdctl:client,proto \
    main:base,ipc,core,rpc,proto

# ---- flags: SAN=address,undefined or thread, FUZZ=1 and CC=clang come from the targets below ----
SAN ?=
FAULTS ?= 1
FUZZ ?=
WARN := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla
# Sanitizers change what gcc can prove; the plain build is the one that must be clean. Clang's
# -Wconversion means more than gcc's.
WARN += $(if $(FUZZ),,-Wconversion -Wno-format-truncation) $(if $(SAN)$(FUZZ),,-Werror)
# -ffp-contract=off: bit-equal results on every backend are a product feature.
CPPDEFS := -D_GNU_SOURCE $(if $(filter 0,$(FAULTS)),-DEPD_NO_FAULTS) -DEPD_VERSION='"$(VERSION)"' -I. -isystem $(O)/gen
BASEFLAGS := -std=c11 $(CPPDEFS) -O2 -g -fPIC -fvisibility=hidden -ffp-contract=off \
    -fstack-protector-strong -MMD -MP
INSTRUMENT := $(if $(FUZZ),-fsanitize=fuzzer-no-link$(comma)address,$(if $(SAN),-fsanitize=$(SAN)))
BASEFLAGS += $(if $(INSTRUMENT),$(INSTRUMENT) -fno-omit-frame-pointer -fno-sanitize-recover=all,-D_FORTIFY_SOURCE=2)
LINK = $(CC) $(INSTRUMENT) -Wl,-z,relro,-z,now,--as-needed $(LDFLAGS)
# Static, so that a user of libepd needs no protobuf-c of a certain version.
PBC := $(shell $(CC) -print-file-name=libprotobuf-c.a)
GRPC := -lgrpc_unsecure -lgpr
SYSLIBS := -linih -lm -ldl -lpthread

# ---- components ----
SRC_base := $(wildcard daemon/base/*.c)
SRC_ipc := $(wildcard daemon/ipc/*.c)
SRC_core := $(wildcard daemon/core/*.c)
SRC_rpc := $(wildcard daemon/rpc/*.c)
SRC_engine := $(filter-out daemon/engine/main.c,$(wildcard daemon/engine/*.c daemon/engine/*/*.c))
SRC_client := $(wildcard client/*.c)
SRC_clientrpc := $(wildcard client/rpc/*.c)
SRC_epdctl := $(filter-out client/epdctl/main.c,$(wildcard client/epdctl/*.c))
SRC_support := $(wildcard tests/support/*.c)
PROTO := $(wildcard proto/*.proto)
GEN_H := $(PROTO:%.proto=$(O)/gen/%.pb-c.h)
SRC_protogen := $(PROTO:%.proto=$(O)/gen/%.pb-c.c)
COMPONENTS := base ipc core rpc engine epdctl support protogen
obj = $(patsubst $(O)/gen/%.c,$(O)/obj/gen/%.o,$(patsubst %.c,$(O)/obj/%.o,$(1)))
A = $(foreach c,$(1),$(O)/lib/$(c).a)

# A component without sources does not stop the others.
BINS := $(if $(wildcard daemon/main.c),$(O)/bin/epd) $(if $(wildcard daemon/engine/main.c),$(O)/bin/epd-engine) \
    $(if $(wildcard client/epdctl/main.c),$(O)/bin/epdctl)
LIBS := $(if $(SRC_client),$(O)/lib/libepd.so $(O)/lib/libepd.a) $(if $(SRC_clientrpc),$(O)/lib/libepd-rpc.so)
NVCC ?= $(firstword $(shell command -v nvcc 2>/dev/null) $(wildcard /usr/local/cuda/bin/nvcc))
WITH_CUDA ?= $(if $(NVCC),1,0)
KERNELS := $(if $(filter 1,$(WITH_CUDA)),$(patsubst %.cu,$(O)/%.o,$(wildcard kernels/*.cu)))

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(firstword $(MAKEFILE_LIST)) | expand -t 14
	@echo 'V=1 shows commands, O=dir is the build folder (build), CC, CFLAGS, LDFLAGS, WITH_CUDA=0, NCCL_HOME.'
all: $(BINS) $(LIBS) $(KERNELS) ## daemon, engine, libraries, epdctl, kernels (where nvcc is)
deps: ## install missing packages (Debian, as root; else prints the command)
	@deploy/install-deps.sh
kernels: $(KERNELS) ## compile the CUDA code (needs nvcc)
	$(if $(KERNELS),,@echo "no nvcc or no kernels: nothing compiled")

# ---- tests ----
# What the unit tests of a folder may use: the archives of its layer, and of tests/support.
USES_base := base
USES_ipc := ipc base
USES_core := support core ipc base protogen
USES_rpc := support rpc core ipc base protogen
USES_engine := support engine ipc base
USES_client := support libepd
USES_epdctl := support epdctl libepd
USES_proto :=
USES_fuzz := support rpc core engine ipc base epdctl libepd protogen
USES_system := support epdctl libepd
LIBS_core := -lprotobuf-c -luv
LIBS_rpc := $(GRPC) -lprotobuf-c -luv
LIBS_client := $(PBC)
LIBS_epdctl := $(PBC) -ljansson
LIBS_system := $(PBC) -ljansson
LIBS_fuzz := $(GRPC) $(PBC) -luv -ljansson

UNIT_SRC := $(wildcard tests/unit/*/*_test.c)
SYSTEM_SRC := $(wildcard tests/conformance/*_test.c tests/fault/*_test.c tests/replay/*_test.c)
FUZZ_SRC := $(wildcard tests/fuzz/*_fuzz.c)
BENCH_SRC := $(wildcard tests/bench/*_bench.c)
SCRIPT_TESTS := $(wildcard $(foreach d,unit/* conformance fault replay lint,tests/$(d)/*_test.py tests/$(d)/*_test.sh))
bin_of = $(patsubst tests/%.c,$(O)/tests/%,$(1))
TEST_BINS := $(call bin_of,$(UNIT_SRC) $(SYSTEM_SRC))
# Programs that are not instrumented cannot load instrumented libraries.
SAN_SKIP := tests/unit/client/python_test.py tests/unit/client/isolation_test.sh tests/unit/client/symbols_test.sh
ALL_TESTS := $(filter-out $(if $(SAN),$(SAN_SKIP) tests/lint/%),$(UNIT_SRC) $(SYSTEM_SRC) $(SCRIPT_TESTS))
TEST_ENV = EPD_BIN_DIR=$(abspath $(O))/bin EPD_LIB_DIR=$(abspath $(O))/lib CC='$(CC)'

# Everything is built by a second make, after the dependencies (headers!) are there.
SUB = +@$(MAKE) --no-print-directory
test: deps ## all tests (T=pattern: some; J=2: two at a time)
	$(SUB) O=$(O) check
asan: deps ## tests with the address and undefined-behaviour sanitizers
	$(SUB) O=$(O)/asan SAN=address,undefined check
tsan: deps ## tests with the thread sanitizer
	$(SUB) O=$(O)/tsan SAN=thread check
demo: deps ## the main job on the host backend
	$(SUB) O=$(O) all
	@$(TEST_ENV) tests/support/demo.sh
check: all $(if $(T),$(foreach b,$(TEST_BINS),$(if $(findstring $(T),$(b)),$(b))),$(TEST_BINS))
	@$(TEST_ENV) $(PYTHON) tests/support/run-tests.py --build $(O) --sanitizer '$(SAN)' --jobs $(J) \
	    --filter '$(T)' --retry '$(RETRY)' $(ALL_TESTS)
bench: all $(call bin_of,$(BENCH_SRC)) ## benchmarks
	@for b in $(call bin_of,$(BENCH_SRC)); do echo "== $$b"; $(TEST_ENV) $$b || exit 1; done
mutants: deps ## seeded faults: each must fail a test (T=pattern: some; J=2: two at a time)
	+@$(PYTHON) tests/mutants/mutants.py --build $(O)/mutants --jobs $(J) --filter '$(T)'
fuzz: deps ## FUZZ_SECONDS (60) of fuzzing for each target
	$(SUB) O=$(O)/fuzz CC=clang FUZZ=1 fuzz-run
fuzz-run: $(call bin_of,$(FUZZ_SRC))
	@for f in $(FUZZ_SRC:tests/fuzz/%_fuzz.c=%); do echo "== $$f"; \
	    mkdir -p $(O)/corpus/$$f; \
	    $(O)/tests/fuzz/$${f}_fuzz -max_total_time=$(FUZZ_SECONDS) -timeout=10 -rss_limit_mb=4096 \
	        -print_final_stats=1 -artifact_prefix=$(O)/ $(O)/corpus/$$f $$(ls -d tests/fuzz/corpus/$$f 2>/dev/null) || exit 1; done

# ---- generated code and objects ----
$(O)/.deps: deploy/install-deps.sh
	@mkdir -p $(O)
	@deploy/install-deps.sh --check && touch $@
$(O)/gen/%.pb-c.c $(O)/gen/%.pb-c.h &: %.proto | $(O)/.deps
	$(call say,GEN,$<)
	@mkdir -p $(O)/gen
	$(Q)protoc-c --c_out=$(O)/gen $<
$(O)/obj/gen/%.o: $(O)/gen/%.c
	@mkdir -p $(dir $@)
	$(Q)$(CC) $(BASEFLAGS) -w -I$(O)/gen -c $< -o $@
$(O)/obj/%.o: %.c | $(GEN_H) $(O)/.deps
	$(call say,CC,$<)
	@mkdir -p $(dir $@)
	$(Q)$(CC) $(BASEFLAGS) $(WARN) $(CFLAGS) -c $< -o $@
# -fmad=false for the same reason as -ffp-contract=off. A stack frame means spilled arrays: a bug here.
$(O)/kernels/%.o: kernels/%.cu $(wildcard kernels/*.cuh kernels/*.h proto/*.h)
	$(call say,NVCC,$<)
	@mkdir -p $(dir $@)
	$(Q)$(NVCC) -std=c++17 -O3 -arch=sm_90 -fmad=false $(if $(NCCL_HOME),-I$(NCCL_HOME)/include) -I. \
	    -Xptxas -v -c $< -o $@ 2>$@.log || { cat $@.log; exit 1; }
	@! grep -E '[1-9][0-9]* bytes stack frame' $@.log

GPU_TESTS := $(if $(KERNELS),$(patsubst %.cu,$(O)/%,$(wildcard tests/gpu/*_test.cu)))
$(O)/tests/gpu/%: tests/gpu/%.cu $(KERNELS)
	$(call say,NVCC,$<)
	@mkdir -p $(dir $@)
	$(Q)$(NVCC) -std=c++17 -O2 -arch=sm_90 -I. -o $@ $< $(KERNELS)
gpu-tests: $(GPU_TESTS) ## compile the GPU tests (needs nvcc)
test-gpu: gpu-tests ## GPU tests (needs nvcc and a GPU)
	@for t in $(GPU_TESTS); do echo "== $$t"; $$t || exit 1; done

# ---- archives and programs ----
define ARCHIVE
$(O)/lib/$(1).a: $(call obj,$(SRC_$(1)))
	@mkdir -p $$(dir $$@)
	@rm -f $$@
	$$(Q)ar rcs $$@ $$(filter %.o,$$^)
endef
$(foreach c,$(COMPONENTS),$(eval $(call ARCHIVE,$(c))))
GROUP = -Wl,--start-group $(filter %.a,$^) -Wl,--end-group
MAPS = $(addprefix -Wl$(comma)--version-script$(comma),$(filter %.map,$^))
define START_LINK
	$(call say,LD,$@)
	@mkdir -p $(dir $@)
endef
$(O)/bin/epd: $(call obj,daemon/main.c) $(call A,rpc core ipc base protogen)
	$(START_LINK)
	$(Q)$(LINK) -pie -o $@ $< $(GROUP) $(GRPC) -lprotobuf-c -luv $(SYSLIBS)
$(O)/bin/epd-engine: $(call obj,daemon/engine/main.c) $(call A,engine ipc base)
	$(START_LINK)
	$(Q)$(LINK) -pie -o $@ $< $(GROUP) -luv $(SYSLIBS)
$(O)/bin/epdctl: $(call obj,client/epdctl/main.c) $(call A,epdctl protogen) $(O)/lib/libepd.so
	$(START_LINK)
	$(Q)$(LINK) -pie -o $@ $< $(GROUP) -L$(O)/lib -lepd $(PBC) -ljansson -lm -lpthread -Wl,-rpath,'$$ORIGIN/../lib'
$(O)/lib/libepd.so: $(call obj,$(SRC_client)) $(call A,protogen) $(wildcard client/epd.map)
	$(START_LINK)
	$(Q)$(LINK) -shared -Wl,-soname,libepd.so.0 $(MAPS) \
	    -Wl,--exclude-libs,ALL -o $@.0 $(filter %.o,$^) $(filter %.a,$^) $(PBC) -ldl -lpthread
	$(Q)ln -sf libepd.so.0 $@
$(O)/lib/libepd.a: $(call obj,$(SRC_client) $(SRC_protogen))
	@mkdir -p $(dir $@)
	@rm -f $@
	$(Q)ar rcs $@ $^
$(O)/lib/libepd-rpc.so: $(call obj,$(SRC_clientrpc)) $(wildcard client/rpc/*.map)
	$(START_LINK)
	$(Q)$(LINK) -shared -Wl,-soname,libepd-rpc.so $(MAPS) -o $@ $(filter %.o,$^) $(GRPC) -lpthread
$(O)/obj/client/rpc/%.o: WARN := $(filter-out -Wstrict-prototypes,$(WARN)) # grpc.h has f() prototypes

# Test programs. $(1): source, $(2): key of USES_ and LIBS_
define TEST
$(call bin_of,$(1)): $(call obj,$(1)) $(call A,$(USES_$(2)))
	$$(START_LINK)
	$$(Q)$$(LINK) -pie $(if $(FUZZ),-fsanitize=fuzzer) -o $$@ $$< $$(GROUP) $(LIBS_$(2)) -lcmocka $$(SYSLIBS)
endef
$(foreach t,$(UNIT_SRC),$(eval $(call TEST,$(t),$(word 3,$(subst /, ,$(t))))))
$(foreach t,$(SYSTEM_SRC) $(BENCH_SRC),$(eval $(call TEST,$(t),system)))
$(foreach t,$(FUZZ_SRC),$(eval $(call TEST,$(t),fuzz)))

# ---- lint, format ----
OUR_C := $(wildcard $(foreach d,daemon daemon/* daemon/engine/* client client/* tests/*,$(d)/*.c) tests/unit/*/*.c)
OUR_H := $(wildcard $(foreach d,proto daemon/* daemon/engine/* client client/* tests/*,$(d)/*.h) tests/unit/*/*.h)
OUR_CUDA := $(wildcard kernels/*.cu kernels/*.cuh kernels/*.h)
TIDY_SRC := $(filter daemon/% client/% tests/support/%,$(OUR_C))
lint: deps ## format, clang-tidy, headers, layers, file sizes
	$(SUB) lint-run
lint-run: lint-format lint-layers lint-sizes lint-headers lint-tidy
lint-format:
	@clang-format --dry-run -Werror $(OUR_C) $(OUR_H) $(OUR_CUDA) && echo 'format: ok'
lint-layers:
	@$(PYTHON) tests/lint/layers.py $(LAYERS)
lint-sizes:
	@$(PYTHON) tests/lint/sizes.py --exceptions tests/lint/exceptions.txt $(OUR_C) $(OUR_H) $(OUR_CUDA) Makefile
# A header compiles alone, with nothing before it.
NO_HEADER := $(shell sed -n 's/^header \([^ ]*\) .*/\1/p' tests/lint/exceptions.txt)
lint-headers: $(patsubst %.h,$(O)/lint/%.h.ok,$(filter-out $(NO_HEADER),$(OUR_H)))
	@echo 'headers: ok'
$(O)/lint/%.h.ok: %.h | $(GEN_H)
	@mkdir -p $(dir $@)
	$(Q)$(CC) -x c -std=c11 $(CPPDEFS) -Wall -Wextra -Werror -MD -MP -MF $@.d -MT $@ -fsyntax-only $(if $(findstring tests/,$<),-include stdarg.h -include setjmp.h -include stdint.h) $<
	@touch $@
lint-tidy: $(TIDY_SRC:%.c=$(O)/lint/%.tidy)
	@echo 'tidy: ok'
$(O)/lint/%.tidy: %.c $(O)/obj/%.o .clang-tidy tests/lint/tidy.py tests/lint/exceptions.txt
	$(call say,TIDY,$<)
	@mkdir -p $(dir $@)
	$(Q)$(PYTHON) tests/lint/tidy.py --exceptions tests/lint/exceptions.txt $< -- -std=c11 $(CPPDEFS)
	@touch $@
format: ## rewrite our sources in the house format
	$(Q)clang-format -i $(OUR_C) $(OUR_H) $(OUR_CUDA)

# ---- installation ----
I := install -D -m
install: all ## install below $(DESTDIR)$(PREFIX)
	$(Q)deploy/install.sh '$(DESTDIR)' '$(PREFIX)' '$(SYSCONFDIR)' '$(O)' '$(VERSION)'
uninstall: ## remove what install put there (the configuration stays)
	$(Q)deploy/install.sh --uninstall '$(DESTDIR)' '$(PREFIX)'
dist: all ## relocatable folder as a tarball
	$(Q)deploy/dist.sh '$(O)' '$(VERSION)'
clean: ## remove the build folder
	$(Q)rm -rf $(O)

.PHONY: help all deps kernels gpu-tests test-gpu test asan tsan demo check bench mutants fuzz fuzz-run lint lint-run lint-format lint-layers \
    lint-sizes lint-headers lint-tidy format install uninstall dist clean
.SECONDARY:
.DELETE_ON_ERROR:
-include $(shell find $(O)/obj $(O)/lint -name '*.d' 2>/dev/null)
