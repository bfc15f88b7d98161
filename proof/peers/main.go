// Package peers compares the responder with other programs, for the project's own goals: its tables are those of
// results/peers and results/gap.md.
package peers

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/rebound-nic/rebound/internal/bench/measure"
	"github.com/rebound-nic/rebound/internal/bench/testbed"
	"github.com/rebound-nic/rebound/internal/host/process"
	"github.com/rebound-nic/rebound/latency/atomicfile"
	"github.com/rebound-nic/rebound/latency/sanitize"
	"github.com/rebound-nic/rebound/proof/peers/baseline"
	"github.com/rebound-nic/rebound/proof/peers/contest"
	"github.com/rebound-nic/rebound/proof/peers/cycles"
	"github.com/rebound-nic/rebound/proof/peers/tables"
)

const help = `peers holds the responder against others that answer, on this machine.

  prove peers compare   the responder side by side with testpmd, the kernel and a socket
  prove peers gap       the responder's polling loop beside one in C
  prove peers cycles    what each driver's loop costs a reply, beside loops in C over the same rings
  prove peers xdp       what the program in the kernel costs a reply, and each of its guards
  prove peers isolate   what each step towards a dedicated core gives on a busy machine

"prove peers COMMAND -h" lists a command's flags. Results go to stdout, messages to stderr.
Exit status: 0 done, 1 failed, 2 used wrongly, 3 a goal was missed (gap).
`

// Main runs peers with the arguments after its name and returns the exit status.
func Main(all []string) int {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	command, args := "", []string(nil)
	if len(all) > 0 {
		command, args = all[0], all[1:]
	}
	var err error
	switch command {
	case "compare":
		err = compare(args, log)
	case "gap":
		err = gap(args, log)
	case "cycles":
		err = cyclesCommand(args)
	case "xdp":
		err = xdpCommand(args)
	case "isolate":
		err = isolateCommand(args, log)
	case contest.UDPEcho: // started by compare itself
		err = udpEcho(args)
	case "-h", "-help", "--help", "help":
		fmt.Print(help)
	default:
		fmt.Fprint(os.Stderr, help)
		return process.Usage
	}
	code, say := process.ExitCode(err)
	if say {
		fmt.Fprintf(os.Stderr, "prove peers %s: %s\n", command, sanitize.Error(err))
	}
	return code
}

// parse parses a command's flags. A request for help is not an error.
func parse(fs *flag.FlagSet, args []string, text string) error {
	fs.SetOutput(io.Discard)
	err := fs.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fs.SetOutput(os.Stdout)
		fmt.Print(text)
		fs.PrintDefaults()
		return err
	case err != nil:
		return process.Usagef("%w (-h lists the flags)", err)
	case fs.NArg() > 0:
		return process.Usagef("%q is left over", fs.Arg(0))
	}
	return nil
}

const compareHelp = `usage: prove peers compare [flags]

Measures the responder side by side with others that answer: DPDK's testpmd (forward mode icmpecho) on the same kinds of
socket, the kernel, a program that asks a UDP socket without end, and the floor: the least program in C that answers over
such a socket. One veth pair, the same two CPUs and the same prober for all, in alternating rounds; then the highest rate
of each without loss, and each at its own fractions. A peer that cannot run is skipped with its reason. It takes root.
testpmd needs the package dpdk-dev and 64 free hugepages of 2 MiB, the floor gcc: make peers sees to all.

`

func compare(args []string, log *slog.Logger) error {
	fs := flag.NewFlagSet("compare", flag.ContinueOnError)
	out := fs.String("out", "out/peers-"+time.Now().Format("20060102-150405"),
		"`FOLDER` for the reports and all tables")
	rounds := fs.Int("rounds", 11, "rounds of each, alternating; five at least")
	each := fs.Duration("duration", 500*time.Millisecond, "`TIME` to measure in each round")
	prober := fs.String("prober", "afxdp",
		"the bench's `DRIVER`: afxdp, or afpacket, where its kernel looks at each reply as well")
	only := fs.String("only", "",
		"measure these `PEERS` alone, by commas, and their closed loop alone: responder-afxdp,floor-afxdp")
	readme := fs.String("readme", "",
		"also put the short table between the lines <!-- peers:begin --> and <!-- peers:end --> of this `FILE`")
	if err := parse(fs, args, compareHelp); err != nil {
		return err
	}
	switch {
	case *rounds < 5 || *each <= 0:
		return process.Usagef("want at least five rounds, and a duration above zero")
	case *prober != "afpacket" && *prober != "afxdp":
		return process.Usagef("-prober %q: want afpacket or afxdp", *prober)
	case os.Geteuid() != 0:
		return process.Usagef("namespaces, XDP and hugepages take root")
	}
	program, err := testbed.FindResponder()
	if err != nil {
		return err
	}
	if err := measure.Writable(*out, true); err != nil {
		return err
	}
	o := contest.Options{Out: *out, Responder: program, Prober: *prober, Rounds: *rounds, Each: *each,
		Trial: 300 * time.Millisecond, Stop: new(atomic.Bool), Log: log}
	if *only != "" {
		o.Only = strings.Split(*only, ",")
	}
	defer process.OnSignal(o.Stop)()
	table, err := contest.Run(o)
	if err != nil {
		return err
	}
	text := table.Markdown()
	fmt.Print(text)
	for _, m := range table.Missed() {
		log.Warn("not reached", "what", m)
	}
	if err := atomicfile.WriteFile(filepath.Join(*out, "README.md"), []byte("# Side by side\n\n"+text)); err != nil {
		return err
	}
	if err := table.WriteFigures(filepath.Join(*out, "rates.json")); err != nil || *readme == "" {
		return err
	}
	err = tables.Insert(*readme, "peers", table.Short())
	if errors.Is(err, tables.ErrNoPlace) {
		log.Warn("table not inserted", "reason", err)
		return nil
	}
	return err
}

func udpEcho(args []string) error {
	if len(args) != 2 {
		return process.Usagef("want an address with its port, and a core")
	}
	at, err := netip.ParseAddrPort(args[0])
	core, err2 := strconv.Atoi(args[1])
	if err := errors.Join(err, err2); err != nil {
		return process.Usagef("%w", err)
	}
	return baseline.EchoUDP(at, core, os.Stdout)
}

const gapHelp = `usage: prove peers gap [flags]

Lets the responder poll an idle interface, and a loop in C do the same work, on the same core in alternating slices, and
compares the time between passes: what Go takes from the core shows there. It takes root and gcc.

`

func gap(args []string, log *slog.Logger) error {
	fs := flag.NewFlagSet("gap", flag.ContinueOnError)
	driver := fs.String("driver", "afxdp", "the responder's `DRIVER`: afxdp or afpacket")
	total := fs.Duration("duration", time.Minute, "`TIME` for each of the two")
	out := fs.String("out", "", "also write the table to this `FILE`")
	if err := parse(fs, args, gapHelp); err != nil {
		return err
	}
	const slice = 5 * time.Second
	if *total < slice {
		return process.Usagef("-duration %v: want %v or more", *total, slice)
	}
	program, err := testbed.FindResponder()
	if err != nil {
		return err
	}
	o := contest.GapOptions{Responder: program, Driver: *driver, Slice: slice, Slices: int(*total / slice),
		Stop: new(atomic.Bool)}
	defer process.OnSignal(o.Stop)()
	found, err := contest.RunGap(o)
	if err != nil {
		return err
	}
	table, missed := tables.GapTable(found.Responder, found.C, found.Step)
	fmt.Print(table)
	if *out != "" {
		if err := atomicfile.WriteFile(*out, []byte(table)); err != nil {
			return err
		}
	}
	if len(missed) > 0 {
		return fmt.Errorf("%w: %s", process.ErrWorse, strings.Join(missed, "; "))
	}
	return nil
}

const cyclesHelp = `usage: prove peers cycles [flags]

Measures each driver's Poll over rings in memory, and loops in C over the same rings, in alternating rounds on one core:
cycles of the time stamp counter for each reply to an ICMP echo request of 64 bytes, and to every kind of request, tagged and
untagged, at several sizes, with fences around each pass and the cost of measuring taken off. It takes gcc, go and this module's sources, asserts nothing, and says nothing of a bus or a card.

`

func cyclesCommand(args []string) error {
	fs := flag.NewFlagSet("cycles", flag.ContinueOnError)
	o := cycles.Options{}
	fs.StringVar(&o.Module, "module", ".", "`FOLDER` of this module's sources")
	fs.StringVar(&o.Before, "before", "",
		"`FOLDER` of test binaries of another commit, by go test -c -o FOLDER/ixgbe.test ./nic/drivers/ixgbe")
	fs.IntVar(&o.Core, "core", runtime.NumCPU()-1, "`CPU` to measure on")
	fs.IntVar(&o.Rounds, "rounds", 5, "rounds, alternating")
	out := fs.String("out", "", "also write the table to this `FILE`")
	if err := parse(fs, args, cyclesHelp); err != nil {
		return err
	}
	if o.Rounds < 3 {
		return process.Usagef("-rounds %d: want 3 or more", o.Rounds)
	}
	if _, err := exec.LookPath("gcc"); err != nil {
		fmt.Println("skipped: no gcc, so nothing to hold the loops against")
		return nil
	}
	scratch, err := os.MkdirTemp("", "rebound-cycles-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(scratch)
	o.Scratch = scratch
	rows, err := cycles.Run(o)
	if err != nil {
		return err
	}
	text := fmt.Sprintf("# Cycles a reply\n\n`make cycles`: %d alternating rounds; their median, and in parentheses least and greatest. %s\n\n%s",
		o.Rounds, cycles.Explanation, cycles.Markdown(rows))
	fmt.Print(text)
	if *out != "" {
		return atomicfile.WriteFile(*out, []byte(text))
	}
	return nil
}
