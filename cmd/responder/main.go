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
)

// Exit codes.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
)

const usage = `usage:
  responder [-config FILE] [-set KEY=VALUE ...] answer until SIGINT or SIGTERM; SIGUSR1 prints a summary
  responder check [-config FILE] [-set ...]     what of this host is not ready for low latency, and how to mend it;
                                                exit 1 if something is not
  responder config                              print config.toml: every key with its default
  responder nics                                what it could drive
  responder bind [-force] [-no-driver] ADDR     take a PCI function from its kernel driver, for vfio-pci or for none;
                                                -force: even where the default route or the ssh session needs it
  responder unbind ADDR                         give it back
  responder release                             put back what a responder or bench changed on this machine that was killed
                                                before it could (cpu.isolate, cpu.realtime_guard)
  responder version                             what it was built from

KEY is as in config.toml (nic.device), VALUE in TOML syntax; a bare word is a string.
`

func main() { os.Exit(command(os.Args[1:], os.Stdout, os.Stderr)) }

// entry is a command by its name.
type entry struct {
	name string
	run  func(args []string, stdout, stderr io.Writer) error
}

// commands are all there are; the first is what no name stands for.
var commands = []entry{
	{"serve", serveCommand},
	{"check", checkCommand},
	{"config", configCommand},
	{"nics", nicsCommand},
	{"bind", bindCommand},
	{"unbind", unbindCommand},
	{"release", releaseCommand},
	{"version", versionCommand},
}

// command runs the program and returns its exit code.
func command(args []string, stdout, stderr io.Writer) int {
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
		fmt.Fprint(stdout, usage)
		return exitDone
	case errors.As(err, &wrong):
		fmt.Fprintf(stderr, "responder: %v\n%s", err, usage)
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

// configFlags reads -config and -set.
func configFlags(args []string) (file string, sets []string, err error) {
	f := flag.NewFlagSet("responder", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.StringVar(&file, "config", "", "")
	f.Func("set", "", func(s string) error { sets = append(sets, s); return nil })
	if err := f.Parse(args); errors.Is(err, flag.ErrHelp) {
		return "", nil, err
	} else if err != nil {
		return "", nil, usageError(err.Error())
	}
	if f.NArg() > 0 {
		return "", nil, usageError(fmt.Sprintf("unexpected argument %q", f.Arg(0)))
	}
	return file, sets, nil
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
