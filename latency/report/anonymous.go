package report

import (
	"net/netip"
	"path"
	"regexp"
	"slices"
	"strings"
)

// Anonymize removes from r everything that identifies the machine, and keeps everything that its numbers depend on. It
// removes the host name, the kernel's command line, the kernel release after its version number, the tool's own command
// line (it names hosts and folders), the names of threads that had the core, the interface's MAC address, and the
// folder of a simulated device's socket. In the target, the label and all texts, MAC addresses and public IP addresses
// (see private) become "<mac>" and "<address>". CPU, hypervisor, settings, interface name, counters, times and other
// names in a label are kept.
func (r *Report) Anonymize() {
	r.Anonymous = true
	r.Args = nil
	r.Label = Scrub(r.Label)
	r.Traffic.Target = Scrub(r.Traffic.Target)
	r.Warnings, r.Notes, r.Clock.Notes, r.Device.Notes = scrubAll(r.Warnings), scrubAll(r.Notes),
		scrubAll(r.Clock.Notes), scrubAll(r.Device.Notes)

	r.STAMP = r.STAMP.anonymize()
	if a := r.Attribution; a != nil {
		a.Direction, a.FarLoop, a.How, a.Causes = Scrub(a.Direction), Scrub(a.FarLoop), Scrub(a.How),
			slices.Clone(a.Causes)
		a.FarCauses = Scrub(a.FarCauses)
		for i := range a.Causes {
			c := &a.Causes[i]
			if c.Text = Scrub(c.Text); c.Name != "" {
				c.Name = "another thread"
			}
		}
		a.Timeline = slices.Clone(a.Timeline)
		for i := range a.Timeline {
			t := &a.Timeline[i]
			if t.Text = Scrub(t.Text); t.Name != "" {
				t.Name = "another thread"
			}
		}
	}

	if r.Gaps != nil {
		r.Gaps.How, r.Gaps.Causes = Scrub(r.Gaps.How), slices.Clone(r.Gaps.Causes)
		for i := range r.Gaps.Causes {
			c := &r.Gaps.Causes[i]
			if c.Text = Scrub(c.Text); c.Name != "" {
				c.Name = "another thread"
			}
		}
	}

	r.Host.Hostname, r.Host.Cmdline = "", ""
	r.Host.Kernel = KernelVersion(r.Host.Kernel)
	r.Host.Findings = slices.Clone(r.Host.Findings)
	for i := range r.Host.Findings {
		f := &r.Host.Findings[i]
		f.What, f.Fix = Scrub(f.What), Scrub(f.Fix)
	}
	r.Device.MAC, r.Addresses = "", nil
	r.Device.Device = Scrub(r.Device.Device)
}

// scrubAll returns a copy, because the texts may be shared with the device or another report.
func scrubAll(texts []string) []string {
	out := slices.Clone(texts)
	for i := range out {
		out[i] = Scrub(out[i])
	}
	return out
}

// KernelVersion returns the version number of a release: 6.1.0 of 6.1.0-28-cloud-amd64.
func KernelVersion(release string) string {
	if i := strings.IndexFunc(release, func(r rune) bool { return r != '.' && (r < '0' || r > '9') }); i >= 0 {
		release = release[:i]
	}
	return strings.TrimRight(release, ".")
}

var (
	macPattern     = regexp.MustCompile(`\b(?:[0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2}\b`)
	macNamePattern = regexp.MustCompile(`\benx[0-9a-f]{12}\b`) // systemd's MAC-based interface names
	addressPattern = regexp.MustCompile(`\b\d{1,3}(?:\.\d{1,3}){3}\b|[0-9A-Fa-f]{0,4}:[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*`)
	socketPattern  = regexp.MustCompile(`vfio-user:\S+`)
)

// Scrub replaces addresses in a text as Anonymize does.
func Scrub(s string) string {
	s = macPattern.ReplaceAllString(s, "<mac>")
	s = macNamePattern.ReplaceAllString(s, "enx<mac>")
	s = socketPattern.ReplaceAllStringFunc(s, func(at string) string {
		return "vfio-user:" + path.Base(strings.TrimPrefix(at, "vfio-user:"))
	})
	return addressPattern.ReplaceAllStringFunc(s, func(text string) string {
		address := strings.TrimRight(text, ".")
		if !strings.HasSuffix(address, "::") {
			address = strings.TrimSuffix(address, ":") // "to 2001:db8::1: no reply"
		}
		if a, err := netip.ParseAddr(address); err == nil && !private(a) {
			return "<address>" + text[len(address):]
		}
		return text
	})
}

// documentation are the networks reserved for examples and benchmarks (RFC 5737, RFC 2544, RFC 3849).
var documentation = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("198.51.100.0/24"),
	netip.MustParsePrefix("203.0.113.0/24"), netip.MustParsePrefix("198.18.0.0/15"),
	netip.MustParsePrefix("2001:db8::/32")}

// private reports whether an address is meaningless outside its network: RFC 1918, RFC 4193, loopback, link-local,
// unspecified, and those of examples and benchmarks. An address derived from a MAC address (RFC 4291 appendix A) is not
// private.
func private(a netip.Addr) bool {
	a = a.Unmap()
	if b := a.As16(); a.Is6() && b[11] == 0xff && b[12] == 0xfe {
		return false
	}
	for _, p := range documentation {
		if p.Contains(a) {
			return true
		}
	}
	return a.IsPrivate() || a.IsLoopback() || a.IsLinkLocalUnicast() || a.IsUnspecified()
}
