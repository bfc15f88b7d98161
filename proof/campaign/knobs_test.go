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

	"github.com/rebound-nic/rebound/proof/catalogue"
	"github.com/rebound-nic/rebound/proof/must"
)

// knobs lists each way in which models can be broken, by the fault that uses it, as "target: fault", or after a dash by
// the reason why no fault does. TestKnobs fails if a knob is missing here.
var knobs = map[string]string{
	"ixgbe: stuck device":                               "sim.Faulty.Stalled",
	"ixgbe: register writes lost":                       "sim.Faulty.LoseWrite",
	"ixgbe: write-backs with a bit flipped":             "sim.Faulty.FlipWriteBacks",
	"ixgbe: DMA writes late":                            "sim.Faulty.DelayDMA",
	"ixgbe: stuck transmit queue":                       "sim.Faulty.Pause",
	"ixgbe: interrupts that nobody enabled":             "sim.Faulty.Raise",
	"ixgbe: wire that loses, doubles and reorders":      "sim.Impairment.Delay sim.Impairment.Loss sim.Impairment.Duplicate sim.Impairment.Reorder",
	"ixgbe: function reset":                             "sim.Port.Reset",
	"ixgbe: removal":                                    "sim.Port.Unplug",
	"ixgbe: all ones for a moment":                      "sim.Port.UnplugAfter",
	"ixgbe: register accesses answered late":            "sim.Port.Hold",
	"ixgbe: link flap":                                  "sim.Cable.SetUp",
	"ixgbe: EEPROM that is wrong":                       "ixgbesim.Model.CorruptEEPROM",
	"mlx5: send completion with error":                  "mlx5sim.Model.FailNextSend",
	"mlx5: receive completion with error":               "mlx5sim.Model.FailNextReceive",
	"mlx5: fatal error":                                 "mlx5sim.Model.Fatal",
	"mlx5: pages asked for":                             "mlx5sim.Model.AskPages",
	"mlx5: completion in a form that was not asked for": "mlx5sim.Model.CompressNext",
	"mlx5: firmware stuck":                              "mlx5sim.Options.Withhold",
	"mlx5: commands refused":                            "mlx5sim.Options.Status",
	"mlx4: send completion with error":                  "mlx4sim.Model.FailNextSend",
	"mlx4: receive completion with error":               "mlx4sim.Model.FailNextReceive",
	"mlx4: host that takes no frames":                   "mlx4sim.Model.HoldReceive",
	"mlx4: fatal error":                                 "mlx4sim.Model.Catastrophe",
	"mlx4: firmware stuck":                              "mlx4sim.Options.Withhold",
	"mlx4: commands refused":                            "mlx4sim.Options.Status",
	"mlx4 InfiniBand: subnet manager gone and back":     "fabric.Fabric.Absent",
	"mlx4 InfiniBand: administration that says nothing": "fabric.Fabric.DropReceives",
	"mlx4 InfiniBand: administration that refuses":      "fabric.Fabric.Refuse",
	"mlx4 InfiniBand: another subnet manager":           "fabric.Fabric.Manager",
	"mlx4 InfiniBand: another Q_Key":                    "fabric.Fabric.QKey",
	"mlx4 InfiniBand: port down and up by its manager":  "fabric.Fabric.Configure",
	"mlx4 InfiniBand: malformed management datagrams":   "fabric.Fabric.Inject",
	"mlx4 InfiniBand: another LID":                      "fabric.Port.LID",
	"ena: transmit completions held":                    "enasim.Model.HoldCompletions",
	"ena: allowances exceeded":                          "enasim.Model.SetAllowance",
	"ena: function reset": `
		enasim.Options.AdminDelay enasim.Options.AdminOutOfOrder enasim.Options.TxOutOfOrder enasim.Options.RxOutOfOrder`, // in every part
	"efa: deaf device":                            "efasim.Model.DropReceives",
	"efa: senders forgotten":                      "efasim.Model.Forget",
	"efa: function reset":                         "efasim.Options.AdminDelay efasim.Options.AdminOutOfOrder",
	"virtio: device that needs a reset":           "virtiosim.Model.NeedReset",
	"virtio: used entry that names no buffer":     "virtiosim.Model.Lie",
	"virtio: transmit queue stuck until a reset":  "virtiosim.Model.Stall",
	"virtio: filters refused":                     "virtiosim.Model.RefuseMAC",
	"virtio: features refused":                    "virtiosim.Model.RefuseFeatures",
	"virtio: control queue stuck":                 "virtiosim.Model.IgnoreControl",
	"virtio: link said to be down":                "virtiosim.Model.PretendNoLink",
	"amazon: keep-alive missed":                   "amazon.Controller.WithholdKeepAlive",
	"amazon: admin queue stuck":                   "amazon.Controller.StallAdmin",
	"amazon: register reads without a response":   "amazon.Controller.Mute",
	"amazon: fatal error":                         "amazon.Controller.Fail",
	"amazon: events without end":                  "amazon.Controller.Post",
	"amazon: completion of a request that is not": "amazon.Controller.TamperCompletion",
	"amazon: admin completion that is wrong":      "amazon.Controller.TamperAdmin",
	"amazon: completions doubled":                 "amazon.Controller.DuplicateCompletion",
	"efa: admin commands lost":                    "amazon.Controller.IgnoreAdmin",
	"efa: admin commands refused":                 "amazon.Controller.FailAdmin",

	"- a count": `
		sim.Faulty.Flipped ixgbesim.Model.Negotiations mlx5sim.Model.Pages mlx5sim.Model.UserObjects mlx5sim.Model.Objects mlx4sim.Model.Rules
		efasim.Model.Objects virtiosim.Model.Missed`,
	"- part of each": "sim.Impairment.Seed",
	"- how a model serves a driver in another process":                "sim.Port.StartRemote",
	"- how a test lets a model run in virtual time":                   "sim.Port.StartVirtual",
	"- how proof/blame serves a model on a machine that does more":    "sim.Port.StartWith",
	"- what the server does when its client leaves: SIGKILL does it":  "sim.Port.Drop",
	"- a register of the PHY, for tests of what a driver reads of it": "ixgbesim.Model.SetPHY",
	"- what the driver wrote":                                         "ixgbesim.Model.PHY amazon.Controller.Resets",
	"- a board, set at its start: nic/drivers/ixgbe's tests": `
		ixgbesim.Options.OtherLink ixgbesim.Options.Veto ixgbesim.Options.Pipeline ixgbesim.Options.NoRelaxed`,
	"- a module that is plugged in later: nic/drivers/ixgbe's tests": "ixgbesim.Model.Plug",
	"- a start: proof/catalogue' ladder":                             "virtiosim.Model.RefusePairs",
	"- a recorded card: proof/replay": `
		ixgbesim.Model.SetEEPROM enasim.Options.Recorded mlx5sim.Options.Recorded mlx5sim.Options.Firmware mlx4sim.Options.Recorded
		efasim.Options.Recorded virtiosim.Options.Offered virtiosim.Options.MTU virtiosim.Options.Pairs`,
	"- a start: nic/drivers/mlx5's tests": `
		mlx5sim.Options.EmbeddedCPU mlx5sim.Options.InterfaceRev mlx5sim.Options.Initializing mlx5sim.Options.NoPages`,
	"- a start: nic/drivers/ixgbe's tests":                         "ixgbesim.Options.SharedLOM ixgbesim.Options.Pending",
	"- AskPages for a model that stalls":                           "mlx5sim.Model.RequestPages",
	"- no driver of ours arms an event queue, so none is raised":   "mlx5sim.Options.LoseInterrupt mlx4sim.Options.LoseInterrupt",
	"- a kind of card, set at its start: nic/drivers/mlx5's tests": "mlx5sim.Options.RefuseRegister mlx5sim.Options.NoLoopback",
	"- a kind of card: the drivers' tests":                         "ixgbesim.Options.Module ixgbesim.Options.Crosstalk ixgbesim.Model.SetModule ixgbesim.Model.Exchange mlx5sim.Options.Module",
	"- a register's value":                                         "ixgbesim.Model.Core",
	"- a version of the firmware: nic/drivers/ena's tests":         "enasim.Options.Overruns enasim.Options.Lasting enasim.Options.WideDepth enasim.Options.ShortCQ enasim.Options.Parts",
	"- a kind of device: nic/drivers/virtio's tests":               "virtiosim.Options.Fixed",
	"- a setting of the firmware: nic/drivers/mlx5's tests":        "mlx5sim.Options.NoUCTX mlx5sim.Options.ICMP mlx5sim.Options.NoIPVersion",
	"- a start: nic/drivers/mlx4's tests": `
		mlx4sim.Options.InterfaceRev mlx4sim.Options.Owned mlx4sim.Options.SemaphoreHeld mlx4sim.Options.BootReads mlx4sim.Options.Abandoned
		mlx4sim.Options.NoICM`,
	"- a kind of card, set at its start: nic/drivers/mlx4's tests": "mlx4sim.Options.NoPortEvents",
	"- what the manager's sweep finds out in a campaign":           "fabric.Port.Forget",
	"- a start: nic/drivers/ena's tests":                           "enasim.Options.NotReady",
	"- a generation of the card: sim/enasim's tests":               "enasim.Options.NeedMeta",
	"- a version of the firmware: sim/enasim's tests":              "enasim.Options.AnyDriver",
	"- an address":                       "efasim.Model.GID",
	"- a start: nic/drivers/efa's tests": "efasim.Options.NotReady",
	"- of a count":                       "virtiosim.Model.Forget",
}

// Methods that all models have (sim.Model and related interfaces), and fields that describe a type of card and break
// nothing.
var noKnobs = regexp.MustCompile(
	`^(Config|Attach|ReadBAR|WriteBAR|Step|Receive|SetLink|RegisterName|ReadVendor|WriteVendor|Counters|` +
		`MAC|Profile|Kind|Link|Steering|Seed|Device|Queues|MaxMTU|NoLLQ|NoMemBAR|LLQSizes|PreferWide|NoMeta|Burst|MSIXBAR|NoRxChecks|BasicQueues|Unsupported|NoMetrics|` +
		`NoReadless|Width|Version|Controller|RxOffset|Hints|Vectors|InOrder|Retransmit|Timeout|RNRDelay|Busy|Port|Dual|BAR0|Pref|NoMSI|InitPages|HostPages|Clock|` +
		`Packed|NotificationData|Lacks|Limit)$`)

// Types whose exported methods and fields are knobs, with the exceptions for each type in addition to noKnobs.
var knobbed = map[string]*regexp.Regexp{
	"Model": noKnobs, "Options": noKnobs,
	"sim.Faulty":     regexp.MustCompile(`^(Attach|RegisterName|WriteBAR|Step|Receive|Reset|Model)$`),
	"sim.Impairment": regexp.MustCompile(`^$`),
	"sim.Cable":      regexp.MustCompile(`^(Up|Downs|OnWire|Send|Recv)$`),
	"sim.Port": regexp.MustCompile(
		`^(Function|Connect|Step|Settle|Start|Stop|Name|Config|Close|Acquire|SetInterrupt|ReadConfig|WriteConfig|ReadBAR|WriteBAR|` +
			`Map|MapAnywhere|Unmap|UnmapAll|Mappings|BusMaster|LinkUp|ShadowFD|Counts|Drops|Violations|Errors|ForgetViolations|StartTrace|Trace|Between)$`),
	"fabric.Fabric": regexp.MustCompile(
		`^(Ports|Groups|Prefix|Sweep|Joins|Leaves|Paths|Step|HostGID|Send|Multicast|Received|Change)$`),
	"fabric.Port": regexp.MustCompile(`^GID$`),

	"amazon.Controller": regexp.MustCompile(
		`^(Host|Rand|Knobs|Groups|AdminCommands|Events|Init|Attach|Reset|Step|Resetting|EndReset|ReadRegister|WriteRegister|` +
			`CheckWidth|WriteEntry|PostLocked|Turn|HastenKeepAlive|Pause)$`),
}

// sourceFiles are the Go files of a folder that are no tests.
func sourceFiles(t *testing.T, dir string) []string {
	all := must.Get(filepath.Glob(filepath.Join(dir, "*.go")))(t)
	return slices.DeleteFunc(all, func(file string) bool { return strings.HasSuffix(file, "_test.go") })
}

func declared(t *testing.T, dir string) (all []string) {
	for _, file := range sourceFiles(t, dir) {
		f := must.Get(parser.ParseFile(token.NewFileSet(), file, nil, 0))(t)
		add := func(of, name string) {
			none := knobbed[f.Name.Name+"."+of]
			if none == nil && f.Name.Name != "sim" {
				none = knobbed[of]
			}
			if none != nil && ast.IsExported(name) && !none.MatchString(name) &&
				!(of == "Model" && (name == "Reset" || name == "Pause")) {
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
	for _, file := range append(sourceFiles(t, "."), sourceFiles(t, "../catalogue")...) {
		sources.Write(must.Get(os.ReadFile(file))(t))
	}
	done := map[string]bool{}
	for i := range kinds {
		for _, f := range faultsOf(&kinds[i]) {
			done[kinds[i].name+": "+f.name] = true
		}
	}
	var all []string
	dirs := []string{"", "fabric", "amazon"}
	for i := range catalogue.All {
		if c := &catalogue.All[i]; c.Driver != "" {
			dirs = append(dirs, path.Base(reflect.TypeOf(c.New(ourMAC)).Elem().PkgPath()))
		}
	}
	for _, dir := range dirs {
		n := len(all)
		if all = append(all, declared(t, filepath.Join("../../sim", dir))...); len(all) == n {
			t.Errorf("sim/%s has no knobs: this test does not see them", dir)
		}
	}
	uses := map[string]string{}
	for what, names := range knobs {
		for knob := range strings.FieldsSeq(names) {
			uses[knob] = what
		}
	}
	for _, knob := range all {
		name := knob[strings.LastIndex(knob, ".")+1:]
		switch what, ok := uses[knob]; {
		case !ok:
			t.Errorf("%s is turned by no fault of the campaign: add one, and both to knobs, or say there why not", knob)
		case strings.HasPrefix(what, "- "):
		case slices.ContainsFunc(rowFaults(what), func(f string) bool { return !done[f] }):
			t.Errorf("%s: there is no fault %q", knob, what)
		case !regexp.MustCompile(`\b` + name + `\b`).MatchString(sources.String()):
			t.Errorf("%s: the campaign does not name it, so %q cannot turn it", knob, what)
		}
	}
	for knob := range uses {
		if !slices.Contains(all, knob) {
			t.Errorf("%s: there is no such knob", knob)
		}
	}
}
