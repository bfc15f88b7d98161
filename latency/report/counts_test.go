package report_test

import (
	"reflect"
	"testing"

	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/proof/check"
)

// Every number of a sum of counts is the sum of both, what a counter covered is what covered both, and what depends on
// the order of probes is unknown.
func TestCountsAdd(t *testing.T) {
	fill := func(factor int64, counted bool) (c report.Counts) {
		v := reflect.ValueOf(&c).Elem()
		for i := range v.NumField() {
			switch f := v.Field(i); f.Kind() {
			case reflect.Int64:
				f.SetInt(factor * int64(i+1))
			case reflect.Bool:
				f.SetBool(counted)
			case reflect.Pointer:
				f.Set(reflect.New(f.Type().Elem()))
			}
		}
		return c
	}
	for _, both := range []bool{true, false} {
		sum, more := fill(1, true), fill(100, both)
		sum.Add(&more)
		v := reflect.ValueOf(sum)
		for i := range v.NumField() {
			name := v.Type().Field(i).Name
			switch f := v.Field(i); f.Kind() {
			case reflect.Int64:
				check.Equal(t, f.Int(), 101*int64(i+1), name+" is %d")
			case reflect.Bool:
				check.Equal(t, f.Bool(), both, name+" is %v")
			case reflect.Pointer:
				check.Equal(t, f.IsNil(), true, name+" is unknown: %v")
			}
		}
	}
}

func TestTitle(t *testing.T) {
	r := &report.Report{Metric: report.Turnaround}
	check.Equal(t, r.Title(), "turnaround", "without anything: %q")
	r.Device.Driver, r.Device.Device = "xdp", "eth1"
	check.Equal(t, r.Title(), "xdp eth1 turnaround", "of a device: %q")
	r.Traffic.Protocol, r.Traffic.Target = "icmp", "10.0.0.2"
	check.Equal(t, r.Title(), "ICMP 10.0.0.2", "of a target: %q")
	r.Label = "after"
	check.Equal(t, r.Title(), "after", "with a label: %q")
}
