package responder

import (
	"strings"
	"testing"
	"testing/fstest"

	"github.com/rebound-nic/rebound/proof/must"
)

func TestListPorts(t *testing.T) {
	sys := fstest.MapFS{}
	for name, text := range map[string]string{
		"mlx4_0/ports/1/link_layer": "InfiniBand\n", "mlx4_0/ports/1/state": "4: ACTIVE\n",
		"mlx4_0/ports/1/lid":    "0x2\n",
		"mlx4_0/ports/1/sm_lid": "0x1\n", "mlx4_0/ports/1/rate": "40 Gb/sec (4X QDR)\n",
		"mlx4_0/ports/2/link_layer": "Ethernet\n",
	} {
		sys["class/infiniband/"+name] = &fstest.MapFile{Data: []byte(text)}
	}
	var b strings.Builder
	must.OK(t, listPorts(&b, sys))
	want := "mlx4_0 1\tInfiniBand\t4: ACTIVE\t0x2\t0x1\t40 Gb/sec (4X QDR)\nmlx4_0 2\tEthernet\t-\t-\t-\t-\n"
	if head, rest, _ := strings.Cut(b.String(), "\n"); rest != want || !strings.HasPrefix(head, "RDMA PORT\t") {
		t.Errorf("%s", b.String())
	}
	b.Reset()
	if err := listPorts(&b, fstest.MapFS{}); err != nil || b.Len() > 0 {
		t.Errorf("%q, %v without such devices", b.String(), err)
	}
}
