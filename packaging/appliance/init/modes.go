package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/rebound-nic/rebound/internal/cards"
	"github.com/rebound-nic/rebound/nic/bus/pci"
)

// wrong is a problem that a corrected configuration solves, and a restart does not.
type wrong struct{ error }

// runMode does what the configuration says until ctx ends. The error is wrong's or the reason of a failure.
func (a *appliance) runMode(ctx context.Context, c *config, devices []string) error {
	a.shown.set(func(s *status) { s.Mode = c.mode })
	if err := os.WriteFile(filepath.Join(run, fileName), []byte(c.file), 0o600); err != nil {
		return err
	}
	switch c.mode {
	case "bench":
		return a.bench(ctx, c)
	case "watch":
		return a.watch(ctx, c)
	case "probe":
		return a.probe(ctx, c, devices)
	}
	return a.respond(ctx, c, devices)
}

// arguments returns the flags for the responder's program.
func (c *config) arguments(more ...string) (args []string) {
	args = append(args, "-config", fileName)
	for _, s := range append(slices.Clone(c.sets), more...) {
		args = append(args, "-set", s)
	}
	return args
}

// respond answers.
func (a *appliance) respond(ctx context.Context, c *config, devices []string) error {
	device, err := theCard(devices)
	if err != nil {
		return wrong{err}
	}
	node, giveBack, err := a.take(ctx, c, device)
	if err != nil {
		return wrong{err}
	}
	defer giveBack()
	more := []string{"nic.device=" + device, "stats.listen=" + metricsAddress}
	if core := chooseCore(node); core >= 0 && !c.chosen["cpu.cores"] {
		more = append(more, fmt.Sprintf("cpu.cores=[%d]", core))
		if off := quieten(core); len(off) > 0 {
			a.console.say("CPU %v off, which shares a core with CPU %d", off, core)
		}
		a.shown.set(func(s *status) { s.Core = &core })
	}
	pages, err := reserve(c.hugePages, node)
	if err != nil || pages < c.hugePages {
		a.console.say("%d of %d huge pages reserved (NUMA node %d): %v", pages, c.hugePages, node, err)
	}
	if c.messages {
		a.waitForManagement(ctx, c)
		a.shown.set(func(s *status) { s.State = "starting" })
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	go a.follow(ctx, device)
	return a.supervise(ctx, program{args: append([]string{"/bin/rebound-responder"}, c.arguments(more...)...), dir: run,
		watched: true, stop: 20 * time.Second,
		out: a.fromResponder, log: a.fromLog})
}

// underTest returns the devices that management must leave alone: nic.device, or in the modes that use cards all
// supported ones but the one that appliance.management names.
func (c *config) underTest() (devices []string, err error) {
	if c.device != "" {
		return []string{c.device}, nil
	}
	if c.mode != "respond" && c.mode != "probe" {
		return nil, nil
	}
	all, err := supported()
	for _, f := range all {
		named := slices.ContainsFunc(f.Interfaces, func(name string) bool { return matches(c.management, name) })
		if !named && c.management != f.Address {
			devices = append(devices, f.Address)
		}
	}
	return devices, err
}

// theCard returns the device to answer on.
func theCard(devices []string) (string, error) {
	switch len(devices) {
	case 0:
		return "", errors.New(fileName +
			": nic.device: is empty, and this machine has no supported card: name an interface (docs/cards/drivers.md lists the cards)")
	case 1:
		return devices[0], nil
	}
	return "", fmt.Errorf("%s: nic.device: is empty, and this machine has several supported cards: name one of %s",
		fileName, strings.Join(devices, ", "))
}

// take gives a PCI function to vfio-pci, so that our driver can have it. An interface is brought up instead.
func (a *appliance) take(ctx context.Context, c *config, device string) (node int, giveBack func(), err error) {
	if !cards.IsPCIDevice(device) {
		return nodeOf(pciAddress(device)), func() {}, bringUp(device)
	}
	address, err := pci.ParseAddress(device)
	if err != nil { // vfio-user
		return -1, func() {}, nil
	}
	args := []string{"/bin/rebound-responder", "bind"}
	if c.noIOMMU {
		args = append(args, "-no-driver")
	}
	// bind refuses a function without an interface, which another network namespace may have. There is none here: the
	// interface has not come up yet, as with a ConnectX-3 whose port is still sensing its type.
	all, _ := pci.List()
	if slices.ContainsFunc(all, func(f pci.Found) bool { return f.Address == address && len(f.Interfaces) == 0 }) {
		args = append(args, "-force")
	}
	if last, err := a.command(ctx, append(args, address)...); err != nil {
		return 0, nil, fmt.Errorf("%s: %s", address, strings.TrimPrefix(last, "rebound-responder: "))
	}
	return nodeOf(address), func() {
		if last, err := a.command(context.Background(), "/bin/rebound-responder", "unbind", address); err != nil {
			a.console.say("%s", last)
		}
	}, nil
}

// command runs a program of ours that ends soon.
func (a *appliance) command(ctx context.Context, args ...string) (last string, err error) {
	last, err = a.children.run(ctx, program{args: args, dir: run, stop: 10 * time.Second, log: a.fromLog})
	if err != nil && last == "" {
		last = err.Error()
	}
	return last, err
}

func nodeOf(address string) int {
	all, _ := pci.List()
	for _, f := range all {
		if f.Address == address {
			return f.NUMANode
		}
	}
	return -1
}

// supervise runs a program, and again when it ends, until ctx ends or the configuration is wrong.
func (a *appliance) supervise(ctx context.Context, p program) error {
	for wait := (backoff{}); ; {
		began := time.Now()
		last, err := a.children.run(ctx, p)
		if ctx.Err() != nil {
			return nil
		}
		const wrongUsage = 2
		if exitCode(err) == wrongUsage {
			return wrong{errors.New(strings.TrimPrefix(last, "rebound-responder: "))}
		}
		why := "it ended"
		if err != nil {
			why = err.Error()
		}
		if last != "" && exitCode(err) > 0 {
			why += ": " + last
		}
		if a.shown.get().Ready != "" { // it worked: no reason to wait longer than the first time
			wait = backoff{}
		}
		pause := wait.after(time.Since(began))
		a.console.say("%s: %s; started again in %v", filepath.Base(p.args[0]), why, pause)
		a.shown.set(func(s *status) {
			s.State, s.Ready, s.Link = "starting", "", ""
			s.Restarts++
			s.LastExit = why
		})
		if !sleep(ctx, pause) {
			return nil
		}
	}
}

// fromResponder takes a line of the responder's output.
func (a *appliance) fromResponder(line string) {
	if strings.HasPrefix(line, "ready ") {
		a.shown.set(func(s *status) {
			s.State, s.Problem, s.Ready = "answering", "", line
			if s.ReadyAfter == 0 {
				s.ReadyAfter = uptime().Seconds()
			}
			if s.Link == "" {
				s.Link = "up"
			}
		})
		a.console.say("%s", line)
		a.settle()
	}
}

// fromLog takes a line of a program's log: warnings and errors are shown.
func (a *appliance) fromLog(line string) {
	switch {
	case strings.Contains(line, "msg=link ") && strings.Contains(line, "up=true"):
		a.shown.set(func(s *status) { s.Link = "up" })
	case strings.Contains(line, "msg=link ") && strings.Contains(line, "up=false"),
		strings.Contains(line, "link is down"):
		a.shown.set(func(s *status) { s.Link = "down" })
	case !strings.Contains(line, "level=WARN") && !strings.Contains(line, "level=ERROR") &&
		strings.Contains(line, "level="):
		return
	}
	a.console.say("%s", line)
}

// follow updates the responder's figures each second.
func (a *appliance) follow(ctx context.Context, device string) {
	before, at := 0.0, time.Now()
	for sleep(ctx, time.Second) {
		body, err := a.scrape()
		if err != nil {
			continue
		}
		now := time.Now()
		a.shown.set(func(s *status) {
			if figures(body, s) == nil {
				s.PerSecond = max(0, (s.Answered-before)/now.Sub(at).Seconds())
				before, at = s.Answered, now
			}
			s.Celsius = temperature(device)
		})
	}
	a.shown.set(func(s *status) { s.Ready, s.Link, s.PerSecond, s.GapP999, s.GapMax = "", "", 0, "", "" })
}

// bench runs the commands of the configuration, and writes the reports to the stick.
func (a *appliance) bench(ctx context.Context, c *config) error {
	if len(c.commands) == 0 {
		return wrong{errors.New(fileName + ": appliance.bench: is empty: give at least one command of rebound-bench")}
	}
	if c.device != "" {
		_, giveBack, err := a.take(ctx, c, c.device)
		if err != nil {
			return wrong{err}
		}
		defer giveBack()
	}
	a.settle()
	a.waitForManagement(ctx, c)
	failed := 0
	for i, text := range c.commands {
		a.shown.set(func(s *status) { s.State = fmt.Sprintf("measuring, %d of %d: %s", i+1, len(c.commands), text) })
		a.console.say("rebound-bench %s", text)
		args := append([]string{"/bin/rebound-bench"}, strings.Fields(text)...)
		if !slices.Contains(args, "-out") && len(args) > 1 && args[1] == "run" {
			args = append(args, "-out", fmt.Sprintf("%03d", i+1))
		}
		var printed bytes.Buffer
		last, err := a.children.run(ctx, program{args: args, dir: run + "/reports", stop: 30 * time.Second,
			log: a.fromLog,
			out: func(line string) { fmt.Fprintln(&printed, line) }})
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			failed++
			a.console.say("rebound-bench: %v: %s", err, last)
			fmt.Fprintf(&printed, "%v: %s\n", err, last)
		} else if head, _, _ := strings.Cut(printed.String(), "\n"); head != "" {
			a.console.say("%s", head)
		}
		if err := os.WriteFile(fmt.Sprintf("%s/reports/%03d.txt", run, i+1), printed.Bytes(), 0o644); err != nil {
			return err
		}
		a.keep("reports")
	}
	state := fmt.Sprintf("done: %d of %d commands, results in the folder reports of the stick", len(c.commands)-failed,
		len(c.commands))
	a.shown.set(func(s *status) { s.State = state })
	a.console.say("%s", state)
	<-ctx.Done()
	return nil
}

// keep copies a folder below run to the stick, and lists the pages in it.
func (a *appliance) keep(folder string) {
	err := a.stick.copyTree(filepath.Join(run, folder), folder)
	var pages []string
	filepath.WalkDir(run+"/reports", func(path string, d fs.DirEntry, err error) error {
		if name, e := filepath.Rel(run+"/reports", path); err == nil && e == nil && !d.IsDir() &&
			(strings.HasSuffix(name, ".html") || strings.HasSuffix(name, ".txt")) {
			pages = append(pages, name)
		}
		return nil
	})
	a.shown.set(func(s *status) {
		s.Reports = pages
		if err == nil {
			s.Stick = "in use: " + folder + " written"
		} else {
			s.Stick = fmt.Sprintf("%s not written, and only in memory: %v", folder, err)
		}
	})
	if err != nil {
		a.console.say("stick: %s not written, and only in memory: %v", folder, err)
	}
}

// watch probes targets from the management interface.
func (a *appliance) watch(ctx context.Context, c *config) error {
	text, err := a.stick.read("watch.toml")
	if err == nil && text == "" {
		err = errors.New("it is empty or missing (`rebound-watch config` prints one)")
	}
	if err != nil {
		return wrong{fmt.Errorf("watch.toml: %w", err)}
	}
	if err := errors.Join(os.WriteFile(run+"/watch.toml", []byte(text), 0o600),
		os.MkdirAll(run+"/watch", 0o755)); err != nil {
		return err
	}
	a.settle()
	a.waitForManagement(ctx, c)
	a.shown.set(func(s *status) { s.State = "watching" })
	args := append(slices.Clone(watchCommand), "-config", "watch.toml", "-dir", run+"/watch", "-listen", metricsAddress)
	return a.supervise(ctx, program{args: args, dir: run, watched: true, stop: 20 * time.Second,
		out: func(line string) { a.console.say("%s", line) }, log: a.fromLog})
}

// waitForManagement returns when the management interface has an address.
func (a *appliance) waitForManagement(ctx context.Context, c *config) {
	if c.management == "none" {
		return
	}
	a.shown.set(func(s *status) { s.State = "waiting for the management network" })
	for {
		if _, address, _ := a.network.get(); address != (netip.Prefix{}) || !sleep(ctx, 200*time.Millisecond) {
			return
		}
	}
}

// probe runs the stages of `rebound-responder probe` on nic.device, or on every supported card, and writes the files to
// the stick.
func (a *appliance) probe(ctx context.Context, c *config, devices []string) error {
	if len(devices) == 0 {
		return wrong{errors.New("this machine has no supported card (docs/cards/drivers.md lists them)")}
	}
	a.settle()
	if _, err := reserve(c.hugePages, -1); err != nil {
		a.console.say("huge pages: %v", err)
	}
	failed := 0
	for _, device := range devices {
		if err := a.probeOne(ctx, c, device); ctx.Err() != nil {
			return nil
		} else if err != nil {
			failed++
			a.console.say("%s: %v", device, err)
		}
		a.keep("reports")
	}
	state := fmt.Sprintf("done: %d cards probed, %d with errors; send the files in the folder reports of the stick with an issue (docs/cards/probe.md)", len(devices), failed)
	a.shown.set(func(s *status) { s.State = state })
	a.console.say("%s", state)
	<-ctx.Done()
	return nil
}

func (a *appliance) probeOne(ctx context.Context, c *config, device string) error {
	_, giveBack, err := a.take(ctx, c, device)
	if err != nil {
		return err
	}
	defer giveBack()
	for _, stage := range []string{"read", "up", "loop"} {
		a.shown.set(func(s *status) { s.State = fmt.Sprintf("probing %s, stage %s", device, stage) })
		args := append([]string{"/bin/rebound-responder", "probe"}, c.arguments()...)
		last, err := a.children.run(ctx, program{args: append(args, "-stage", stage, "-o", run+"/reports", device),
			dir: run, stop: 20 * time.Second,
			out: func(line string) { a.console.say("%s", line) }, log: a.fromLog})
		if err != nil {
			return fmt.Errorf("stage %s: %w: %s", stage, err, last)
		}
		if stage == c.lastStage {
			break
		}
	}
	return nil
}
