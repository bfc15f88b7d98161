# The two commands: `make run` does the main job on this machine, `make test` runs every test.
GO ?= go

# Programs are static, so that one built here runs on any Linux.
export CGO_ENABLED ?= 0

# Packages tested at a time. Many have a core that polls, and two that poll on one core are both starved.
TEST_PARALLEL ?= 1

.PHONY: build run test arm64 deps

build:
	$(GO) build -o bin/ ./cmd/...

# The responder on AF_XDP against the kernel's own echo, over a veth pair, compared.
run: build
	bin/bench demo

test: deps
	$(GO) vet ./...
	GOARCH=arm64 $(GO) vet ./...
	$(GO) test -count=1 -p $(TEST_PARALLEL) -timeout 40m ./...
	$(GO) test -count=1 -tags purego ./nic/bus/mmio
	@$(MAKE) --no-print-directory race
	@$(MAKE) --no-print-directory arm64

# The race detector on the packages in which goroutines meet: polling loops, their watch, and who asks for counters. The
# detector needs cgo, and knows no DMA memory. A Conformance is minutes long under it; the tests of faults cover the same.
RACE = ./polling ./nic/kit/... ./nic/bus/... ./nic/ixgbe ./nic/ena ./nic/mlx5 ./nic/virtio ./nic/nictest/toy ./nic/afpacket ./nic/afxdp ./cmd/responder
.PHONY: race
race:
	@if command -v $${CC:-cc} >/dev/null; then set -x; \
		CGO_ENABLED=1 $(GO) test -race -count=1 -p $(TEST_PARALLEL) -timeout 20m -skip 'Conformance|TestEveryID|HotLoop' $(RACE); \
	else echo "race: no C compiler (package gcc); skipped: the race detector"; fi

# Most rented ENA hosts are arm64: the assembly and the fast path run there under emulation.
arm64:
	@if command -v qemu-aarch64-static >/dev/null; then set -x; \
		GOARCH=arm64 $(GO) test -count=1 -exec qemu-aarch64-static ./nic/bus/mmio ./cksum ./fastpath; \
	else echo "arm64: no qemu-aarch64-static (package qemu-user-static); skipped: the arm64 assembly and fast path"; fi

# The Debian packages that tests use, where there is root and apt.
deps:
	@scripts/install-deps

# Rungs F2 to F4 of one NIC, or of all: its Linux driver on our model, our driver in a stock Linux or on QEMU's own
# device, and drivers that others wrote on our model. make lab NIC=ixgbe
.PHONY: lab
lab:
	$(GO) test -count=1 -v -timeout 40m ./nic/lab -run 'TestLab/$(NIC)'

# The responder side by side with DPDK's testpmd, the least program in C, the kernel and a spinning socket, into results/ and
# the README; its polling loop beside one in C. Six minutes, and they want a machine that does nothing else.
.PHONY: peers gap cycles
peers: build
	scripts/peers -out results/peers -readme README.md
gap: build
	nice -n -20 bin/peers gap -out results/gap.md

# What each driver's Poll costs a reply, beside loops in C: two minutes.
cycles: build
	bin/peers cycles -out results/cycles.md
