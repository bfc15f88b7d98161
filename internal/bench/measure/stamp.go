package measure

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rebound-nic/rebound/internal/bench/probe"
	"github.com/rebound-nic/rebound/internal/host/process"
	"github.com/rebound-nic/rebound/internal/host/stampkey"
)

// STAMP has the settings of test packets other than their size.
type STAMP struct {
	Mode       string // "unauthenticated", "authenticated"; if empty, the latter with a key
	Key        stampkey.Key
	SSID       uint16
	Ask        []probe.Ask
	StopAtZero bool          // stop if the reflector zeroes the SSID (RFC 8972 §3)
	ClockError time.Duration // maximum error of this host's clock; 0 to determine it automatically
}

func (s *Settings) setKey(file string) (err error) {
	if s.STAMP.Key = (stampkey.Key{}); file != "" {
		s.STAMP.Key, err = stampkey.Read(file)
	}
	return err
}

func (s *Settings) setTLVs(value string) error {
	s.STAMP.Ask = nil
	for item := range strings.FieldsFuncSeq(value, func(r rune) bool { return r == '+' || r == ',' }) {
		a, err := probe.ParseAsk(item)
		if err != nil {
			return err
		}
		if slices.ContainsFunc(s.STAMP.Ask, func(b probe.Ask) bool { return b.Type == a.Type }) {
			return fmt.Errorf("%v is given twice", a.Type)
		}
		s.STAMP.Ask = append(s.STAMP.Ask, a)
	}
	return nil
}

func (s *Settings) setClockError(value string) (err error) {
	if s.STAMP.ClockError, err = ParseDuration(value); err == nil && s.STAMP.ClockError == 0 {
		err = errors.New("want the maximum error of this host's clock, above zero, like 2us")
	}
	return err
}

// Packet describes the probes.
func (s *STAMP) Packet() probe.TestPacket {
	return probe.TestPacket{SSID: s.SSID, Key: s.Key.Bytes(), Ask: s.Ask,
		Authenticated: s.Mode == "authenticated" || s.Mode == "" && s.Key.Bytes() != nil}
}

// firstSet returns the name of a given setting that only applies to STAMP, or "".
func (s *STAMP) firstSet() string {
	switch {
	case s.Mode != "":
		return "-stamp-mode"
	case s.Key.Bytes() != nil:
		return "-stamp-key"
	case s.SSID != 0:
		return "-stamp-ssid"
	case s.Ask != nil:
		return "-stamp-tlv"
	case s.StopAtZero:
		return "-stamp-zero-ssid"
	}
	return ""
}

// completeSTAMP rejects settings that exclude each other.
func (s *Settings) completeSTAMP() error {
	p := s.STAMP.Packet()
	if name := s.STAMP.firstSet(); s.Proto != probe.STAMP && name != "" {
		return process.Usagef("%s: probes of %s are not test packets; use -proto stamp", name, s.Protocol())
	}
	hmac := slices.ContainsFunc(p.Ask, func(a probe.Ask) bool { return a.Type == probe.HMAC })
	switch {
	case p.Authenticated && p.Key == nil:
		return process.Usagef("-stamp-mode authenticated needs a key: -stamp-key FILE")
	case hmac && p.Key == nil:
		return process.Usagef("-stamp-tlv hmac needs a key: -stamp-key FILE")
	case s.STAMP.StopAtZero && p.SSID == 0:
		return process.Usagef("-stamp-zero-ssid stop: there is no SSID to zero; set -stamp-ssid")
	}
	return nil
}
