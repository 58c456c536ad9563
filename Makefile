# epd. `make help` lists the targets. Sources are found by folder; nothing here names a file.
.DEFAULT_GOAL := all
VERSION := 0.1.0
O ?= build
PREFIX ?= /usr/local
T ?=
CC ?= gcc
Q := $(if $(V),,@)
say = $(if $(V),,@printf '  %-6s %s\n' $(1) $(2))

# ---- layers: who may include whom (make lint checks every edge) ----
LAYERS := proto: base:proto ipc:base,proto core:base,ipc,proto rpc:core,base,ipc,proto \
    engine:base,ipc,kernels,proto kernels:proto client:proto client/rpc:client,proto \
    client/epdctl:client,proto main:base,ipc,core,rpc,proto

# ---- flags ----
SAN ?=
WARN := -Wall -Wextra -Wno-format-truncation -Wshadow -Wconversion -Wstrict-prototypes -Wmissing-prototypes -Wvla -Werror
BASEFLAGS := -std=c11 -D_GNU_SOURCE -DEPD_VERSION='"$(VERSION)"' -O2 -g -fPIC -fvisibility=hidden \
    -ffp-contract=off -fstack-protector-strong -MMD -MP -I. -I$(O)/gen
ifneq ($(SAN),)
BASEFLAGS += -fsanitize=$(SAN) -fno-omit-frame-pointer -fno-sanitize-recover=all
LDSAN := -fsanitize=$(SAN)
else
BASEFLAGS += -D_FORTIFY_SOURCE=2
endif
LDFLAGS += -Wl,-z,relro,-z,now $(LDSAN)
LIBDIR := $(shell $(CC) -print-multiarch 2>/dev/null | sed 's,^,/usr/lib/,')
PBC := $(LIBDIR)/libprotobuf-c.a
GRPC := -lgrpc_unsecure -lgpr

# ---- components ----
SRC_base := $(wildcard daemon/base/*.c)
SRC_ipc := $(wildcard daemon/ipc/*.c)
SRC_core := $(wildcard daemon/core/*.c)
SRC_rpc := $(wildcard daemon/rpc/*.c)
SRC_engine := $(filter-out daemon/engine/main.c,$(wildcard daemon/engine/*.c daemon/engine/host/*.c))
SRC_client := $(wildcard client/*.c)
SRC_clientrpc := $(wildcard client/rpc/*.c)
SRC_epdctl := $(wildcard client/epdctl/*.c)
SRC_support := $(wildcard tests/support/*.c)
PROTO := $(wildcard proto/*.proto)
GEN_H := $(PROTO:%.proto=$(O)/gen/%.pb-c.h)
SRC_protogen := $(PROTO:%.proto=$(O)/gen/%.pb-c.c)
obj = $(patsubst $(O)/gen/%.c,$(O)/obj/gen/%.o,$(patsubst %.c,$(O)/obj/%.o,$(1)))
A = $(foreach c,$(1),$(O)/lib/$(c).a)
.SECONDARY:

BINS := $(O)/bin/epd $(O)/bin/epd-engine $(O)/bin/epdctl
LIBS := $(O)/lib/libepd.so $(O)/lib/libepd.a $(O)/lib/libepd-rpc.so
NVCC ?= $(firstword $(wildcard /usr/local/cuda/bin/nvcc) $(shell command -v nvcc 2>/dev/null))
KERNELS := $(if $(NVCC),$(patsubst %.cu,$(O)/%.o,$(wildcard kernels/*.cu)))

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14
all: $(BINS) $(LIBS) $(KERNELS) ## daemon, engine, libraries, epdctl, kernels (where nvcc is)
deps: ## install missing packages
	@deploy/install-deps.sh
# Everything is built by a second make, after the dependencies (headers!) are there.
test: deps ## all tests (T=pattern: some)
	@$(MAKE) --no-print-directory O=$(O) SAN=$(SAN) check
asan: deps ## tests with address and undefined-behaviour sanitizers
	@$(MAKE) --no-print-directory O=$(O)/asan SAN=address,undefined check
tsan: deps ## tests with the thread sanitizer
	@$(MAKE) --no-print-directory O=$(O)/tsan SAN=thread check
demo: deps ## the main job on the host backend
	@$(MAKE) --no-print-directory O=$(O) all
	@EPD_BIN_DIR=$(abspath $(O))/bin EPD_LIB_DIR=$(abspath $(O))/lib tests/support/demo.sh
kernels: $(KERNELS) ## compile the CUDA code

# ---- generated code ----
$(O)/gen/%.pb-c.c $(O)/gen/%.pb-c.h: %.proto
	$(call say,GEN,$<)
	@mkdir -p $(dir $@)
	$(Q)protoc-c --c_out=$(O)/gen $<
$(O)/obj/gen/%.o: $(O)/gen/%.c
	@mkdir -p $(dir $@)
	$(Q)$(CC) $(BASEFLAGS) -w -c $< -o $@
$(O)/obj/%.o: %.c | $(GEN_H)
	$(call say,CC,$<)
	@mkdir -p $(dir $@)
	$(Q)$(CC) $(BASEFLAGS) $(WARN) $(CFLAGS) -c $< -o $@
$(O)/kernels/%.o: kernels/%.cu
	$(call say,NVCC,$<)
	@mkdir -p $(dir $@)
	$(Q)$(NVCC) -std=c++17 -O3 -arch=sm_90 $(if $(NCCL_HOME),-I$(NCCL_HOME)/include) -I. \
	    -Xptxas -v -c $< -o $@ 2>$@.log || { cat $@.log; exit 1; }
	@! grep -E '[1-9][0-9]* bytes stack frame' $@.log

# ---- archives and programs ----
define ARCHIVE
$(O)/lib/$(1).a: $(call obj,$(SRC_$(1)))
	@mkdir -p $$(dir $$@)
	@rm -f $$@
	$$(Q)ar rcs $$@ $$^
endef
$(foreach c,base ipc core rpc engine client epdctl support protogen,$(eval $(call ARCHIVE,$(c))))
GROUP = -Wl,--start-group $(1) -Wl,--end-group
$(O)/bin/epd: $(call obj,daemon/main.c) $(call A,rpc core ipc base protogen)
	$(call say,LD,$@)
	@mkdir -p $(dir $@)
	$(Q)$(CC) -pie $(LDFLAGS) -o $@ $< $(call GROUP,$(filter %.a,$^)) $(GRPC) -lprotobuf-c -luv -linih -lpthread
$(O)/bin/epd-engine: $(call obj,daemon/engine/main.c) $(call A,engine ipc base)
	$(call say,LD,$@)
	@mkdir -p $(dir $@)
	$(Q)$(CC) -pie $(LDFLAGS) -o $@ $< $(call GROUP,$(filter %.a,$^)) -linih -lm -ldl -lpthread
$(O)/bin/epdctl: $(call obj,$(SRC_epdctl)) $(call A,protogen) $(O)/lib/libepd.so
	$(call say,LD,$@)
	@mkdir -p $(dir $@)
	$(Q)$(CC) -pie $(LDFLAGS) -o $@ $(filter %.o %/protogen.a,$^) -L$(O)/lib -lepd $(PBC) -ljansson -lm \
	    -Wl,-rpath,'$$ORIGIN/../lib'
$(O)/lib/libepd.so: $(call obj,$(SRC_client)) $(call A,protogen) client/epd.map
	$(call say,LD,$@)
	@mkdir -p $(dir $@)
	$(Q)$(CC) -shared $(LDFLAGS) -Wl,-soname,libepd.so.0 -Wl,--version-script,client/epd.map \
	    -Wl,--exclude-libs,ALL -o $@.0 $(filter %.o %.a,$^) $(PBC) -ldl -lpthread
	$(Q)ln -sf libepd.so.0 $@
$(O)/lib/libepd.a: $(call obj,$(SRC_client) $(SRC_protogen))
	@mkdir -p $(dir $@)
	@rm -f $@
	$(Q)ar rcs $@ $^
$(O)/lib/libepd-rpc.so: $(call obj,$(SRC_clientrpc))
	$(call say,LD,$@)
	@mkdir -p $(dir $@)
	$(Q)$(CC) -shared $(LDFLAGS) $(if $(wildcard client/rpc/epd-rpc.map),-Wl,--version-script,client/rpc/epd-rpc.map) \
	    -o $@ $^ $(GRPC) -lpthread

-include $(shell find $(O)/obj -name '*.d' 2>/dev/null)
