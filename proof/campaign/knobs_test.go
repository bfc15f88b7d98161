package campaign

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/proof/cards"
	"github.com/rebound-nic/rebound/proof/must"
)

// knobs maps each way in which models can be broken to the faults that use it, as "target: fault", or after a dash to
// the reason why no fault does. TestKnobs fails if a knob is missing here.
var knobs = map[string]string{
	"sim.Faulty.Stalled":        "ixgbe: stuck device",
	"sim.Faulty.LoseWrite":      "ixgbe: register writes lost",
	"sim.Faulty.FlipWriteBacks": "ixgbe: write-backs with a bit flipped",
	"sim.Faulty.DelayDMA":       "ixgbe: DMA writes late",
	"sim.Faulty.Pause":          "ixgbe: stuck transmit queue",
	"sim.Faulty.Raise":          "ixgbe: interrupts that nobody enabled",
	"sim.Faulty.Flipped":        "- a count",
	"sim.Impairment.Delay":      "ixgbe: wire that loses, doubles and reorders",
	"sim.Impairment.Loss":       "ixgbe: wire that loses, doubles and reorders",
	"sim.Impairment.Duplicate":  "ixgbe: wire that loses, doubles and reorders",
	"sim.Impairment.Reorder":    "ixgbe: wire that loses, doubles and reorders",
	"sim.Impairment.Seed":       "- part of each",
	"sim.Port.Reset":            "ixgbe: function reset",
	"sim.Port.Unplug":           "ixgbe: removal",
	"sim.Port.UnplugAfter":      "ixgbe: all ones for a moment",
	"sim.Port.Hold":             "ixgbe: register accesses answered late",
	"sim.Port.StartRemote":      "- how a model serves a driver in another process",
	"sim.Port.StartVirtual":     "- how a test lets a model run in virtual time",
	"sim.Port.Drop":             "- what the server does when its client leaves: SIGKILL does it",

	"sim.Cable.SetUp": "ixgbe: link flap",

	"ixgbesim.Model.CorruptEEPROM": "ixgbe: EEPROM that is wrong",
	"ixgbesim.Model.SetPHY":        "- a register of the PHY, for tests of what a driver reads of it",
	"ixgbesim.Model.PHY":           "- what the driver wrote",
	"ixgbesim.Model.Negotiations":  "- a count",
	"ixgbesim.Options.OtherLink":   "- a board, set at its start: nic/drivers/ixgbe's tests",
	"virtiosim.Model.RefusePairs":  "- a start: proof/cards' ladder",
	"ixgbesim.Model.SetEEPROM":     "- a recorded card: proof/replay",
	"enasim.Options.Recorded":      "- a recorded card: proof/replay",
	"mlx5sim.Options.Recorded":     "- a recorded card: proof/replay",
	"mlx5sim.Options.Firmware":     "- a recorded card: proof/replay",
	"mlx4sim.Options.Recorded":     "- a recorded card: proof/replay",
	"efasim.Options.Recorded":      "- a recorded card: proof/replay",
	"virtiosim.Options.Offered":    "- a recorded card: proof/replay",
	"virtiosim.Options.MTU":        "- a recorded card: proof/replay",
	"virtiosim.Options.Pairs":      "- a recorded card: proof/replay",
	"mlx5sim.Options.EmbeddedCPU":  "- a start: nic/drivers/mlx5's tests",
	"ixgbesim.Options.SharedLOM":   "- a start: nic/drivers/ixgbe's tests",

	"mlx5sim.Model.FailNextSend":     "mlx5: send completion with error",
	"mlx5sim.Model.FailNextReceive":  "mlx5: receive completion with error",
	"mlx5sim.Model.Fatal":            "mlx5: fatal error",
	"mlx5sim.Model.AskPages":         "mlx5: pages asked for",
	"mlx5sim.Model.RequestPages":     "- AskPages for a model that stalls",
	"mlx5sim.Model.Pages":            "- a count",
	"mlx5sim.Model.CompressNext":     "mlx5: completion in a form that was not asked for",
	"mlx5sim.Options.Withhold":       "mlx5: firmware stuck",
	"mlx5sim.Options.Status":         "mlx5: commands refused",
	"mlx5sim.Options.LoseInterrupt":  "- no driver of ours arms an event queue, so none is raised",
	"mlx5sim.Options.RefuseRegister": "- a kind of card, set at its start: nic/drivers/mlx5's tests",
	"mlx5sim.Options.InterfaceRev":   "- a start: nic/drivers/mlx5's tests",
	"mlx5sim.Options.Initializing":   "- a start: nic/drivers/mlx5's tests",
	"mlx5sim.Options.NoPages":        "- a start: nic/drivers/mlx5's tests",
	"mlx5sim.Options.NoLoopback":     "- a kind of card, set at its start: nic/drivers/mlx5's tests",
	"ixgbesim.Options.Module":        "- a kind of card: nic/drivers/ixgbe's tests",
	"ixgbesim.Options.Crosstalk":     "- a kind of card: nic/drivers/ixgbe's tests",
	"ixgbesim.Options.Pending":       "- a start: nic/drivers/ixgbe's tests",
	"ixgbesim.Model.SetModule":       "- a kind of card: nic/drivers/ixgbe's tests",
	"ixgbesim.Model.Core":            "- a register's value",
	"enasim.Options.Overruns":        "- a version of the firmware: nic/drivers/ena's tests",
	"enasim.Options.Lasting":         "- a version of the firmware: nic/drivers/ena's tests",
	"virtiosim.Options.Fixed":        "- a kind of device: nic/drivers/virtio's tests",
	"mlx5sim.Options.UCTX":           "- a setting of the firmware: nic/drivers/mlx5's tests",
	"mlx5sim.Options.ICMP":           "- a setting of the firmware: nic/drivers/mlx5's tests",
	"mlx5sim.Model.UserObjects":      "- a count",
	"mlx5sim.Model.Objects":          "- a count",
	"mlx4sim.Model.FailNextSend":     "mlx4: send completion with error",
	"mlx4sim.Model.FailNextReceive":  "mlx4: receive completion with error",
	"mlx4sim.Model.Catastrophe":      "mlx4: fatal error",
	"mlx4sim.Model.Rules":            "- a count",
	"mlx4sim.Options.Withhold":       "mlx4: firmware stuck",
	"mlx4sim.Options.Status":         "mlx4: commands refused",
	"mlx4sim.Options.LoseInterrupt":  "- no driver of ours arms an event queue, so none is raised",
	"mlx4sim.Options.InterfaceRev":   "- a start: nic/drivers/mlx4's tests",
	"mlx4sim.Options.Owned":          "- a start: nic/drivers/mlx4's tests",
	"mlx4sim.Options.SemaphoreHeld":  "- a start: nic/drivers/mlx4's tests",
	"mlx4sim.Options.BootReads":      "- a start: nic/drivers/mlx4's tests",
	"mlx4sim.Options.Abandoned":      "- a start: nic/drivers/mlx4's tests",
	"mlx4sim.Options.NoPortEvents":   "- a kind of card, set at its start: nic/drivers/mlx4's tests",
	"mlx4sim.Options.NoICM":          "- a start: nic/drivers/mlx4's tests",
	"fabric.Fabric.Absent":           "mlx4 InfiniBand: subnet manager gone and back",
	"fabric.Fabric.DropReceives":     "mlx4 InfiniBand: administration that says nothing",
	"fabric.Fabric.Refuse":           "mlx4 InfiniBand: administration that refuses",
	"fabric.Fabric.Manager":          "mlx4 InfiniBand: another subnet manager",
	"fabric.Fabric.QKey":             "mlx4 InfiniBand: another Q_Key",
	"fabric.Fabric.Configure":        "mlx4 InfiniBand: port down and up by its manager",
	"fabric.Fabric.Inject":           "mlx4 InfiniBand: malformed management datagrams",
	"fabric.Port.LID":                "mlx4 InfiniBand: another LID",
	"fabric.Port.Forget":             "- what the manager's sweep finds out in a campaign",
	"enasim.Model.HoldCompletions":   "ena: transmit completions held",
	"enasim.Model.SetAllowance":      "ena: allowances exceeded",
	"enasim.Options.NotReady":        "- a start: nic/drivers/ena's tests",
	"enasim.Options.NeedMeta":        "- a generation of the card: sim/enasim's tests",
	"enasim.Options.AnyDriver":       "- a version of the firmware: sim/enasim's tests",
	"enasim.Options.AdminDelay":      "ena: function reset", // in every part, chosen by the seed
	"enasim.Options.AdminOutOfOrder": "ena: function reset",
	"enasim.Options.TxOutOfOrder":    "ena: function reset",
	"enasim.Options.RxOutOfOrder":    "ena: function reset",
	"efasim.Model.DropReceives":      "efa: deaf device",
	"efasim.Model.Forget":            "efa: senders forgotten",
	"efasim.Model.Objects":           "- a count",
	"efasim.Model.GID":               "- an address",
	"efasim.Options.NotReady":        "- a start: nic/drivers/efa's tests",
	"efasim.Options.AdminDelay":      "efa: function reset",
	"efasim.Options.AdminOutOfOrder": "efa: function reset",
	"virtiosim.Model.NeedReset":      "virtio: device that needs a reset",
	"virtiosim.Model.Lie":            "virtio: used entry that names no buffer",
	"virtiosim.Model.Stall":          "virtio: transmit queue stuck until a reset",
	"virtiosim.Model.RefuseMAC":      "virtio: filters refused",
	"virtiosim.Model.RefuseFeatures": "virtio: features refused",
	"virtiosim.Model.IgnoreControl":  "virtio: control queue stuck",
	"virtiosim.Model.PretendNoLink":  "virtio: link said to be down",
	"virtiosim.Model.Missed":         "- a count",
	"virtiosim.Model.Forget":         "- of a count",

	"amazon.Controller.WithholdKeepAlive":   "amazon: keep-alive missed",
	"amazon.Controller.StallAdmin":          "amazon: admin queue stuck",
	"amazon.Controller.Mute":                "amazon: register reads without a response",
	"amazon.Controller.Fail":                "amazon: fatal error",
	"amazon.Controller.Post":                "amazon: events without end",
	"amazon.Controller.TamperCompletion":    "amazon: completion of a request that is not",
	"amazon.Controller.TamperAdmin":         "amazon: admin completion that is wrong",
	"amazon.Controller.DuplicateCompletion": "amazon: completions doubled",
	"amazon.Controller.IgnoreAdmin":         "efa: admin commands lost",
	"amazon.Controller.FailAdmin":           "efa: admin commands refused",
	"amazon.Controller.Resets":              "- what the driver wrote",
}

// Methods that all models have (sim.Model and related interfaces), and fields that describe a type of card and break
// nothing.
var noKnobs = regexp.MustCompile(`^(Config|Attach|ReadBAR|WriteBAR|Step|Receive|SetLink|RegisterName|ReadVendor|WriteVendor|Counters|` +
	`MAC|Profile|Kind|Link|Steering|Seed|Device|Queues|MaxMTU|NoLLQ|NoMemBAR|LLQSizes|PreferWide|NoMeta|Burst|MSIXBAR|NoRxChecks|BasicQueues|Unsupported|NoMetrics|` +
	`NoReadless|Width|Version|Controller|RxOffset|Hints|Vectors|InOrder|Retransmit|Timeout|RNRDelay|Busy|Port|Dual|BAR0|Pref|NoMSI|InitPages|HostPages|Clock|` +
	`Packed|NotificationData|Lacks|Limit)$`)

// Types whose exported methods and fields are knobs, with the exceptions for each type in addition to noKnobs.
var knobbed = map[string]*regexp.Regexp{
	"Model": noKnobs, "Options": noKnobs,
	"sim.Faulty":     regexp.MustCompile(`^(Attach|RegisterName|WriteBAR|Step|Receive|Reset|Model)$`),
	"sim.Impairment": regexp.MustCompile(`^$`),
	"sim.Cable":      regexp.MustCompile(`^(Up|Downs|OnWire|Send|Recv)$`),
	"sim.Port": regexp.MustCompile(`^(Function|Connect|Step|Settle|Start|Stop|Name|Config|Close|Acquire|SetInterrupt|ReadConfig|WriteConfig|ReadBAR|WriteBAR|` +
		`Map|MapAnywhere|Unmap|UnmapAll|Mappings|BusMaster|LinkUp|ShadowFD|Counts|Drops|Violations|Errors|ForgetViolations|StartTrace|Trace|Between)$`),
	"fabric.Fabric": regexp.MustCompile(`^(Ports|Groups|Prefix|Sweep|Joins|Leaves|Paths|Step|HostGID|Send|Multicast|Received|Change)$`),
	"fabric.Port":   regexp.MustCompile(`^GID$`),

	"amazon.Controller": regexp.MustCompile(`^(Host|Rand|Knobs|Groups|AdminCommands|Events|Init|Attach|Reset|Step|Resetting|EndReset|ReadRegister|WriteRegister|` +
		`CheckWidth|WriteEntry|PostLocked|Turn|HastenKeepAlive|Pause)$`),
}

func declared(t *testing.T, dir string) (all []string) {
	files := must.Get(filepath.Glob(filepath.Join(dir, "*.go")))(t)
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		f := must.Get(parser.ParseFile(token.NewFileSet(), file, nil, 0))(t)
		add := func(of, name string) {
			none := knobbed[f.Name.Name+"."+of]
			if none == nil && f.Name.Name != "sim" {
				none = knobbed[of]
			}
			if none != nil && ast.IsExported(name) && !none.MatchString(name) && !(of == "Model" && (name == "Reset" || name == "Pause")) {
				all = append(all, f.Name.Name+"."+of+"."+name)
			}
		}
		ast.Inspect(f, func(n ast.Node) bool {
			switch d := n.(type) {
			case *ast.FuncDecl:
				if d.Recv == nil {
					break
				}
				if p, ok := d.Recv.List[0].Type.(*ast.StarExpr); ok {
					if of, ok := p.X.(*ast.Ident); ok {
						add(of.Name, d.Name.Name)
					}
				}
			case *ast.TypeSpec:
				if s, ok := d.Type.(*ast.StructType); ok {
					for _, field := range s.Fields.List {
						for _, name := range field.Names {
							add(d.Name.Name, name.Name)
						}
					}
				}
			}
			return true
		})
	}
	return all
}

// rowFaults are the faults named by a row of knobs; for "amazon", those of ENA and EFA.
func rowFaults(what string) []string {
	if name, both := strings.CutPrefix(what, "amazon: "); both {
		return []string{"ena: " + name, "efa: " + name}
	}
	return []string{what}
}

func TestKnobs(t *testing.T) {
	var sources strings.Builder
	var own []string
	for _, dir := range []string{".", "../cards"} {
		files := must.Get(filepath.Glob(filepath.Join(dir, "*.go")))(t)
		own = append(own, files...)
	}
	for _, file := range own {
		if !strings.HasSuffix(file, "_test.go") {
			b := must.Get(os.ReadFile(file))(t)
			sources.Write(b)
		}
	}
	done := map[string]bool{}
	for i := range kinds {
		for _, f := range faultsOf(&kinds[i]) {
			done[kinds[i].name+": "+f.name] = true
		}
	}
	var all []string
	dirs := []string{"", "fabric", "amazon"}
	for i := range cards.All {
		if c := &cards.All[i]; c.Driver != "" {
			dirs = append(dirs, path.Base(reflect.TypeOf(c.New(ourMAC)).Elem().PkgPath()))
		}
	}
	for _, dir := range dirs {
		n := len(all)
		if all = append(all, declared(t, filepath.Join("../../sim", dir))...); len(all) == n {
			t.Errorf("sim/%s has no knobs: this test does not see them", dir)
		}
	}
	for _, knob := range all {
		name := knob[strings.LastIndex(knob, ".")+1:]
		switch what, ok := knobs[knob]; {
		case !ok:
			t.Errorf("%s is turned by no fault of the campaign: add one, and both to knobs, or say there why not", knob)
		case strings.HasPrefix(what, "- "):
		case slices.ContainsFunc(rowFaults(what), func(f string) bool { return !done[f] }):
			t.Errorf("%s: there is no fault %q", knob, what)
		case !regexp.MustCompile(`\b` + name + `\b`).MatchString(sources.String()):
			t.Errorf("%s: the campaign does not name it, so %q cannot turn it", knob, what)
		}
	}
	for knob := range knobs {
		if !slices.Contains(all, knob) {
			t.Errorf("%s: there is no such knob", knob)
		}
	}
}
