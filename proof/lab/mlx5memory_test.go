package lab

import (
	"strings"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/sim/mlx5sim"
)

// mlx5MemoryScript runs rdma-core's tests of device memory: they allocate, write, read and share it, register it, and
// have one queue pair send from it to another's. Its tests of writes to and reads of remote device memory are left out:
// they require atomic operations, which the model does not have. The tests ask iproute2 for the interface's address,
// and do not need it.
const mlx5MemoryScript = rdmaHelpers + `
show devinfo ibv_devinfo -v -d $ib
mkdir -p /dev/shm /tmp/iproute2; mount -t tmpfs shm /dev/shm # Python's queues between processes
printf '#!/bin/sh\necho "[]"\n' >/tmp/iproute2/rdma
printf '#!/bin/sh\necho "[{}]"\n' >/tmp/iproute2/ip
chmod +x /tmp/iproute2/*
cd /usr/lib/python3/dist-packages
PATH=/tmp/iproute2:$PATH python3 tests/run_tests.py --dev $ib --gid $gid --port 1 -v --durations 0 tests.test_device.DMTest \
  tests.test_device.SharedDMTest tests.test_mr.DeviceMemoryAPITest tests.test_mr.DeviceMemoryTest.test_dm_traffic >/tmp/suite 2>&1 ||
  { show failed tail -60 /tmp/suite; fail "rdma-core's tests of device memory"; }
show memory grep -E '\.\.\. |^Ran |^OK|^[0-9.]+s |^FAILED' /tmp/suite
need rmmod mlx5_ib
say gone
`

// TestLabMlx5Memory runs rdma-core's tests of device memory on the model (rung F4).
func TestLabMlx5Memory(t *testing.T) {
	guests(t)
	beside(t, "mlx5/F4memory", func(t *testing.T) {
		s := newScene(t)
		available(t, s.kit.bringScapy(t.Context()))
		f, _ := s.pair(mlx5Card, connectX(mlx5sim.ConnectX5), connectX(mlx5sim.ConnectX5))
		f.foreign = true // the tests request what is refused, too
		r, err := s.play(Machine{
			Limit: 5 * time.Minute, Layers: []string{pyverbs, scapy}, Memory: "2G",
			Script: "module=mlx5_core peer=10.9.0.1\n" + mlx5MemoryScript,
		}, "memory")
		must.OK(t, err)
		if text := strings.Join(r["memory"], "\n"); !strings.Contains(text, "Ran 13 tests") ||
			!strings.Contains(text, "\nOK") || strings.Contains(text, "skipped") {
			t.Errorf("all of 13 tests are expected to run: %s", text)
		}
		if info := strings.Join(r["devinfo"], "\n"); !strings.Contains(info, "131072") {
			t.Errorf("ibv_devinfo does not show 128 KB of device memory: %s", info)
		}
		proven(t, "F4", "rdma-core's tests", "13 tests of device memory")
	})
}
