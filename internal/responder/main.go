// Package responder answers ICMP echo and UDP from a dedicated core, with the driver's receive and transmit and the
// rewrite fused into one loop.
package responder

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/rebound-nic/rebound/internal/host/limits"
	"github.com/rebound-nic/rebound/internal/host/manual"
	"github.com/rebound-nic/rebound/internal/host/process"
	"github.com/rebound-nic/rebound/internal/host/setting"
	"github.com/rebound-nic/rebound/latency/sanitize"
	"github.com/rebound-nic/rebound/nic/bus/pci"
)

// Exit codes.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
)

// Main runs responder with the arguments after the program name and returns the exit status.
func Main(args []string) int { return command(args, os.Stdout, os.Stderr) }

// entry is a command. args, doc and flags are its part of the help and of the manual page.
type entry struct {
	name, args, doc string
	flags           func() *flag.FlagSet // nil for none
	run             func(args []string, stdout, stderr io.Writer) error
}

// commands are all commands; the first runs when none is named.
func commands() []entry {
	config := func() *flag.FlagSet { return new(configured).flags() }
	serving := func() *flag.FlagSet { return servingFlags(new(configured), new(bool)) }
	bind := func() *flag.FlagSet { return bindFlags(new(pci.Target)) }
	status := func() *flag.FlagSet { return statusFlags(new(bool)) }
	return []entry{
		{"serve", "[-config FILE] [-set KEY=VALUE ...] [-v]", "answer until Ctrl-C or SIGTERM; SIGUSR1 prints a summary", serving, serveCommand},
		{"check", "[-config FILE] [-set ...]",
			"report whether a card is ready (nic.device=PCI address), and host settings that increase latency, with the command that fixes each; exit status 1 if there are any",
			config, checkCommand},
		{"config", "", "print config.toml: every key with its default", nil, configCommand},
		{"nics", "", "list usable interfaces and PCI functions, with the driver for each", nil, nicsCommand},
		{"probe", "[-stage read|up|loop] [-peer ADDRESS -from ADDRESS] [-o FOLDER] [-mask=false] DEVICE",
			"collect what a device says and does in one " +
				"file to send back", func() *flag.FlagSet { return new(probing).flags() }, probeCommand},
		{"bind", "[-force] [-no-driver] [-group GROUP] ADDR",
			"take a PCI function from its kernel driver and give it to vfio-pci, or to no driver; -force: " +
				"even if the default route or an ssh session uses it; -group: so that its users can drive it", bind, bindCommand},
		{"unbind", "ADDR", "give a PCI function back to its kernel driver", nil, unbindCommand},
		{"status", "[-json] [NAME]", "list programs that nic.pin left in the kernel, with their counters; -json: one object per line", status, statusCommand},
		{"unpin", "NAME", "remove a program that nic.pin left in the kernel", nil, unpinCommand},
		{"release", "", "undo what a killed responder or bench left changed on this machine (cpu.isolate, " +
			"cpu.realtime_guard)", nil, releaseCommand},
		{"version", "", "print the version, the source revision and the Go release", nil, versionCommand},
		{"manual", "[responder | config]", "print a manual page: `rebound-responder manual | man -l -`", nil, manualCommand},
		{"completion", "bash|zsh|fish", "print shell completion: source <(rebound-responder completion bash)", nil, completionCommand},
	}
}

// command runs the program and returns its exit code.
func command(args []string, stdout, stderr io.Writer) int {
	out, said := sanitize.NewWriter(stdout), sanitize.NewWriter(stderr)
	return process.Printed(perform(args, out, said), "rebound-responder", out, said)
}

func perform(args []string, stdout, stderr io.Writer) int {
	commands := commands()
	name := commands[0].name
	if len(args) > 0 {
		if is, err := performSecond(args, os.Stdout, os.Stdin); err != nil {
			fmt.Fprintf(stderr, "rebound-responder: %s\n", sanitize.Error(err))
			return exitFailed
		} else if is {
			return exitDone
		}
	}
	switch {
	case len(args) == 0:
	case args[0] == manual.CompleteCommand:
		described().Complete(stdout, args[1:])
		return exitDone
	case args[0] == "-version" || args[0] == "--version":
		name, args = "version", args[1:]
	case args[0] == "help":
		printUsage(stdout)
		return exitDone
	case !strings.HasPrefix(args[0], "-"):
		name, args = args[0], args[1:]
	}
	i := slices.IndexFunc(commands, func(c entry) bool { return c.name == name })
	if i < 0 {
		var names []string
		for _, c := range commands {
			names = append(names, c.name)
		}
		fmt.Fprintf(stderr, "rebound-responder: unknown command %q%s: want one of %s (-h explains them)\n", name,
			setting.Meant("", name, names), strings.Join(names, ", "))
		return exitUsage
	}
	if len(args) == 1 && slices.Contains([]string{"-h", "-help", "--help"}, args[0]) {
		if i == 0 {
			printUsage(stdout)
		} else {
			printCommandUsage(stdout, name)
		}
		return exitDone
	}
	err := limits.Check(limits.Need{Files: 88, Threads: 24, Memory: 32 << 20})
	if err == nil {
		err = limits.Explain(commands[i].run(args, stdout, stderr))
	}
	var wrong usageError
	var key *setting.Error
	switch {
	case err == nil:
		return exitDone
	case errors.Is(err, flag.ErrHelp) && i > 0:
		printCommandUsage(stdout, name)
		return exitDone
	case errors.Is(err, flag.ErrHelp):
		printUsage(stdout)
		return exitDone
	case errors.As(err, &wrong):
		help := "rebound-responder -h"
		if i > 0 {
			help = "rebound-responder " + name + " -h"
		}
		fmt.Fprintf(stderr, "rebound-responder: %s (%s explains the arguments)\n", sanitize.Error(err), help)
		return exitUsage
	case errors.As(err, &key):
		fmt.Fprintf(stderr, "rebound-responder: %s\n", sanitize.Error(err))
		return exitUsage
	}
	fmt.Fprintf(stderr, "rebound-responder: %s\n", sanitize.Error(err))
	return exitFailed
}

// usageError is an error in the command line.
type usageError string

func (e usageError) Error() string { return string(e) }

// configured holds the values of -config and -set.
type configured struct {
	file string
	sets []string
}

func (c *configured) flags() *flag.FlagSet {
	f := flag.NewFlagSet("responder", flag.ContinueOnError)
	f.StringVar(&c.file, "config", "", "`FILE` of settings; missing keys have their defaults")
	f.Func("set", "`KEY=VALUE` of one setting, overrides the file; may be repeated. KEY is as in the file (nic.device), VALUE in TOML "+
		"syntax; a bare word is a string", func(s string) error { c.sets = append(c.sets, s); return nil })
	return f
}

// servingFlags are the flags of serve.
func servingFlags(c *configured, verbose *bool) *flag.FlagSet {
	f := c.flags()
	f.BoolVar(verbose, "v", false, process.VerboseHelp)
	return f
}

// parseConfigured parses flags that are all of a command's arguments.
func parseConfigured(f *flag.FlagSet, args []string) error {
	f.SetOutput(io.Discard)
	if err := f.Parse(args); errors.Is(err, flag.ErrHelp) {
		return err
	} else if err != nil {
		return usageError(setting.Unknown(err, f).Error())
	}
	if f.NArg() > 0 {
		return usageError(fmt.Sprintf("unexpected argument %q", f.Arg(0)))
	}
	return nil
}

// configCommand prints a configuration with every key, its description and its default.
func configCommand(args []string, stdout, _ io.Writer) error {
	if len(args) > 0 {
		return usageError(fmt.Sprintf("unexpected argument %q", args[0]))
	}
	_, err := io.WriteString(stdout, newSettings(nil).table.TOML(intro))
	return err
}

func versionCommand(args []string, stdout, _ io.Writer) error {
	if len(args) > 0 {
		return usageError(fmt.Sprintf("unexpected argument %q", args[0]))
	}
	_, err := io.WriteString(stdout, process.Version("rebound-responder"))
	return err
}
