package report_test

import (
	"bytes"
	"compress/zlib"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"slices"
	"testing"

	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/random"
)

// packed is a compressed encoding: a cookie, a length and what is compressed.
func packed(t *testing.T, cookie uint32, content []byte) string {
	var zip bytes.Buffer
	w := zlib.NewWriter(&zip)
	must.Get(w.Write(content))(t)
	must.OK(t, w.Close())
	b := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, cookie), uint32(zip.Len()))
	return base64.StdEncoding.EncodeToString(append(b, zip.Bytes()...))
}

// header is that of V1 and V2 for so many bytes of counters.
func header(cookie uint32, size int, digits uint32, lowest, highest uint64) []byte {
	b := binary.BigEndian.AppendUint32(nil, cookie)
	b = binary.BigEndian.AppendUint32(b, uint32(size))
	b = binary.BigEndian.AppendUint32(b, 0)
	b = binary.BigEndian.AppendUint32(b, digits)
	b = binary.BigEndian.AppendUint64(b, lowest)
	b = binary.BigEndian.AppendUint64(b, highest)
	return binary.BigEndian.AppendUint64(b, 0)
}

// What a histogram's own bytes say wrong, with the limits of each.
func TestHistogramLimits(t *testing.T) {
	const v1, v2, packedV2 = 0x1c849301, 0x1c849303, 0x1c849304
	const most = 40 + 9<<20
	raw := func(b []byte) string { return base64.StdEncoding.EncodeToString(b) }
	of := func(digits uint32, lowest, highest uint64, counters ...byte) string {
		return raw(append(header(v2, len(counters), digits, lowest, highest), counters...))
	}
	short := raw(append(binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, packedV2), 1), 0)[:8])
	v0 := []byte{0x1c, 0x84, 0x93, 0x28, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 4, 0, 31: 0}
	for _, c := range []struct{ code, want string }{
		{raw(make([]byte, 7)), "7 bytes, which is too short"},
		{raw(make([]byte, 8)), "no HdrHistogram of encoding V0, V1 or V2 (cookie 0x0, 8 bytes)"},
		{short, "bytes, of which 1 are missing"},
		{raw([]byte{0x1c, 0x84, 0x93, 0x04, 0, 0, 0, 5, 1, 2}), "5 bytes, of which 3 are missing"},
		{raw(v0), ""}, {raw(v0[:31]), "no HdrHistogram of encoding V0, V1 or V2"},
		{packed(t, packedV2, make([]byte, most)), "no HdrHistogram of encoding"},
		{packed(t, packedV2, make([]byte, most+1)), "more than 1048576 counters"},
		{packed(t, packedV2, make([]byte, 3)), "no header in it"},
		{packed(t, packedV2, make([]byte, 4)), "no HdrHistogram of encoding"},
		{raw(header(v2, 0, 3, 1, 1000)[:39]), "no HdrHistogram of encoding V0, V1 or V2 (cookie 0x1c849303, 39 bytes)"},
		{raw(header(v2, 1, 3, 1, 1000)), "its counters take 0 bytes, its header says 1"},
		{of(5, 1, 2), ""}, {of(6, 1, 2), "6 digits for values from 1 to 2: no histogram has this range"},
		{of(3, 0, 2), "from 0 to 2"}, {of(0, 1, 2), ""}, {of(3, 1, 1), "from 1 to 1"},
		{of(3, 2, 4), ""}, {of(3, 2, 3), "from 2 to 3"},
		{of(4, 1, 1<<62-1), ""}, {of(5, 1, 1<<62-1), "at most 1048576, by fewer digits"},
		{of(5, 1, 1<<20-1), ""}, {of(5, 1, 1<<21), ""}, {of(5, 1, 1<<24-1), ""}, {of(5, 1, 1<<24), "at most 1048576"},
		{of(3, 1<<52, 1<<53), ""}, {of(3, 1<<53, 1<<54), "2048 counters: want"},
		{raw(slices.Concat([]byte{0x1c, 0x84, 0x93, 0x28, 15: 1, 23: 2, 31: 0}, make([]byte, 6))), ""},
		{raw(slices.Concat([]byte{0x1c, 0x84, 0x93, 0x28, 15: 1, 23: 2, 31: 0}, make([]byte, 6), []byte{0, 1})),
			"more than the 3 counters of its range"},
		{of(3, 1, 3600e9, 0x80), "its last counter is cut off"},
		{of(3, 1, 2, 0x02), ""},
		{of(3, 1, 2, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 1), "count 36028797018963968: "}, // eight bits each
		{of(3, 1, 2, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80), "count 4611686018427387904: "},
		{of(0, 1, 2, 2, 2, 2), ""}, // 3 counters
		{of(0, 1, 2, 2, 2, 2, 2), "more than the 3 counters of its range"},
		{of(0, 1, 2, 5), ""}, // 3 empty counters
		{of(0, 1, 2, 7), "more than the 3 counters of its range"},
		{of(0, 1, 2, 5, 2), "more than the 3 counters of its range"},
		{of(0, 1, 2, 3, 2), ""},
		{raw(append(header(v1|2<<4, 2, 3, 1, 1000), 0, 1)), ""},
		{raw(append(header(v1|4<<4, 4, 3, 1, 1000), 0, 0, 0, 1)), ""},
		{raw(append(header(v1|8<<4, 8, 3, 1, 1000), 0, 0, 0, 0, 0, 0, 0, 1)), ""},
		{raw(append(header(v1|3<<4, 3, 3, 1, 1000), 0, 0, 1)), "3 bytes of counters with 3 bytes each"},
		{raw(append(header(v1|2<<4, 3, 3, 1, 1000), 0, 0, 1)), "3 bytes of counters with 2 bytes each"},
		{raw(append(header(v1|2<<4, 2, 3, 1, 1000), 0xff, 0xff)), "count -1: want counts from 0"},
		{raw(append(header(v1|8<<4, 8, 3, 1, 1000), 0, 0x20, 0, 0, 0, 0, 0, 0)), ""}, // 2^53
		{raw(append(header(v1|8<<4, 16, 3, 1, 1000), 0, 0, 0, 0, 0, 0, 0, 1, 0, 0x20, 0, 0, 0, 0, 0, 0)),
			"that add up to at most"},
		{raw(append(header(v1|2<<4, 10, 0, 1, 2), 0, 1, 0, 1, 0, 1, 0, 0, 0, 0)), ""}, // padded
		{raw(append(header(v1|2<<4, 8, 0, 1, 2), 0, 1, 0, 1, 0, 1, 0, 1)), "more than the 3 counters of its range"},
		{raw(append(header(v1|8<<4, 8, 3, 1, 1000), 0, 0x20, 0, 0, 0, 0, 0, 1)), "that add up to at most 9007199254740992"},
	} {
		_, err := foreign(logHead + "0,1,0.0," + c.code + "\n")
		if what := fmt.Sprintf("%.60s", c.code); c.want == "" {
			if err != nil {
				t.Errorf("%s: %v", what, err)
			}
		} else {
			check.Fails(t, what, err, report.ErrFormat, c.want)
		}
	}
}

// Counters of V2 of any size, and runs of empty ones, are decoded as they were encoded.
func TestZigZagCounters(t *testing.T) {
	rnd := random.New(t)
	put := func(b []byte, n int64) []byte {
		u := uint64(n<<1) ^ uint64(n>>63)
		for range 8 {
			if u < 0x80 {
				return append(b, byte(u))
			}
			b, u = append(b, byte(u)|0x80), u>>7
		}
		return append(b, byte(u))
	}
	for range 200 {
		var counters []byte
		var want []int64
		index := 0
		for total := int64(0); index < 1500 && total < 1<<52; {
			if empty := rnd.IntN(300); rnd.IntN(2) == 0 && empty > 0 {
				counters, index = put(counters, int64(-empty)), index+empty
				continue
			}
			n := 1 + rnd.Int64N(1<<(1+rnd.IntN(51)))
			counters = put(counters, n)
			want = append(want, int64(index), n)
			index, total = index+1, total+n
		}
		b := append(header(0x1c849303, len(counters), 3, 1, 1<<40), counters...)
		l := must.Get(foreign(logHead + "0,1,0.0," + base64.StdEncoding.EncodeToString(b) + "\n"))(t)
		var got []int64
		for bucket := range l.Series[0].Total.Buckets {
			got = append(got, bucket.Low, bucket.Count)
		}
		check.Same(t, got, want, "values and counts %v") // each value below 2048 has its own counter
	}
}

// Times are since the start of the log, since the time of a BaseTime line, or since 1970 without one.
func TestTimesOfALog(t *testing.T) {
	code := encodeOld(t, 1, 8, []int64{0, 0, 1})
	for text, want := range map[string]int64{
		"#[StartTime: 1700000000.000 (s)]\n1700000000.5,1,0," + code:                                500e6,
		"#[StartTime: 1700000000.000 (s)]\n0.5,1,0," + code:                                         500e6,
		"#[StartTime: 1700000000.000 (s)]\n#[BaseTime: 1700000000.000 (s)]\n0.5,1,0," + code:        500e6,
		"#[StartTime: 1700000000.000 (s)]\n#[BaseTime: 1700000002.000 (s)]\n0.5,1,0," + code:        2500e6,
		"#[StartTime: 1700000000.000 (s)]\n#[BaseTime: 0.000 (s)]\n1700000000.5,1,0," + code + "\n": 500e6,
	} {
		l := must.Get(foreign("#[Histogram log format version 1.3]\n" + text + "\n"))(t)
		check.Equal(t, l.Series[0].Intervals[0].Start, want, text[:60]+"...: starts at %d")
	}
	l := must.Get(foreign("#[StartTime: 1700000000 (s)]\n#[BaseTime: 1700000000 (s)]\n0,1,0," + code +
		"\n#[StartTime: 1700000100 (s)]\n0.5,1,0," + code + "\n"))(t)
	check.Equal(t, l.Series[0].Intervals[1].Start, 100.5e9, "after a restart without a BaseTime line: at %d")
	for i, line := range []string{"x,1,0,", "0,x,0,", "0,1,x,"} {
		_, err := foreign("#[StartTime: 1000 (s)]\n" + line + code + "\n")
		check.Fails(t, line, err, report.ErrFormat, fmt.Sprintf("field %d, \"x\", is no number in range", i+1))
	}
}
