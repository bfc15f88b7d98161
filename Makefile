# The two commands: `make run` does the main job on this machine, `make test` runs every test.
GO ?= go

# Programs are static, so that one built here runs on any Linux.
export CGO_ENABLED ?= 0

# Packages tested at a time. Many have a core that polls, and two that poll on one core are both starved.
TEST_PARALLEL ?= 1

.PHONY: build run test deps

build:
	$(GO) build -o bin/ ./cmd/...

# The responder on AF_XDP against the kernel's own echo, over a veth pair, compared.
run: build
	bin/bench demo

# What is installed: a Debian package, the context of an image, SBOMs, into out/package. ARCH=arm64 for the other architecture.
.PHONY: package
package:
	$(GO) -C packaging run . -out ../out/package $(if $(ARCH),-arch $(ARCH))

# make test runs its parts two at a time, and all of them even if one fails: a line with *** behind a part's output says that it did.
# What a part prints comes when it is over. Each is a target of its own (make drivers); CONTRIBUTING.md says where the time goes.
TEST_JOBS ?= 2
PARTS = lab-all commands drivers core packaging race arm64
.PHONY: vet $(PARTS)
test: deps
	@failed=0; $(MAKE) --no-print-directory -k vet || failed=1; \
	$(MAKE) --no-print-directory -k -j$(TEST_JOBS) --output-sync=target $(PARTS) || failed=1; \
	[ $$failed = 0 ] || echo "make test: not all parts passed; a line with *** above names each that failed"; exit $$failed

# Before the others: what it compiles they find in the cache.
vet:
	$(GO) vet ./...
	GOARCH=arm64 $(GO) vet ./...
	$(GO) -C packaging vet ./...

# The packages in three parts; the lab has more than the others together, and is a part of its own.
PACKAGES = $(GO) test -count=1 -p $(TEST_PARALLEL) -timeout 40m
commands:
	$(PACKAGES) ./cmd/...
drivers:
	all=$$($(GO) list ./nic/... | grep -v '/nic/lab') && $(PACKAGES) $$all
core:
	all=$$($(GO) list ./... | grep -v '/nic\|/cmd/') && $(PACKAGES) $$all
	$(GO) test -count=1 -tags purego ./nic/bus/mmio
packaging:
	$(GO) -C packaging test -count=1 -timeout 30m ./...

# The race detector on the packages in which goroutines meet: polling loops, their watch, and who asks for counters. The
# detector needs cgo, and knows no DMA memory. A Conformance is minutes long under it; the tests of faults cover the same.
RACE = ./polling ./nic/kit/... ./nic/bus/... ./nic/ixgbe ./nic/ena ./nic/efa ./nic/mlx4 ./nic/mlx5 ./nic/virtio ./nic/nictest/toy ./nic/afpacket ./nic/afxdp ./nic/xdp ./cmd/responder
race:
	@if command -v $${CC:-cc} >/dev/null; then set -x; \
		CGO_ENABLED=1 $(GO) test -race -count=1 -p $(TEST_PARALLEL) -timeout 30m -skip 'Conformance|TestEveryID|HotLoop|TestCorpus|TestMutations' $(RACE); \
	else echo "race: no C compiler (package gcc); skipped: the race detector"; fi

# Most rented ENA hosts are arm64: the assembly and the fast path run there under emulation, with every fifth of the single-byte
# mutations (-short), since it is twenty times as slow.
arm64:
	@if command -v qemu-aarch64-static >/dev/null; then set -x; \
		GOARCH=arm64 $(GO) test -count=1 -short -exec qemu-aarch64-static ./nic/bus/mmio ./cksum ./fastpath; \
	else echo "arm64: no qemu-aarch64-static (package qemu-user-static); skipped: the arm64 assembly and fast path"; fi

# Every fuzz target for its share of DURATION on one core, with a table of executions and speed: make fuzz DURATION=1h. ONLY is a
# regular expression of targets: make fuzz ONLY='nic/mlx5 FuzzAnswers'
.PHONY: fuzz
fuzz:
	@scripts/fuzz '$(or $(DURATION),10m)' '$(or $(ONLY),.)'

# Faults under traffic, one after the other, in an order that SEED decides, with a report: make campaign DURATION=10m SEED=7. CLOCK=1 steps
# this machine's time of day too.
.PHONY: campaign
campaign: build
	bin/campaign -duration $(or $(DURATION),1h) $(if $(SEED),-seed $(SEED)) $(if $(CLOCK),-clock) $(if $(OUT),-out $(OUT))

# A million round trips a minute for DURATION (an hour): memory, collections, the last sixth against the first.
.PHONY: soak
soak: build
	scripts/soak $(or $(DURATION),1h) $(OUT)

# The Debian packages that tests use, where there is root and apt.
deps:
	@scripts/install-deps

# Rungs F2 to F4 of one NIC, or of all: its Linux driver on our model, our driver in a stock Linux or on QEMU's own
# device, and drivers that others wrote on our model. make lab NIC=ixgbe
# Guests side by side: one waits much of its time, and takes a core and a half while it does not.
LAB_PARALLEL ?= 3
LAB = $(GO) test -count=1 -timeout 60m -parallel $(LAB_PARALLEL)
.PHONY: lab
lab:
	$(LAB) -v ./nic/lab -run 'TestLab/$(NIC)'
lab-all:
	$(LAB) ./nic/lab/...

# The responder side by side with DPDK's testpmd, the least program in C, the kernel and a spinning socket, into results/ and
# the README; its polling loop beside one in C. Six minutes, and they want a machine that does nothing else.
.PHONY: peers gap cycles
peers: build
	scripts/peers -out results/peers -readme README.md
gap: build
	nice -n -20 bin/peers gap -out results/gap.md

# What the XDP program costs a reply, and each of its guards, by the kernel's own test run: half a minute.
.PHONY: xdp
xdp: build
	nice -n -20 bin/peers xdp -out results/xdp.md

# What each driver's Poll costs a reply, beside loops in C: two minutes.
cycles: build
	bin/peers cycles -out results/cycles.md
