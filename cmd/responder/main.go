// Command responder answers ICMP echo and UDP from a dedicated core, with the driver's receive and transmit and the
// rewrite fused into one loop.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"rebound/cmd/internal/setting"
	"rebound/cmd/internal/version"
	"rebound/nic/bus/pci"
)

// Exit codes.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
)

func main() { os.Exit(command(os.Args[1:], os.Stdout, os.Stderr)) }

// entry is a command by its name. args, doc and flags are its part of the help and of the manual page.
type entry struct {
	name, args, doc string
	flags           func() *flag.FlagSet // nil for none
	run             func(args []string, stdout, stderr io.Writer) error
}

// commands are all there are; the first is what no name stands for.
func commands() []entry {
	config := func() *flag.FlagSet { return new(configured).flags() }
	bind := func() *flag.FlagSet { return bindFlags(new(pci.Target)) }
	status := func() *flag.FlagSet { return statusFlags(new(bool)) }
	return []entry{
		{"serve", "[-config FILE] [-set KEY=VALUE ...]", "answer until SIGINT or SIGTERM; SIGUSR1 prints a summary", config, serveCommand},
		{"check", "[-config FILE] [-set ...]", "what of this host is not ready for low latency, and how to mend it; exit 1 if something is not",
			config, checkCommand},
		{"config", "", "print config.toml: every key with its default", nil, configCommand},
		{"nics", "", "what it could drive", nil, nicsCommand},
		{"bind", "[-force] [-no-driver] ADDR", "take a PCI function from its kernel driver, for vfio-pci or for none; -force: even where the " +
			"default route or the ssh session needs it", bind, bindCommand},
		{"unbind", "ADDR", "give it back", nil, unbindCommand},
		{"status", "[-json] [NAME]", "what nic.pin left in the kernel, and what it counts; -json: one object a line", status, statusCommand},
		{"unpin", "NAME", "end what nic.pin left", nil, unpinCommand},
		{"release", "", "put back what a responder or bench changed on this machine that was killed before it could (cpu.isolate, " +
			"cpu.realtime_guard)", nil, releaseCommand},
		{"version", "", "what it was built from", nil, versionCommand},
		{"manual", "[responder | config]", "print the manual page of this program, or of its configuration: `responder manual | man -l -`", nil, manualCommand},
		{"completion", "", "print the completion of this command line for bash", nil, completionCommand},
	}
}

// command runs the program and returns its exit code.
func command(args []string, stdout, stderr io.Writer) int {
	commands := commands()
	name := commands[0].name
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		name, args = args[0], args[1:]
	}
	i := slices.IndexFunc(commands, func(c entry) bool { return c.name == name })
	if i < 0 {
		var names []string
		for _, c := range commands {
			names = append(names, c.name)
		}
		fmt.Fprintf(stderr, "responder: unknown command %q: there are %s (-h explains them)\n", name, strings.Join(names, ", "))
		return exitUsage
	}
	err := commands[i].run(args, stdout, stderr)
	var wrong usageError
	var key *setting.Error
	switch {
	case err == nil:
		return exitDone
	case errors.Is(err, flag.ErrHelp):
		printUsage(stdout)
		return exitDone
	case errors.As(err, &wrong):
		fmt.Fprintf(stderr, "responder: %v\n", err)
		printUsage(stderr)
		return exitUsage
	case errors.As(err, &key):
		fmt.Fprintf(stderr, "responder: %v\n", err)
		return exitUsage
	}
	fmt.Fprintf(stderr, "responder: %v\n", err)
	return exitFailed
}

// usageError is a command line that cannot be understood.
type usageError string

func (e usageError) Error() string { return string(e) }

// configured is what -config and -set say.
type configured struct {
	file string
	sets []string
}

func (c *configured) flags() *flag.FlagSet {
	f := flag.NewFlagSet("responder", flag.ContinueOnError)
	f.StringVar(&c.file, "config", "", "`FILE` of settings; those that it lacks have their defaults")
	f.Func("set", "`KEY=VALUE` of one setting, over that of the file; may be repeated. KEY is as in the file (nic.device), VALUE in TOML "+
		"syntax; a bare word is a string", func(s string) error { c.sets = append(c.sets, s); return nil })
	return f
}

// configFlags reads -config and -set.
func configFlags(args []string) (file string, sets []string, err error) {
	var c configured
	f := c.flags()
	f.SetOutput(io.Discard)
	if err := f.Parse(args); errors.Is(err, flag.ErrHelp) {
		return "", nil, err
	} else if err != nil {
		return "", nil, usageError(err.Error())
	}
	if f.NArg() > 0 {
		return "", nil, usageError(fmt.Sprintf("unexpected argument %q", f.Arg(0)))
	}
	return c.file, c.sets, nil
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
	_, err := io.WriteString(stdout, version.Text("responder"))
	return err
}
