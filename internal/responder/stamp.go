package responder

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/internal/cards"
	"github.com/rebound-nic/rebound/internal/host/setting"
	"github.com/rebound-nic/rebound/internal/host/stampkey"
	"github.com/rebound-nic/rebound/latency"
)

// stampSettings are the settings of [respond] that start with stamp_, except for those of messages.
type stampSettings struct {
	ports, auth []uint16
	base        bool
	mode        string
	sessions    int
	idle        time.Duration
	key         stampkey.Key
	tlvs        bool
	timing      bool
	location    bool
	dscp        []int
	clockError  time.Duration // 0 to use the kernel's value
}

// anyDSCP is respond.stamp_dscp = "any".
const anyDSCP = -1

func (s *stampSettings) settings() []setting.Setting {
	// any of these: test packets are answered
	tested := []string{"respond.stamp_ports", "respond.stamp_auth_ports", "respond.stamp_messages"}
	return []setting.Setting{
		setting.Ints("respond.stamp_ports", &s.ports, nil, parsePort,
			"UDP ports that answer as a STAMP Session-Reflector (RFC 8762; its own port is 862), with timestamps of reception and "+
				"reply."),
		setting.Bool("respond.stamp_base", &s.base, false,
			"Answer test packets of 14 to 40 bytes with STAMP's 44 (RFC 8762 §4.6), for TWAMP-Light senders that do not pad. Only "+
				"these replies are longer than their requests.").In("respond.stamp_ports", "respond.stamp_messages"),
		setting.OneOf("respond.stamp_mode", &s.mode, "stateless", []setting.Choice{
			{Name: "stateless", Doc: "every reply has the number of its request."},
			{Name: "stateful", Doc: "replies are numbered per session, from 0, so that senders can attribute loss to a direction " +
				"(RFC 8762 §4.2). A session is identified by both addresses and ports and the session identifier (RFC 8972 §3)."},
		}, "Numbering of replies to test packets:").In(tested...),
		setting.Range("respond.stamp_sessions", &s.sessions, 1, 1<<20, 1024, "",
			"stateful: size of the session table of each core. A session takes 144 bytes or more. Authenticated sessions have a table of the same "+
				"size. When the table is full, a new session replaces the one idle longest, if that has been idle for more than four times its "+
				"active time. Otherwise its packets are refused (stamp_sessions).").In("respond.stamp_mode=stateful"),
		setting.Parsed("respond.stamp_idle", &s.idle, "60s", func(text string) (time.Duration, error) {
			d, err := time.ParseDuration(text)
			if err != nil || d < time.Second || d > 24*time.Hour {
				return 0, fmt.Errorf("%q is not a duration from 1s to 24h", text)
			}
			return d, nil
		}, "stateful: a session ends after this time without packets; a later packet starts a new one.").In(
			"respond.stamp_mode=stateful"),
		setting.Ints("respond.stamp_auth_ports", &s.auth, nil, parsePort,
			"UDP ports that answer in STAMP's authenticated mode (RFC 8762 §4.4), and only to packets with a correct HMAC. They "+
				"need respond.stamp_key."),
		setting.Parsed("respond.stamp_key", &s.key, "", stampkey.Parse,
			"The key of STAMP's HMACs: the path (with a slash) of a file with 64 hexadecimal digits (openssl rand -hex 32), "+
				"readable only by its owner; or the digits themselves, if this file is readable only by its owner. The key is used for "+
				"authenticated mode and the HMAC TLV, read once at start and never printed.").In(
			"respond.stamp_auth_ports", "respond.stamp_tlvs"),
		setting.Bool("respond.stamp_tlvs", &s.tlvs, false,
			"Understand the extensions of test packets (RFC 8972): Extra Padding, Location, Timestamp Information, Class of "+
				"Service, Direct Measurement (stateful only), Access Report, Follow-Up Telemetry and HMAC; others are returned with "+
				"flag U. If false, all are returned unchanged, with the senders' flag U.").In(tested...),
		setting.Bool("respond.stamp_timing", &s.timing, true,
			"Report to senders that request it in their test packets (rebound-bench run -explain) when the polling loop last ran "+
				"before it found the packet, so that they can tell a delay of this host from one of the network. The TLV's type is "+
				"for private use (253); other senders are not affected. With respond.stamp_key, only in packets whose HMAC TLV is "+
				"right, which needs respond.stamp_tlvs.").In(tested...),
		setting.Bool("respond.stamp_location", &s.location, true,
			"stamp_tlvs: report ports, addresses and source MAC of received packets to senders that request them (Location TLV); "+
				"false reports zeros.").In("respond.stamp_tlvs"),
		setting.Names("respond.stamp_dscp", &s.dscp, nil, parseDSCP,
			"stamp_tlvs: the DSCPs that senders may choose for their replies (Class of Service TLV): a list of numbers (0 to 63), "+
				"or \"any\", which lets any permitted sender choose any class of your network. Other requests get a reply with the "+
				"DSCP of the request, marked accordingly.").In("respond.stamp_tlvs"),
		setting.Interval("respond.stamp_clock_error", &s.clockError, time.Nanosecond,
			"Maximum error of this host's clock, if you know it and the kernel does not, for example with PTP (ptp4l, phc2sys). "+
				"Test packets then mark the clock as synchronized and carry this error. \"0s\" uses the kernel's value (adjtimex: "+
				"maxerror), set by chronyd and ntpd. phc2sys, ptp4l and systemd-timesyncd do not set it; packets then carry the "+
				"largest possible error.").In(tested...),
	}
}

func parseDSCP(text string) (int, error) {
	if text == "any" {
		return anyDSCP, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || n > 63 {
		return 0, fmt.Errorf("%q is neither a DSCP (0 to 63) nor \"any\"", text)
	}
	return n, nil
}

// checkStamp checks the settings of STAMP. file is the configuration's, empty without one.
func (s *settings) checkStamp(file string) error {
	p := &s.respond.stamp
	for i, port := range p.ports {
		if slices.Contains(s.respond.udp, port) {
			return s.table.FailAt("respond.stamp_ports", i, "port %d is already in respond.udp_ports", port)
		}
	}
	if err := s.twice("respond.stamp_ports", p.ports); err != nil {
		return err
	}
	for i, port := range p.auth {
		if slices.Contains(s.respond.udp, port) || slices.Contains(p.ports, port) {
			return s.table.FailAt("respond.stamp_auth_ports", i,
				"port %d is already in respond.udp_ports or respond.stamp_ports", port)
		}
	}
	if err := s.twice("respond.stamp_auth_ports", p.auth); err != nil {
		return err
	}
	if len(p.dscp) > 1 && slices.Contains(p.dscp, anyDSCP) {
		return s.table.FailAt("respond.stamp_dscp", slices.Index(p.dscp, anyDSCP), "\"any\" must be the only entry")
	}
	if err := s.checkKey(file); err != nil {
		return err
	}
	if key, what := s.beyondKernel(); key != "" && s.nic.InKernel() {
		return s.table.Fail(key, "driver xdp %s; use afxdp", what)
	}
	return nil
}

// beyondKernel returns the first setting that driver xdp does not support, and what it does instead.
func (s *settings) beyondKernel() (key, what string) {
	switch p := &s.respond.stamp; {
	case p.mode == "stateful":
		return "respond.stamp_mode", "keeps no STAMP sessions"
	case len(p.auth) > 0:
		return "respond.stamp_auth_ports", "computes no HMAC"
	case p.tlvs:
		return "respond.stamp_tlvs", "returns the TLVs of test packets unchanged"
	case p.clockError > 0:
		return "respond.stamp_clock_error", "reports the kernel's clock error"
	}
	return "", ""
}

func (s *settings) checkKey(file string) error {
	p := &s.respond.stamp
	if p.key.Bytes() == nil {
		if len(p.auth) > 0 {
			return s.table.Fail("respond.stamp_auth_ports", "need respond.stamp_key")
		}
		return nil
	}
	if !p.key.Typed() {
		return nil
	}
	var at *setting.Error
	if errors.As(s.table.Fail("respond.stamp_key", ""), &at) && at.Where == "-set" {
		return s.table.Fail("respond.stamp_key",
			"would be visible to all users in the process list: give the path of a file that has it")
	}
	if err := stampkey.PrivateFile(file); err != nil {
		return s.table.Fail("respond.stamp_key", "%w", err)
	}
	return nil
}

// reflector returns the reflector's configuration, without the parts that need a clock.
func (p *stampSettings) reflector() (r fastpath.Reflector) {
	r.AuthPorts, r.Key, r.TLVs, r.HideLocation = p.auth, p.key.Bytes(), p.tlvs, !p.location
	r.Timing = p.timing
	if p.mode == "stateful" {
		r.Sessions = p.sessions
	}
	for _, d := range p.dscp {
		if d == anyDSCP {
			r.DSCPs = ^uint64(0)
		} else {
			r.DSCPs |= 1 << d
		}
	}
	return r
}

// stampAsked reports whether test packets are answered at all.
func (s *settings) stampAsked() bool {
	p := &s.respond.stamp
	return len(p.ports) > 0 || len(p.auth) > 0 || s.respond.stampMessages
}

// timed adds the parts of the configuration that need a clock.
func (p *stampSettings) timed(c *fastpath.Config, clock *latency.Clock) {
	c.TicksPerSecond = clock.Ticks(time.Second)
	c.Reflector.Idle = clock.Ticks(p.idle)
}

// kernelCannot returns why driver auto does not use xdp, or "".
func (s *settings) kernelCannot() string {
	if key, what := s.beyondKernel(); key != "" && s.nic.Driver == "auto" && !cards.IsPCIDevice(s.nic.Device) {
		return fmt.Sprintf("xdp %s (%s)", what, key)
	}
	return ""
}
