# `make run` does the main job on this machine, `make check` and `make test` run the tests.
GO ?= go

# Programs are static, so that one built here runs on any Linux.
export CGO_ENABLED ?= 0
# Without paths in them, compiled packages are shared between clones, and with the tests that build programs.
export GOFLAGS ?= -trimpath
# Programs are stamped with git's answers, for which git would write into .git: tests that read all sources would then run again.
export GIT_OPTIONAL_LOCKS ?= 0

.PHONY: build run test deps

build:
	$(GO) build -o bin/ ./cmd/...
	ln -sf responder bin/rebound-responder; ln -sf bench bin/rebound-bench; ln -sf watch bin/rebound-watch; ln -sf simnic bin/rebound-simnic

# The responder (XDP, then AF_XDP) against the kernel's own echo, over a veth pair, compared.
run: build
	bin/bench demo

# What is installed: a Debian package, the context of an image, SBOMs, into out/package. ARCH=arm64 for the other architecture. DISCOVER=1
# includes rebound-discover, which compiles for minutes at first; releases have it.
.PHONY: package
package:
	$(GO) -C packaging run . -out ../out/package $(if $(ARCH),-arch $(ARCH)) $(if $(DISCOVER),-discover)

# The program that lists targets by the service discoveries of Prometheus, with its tests, and packaged. It compiles for minutes at first.
.PHONY: discovery
discovery:
	$(GO) -C fleet/discovery test -count=1 .
	$(GO) -C fleet/discovery build -o ../../bin/rebound-discover .
	$(GO) -C packaging test -count=1 -short -run '^Test(Tar|Image|SBOM|Reproducible)$$' . -discover

# rebound-discover against a real Consul, which the first run builds from its Go module into .cache/servers (minutes), a real DNS server,
# and a server of EC2's API if moto_server is installed.
.PHONY: servers
servers:
	scripts/servers $(if $(RUN),-run '$(RUN)')

# What rebound-watch pushes, against a real Prometheus and a real OpenTelemetry collector, which the first run builds from Go modules
# into .cache/telemetry: minutes.
.PHONY: telemetry
telemetry:
	scripts/telemetry $(if $(RUN),-run '$(RUN)')

# A release for amd64 and arm64: package, tar file, image and SBOMs of each, and SHA256SUMS, into out/release. DISCOVERY=FOLDER takes the
# sources of rebound-discover from another folder, as the test of the release's workflow does, so that it compiles in a minute.
.PHONY: release
release:
	$(GO) -C packaging run . -out ../out/release -release $(if $(DISCOVERY),-discovery $(DISCOVERY))

# The appliance: rebound.img for a stick, and the same as one file, rebound.efi, into out/image. It fetches Debian's kernel (110 MB) and boot
# loader by name into .cache/appliance, and needs no root. docs/use/appliance.md describes it.
.PHONY: image appliance-test
image:
	$(GO) -C packaging/appliance run ./image -out ../../out/image
# All guests that boot the appliance, with OVMF: half an hour or more. RUN='^TestBootDisk$$' chooses.
appliance-test: deps
	$(GO) -C packaging/appliance test -count=1 -v -timeout 3h $(if $(RUN),-run '$(RUN)') . ./image ./init

# The tests: CONTRIBUTING.md says what each of these runs. proof/suite runs the packages and prints the results.
SUITE = $(GO) run ./proof/suite
.PHONY: check lab flaky times mutate
# Before each commit: types, vet, and the tests that need neither root nor a network, nor seconds.
check:
	@$(SUITE) check
# Every package, and one scenario of the lab.
test: deps
	@$(SUITE) test
# Rungs F2 to F4 of one NIC (make lab NIC=ixgbe), or of all, and beside them the race detector, arm64 emulation and booted packages.
# One guest per core: with one more they take a third more CPU time, because of polling loops, and end later.
lab: deps
	@$(SUITE) lab $(if $(NIC),-nic $(NIC))
# One guest with all device models, which make test runs too.
.PHONY: lab-smoke
lab-smoke:
	$(GO) test -count=1 -v -run '^TestLabSmoke$$' ./proof/lab
# The Helm chart in a real Kubernetes on this machine, as root. The first run builds it from Go modules into .cache/cluster: ten minutes
# or more. RUN='^TestCluster$$/drain' runs a part, AWAY=5m takes the API server away for five minutes.
# RUN=TestOthers OTHERS=/FOLDER compares the chart with goldpinger and kconmon-ng, whose images and charts are in /FOLDER.
.PHONY: cluster
cluster:
	scripts/cluster $(if $(RUN),-run '$(RUN)')
# 20 times every package outside of the lab, or PACKAGES='./nic/kit/... ./polling': failures per test. A scenario of the lab 100 times:
# make flaky PACKAGES=./proof/lab RUN='^TestLabMlx4IB$$' COUNT=100
flaky: deps
	@$(SUITE) flaky $(if $(COUNT),-count $(COUNT)) $(if $(RUN),-run '$(RUN)') $(PACKAGES)
# What took longest in the last run of make test, or of RUN=lab.
times:
	@$(SUITE) times $(or $(RUN),test)
# N random changes to the code, as an overlay, and whether tests notice: those of the changed package, then for up to OTHERS (a minute) those of
# the other packages whose tests run the place, but no virtual machine. As root all of them run, inside of bubblewrap; an ordinary user runs
# those of make check. SEED chooses other changes. LEAST=0.85 fails if a smaller share is noticed. TWICE=1 lists the tests that notice nothing
# that other tests of their package do not.
mutate:
	@nice $(GO) run ./proof/mutate -n $(or $(N),20) -seed $(or $(SEED),1) $(if $(FILES),-files '$(FILES)') $(if $(LEAST),-least $(LEAST)) $(if $(OTHERS),-others $(OTHERS)) $(if $(TWICE),-twice) $(if $(PACKAGES),-packages '$(PACKAGES)')

# Every fuzz target for its share of DURATION on one core, with a table of executions and speed: make fuzz DURATION=1h. ONLY is a
# regular expression of targets: make fuzz ONLY='nic/drivers/mlx5 FuzzAnswers'
.PHONY: fuzz
fuzz:
	@scripts/fuzz '$(or $(DURATION),10m)' '$(or $(ONLY),.)'

# Faults under traffic, one after the other, in an order that SEED decides, with a report: make campaign DURATION=10m SEED=7. CLOCK=1 steps
# this machine's time of day too.
.PHONY: campaign
campaign: build
	bin/prove campaign -duration $(or $(DURATION),1h) $(if $(SEED),-seed $(SEED)) $(if $(CLOCK),-clock) $(if $(OUT),-out $(OUT))

# Causes of latency on both hosts and on the link between them, planted one or two at a time, and the sides that the bench's reports name for
# the slow probes. It wants a machine that does nothing else; the program gives the session's autogroup the nice value, too.
.PHONY: blame
blame: build
	nice -n -20 bin/prove blame -duration $(or $(DURATION),5m) $(if $(SEED),-seed $(SEED)) $(if $(OUT),-out $(OUT))

# A million round trips a minute for DURATION (an hour): memory, collections, the last sixth against the first.
.PHONY: soak
soak: build
	scripts/soak $(or $(DURATION),1h) $(OUT)

# The Debian packages that tests use, where there is root and apt.
deps:
	@scripts/install-deps

# The responder side by side with DPDK's testpmd, the least program in C, the kernel and a spinning socket, into results/ and
# docs/internals/performance.md; its polling loop beside one in C. Six minutes, and they want a machine that does nothing else.
.PHONY: peers gap cycles
peers: build
	scripts/peers -out results/peers -readme docs/internals/performance.md
gap: build
	nice -n -20 bin/prove peers gap -out results/gap.md

# A report of the responder on every device model and push mode into results/nics, and the page that compares all reports: a minute, as root.
.PHONY: results
results: build
	scripts/results

# What the XDP program costs a reply, and each of its guards, by the kernel's own test run: half a minute.
.PHONY: xdp
xdp: build
	nice -n -20 bin/prove peers xdp -out results/xdp.md

# What each driver's Poll costs a reply, beside loops in C: a few minutes on two idle cores.
cycles: build
	bin/prove peers cycles -out results/cycles.md
