package mlx5_test

import (
	"bytes"
	"testing"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus/pci"
	"github.com/rebound-nic/rebound/nic/drivers/mlx5"
	"github.com/rebound-nic/rebound/nic/kit/cmdtrace"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	devrig "github.com/rebound-nic/rebound/proof/nictest/rig"
	"github.com/rebound-nic/rebound/sim/mlx5sim"
)

// A probe of either port of a card reads the module of that port: the model has none in the other one.
func TestProbeReadsThePortsModule(t *testing.T) {
	for module := range uint8(2) {
		var read []byte
		probed := devrig.New(t, "mlx5", mlx5sim.New(mlx5sim.Options{Profile: mlx5sim.ConnectX5, Module: module}),
			devrig.Driver[*mlx5.Device]{Open: func(fn pci.Function, o nic.Options) (*mlx5.Device, error) {
				return mlx5.Open(cmdtrace.Observe(fn, cmdtrace.Observer{Seen: func(e cmdtrace.Entry) {
					const accessReg, mcia = 0x805, 0x9014
					if e.Opcode == accessReg && len(e.In) > 12 && int(e.In[10])<<8|int(e.In[11]) == mcia {
						read = e.Out
					}
				}}), o, mlx5.Options{})
			}})
		must.OK(t, probed.TryOpen(nic.Options{}))
		probed.Close()
		if len(read) < 0x30 {
			t.Fatalf("module %d: the answer is % x", module, read)
		}
		check.Equal(t, read[0x10+3], 0, "status of MCIA %d")
		if !bytes.HasPrefix(read[0x20:], []byte{0x11, 8}) {
			t.Errorf("module %d: not a QSFP28's first bytes: % x", module, read[0x20:])
		}
	}
}

// Firmware that refuses the vport's MTU is used as it is, as by Linux.
func TestVportMTURefused(t *testing.T) {
	const modifyNICVport = 0x755
	x := openRig(t, mlx5sim.Options{Status: func(op uint16) (uint8, uint32) {
		if op == modifyNICVport {
			return 3, 0x755755
		}
		return 0, 0
	}}, nic.Options{})
	check.Contains(t, list(x.Dev.Info().Notes), "the vport's MTU stays as it is")
	x.Exchange(3, 98)
	x.Port.ForgetViolations()
}
