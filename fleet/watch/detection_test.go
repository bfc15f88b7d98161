package watch

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/fleet/placement"
)

// TestDetection prints the tables of docs/fleet/many-hosts.md with -v: how soon a fleet of 1,000 hosts notices a fault,
// and how often it reports a fault that does not exist. Outages are decided by the rule of this package, on simulated
// times of probes. Loss is decided by the alert ReboundZoneLoss of fleet/deploy/prometheus: more than 0.5 % of the
// probes of ten minutes and at least three of them, evaluated every 15 s.
func TestDetection(t *testing.T) {
	const timeout, hosts, trials = time.Second, 1000, 300
	random := rand.New(rand.NewPCG(1, 2))
	t.Logf("| peers | interval | dead host: 3 probers know, mean (99 %%) | dead zone link, 3 zones / 30 zones: paths, half of them know | false \"down\" of a path on 1 %% loss, a day and fleet | of 3 probers of a host, a year and fleet |")
	links := map[int][2]int{}
	for _, k := range []int{5, 10, 20, 50} {
		links[k] = [2]int{linkPaths(hosts, 3, k), linkPaths(hosts, 30, k)}
		for _, interval := range []time.Duration{200 * time.Millisecond, time.Second, 5 * time.Second,
			15 * time.Second} {
			var third []float64
			for range trials {
				third = append(third, knownBy(random, k, interval, timeout)[2])
			}
			slices.Sort(third)
			var half [2]float64
			for z, paths := range links[k] {
				for range trials / 10 {
					half[z] += knownBy(random, paths, interval, timeout)[(paths-1)/2] / (trials / 10)
				}
			}
			i := interval.Seconds()
			losses := max(downProbes, int(math.Ceil(downFor.Seconds()/i-1e-9))+1)
			want := float64(losses-1)*i + timeout.Seconds() + 3*i/float64(k+1) // by order statistics of the phases
			// intervals below a second may need one probe more
			if got := mean(third); math.Abs(got-want) > 0.6*i {
				t.Errorf("k=%d every %v: known by three after %.2f s, want %.2f", k, interval, got, want)
			}
			rate := math.Pow(0.01, float64(losses)) * 0.99 / i // false outages of a path per second
			single := rate * 86400 * hosts * float64(k)
			down := rate * i // share of the time that a path is falsely down
			choose3 := float64(k) * float64(k-1) * float64(k-2) / 6
			together := choose3 * 3 * rate * down * down * 365 * 86400 * hosts
			t.Logf("| %d | %v | %.1f s (%.1f s) | %d: %.1f s / %d: %.1f s | %.2g | %.1g |", k, interval, mean(third),
				third[len(third)*99/100],
				links[k][0], half[0], links[k][1], half[1], single, together)
		}
	}
	t.Logf("| peers | interval | zone link with 1 %% loss, 3 zones: seen after (99 %%) | 30 zones | false alarms a day and fleet on 0.01 %% loss, 3 zones | 30 zones |")
	for _, k := range []int{5, 10, 20, 50} {
		for _, interval := range []time.Duration{time.Second, 5 * time.Second, 15 * time.Second} {
			row := fmt.Sprintf("| %d | %v |", k, interval)
			falseAlarms := ""
			for z, paths := range links[k] {
				probes := float64(paths) * 600 / interval.Seconds()
				var seen []float64
				for range trials {
					seen = append(seen, lossSeen(random, probes, 0.01))
				}
				slices.Sort(seen)
				row += fmt.Sprintf(" %.1f min (%.0f min) |", mean(seen)/60, seen[len(seen)*99/100]/60)
				pairs := float64([2]int{3 * 2, 30 * 29}[z])
				falseAlarms += fmt.Sprintf(" %.1g |", poissonAbove(0.0001*probes, max(0.005*probes, 2.5))*144*pairs)
			}
			t.Log(row + falseAlarms)
		}
	}
}

func mean(of []float64) (sum float64) {
	for _, v := range of {
		sum += v
	}
	return sum / float64(len(of))
}

// linkPaths is the smallest number of paths of an ordered pair of zones of equal size.
func linkPaths(hosts, zones, k int) int {
	var all []placement.Member
	for i := range hosts {
		all = append(all, placement.Member{Name: fmt.Sprint("h", i), Zone: fmt.Sprint(i % zones)})
	}
	f := placement.New(all, k, FewestProbers)
	count := make([]int, zones*zones)
	for i, x := range all {
		for _, name := range f.Peers(x.Name) {
			var to int
			fmt.Sscanf(name, "h%d", &to)
			count[(i%zones)*zones+to%zones]++
		}
	}
	least := hosts * k
	for p, n := range count {
		if p/zones != p%zones {
			least = min(least, n)
		}
	}
	return least
}

// knownBy returns the times, ascending, at which paths report that their target, down since 0, is down. Each path is
// one of 20 of its watch, which sends in a random half of its slot.
func knownBy(random *rand.Rand, paths int, interval, timeout time.Duration) (seconds []float64) {
	origin := time.Unix(1000, 0)
	for range paths {
		h := health{heard: true}
		phase := time.Duration(random.Float64() * float64(interval))
		for i := 0; ; i++ {
			jitter := time.Duration(random.Float64() * float64(interval) / 40)
			now := origin.Add(phase + time.Duration(i)*interval + jitter + timeout)
			if h.missed(now, timeout) != nil {
				seconds = append(seconds, now.Sub(origin).Seconds())
				break
			}
		}
	}
	slices.Sort(seconds)
	return seconds
}

// lossSeen returns the number of seconds until the loss of the last ten minutes is noticed, if a share of the probes is
// lost from now on.
func lossSeen(random *rand.Rand, probes, share float64) float64 {
	var window []int
	lost := 0
	for step := 1; ; step++ {
		n := poisson(random, probes/40*share)
		window = append(window, n)
		if lost += n; len(window) > 40 {
			lost -= window[0]
			window = window[1:]
		}
		if float64(lost) > max(0.005*probes, 2.5) {
			return float64(step) * 15
		}
	}
}

func poisson(random *rand.Rand, mean float64) (n int) {
	for at := random.ExpFloat64(); at < mean; at += random.ExpFloat64() {
		n++
	}
	return n
}

// poissonAbove is the probability of more than limit.
func poissonAbove(mean, limit float64) (p float64) {
	for n := int(limit) + 1; n < int(limit)+100; n++ {
		g, _ := math.Lgamma(float64(n + 1))
		p += math.Exp(float64(n)*math.Log(mean) - mean - g)
	}
	return p
}
