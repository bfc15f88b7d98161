package schedule

import (
	"math"
	"reflect"
	"slices"
	"testing"
)

// Every order is equally likely, in each block and in every pair of consecutive blocks.
func TestOrdersAreEquallyLikely(t *testing.T) {
	const blocks = 60_000
	for _, variants := range []int{2, 3} {
		orders := 1
		for i := range variants {
			orders *= i + 1
		}
		count := map[[2]int]int{}
		number := func(b Block) (n int) {
			for _, v := range b.Order {
				n = n*variants + v
			}
			return n
		}
		all := Draw(1, variants, blocks)
		for i := 1; i < blocks; i += 2 {
			count[[2]int{number(all[i-1]), number(all[i])}]++
		}
		want := float64(blocks/2) / float64(orders*orders)
		if len(count) != orders*orders {
			t.Errorf("%d variants: %d pairs of orders, want %d", variants, len(count), orders*orders)
		}
		for pair, n := range count {
			if math.Abs(float64(n)-want) > 5*math.Sqrt(want) {
				t.Errorf("%d variants: orders %v occur %d times, want about %.0f", variants, pair, n, want)
			}
		}
	}
}

func TestDraw(t *testing.T) {
	if !reflect.DeepEqual(Draw(7, 3, 20), Draw(7, 3, 20)) {
		t.Error("the same seed gives two schedules")
	}
	if reflect.DeepEqual(Draw(7, 3, 20), Draw(8, 3, 20)) {
		t.Error("two seeds give the same schedule")
	}
	for _, blocks := range []int{1, 2, 39, 40} {
		sum, least, most := 0.0, 0.0, 0.0
		for _, b := range Draw(3, 2, blocks) {
			sum, least, most = sum+b.Stretch, min(least, b.Stretch), max(most, b.Stretch)
			if x, y := slices.Index(b.Order, 0), slices.Index(b.Order, 1); x+y != 1 || b.Order[x] != 0 ||
				!slices.Contains(b.Order, 1) {
				t.Errorf("block %+v: places %d and %d", b, x, y)
			}
		}
		if math.Abs(sum) > 1e-9 || least < -Jitter || most > Jitter || blocks > 30 && most-least < Jitter {
			t.Errorf("%d blocks: lengths change by %v to %v, %v in all", blocks, least, most, sum)
		}
	}
}
