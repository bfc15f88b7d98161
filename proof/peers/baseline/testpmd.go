package baseline

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
)

// hugepages is the number of free pages of 2 MiB that testpmd needs.
const hugepages = 64

// Testpmd returns DPDK's testpmd answering echo requests (forward mode icmpecho) on an interface, through the poll-mode
// driver net_af_xdp or net_af_packet. Its forwarding thread polls on core; its prompt waits on other.
func Testpmd(driver, iface string, core, other int) (*Process, error) {
	path, err := exec.LookPath("dpdk-testpmd")
	if err != nil {
		return nil, errors.New("dpdk-testpmd is not installed (Debian: dpdk-dev)")
	}
	free, err := freeHugepages()
	if err != nil {
		return nil, err
	}
	if free < hugepages {
		return nil, fmt.Errorf("%d hugepages of 2 MiB are free, testpmd wants %d: make peers reserves them", free,
			hugepages)
	}
	return &Process{
		Command: []string{path, "--lcores", fmt.Sprintf("0@%d,1@%d", other, core), "--no-pci", "--in-memory",
			fmt.Sprintf("--vdev=%s0,iface=%s", driver, iface), "--", "--forward-mode=icmpecho", "--auto-start",
			"--no-lsc-interrupt", "--total-num-mbufs=8192", "-i"},
		Ready: "testpmd>", Quit: "quit\n",
	}, nil
}

func freeHugepages() (int, error) {
	b, err := os.ReadFile("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages")
	if err != nil {
		return 0, fmt.Errorf("no hugepages of 2 MiB: %w", err)
	}
	return strconv.Atoi(strings.TrimSpace(string(b)))
}
