package nictest

import (
	"bytes"
	"encoding/binary"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/rebound-nic/rebound/proof/must"
)

// BPFObject checks that a committed BPF object is the output of clang for its source, using the clang version that
// built it. Both are files of the package under test.
func BPFObject(t *testing.T, source, object, version string) {
	t.Helper()
	clang, err := exec.LookPath("clang")
	if err != nil {
		t.Skip("clang is not installed")
	}
	said, err := exec.Command(clang, "--version").Output()
	if err != nil || !bytes.Contains(said, []byte("clang version "+version)) {
		t.Skipf("%s was made by clang %s, this is %s", object, version, strings.SplitN(string(said), "\n", 2)[0])
	}
	// makes clang's input the test's (go help test, on caching)
	if _, err := os.ReadDir(filepath.Dir(source)); err != nil {
		t.Fatal(err)
	}
	fresh := filepath.Join(t.TempDir(), "o")
	out, err := exec.Command(clang, "-O2", "-g", "-Wall", "-Werror", "-mcpu=v3", "-target", "bpfel", "-c", source, "-o",
		fresh).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if !bytes.Equal(bpfCode(t, fresh), bpfCode(t, object)) {
		t.Errorf("%s is not what %s compiles to: go generate", object, source)
	}
}

// bpfCode returns the instructions of all programs of an object.
func bpfCode(t *testing.T, object string) []byte {
	spec := must.Get(ebpf.LoadCollectionSpec(object))(t)
	var b bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(spec.Programs)) {
		b.WriteString(name)
		must.OK(t, spec.Programs[name].Instructions.Marshal(&b, binary.LittleEndian))
	}
	return b.Bytes()
}
