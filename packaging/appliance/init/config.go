package main

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/BurntSushi/toml"

	"github.com/rebound-nic/rebound/internal/host/setting"
	"github.com/rebound-nic/rebound/internal/responder"
)

// fileName is the configuration's name on the stick and in messages.
const fileName = "rebound.toml"

// intro is the start of rebound.toml, in place of config.toml's.
const intro = "The configuration of Rebound's appliance: the section [appliance], and all of config.toml. Every key is listed with " +
	"its default, except for respond.addresses, which has none: give the addresses to answer for, and nic.device if the machine has more than " +
	"one supported card.\n\nEach key can also be given on the kernel's command line, which overrides this file: rebound.respond.addresses=10.0.0.2/24. " +
	"stats.listen has no effect here: appliance.port is the port of the pages."

// settings are the section [appliance].
type settings struct {
	table      *setting.Table
	mode       string
	name       string
	management string
	vlan       int
	address    netip.Prefix // invalid for DHCP
	gateway    netip.Addr
	dns        []netip.Addr
	port       int
	clock      string
	ntp        []string
	hugePages  int
	watchdog   time.Duration
	commands   []string
	lastStage  string
}

func newSettings() *settings {
	s := &settings{}
	s.table = setting.New(
		setting.OneOf("appliance.mode", &s.mode, "respond", []setting.Choice{
			{Name: "respond", Doc: "answer for respond.addresses on nic.device."},
			{Name: "bench", Doc: "run the commands in appliance.bench, one after the other, and write the reports to the stick."},
			{Name: "watch", Doc: "probe the targets in watch.toml on the stick from the management interface."},
			{Name: "probe", Doc: "collect what each supported card says and does (docs/cards/probe.md), and write the files to the stick."},
		}, "What this machine does:"),
		setting.String("appliance.name", &s.name, "rebound", func(name string) error {
			if !regexp.MustCompile(`^[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?$`).MatchString(name) {
				return fmt.Errorf("%q is not a host name (letters, digits and hyphens)", name)
			}
			return nil
		}, "The host name, in reports and for DHCP."),
		setting.String("appliance.management", &s.management, "auto", nil,
			"The interface for the pages, NTP and a configuration by URL: a name (\"eth0\"), a MAC address, a PCI address, \"auto\" for the first interface "+
				"with a link that is not nic.device, or \"none\". It uses the kernel's driver."),
		setting.Range("appliance.vlan", &s.vlan, 0, 4094, 0, "untagged", "The VLAN of the management interface."),
		setting.Parsed("appliance.address", &s.address, "dhcp", func(text string) (netip.Prefix, error) {
			if text == "dhcp" {
				return netip.Prefix{}, nil
			}
			p, err := netip.ParsePrefix(text)
			if err != nil {
				return p, fmt.Errorf("%q is neither \"dhcp\" nor an address with the length of its subnet, such as \"10.1.0.2/24\"", text)
			}
			return p, nil
		}, "The management interface's address with the length of its subnet, or \"dhcp\"."),
		setting.Parsed("appliance.gateway", &s.gateway, "", parseOptional,
			"The router of a static address; empty for none."),
		setting.Strings("appliance.dns", &s.dns, netip.ParseAddr, "DNS servers. Empty: those that DHCP names."),
		setting.Range("appliance.port", &s.port, 1, 65535, 9469, "",
			"The TCP port of the pages (status, metrics, reports) on the management interface. No other port is open."),
		setting.String("appliance.clock", &s.clock, "ntp", func(text string) error {
			if text != "ntp" && text != "none" && !regexp.MustCompile(`^/dev/ptp[0-9]+$`).MatchString(text) {
				return fmt.Errorf("%q is none of \"ntp\", \"none\" and a hardware clock such as \"/dev/ptp0\"", text)
			}
			return nil
		}, "What sets this machine's clock: \"ntp\", a PTP hardware clock that holds UTC, such as that of a hypervisor (\"/dev/ptp0\"), or \"none\". "+
			"STAMP replies carry the resulting error."),
		setting.Strings("appliance.ntp", &s.ntp, func(text string) (string, error) { return text, nil },
			"NTP servers. Empty: those that DHCP names."),
		setting.Range("appliance.huge_pages", &s.hugePages, 0, 1<<16, 64, "none",
			"Huge pages of 2 MiB, reserved at the NUMA node of the card."),
		setting.Parsed("appliance.watchdog", &s.watchdog, "60s", func(text string) (time.Duration, error) {
			d, err := time.ParseDuration(text)
			if err != nil || d != 0 && (d < 5*time.Second || d%time.Second != 0) {
				return 0, fmt.Errorf("%q is not a duration of 5s or more in whole seconds, such as \"60s\"; \"0s\" is off", text)
			}
			return d, nil
		},
			"The timeout of the hardware watchdog, if there is one: \"60s\"; it restarts a machine that hangs. \"0s\" is off."),
		setting.Strings("appliance.bench", &s.commands, func(text string) (string, error) {
			if len(strings.Fields(text)) == 0 {
				return "", errors.New("it is empty")
			}
			return text, nil
		}, "Mode bench: arguments of rebound-bench, such as [\"run 10.0.0.2 -iface eth1 -out before\"]. Words are separated by spaces, and cannot contain any. Reports "+
			"go to the folder reports of the stick."),
		setting.OneOf("appliance.probe", &s.lastStage, "loop",
			[]setting.Choice{{Name: "read", Doc: "only the device's capabilities."},
				{Name: "up", Doc: "bring it up and take it down, too."}, {Name: "loop", Doc: "send one frame, too."}},
			"Mode probe: the last stage to run:"),
	)
	return s
}

func parseOptional(text string) (netip.Addr, error) {
	if text == "" {
		return netip.Addr{}, nil
	}
	return netip.ParseAddr(text)
}

// printDefault prints rebound.toml with all defaults.
func printDefault() int {
	fmt.Println(newSettings().table.TOML(intro))
	return responder.Main([]string{"config"})
}

// header is a TOML line that begins a section.
var header = regexp.MustCompile(`^\s*\[\[?\s*([A-Za-z0-9_"'. -]+?)\s*\]\]?\s*(#.*)?$`)

// split returns the section [appliance] and the rest of a file, each with empty lines in place of the other, so that
// messages name the right line.
func split(text string) (appliance, rest string) {
	var ours, theirs strings.Builder
	mine := false
	for line := range strings.Lines(text) {
		if h := header.FindStringSubmatch(strings.TrimRight(line, "\r\n")); h != nil {
			mine = h[1] == "appliance"
		}
		a, b := &ours, &theirs
		if !mine {
			a, b = b, a
		}
		a.WriteString(line)
		b.WriteString("\n")
	}
	return ours.String(), theirs.String()
}

// config is a configuration that was read, with what the appliance needs to know of the responder's part.
type config struct {
	*settings
	file     string   // the responder's part
	sets     []string // words of the kernel's command line for the responder
	device   string   // nic.device
	answers  bool     // it has something to answer for: respond.addresses, or respond.handover
	messages bool     // respond.handover has one: the management interface needs its address first
	chosen   map[string]bool
	noIOMMU  bool
}

// parse reads a configuration. words are KEY=VALUE from the kernel's command line.
func parse(text string, words []string) (*config, error) {
	c := &config{settings: newSettings(), chosen: map[string]bool{}}
	ours, theirs := split(text)
	var all map[string]any
	if _, err := toml.Decode(text, &all); err != nil { // the whole file, for its syntax
		return c, syntaxError(err)
	}
	if err := c.table.Parse(fileName, ours); err != nil {
		return c, err
	}
	for _, w := range words {
		key, _, _ := strings.Cut(w, "=")
		if !strings.HasPrefix(key, "appliance.") {
			c.sets = append(c.sets, w)
			continue
		}
		if err := c.table.Set(w); err != nil {
			return c, onCommandLine(err)
		}
	}
	if err := c.table.Apply(); err != nil {
		return c, onCommandLine(err)
	}
	c.file = theirs
	for section, v := range all {
		keys, _ := v.(map[string]any)
		for key, value := range keys {
			c.learn(section+"."+key, value)
		}
	}
	for _, w := range c.sets {
		key, value, _ := strings.Cut(w, "=")
		c.learn(key, strings.Trim(value, `"`))
	}
	if c.address.IsValid() && c.management == "auto" { // which interface has the address must not depend on cables
		return c, c.table.Fail("appliance.address", "a static address needs appliance.management: name the interface")
	}
	return c, nil
}

func syntaxError(err error) error {
	var broken toml.ParseError
	if errors.As(err, &broken) {
		return &setting.Error{Where: fmt.Sprintf("%s:%d", fileName, broken.Position.Line), Key: broken.LastKey,
			Problem: broken.Message}
	}
	return err
}

// onCommandLine names the place of an error in words of the kernel's command line.
func onCommandLine(err error) error {
	var wrong *setting.Error
	if errors.As(err, &wrong) && wrong.Where == "-set" {
		wrong.Where = "kernel command line"
	}
	return err
}

// fromKernel returns the URL of the configuration, or the name of a cloud, and the settings on the kernel's command
// line: rebound.config=URL and rebound.SECTION.KEY=VALUE.
func fromKernel(line string) (url string, words []string) {
	for _, w := range strings.Fields(line) {
		rest, ok := strings.CutPrefix(w, "rebound.")
		key, value, isSetting := strings.Cut(rest, "=")
		switch {
		case !ok || !isSetting:
		case key == "config":
			url = value
		case strings.Contains(key, "."):
			words = append(words, rest)
		}
	}
	return url, words
}

func kernelLine() string {
	b, _ := os.ReadFile("/proc/cmdline")
	return strings.TrimSpace(string(b))
}

// learn takes a value of the responder's part. A wrong type is the responder's to report.
func (c *config) learn(key string, value any) {
	c.chosen[key] = true
	switch key {
	case "nic.device":
		c.device, _ = value.(string)
	case "nic.unsafe_no_iommu":
		c.noIOMMU = value == true || value == "true"
	case "respond.addresses", "respond.handover":
		list, isList := value.([]any)
		text, isText := value.(string)
		given := isList && len(list) > 0 || isText && strings.Trim(text, "[] ") != ""
		c.answers = c.answers || given
		c.messages = c.messages || given && key == "respond.handover"
	}
}

// fill returns a configuration's text with a device and an address in place of what it has.
func fill(text, device, address string) string {
	values := []struct{ section, key, line string }{
		{"nic", "device", fmt.Sprintf("device = %q", device)},
		{"respond", "addresses", fmt.Sprintf("addresses = [%q]", address)}}
	for _, v := range values {
		var out []string
		section, at, done := "", -1, false
		for line := range strings.Lines(text) {
			line = strings.TrimRight(line, "\r\n")
			if h := header.FindStringSubmatch(line); h != nil {
				section = h[1]
				if section == v.section {
					at = len(out) + 1
				}
			} else if key, _, ok := strings.Cut(line, "="); ok && section == v.section &&
				strings.TrimSpace(key) == v.key {
				line, done = v.line, true
			}
			out = append(out, line)
		}
		switch {
		case done:
		case at >= 0:
			out = slices.Insert(out, at, v.line)
		default:
			out = append(out, "", "["+v.section+"]", v.line)
		}
		text = strings.Join(out, "\n") + "\n"
	}
	return text
}
