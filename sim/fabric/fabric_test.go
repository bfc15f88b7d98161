package fabric

import (
	"testing"

	"github.com/rebound-nic/rebound/sim"
)

// The manager configures a port again whose link was down between two steps.
func TestLinkDownBetweenSteps(t *testing.T) {
	ours, card := sim.Pair()
	f := New(t.Errorf, ours)
	p := f.Ports[0]
	p.guid, p.state = 1, 4
	if f.Step(); card.Recv(0) != nil {
		t.Fatal("the manager asks an active port")
	}
	card.SetUp(false)
	card.SetUp(true)
	if f.Step(); p.state != 0 || card.Recv(0) == nil {
		t.Errorf("the manager does not ask the port, whose state it takes for %d", p.state)
	}
}
