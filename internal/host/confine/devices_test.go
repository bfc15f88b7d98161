package confine

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
)

// childWithDevices confines itself, with a filter of system calls if filter is set, and reports for each line that it
// reads which attempts fail.
func childWithDevices(folder string, filter bool) {
	for _, h := range Apply(Needs{Devices: []string{folder}, AnyCall: !filter}) {
		if h.Name == "landlock" {
			fmt.Println(h)
		}
	}
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		node := filepath.Join(folder, "infiniband", "uverbs0")
		failed := []string{"failed:"}
		note := func(name string, err error) {
			if err != nil {
				failed = append(failed, name)
			}
		}
		f, err := os.OpenFile(node, os.O_RDWR, 0)
		note("open", err)
		f.Close()
		f, err = os.OpenFile(node+".new", os.O_CREATE|os.O_RDWR, 0o600)
		note("create", err)
		f.Close()
		note("remove", os.Remove(node))
		note("folder", os.Mkdir(node+".folder", 0o700))
		fmt.Println(strings.Join(failed, " "))
	}
}

// devtmpfs removes the folder of a device with the last device in it, and makes another one when the device returns.
// The confined process can open the device again, but neither create nor remove files.
func TestDevicesReturn(t *testing.T) {
	for _, work := range []string{"devices", "devices, all system calls"} {
		t.Run(work, func(t *testing.T) { devicesReturn(t, work) })
	}
}

func devicesReturn(t *testing.T, work string) {
	folder := t.TempDir()
	child := filepath.Join(folder, "infiniband")
	add := func() {
		must.OK(t, os.Mkdir(child, 0o755))
		must.OK(t, os.WriteFile(filepath.Join(child, "uverbs0"), nil, 0o666))
	}
	add()
	cmd := childProcess(work, folder)
	in, out := must.Get(cmd.StdinPipe())(t), must.Get(cmd.StdoutPipe())(t)
	must.OK(t, cmd.Start())
	lines := bufio.NewScanner(out)
	answer := func() string {
		if !lines.Scan() {
			t.Fatalf("the confined process ended: %v", lines.Err())
		}
		return lines.Text()
	}
	attempt := func() string {
		must.Get(fmt.Fprintln(in))(t)
		return answer()
	}
	if hold := answer(); strings.Contains(hold, errNone.Error()) {
		in.Close()
		must.OK(t, cmd.Wait())
		t.Skip(hold)
	}
	const want = "failed: create remove folder"
	check.Equal(t, attempt(), want, "with the first folder %q")
	must.OK(t, os.RemoveAll(child))
	add()
	check.Equal(t, attempt(), want, "with another folder %q")
	in.Close()
	must.OK(t, cmd.Wait())
}
