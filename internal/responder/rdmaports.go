package responder

import (
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"
)

// listPorts lists the ports of RDMA devices with a kernel driver: which ports are InfiniBand, and whether a subnet
// manager has configured them. sys is /sys.
func listPorts(w io.Writer, sys fs.FS) error {
	ports, err := fs.Glob(sys, "class/infiniband/*/ports/*")
	if err != nil || len(ports) == 0 {
		return err
	}
	fmt.Fprintln(w, "RDMA PORT\tLINK LAYER\tSTATE\tLID\tSUBNET MANAGER'S LID\tRATE")
	for _, p := range ports {
		read := func(name string) string {
			b, err := fs.ReadFile(sys, path.Join(p, name))
			if err != nil {
				return "-"
			}
			return dash(strings.TrimSpace(string(b)))
		}
		name := path.Base(path.Dir(path.Dir(p))) + " " + path.Base(p)
		row(w, name, read("link_layer"), read("state"), read("lid"), read("sm_lid"), read("rate"))
	}
	return nil
}
