package osnoise

import (
	"testing"

	"github.com/rebound-nic/rebound/proof/nictest"
)

// compiler is the version of clang that made the committed object.
const compiler = "14.0.6"

// The committed object equals the compiler's output for the source, if the compiler has the same version.
func TestObject(t *testing.T) {
	nictest.BPFObject(t, "program.c", "program_bpfel.o", compiler)
}
