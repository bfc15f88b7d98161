package report

import (
	"bytes"
	"compress/zlib"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"math/bits"

	"github.com/rebound-nic/rebound/latency"
)

// The cookies of HdrHistogram's binary encodings, without the word size in bits 4 to 7. hdrhistogram-go decodes V2
// only, and fills an array of all counters for each histogram, which takes most of the time to read a log of short
// intervals.
const (
	cookieV0, cookieV0Compressed = 0x1c849308, 0x1c849309
	cookieV1, cookieV1Compressed = 0x1c849301, 0x1c849302
	cookieV2, cookieV2Compressed = 0x1c849303, 0x1c849304
	cookieDouble                 = 0x0c72120e // and the next one, compressed: a histogram of floating-point numbers
)

// maxCounters bounds the geometry of a foreign histogram: four digits over any range, or five over a short one.
const maxCounters = 1 << 20

// hdrDecoder decodes histograms one after the other, and keeps its memory.
type hdrDecoder struct {
	code   []byte
	in     bytes.Reader
	zip    io.ReadCloser
	raw    bytes.Buffer
	bucket []latency.Bucket
	// cost is that of the last histogram in memory and time, in counters: a line of a hundred bytes can contain thirty
	// thousand counters of 1, and a file of such lines would exhaust any memory. Measured data has less than one
	// counter per byte; empty counters only cost the time to scan them.
	cost int64
}

// decode decodes a base64 histogram of the encodings V0, V1 and V2.
func (d *hdrDecoder) decode(text string) (*latency.Histogram, error) {
	var err error
	if d.code, err = base64.StdEncoding.AppendDecode(d.code[:0], []byte(text)); err != nil {
		return nil, err
	}
	b := d.code
	if len(b) < 8 {
		return nil, fmt.Errorf("%d bytes, which is too short", len(b))
	}
	switch cookie(b) {
	case cookieV0Compressed, cookieV1Compressed, cookieV2Compressed:
		n := binary.BigEndian.Uint32(b[4:])
		if int64(n) > int64(len(b)-8) {
			return nil, fmt.Errorf("%d bytes, of which %d are missing", n, int64(n)-int64(len(b)-8))
		}
		if b, err = d.inflate(b[8 : 8+n]); err != nil {
			return nil, err
		}
	case cookieDouble, cookieDouble | 1:
		return nil, errors.New("it has floating-point values (DoubleHistogram), which this program does not read")
	}
	return d.counters(b)
}

func cookie(b []byte) uint32 { return binary.BigEndian.Uint32(b) &^ 0xf0 }

// inflate decompresses at most what the largest permitted histogram takes.
func (d *hdrDecoder) inflate(b []byte) ([]byte, error) {
	d.in.Reset(b)
	var err error
	if d.zip == nil {
		d.zip, err = zlib.NewReader(&d.in)
	} else {
		err = d.zip.(zlib.Resetter).Reset(&d.in, nil)
	}
	if err != nil {
		return nil, err
	}
	d.raw.Reset()
	const most = 40 + 9*maxCounters
	if n, err := io.Copy(&d.raw, io.LimitReader(d.zip, most+1)); err != nil {
		return nil, err
	} else if n > most {
		return nil, fmt.Errorf("more than %d counters, want fewer digits or a lower highest value", maxCounters)
	}
	if d.raw.Len() < 4 {
		return nil, errors.New("no header in it")
	}
	return d.raw.Bytes(), nil
}

// counters decodes a histogram that is not compressed.
func (d *hdrDecoder) counters(b []byte) (*latency.Histogram, error) {
	be := binary.BigEndian
	kind, word := cookie(b), int(be.Uint32(b)>>4&0xf)
	var digits uint32
	var lowest, highest int64
	switch {
	case kind == cookieV0 && len(b) >= 32:
		digits, lowest, highest = be.Uint32(b[4:]), int64(be.Uint64(b[8:])), int64(be.Uint64(b[16:]))
		b = b[32:]
	case (kind == cookieV1 || kind == cookieV2) && len(b) >= 40:
		if n := be.Uint32(b[4:]); int64(n) != int64(len(b)-40) {
			return nil, fmt.Errorf("its counters take %d bytes, its header says %d", len(b)-40, n)
		}
		// Bytes 8 to 11 and 32 to 39 shift and scale the counters of a DoubleHistogram. hdr-histogram-js writes other
		// values there, which mean nothing.
		digits, lowest, highest = be.Uint32(b[12:]), int64(be.Uint64(b[16:])), int64(be.Uint64(b[24:]))
		b = b[40:]
	default:
		return nil, fmt.Errorf("no HdrHistogram of encoding V0, V1 or V2 (cookie %#x, %d bytes)", be.Uint32(b),
			len(b))
	}
	if kind == cookieV2 {
		word = 0
	} else if word != 2 && word != 4 && word != 8 || len(b)%word != 0 {
		return nil, fmt.Errorf("%d bytes of counters with %d bytes each", len(b), word)
	}
	g, err := geometry(digits, lowest, highest)
	if err != nil {
		return nil, err
	}
	d.bucket = d.bucket[:0]
	var sum int64
	scanned := max(g.length/64, len(b)/64)
	for index := 0; len(b) > 0; {
		var n int64
		if word == 0 {
			if n, b, err = zigZag(b); err != nil {
				return nil, err
			}
			if n < 0 { // that many empty counters
				if n < int64(index-g.length) {
					return nil, fmt.Errorf("more than the %d counters of its range", g.length)
				}
				index -= int(n)
				continue
			}
		} else {
			n, b = integer(b, word)
		}
		if index >= g.length {
			if n == 0 && word != 0 { // writers of V1 may pad their array
				continue
			}
			return nil, fmt.Errorf("more than the %d counters of its range", g.length)
		}
		if n < 0 || n > maxCount-sum {
			return nil, fmt.Errorf("count %d: want counts from 0 that add up to at most %d", n, int64(maxCount))
		}
		if sum += n; n > 0 {
			low := g.lowestOf(index)
			d.bucket = append(d.bucket, latency.Bucket{Low: low, High: low + g.width(index) - 1, Count: n})
		}
		index++
	}
	d.cost = int64(max(scanned, len(d.bucket)))
	return latency.FromBuckets(d.bucket), nil
}

// layout is the mapping from counters to values.
type layout struct {
	unit, half int // exponents of the lowest value and of half the number of steps
	length     int // counters
}

func geometry(digits uint32, lowest, highest int64) (layout, error) {
	if digits > 5 || lowest < 1 || highest < 2 || lowest > highest/2 {
		return layout{}, fmt.Errorf("%d digits for values from %d to %d: no histogram has this range", digits, lowest,
			highest)
	}
	g := layout{unit: bits.Len64(uint64(lowest)) - 1, half: bits.Len64(uint64(2*math.Pow10(int(digits)))-1) - 1}
	buckets := max(bits.Len64(uint64(highest))-g.unit-g.half, 1) // the first one has both halves of its steps
	if g.length = (buckets + 1) << g.half; g.length > maxCounters || g.unit+g.half+buckets > 63 {
		return layout{}, fmt.Errorf("%d counters: want at most %d, by fewer digits or a lower highest value", g.length,
			maxCounters)
	}
	return g, nil
}

func (g layout) shift(index int) int { return g.unit + max(index>>g.half-1, 0) }

func (g layout) width(index int) int64 { return 1 << g.shift(index) }

func (g layout) lowestOf(index int) int64 {
	step := index
	if index >= 2<<g.half {
		step = index&(1<<g.half-1) | 1<<g.half
	}
	return int64(step) << g.shift(index)
}

// integer reads a big-endian counter of the given number of bytes.
func integer(b []byte, word int) (int64, []byte) {
	switch word {
	case 2:
		return int64(int16(binary.BigEndian.Uint16(b))), b[2:]
	case 4:
		return int64(int32(binary.BigEndian.Uint32(b))), b[4:]
	}
	return int64(binary.BigEndian.Uint64(b)), b[8:]
}

// zigZag reads a signed number of up to nine bytes, of which the first eight have seven bits each.
func zigZag(b []byte) (int64, []byte, error) {
	var u uint64
	for i, c := range b {
		if i == 8 {
			u |= uint64(c) << 56
		} else {
			u |= uint64(c&0x7f) << (7 * i)
		}
		if i == 8 || c < 0x80 {
			return int64(u>>1) ^ -int64(u&1), b[i+1:], nil
		}
	}
	return 0, nil, errors.New("its last counter is cut off")
}
