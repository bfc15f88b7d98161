package foreign

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/text/encoding/unicode"

	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/proof/check"
	compared "github.com/rebound-nic/rebound/proof/golden"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
)

// outcomeCase is a text of a tool, and what is read from it.
type outcomeCase struct {
	name, text string
	o          Options
	values     int64
	counts     report.Counts
	warning    string // empty for no warning at all
}

// outcomeCases are replies, losses and everything else that pings of many systems, and other tools, print.
func outcomeCases() []outcomeCase {
	const head = "PING x (10.0.0.1) 56(84) bytes of data.\n"
	const bsd = "PING x (10.0.0.1): 56 data bytes\n"
	reply := func(seq int, more string) string {
		return fmt.Sprintf("64 bytes from 10.0.0.1: icmp_seq=%d ttl=64 time=0.5 ms%s\n", seq, more)
	}
	return []outcomeCase{
		{"no reply", head + "3 packets transmitted, 0 received, 100% packet loss, time 2ms\n", Options{}, 0, report.Counts{Sent: 3, Lost: 3}, ""},
		{"no reply, with errors",
			head + "From 10.0.0.9 icmp_seq=1 Destination Host Unreachable\nFrom 10.0.0.9 icmp_seq=2 Destination Host Unreachable\n2 packets transmitted, 0 received, +2 errors, 100% packet loss\n",
			Options{}, 0, report.Counts{Sent: 2, Lost: 2},
			"2 lines, the first is 2: an ICMP error, which is no reply: Destination Host Unreachable"},
		{"an error of BSD", bsd +
			"92 bytes from 10.0.0.9: Destination Host Unreachable\nVr HL TOS  Len   ID Flg  off TTL Pro  cks      Src      Dst\n 4  5  00 5400 1234   0 0000  40  01 0000 10.0.0.9  10.0.0.1\n\n1 packets transmitted, 0 packets received, 100.0% packet loss\n",
			Options{}, 0, report.Counts{Sent: 1, Lost: 1},
			"line 2: an ICMP error, which is no reply: Destination Host Unreachable"},
		{"an error from a named host",
			bsd + reply(0, "") + "36 bytes from router (10.0.0.9): Time to live exceeded\n2 packets transmitted, 1 packets received, 50% packet loss\n",
			Options{}, 1, report.Counts{Sent: 2, Received: 1, Lost: 1}, "Time to live exceeded"},
		{"timeouts of macOS, without statistics", bsd + reply(0, "") +
			"Request timeout for icmp_seq 1\nRequest timeout for icmp_seq 2\n" + reply(3, "") + reply(2, ""),
			Options{}, 3, report.Counts{Sent: 4, Received: 3, Lost: 1}, "no statistics at its end"},
		{"a gap in the numbers, without statistics", head + reply(2, "") + "no answer yet for icmp_seq=3\n", Options{}, 1, report.Counts{Sent: 3, Received: 1, Lost: 2}, "no statistics at its end"},
		{"decimal commas", head + "64 bytes from 10.0.0.1: icmp_seq=1 ttl=64 time=0,123 ms\n1 packets transmitted, 1 received, 0% packet loss\nrtt min/avg/max/mdev = 0,123/0,123/0,123/0,000 ms\n", Options{}, 1, report.Counts{Sent: 1, Received: 1}, ""},
		{"another address", head + reply(1, "") +
			"64 bytes from 10.0.0.77: icmp_seq=2 ttl=64 time=0.1 ms (DIFFERENT ADDRESS!)\n2 packets transmitted, 2 received, 0% packet loss\n",
			Options{}, 1, report.Counts{Sent: 2, Received: 1, Corrupt: 1, CorruptOnly: 1},
			"another address than the target, 10.0.0.77"},
		{"a bad checksum", head + reply(1, "") + reply(2, " (BAD CHECKSUM!)") +
			"2 packets transmitted, 1 received, +1 corrupted, 50% packet loss\n",
			Options{}, 1, report.Counts{Sent: 2, Received: 1, Corrupt: 1, CorruptOnly: 1},
			"line 3: a reply with a bad checksum"},
		{"a wrong payload", head + reply(1, "") + reply(2, "") +
			"wrong data byte #16 should be 0x10 but was 0x0\n#16\t0 11 12\n#48\t30 31\n2 packets transmitted, 2 received, 0% packet loss\n",
			Options{}, 1, report.Counts{Sent: 2, Received: 1, Corrupt: 1, CorruptOnly: 1},
			"line 4: a reply with a wrong payload"},
		{"a clock that was set back",
			head + reply(1, "") + "ping: Warning: time of day goes back (-3600s), taking countermeasures\n64 bytes from 10.0.0.1: icmp_seq=2 ttl=64 time=0.000 ms\n2 packets transmitted, 2 received, 0% packet loss\n",
			Options{}, 1, report.Counts{Sent: 2, Received: 2}, "a reply with a wrong time, because the clock was set"},
		{"a negative time", head + reply(1, "") + "64 bytes from 10.0.0.1: icmp_seq=2 ttl=64 time=-0.5 ms\n2 packets transmitted, 2 received, 0% packet loss\n", Options{}, 1, report.Counts{Sent: 2, Received: 2}, "line 3: a reply with a wrong time"},
		{"probes that were not sent", head + reply(1, "") + "ping: sendmsg: Network is unreachable\n2 packets transmitted, 1 received, 50% packet loss\n", Options{}, 1, report.Counts{Sent: 2, Received: 1, SendFailed: 1}, "line 3: a probe was not sent"},
		{"a line of anything", head + reply(1, "") + "what is this\n1 packets transmitted, 1 received, 0% packet loss\n", Options{}, 1, report.Counts{Sent: 1, Received: 1, Unparsed: 1}, `lines not understood: 1, the first is line 3, "what is this"`},
		{"a summary that has more", head + reply(1, "") + "5 packets transmitted, 4 received, 20% packet loss\n", Options{}, 1, report.Counts{Sent: 5, Received: 4, Lost: 1}, "line 3: the file's own summary has 4 replies, its lines have 1"},
		{"-q", head + "\n--- x ping statistics ---\n5 packets transmitted, 4 received, 20% packet loss, time 4ms\nrtt min/avg/max/mdev = 0.014/0.055/3.683/0.259 ms\n", Options{}, 4, report.Counts{Sent: 5, Received: 4, Lost: 1}, ""},
		{"-f", bsd + "....\b \b.--- 127.0.0.1 ping statistics ---\n5 packets transmitted, 4 packets received, 20% packet loss\nround-trip min/avg/max/stddev = 0.048/0.092/0.295/0.037 ms\n", Options{}, 4, report.Counts{Sent: 5, Received: 4, Lost: 1}, ""},
		{"ping6", "PING6(56=40+8+8 bytes) fe80::1%en0 --> fe80::2%en0\n16 bytes from fe80::2%en0, icmp_seq=0 hlim=64 time=0.5 ms\n16 bytes from fe80::2%en0, icmp_seq=1 hlim=64 time=0.7 ms\n\n--- fe80::2%en0 ping6 statistics ---\n2 packets transmitted, 2 packets received, 0.0% packet loss\nround-trip min/avg/max/std-dev = 0.5/0.6/0.7/0.1 ms\n",
			Options{}, 2, report.Counts{Sent: 2, Received: 2}, ""},
		{"a host's name", "PING x(y (::1)) 56 data bytes\n64 bytes from y (::1): icmp_seq=1 ttl=64 time=0.5 ms\n1 packets transmitted, 1 received, 0% packet loss\n", Options{}, 1, report.Counts{Sent: 1, Received: 1}, ""},
		{"numbers that wrap", bsd + reply(65535, "") + reply(0, "") + reply(1, ""), Options{}, 3, report.Counts{Sent: 65538, Received: 3, Lost: 65535}, "no statistics"},
		{"Windows", "\nPinging x [10.0.0.1] with 32 bytes of data:\nReply from 10.0.0.1: bytes=32 time=3ms TTL=64\nReply from 10.0.0.1: bytes=32 time<1ms TTL=64\nReply from 10.0.0.9: Destination host unreachable.\nRequest timed out.\n\nPing statistics for 10.0.0.1:\n    Packets: Sent = 4, Received = 3, Lost = 1 (25% loss),\nApproximate round trip times in milli-seconds:\n    Minimum = 0ms, Maximum = 3ms, Average = 1ms\n",
			Options{}, 2, report.Counts{Sent: 4, Received: 2, Lost: 2},
			"line 5: an ICMP error, which is no reply: Destination host unreachable."},
		{"Windows in German", "Ping wird ausgeführt für 10.0.0.1 mit 32 Bytes Daten:\nAntwort von 10.0.0.1: Bytes=32 Zeit=3ms TTL=64\nZeitüberschreitung der Anforderung.\nPakete: Gesendet = 2, Empfangen = 1, Verloren = 1\n(50% Verlust),\n",
			Options{}, 1, report.Counts{Sent: 2, Received: 1, Lost: 1, Unparsed: 3},
			"lines not understood: 3, the first is line 1"},
		{"fping without a reply", "h : [0], timed out (NaN avg, 100% loss)\n\nh : xmt/rcv/%loss = 1/0/100%\n", Options{}, 0, report.Counts{Sent: 1, Lost: 1}, ""},
		{"fping -C without a reply", "h : - - -\n", Options{}, 0, report.Counts{Sent: 3, Lost: 3}, ""},
		{"fping -A -n -D", "[2026-11-28T08:00:00+0100] h.x (10.0.0.1) : [0], 64 bytes, 0.029 ms (0.029 avg, 0% loss)\n[2026-11-28T08:00:01+0100] h.x (10.0.0.1) : [1], timed out (0 avg)\n\nh.x (10.0.0.1) : xmt/rcv/%loss = 2/1/50%, min/avg/max = 0.029/0.029/0.029\n",
			Options{}, 1, report.Counts{Sent: 2, Received: 1, Lost: 1}, ""},
		{"fping -q", "h : xmt/rcv/%loss = 20/19/5%, min/avg/max = 0.012/0.041/0.161\n", Options{}, 19, report.Counts{Sent: 20, Received: 19, Lost: 1}, ""},
		{"fping with errors", "ICMP Host Unreachable from 10.0.0.9 for ICMP Echo sent to h\nh : [0], timed out (NaN avg, 100% loss)\n", Options{}, 0, report.Counts{Sent: 1, Lost: 1}, "line 1: an ICMP error, which is no reply: ICMP Host Unreachable"},
		{"fping -J", `{"resp": {"host": "h", "seq": 0, "size": 64, "rtt": 5.12}}` + "\n" +
			`{"timeout": {"host": "h", "seq": 1}}` + "\n" +
			`{"summary": {"host": "h", "xmt": 2, "rcv": 1, "loss": 50, "rttMin": 5.12, "rttAvg": 5.12, "rttMax": 5.12}}` + "\n",
			Options{}, 1, report.Counts{Sent: 2, Received: 1, Lost: 1}, ""},
		{"fping -J -C", `{"vSum": {"host": "h", "values": [0.054, null, 0.081]}}` + "\n", Options{}, 2, report.Counts{Sent: 3, Received: 2, Lost: 1}, ""},
		{"irtt without a reply", `{"round_trips":[{"lost":"true_down"},{"lost":"true"}]}`, Options{}, 0, report.Counts{Sent: 2, Lost: 2}, ""},
		{"sockperf without a full log",
			"sockperf: [Valid Duration] RunTime=0.5 sec; SentMessages=20; ReceivedMessages=19\nsockperf: \x1b[2;35m====> avg-rtt=20 (std-dev=1)\x1b[0m\nsockperf: # dropped messages = 1; # duplicated messages = 0; # out-of-order messages = 0\nsockperf: ---> <MAX> observation = 30\nsockperf: ---> percentile 50.000 = 20\nsockperf: ---> <MIN> observation = 10\n",
			Options{}, 19, report.Counts{Sent: 20, Received: 19, Lost: 1}, ""},
		{"a table without an answer", "seq,rtt_us\n1,\n2,timeout\n3,-\n", Options{}, 0, report.Counts{Sent: 3, Lost: 3}, ""},
		{"a table with quoted commas", "name,rtt_us\n\"a, b\",5\n\"c \"\"d\"\"\",6\n", Options{}, 2, report.Counts{}, ""},
		{"a table with decimal commas", "name;rtt_us\na;5,5\n", Options{}, 1, report.Counts{}, ""},
		{"any column", "time taken!,x\n5,1\n6,2\n", Options{Series: "time taken!", Unit: "ms"}, 2, report.Counts{}, ""},
		{"hey", "response-time,DNS+dialup,DNS,Request-write,Response-delay,Response-read,status-code,offset\n0.0012,0,0,0,0,0,200,0.1\n0.0013,0,0,0,0,0,503,0.2\n", Options{}, 2, report.Counts{Sent: 2, Received: 2}, "1 of 2 requests failed"},
		{"JMeter", "timeStamp,elapsed,label,responseCode,success\n1795479891230,5,\"a, b\",200,true\n1795479891240,6,\"a, b\",500,false\n", Options{}, 2, report.Counts{Sent: 2, Received: 2}, "1 of 2 requests failed"},
		{"Locust", "Type,Name,Request Count,Failure Count,Average Response Time,Min Response Time,Max Response Time,50%,99%\nGET,/,10,1,5.5,1.2,9.7,5,10\n,Aggregated,10,1,5.5,1.2,9.7,5,10\n", Options{}, 10, report.Counts{}, "line 2: failed requests, which are in the percentiles: 1"},
		{"k6", `{"metrics":{"http_reqs":{"count":50,"rate":1},"http_req_duration":{"avg":5,"min":1,"med":4,"max":9,"p(90)":7,"p(95)":8,"thresholds":{"p(95)<500":false}},"http_req_failed":{"passes":1,"fails":49,"value":0.02}}}`, Options{}, 50, report.Counts{}, "2 % of the requests failed"},
		{"k6, handleSummary", `{"metrics":{"http_reqs":{"type":"counter","contains":"default","values":{"count":50}},"http_req_duration":{"type":"trend","contains":"time","values":{"avg":5,"min":1,"med":4,"max":9,"p(95)":8}}}}`, Options{}, 50, report.Counts{}, ""},
		{"k6 without requests, and what is no time", `{"metrics":{"w":{"type":"trend","contains":"time","values":{"avg":5,"min":1,"med":4,"max":9}},"c":{"type":"counter","contains":"time","values":{"count":3}},"d":{"type":"trend","contains":"data","values":{"avg":5,"min":1,"med":4,"max":9}}}}`, Options{}, 0, report.Counts{}, ""},
		{"k6 points", `{"type":"Metric","data":{"type":"trend","contains":"time"},"metric":"http_req_duration"}` +
			"\n" + k6Text(1, "200", "true") +
			`{"metric":"vus","type":"Metric","data":{"type":"gauge","contains":"default"}}` + "\n" +
			`{"metric":"vus","type":"Point","data":{"time":"2026-11-28T08:00:01Z","value":5,"tags":null}}` + "\n" +
			k6Text(2, "503", "false") + k6Text(3, "0", "false") + `{"metric":"http_r`,
			Options{}, 2, report.Counts{Sent: 3, Received: 2, Lost: 1, Unparsed: 1},
			"line 6: a request without a response"},
		{"k6 points, any trend", `{"metric":"my_wait","type":"Metric","data":{"type":"trend","contains":"default"}}` +
			"\n" + `{"metric":"my_wait","type":"Point","data":{"time":"2026-11-28T08:00:01Z","value":5,"tags":{}}}` +
			"\n",
			Options{Unit: "us"}, 1, report.Counts{Sent: 1, Received: 1}, ""},
		{"k6 points in CSV", "metric_name,timestamp,metric_value,check,error,error_code,group,method,status,extra_tags\nhttp_reqs,1595325560,1.000000,,,,,GET,200,\nhttp_req_duration,1595325560,221.899000,,,,,GET,200,\nhttp_req_duration,2020-07-21T10:00:00Z,0.000000,,dial: refused,1212,,GET,0,\nchecks,1595325561,1.000000,status is 200,,,,,,\n",
			Options{}, 1, report.Counts{Sent: 2, Received: 1, Lost: 1},
			"line 4: a request without a response, error 1212"},
		{"cloudprober", "I0808 11:36:03.763636   29754 prober.go:111] Creating a PING probe\ncloudprober 15 1500590510 labels=ptype=sysvars,probe=sysvars hostname=\"h\" uptime=100\ncloudprober 16 1500590520 labels=ptype=ping,probe=p,dst=h total=17 success=17 latency=18083.5\ncloudprober 17 1500590530 labels=ptype=ping,probe=p,dst=h total=19 success=18 latency=21164.4\n",
			Options{}, 2, report.Counts{Sent: 19, Received: 18, Lost: 1}, ""},
		{"cloudprober, distributions",
			"cloudprober 16 1500590520 labels=ptype=udp,probe=p,dst=h total=4 success=4 latency=dist:sum:899|count:4|lb:-Inf,0.5,2,7.5|bc:0,1,2,1\ncloudprober 17 1500590530 labels=ptype=udp,probe=p,dst=h total=3 success=2 latency=dist:sum:9|count:2|lb:-Inf,0.5,2,7.5|bc:0,1,1,0\n",
			Options{Unit: "ms"}, 6, report.Counts{Sent: 7, Received: 6, Lost: 1}, "line 2: the counts restart"},
		{"cloudprober, fewer answers", "cloudprober 16 1500590520 labels=ptype=ping,probe=p,dst=h total=17 success=17 latency=18083.5\ncloudprober 17 1500590530 labels=ptype=ping,probe=p,dst=h total=19 success=2 latency=164.4\n",
			Options{}, 2, report.Counts{Sent: 36, Received: 19, Lost: 17}, "line 2: the counts restart"},
		{"ghz", `{"count":2,"average":6e6,"fastest":5e6,"slowest":7e6,"rps":9,"details":[{"timestamp":"2026-11-28T08:00:00Z","latency":5000000,"error":"","status":"OK"},{"timestamp":"2026-11-28T08:00:01Z","latency":7000000,"error":"x","status":"Unavailable"}]}`, Options{}, 2, report.Counts{Sent: 2, Received: 2}, "1 of 2 requests failed"},
		{"oping", "PING 127.0.0.1 (127.0.0.1) 56 bytes of data.\n56 bytes from 127.0.0.1 (127.0.0.1): icmp_seq=1 ttl=64 time=0.06 ms\n\n--- 127.0.0.1 ping statistics ---\n1 packets transmitted, 1 received, 0.00% packet loss, time 0.3ms\nRTT[ms]: min = 0, median = 0, p(80) = 0, max = 0\n", Options{}, 1, report.Counts{Sent: 1, Received: 1}, ""},
		{"inetutils' ping without a route", bsd + reply(0, "") + "/usr/bin/ping: sending packet: Network is unreachable\n2 packets transmitted, 1 packets received, 50% packet loss\n", Options{}, 1, report.Counts{Sent: 2, Received: 1, SendFailed: 1}, "line 3: a probe was not sent"},
		{"ghz without details", `{"count":9,"average":6e6,"fastest":5e6,"slowest":7e6,"rps":9,"latencyDistribution":[{"percentage":50,"latency":6000000}]}`, Options{}, 9, report.Counts{}, ""},
		{"hyperfine", `{"results":[{"command":"true","times":[0.01,0.02],"exit_codes":[0,1]}]}`, Options{}, 2, report.Counts{}, "1 of 2 runs ended with an error"},
		{"twping", "--- twping statistics ---\nseq_no=0          fwd_delay=0.1 ms bck_delay=0.2 ms delay=0.3 ms proc_delay=0.01 ms\t(err=0.5 ms)\nseq_no=1          *LOST*\n2 sent, 1 lost (50.000%), 0 send duplicates, 0 reflect duplicates\n", Options{}, 1, report.Counts{Sent: 2, Received: 1, Lost: 1}, ""},
		{"twping with copies", "--- twping statistics ---\nseq_no=0          fwd_delay=0.1 ms bck_delay=0.2 ms delay=0.3 ms proc_delay=0.01 ms\t(err=0.5 ms)\n7 sent, 1 lost (50.000%), 2 send duplicates, 3 reflect duplicates\n", Options{}, 1, report.Counts{Sent: 1, Received: 1, Duplicates: 5}, "the file's own summary"},
		{"cloudprober without a new probe", "cloudprober 1 1500590520 labels=ptype=ping,probe=p,dst=h total=1 success=1 latency=5\ncloudprober 2 1500590530 labels=ptype=ping,probe=p,dst=h total=1 success=1 latency=5\n", Options{Unit: "us"}, 1, report.Counts{Sent: 1, Received: 1}, "no probe since the line before"},
		{"fping -Q", "[08:00:01]\nh : xmt/rcv/%loss = 2/1/50%, min/avg/max = 0.02/0.02/0.02\ng : xmt/rcv/%loss = 2/2/0%, min/avg/max = 0.02/0.02/0.02\nfping: note\n\nh : xmt/rcv/%loss = 3/2/33%, min/avg/max = 0.02/0.03/0.04\n", Options{Series: "h"}, 2, report.Counts{Sent: 3, Received: 2, Lost: 1}, "line 4: fping: note"},
		{"fping -C with its lines, and a copy", "h : [0], 64 bytes, 0.029 ms (0.029 avg, 0% loss)\nh : duplicate for [0], 64 bytes, 0.05 ms\nh : [1], timed out (0.029 avg, 50% loss)\n\nh : 0.029 0.03 -\n", Options{}, 1, report.Counts{Sent: 3, Received: 1, Lost: 2, Duplicates: 1}, "has 2 replies, its lines have 1"},
		{"a truncated reply, and one below the clock's step", head + "8 bytes from 10.0.0.1: icmp_seq=1 ttl=64 (truncated)\n64 bytes from 10.0.0.1: icmp_seq=2 ttl=64 time<1 ms\n2 packets transmitted, 2 received, 0% packet loss\n", Options{}, 1, report.Counts{Sent: 2, Received: 1, Corrupt: 1, CorruptOnly: 1}, "times below the clock's step are counted as 1 ms"},
		{"Windows without a network", "Pinging 10.0.0.1 with 32 bytes of data:\nReply from 10.0.0.1: bytes=32 time=3ms TTL=64\nGeneral failure.\nPackets: Sent = 2, Received = 1, Lost = 1 (50% loss),\n", Options{}, 1, report.Counts{Sent: 2, Received: 1, SendFailed: 1}, "line 3: a probe was not sent: General failure."},
		{"wrk for hours, with errors", "Running 1h test @ http://10.0.0.1\n  Latency Distribution\n     50%    1.50m\n     90%    2.00h\n  10 requests in 1.00h, 1MB read\n  Socket errors: connect 0, read 3, write 0, timeout 0\n", Options{}, 10, report.Counts{}, "Socket errors: connect 0, read 3"},
		{"Prometheus at one moment", `{"status":"success","data":{"resultType":"vector","result":[{"metric":{"a":"b"},"histogram":[5,{"count":"3","sum":"1","buckets":[[0,"1e-6","2e-6","3"]]}]}]}}`, Options{}, 3, report.Counts{}, ""},
		{"ghz with errors", `{"count":9,"average":6e6,"fastest":5e6,"slowest":7e6,"rps":9,"errorDistribution":{"gone":2},"latencyDistribution":[{"percentage":50,"latency":6000000}]}`, Options{}, 9, report.Counts{}, "2 calls failed: gone"},
		{"pScheduler in another unit", `{"histogram-latency":{"5":3}}`, Options{Unit: "us"}, 3, report.Counts{}, ""},
		{"cyclictest in another unit", `{"num_threads":1,"thread":{"0":{"histogram":{"7":2},"cycles":3,"min":7,"max":90,"avg":9}}}`, Options{Unit: "ns"}, 3, report.Counts{}, ""},
		{"k6 points of a part of a request, in CSV", "metric_name,timestamp,metric_value,check,error,error_code,group,method,status,extra_tags\nhttp_req_waiting,1595325560000000000,2.5,,,,,GET,200,\nhttp_req_duration,1595325560,3.5,,,,,GET,200,\n", Options{Series: "http_req_waiting", Unit: "ms"}, 1, report.Counts{Sent: 1, Received: 1}, ""},
		{"JMeter without a code", "timeStamp,elapsed,label,responseCode,success\n1795479891230,5,a,,false\n1795479891240,6,a,200,true\n", Options{}, 2, report.Counts{Sent: 2, Received: 2}, "1 of 2 requests failed"},
		{"more kinds of notes than are kept", head + reply(1, "") + manyNotes() + "1 packets transmitted, 1 received, 0% packet loss\n", Options{}, 1, report.Counts{Sent: 1, Received: 1}, "other lines that are no latencies"},
		{"owping with clocks that differ", "seq_no=0          delay=0.3 ms\t(sync, err=0.5 ms)\nseq_no=1          delay=-0.1 ms\t(unsync)\n2 sent, 0 lost (0.000%), 0 duplicates\n", Options{}, 1, report.Counts{Sent: 2, Received: 2}, "line 2: a negative delay"},
	}
}

// manyNotes are ICMP errors of 30 kinds.
func manyNotes() (text string) {
	for i := range 30 {
		text += fmt.Sprintf("From 10.0.0.9 icmp_seq=1 Error %c\n", 'A'+i)
	}
	return text
}

// No line of these texts is dropped silently.
func TestOutcomes(t *testing.T) {
	var all strings.Builder
	for _, c := range outcomeCases() {
		text, _ := outcome([]byte(c.text), c.o)
		fmt.Fprintf(&all, "%s\n\t%s\n", c.name, text)
		r, err := Read(write(t, "x", c.text), c.o)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if r.Main().Total.Count != c.values || r.Counts != c.counts ||
			!strings.Contains(strings.Join(r.Warnings, "; "), c.warning) || c.warning == "" && len(r.Warnings) > 0 {
			t.Errorf("%s: %d values, counts %+v, warnings %q", c.name, r.Main().Total.Count, r.Counts, r.Warnings)
		}
		if c.values == 0 && len(r.Runs) != 1 {
			t.Errorf("%s: runs %v, want one without samples", c.name, r.Runs)
		}
	}
	compared.Equal(t, "testdata/outcomes.golden", all.String())
}

// Every line is counted, lost, named or known noise: removing or changing a line of a file changes nothing, is an
// error, or is warned about. Files without a summary of their own do not show that a line was removed.
func TestNoLineIsDroppedSilently(t *testing.T) {
	random := rand.New(rand.NewPCG(45, 7))
	size := func(m *measurement) int64 {
		return m.size() + int64(len(m.points)) + min(m.count, 1) + m.counts.Sent + m.counts.Lost
	}
	changes := needs.Cases(80, 20) // of each file
	for _, c := range lineFiles(t) {
		failed := 0
		lines := strings.SplitAfter(c.text, "\n")
		lines = lines[:len(lines)-1]
		whole, err := parse(c.name, []byte(c.text), c.o)
		if err != nil || len(whole.warnings) > c.warnings {
			t.Errorf("%s: %v, %+v", c.name, err, whole)
			continue
		}
		for range changes {
			i := random.IntN(len(lines))
			changed := slices.Clone(lines)
			if b := []byte(lines[i]); random.IntN(3) > 0 || !c.summed {
				if len(b) < 2 {
					continue
				}
				at, by := random.IntN(len(b)-1), "x#0 ,"[random.IntN(5)]
				if at < c.free { // any name is valid there
					continue
				}
				if at == 0 && by == '#' { // a comment
					continue
				}
				b[at] = by
				changed[i] = string(b)
			} else {
				changed = slices.Delete(changed, i, i+1)
			}
			m, err := parse(c.name, []byte(strings.Join(changed, "")), c.o)
			if failed < 5 && err == nil && size(m) < size(whole) && len(m.warnings) <= len(whole.warnings) &&
				m.counts.Unparsed == 0 {
				failed++
				t.Errorf("%s: line %d is now %q, and there are %d values and probes instead of %d without a warning",
					c.name, i+1, changed[min(i, len(changed)-1)], size(m), size(whole))
			}
		}
	}
}

// Two measurements in one file are an error that names the line where the second starts.
func TestTwoMeasurements(t *testing.T) {
	for _, c := range lineFiles(t) {
		if strings.HasPrefix(c.name, "numbers") || strings.HasPrefix(c.name, "k6 JSON") || c.name == "cloudprober" ||
			c.name == "c.hlog" || c.name == "watch" { // a list, a stream, or a log that may restart
			continue
		}
		_, err := parse(c.name, []byte(c.text+c.text), c.o)
		if err == nil || !regexp.MustCompile(`^`+regexp.QuoteMeta(c.name)+`:\d+: `).MatchString(err.Error()) {
			t.Errorf("%s twice: %v, want an error with the line", c.name, err)
		}
	}
}

// lineFile is a file of a format that is read line by line.
type lineFile struct {
	name, text string
	o          Options
	summed     bool // it has a summary, so that a missing line is noticed
	warnings   int
	free       int // bytes at the start of a line that are a name, which may be any
}

func lineFiles(t *testing.T) (all []lineFile) {
	t.Helper()
	for _, x := range []struct {
		name   string
		o      Options
		summed bool
	}{
		{"ping.txt", Options{}, true}, {"ping-D.txt", Options{}, true}, {"fping-c.txt", Options{Series: "127.0.0.1"}, true}, {"fping-C.txt", Options{}, false},
		{"fping-D.txt", Options{}, false}, {"sockperf.csv", Options{}, false}, {"sockperf-ul.csv", Options{}, false}, {"cyclictest.txt", Options{}, true}, {"netperf.txt", Options{}, false},
		{"netperf.csv", Options{}, false}, {"wrk.txt", Options{}, false}, {"wrk2.txt", Options{}, false}, {"numbers.txt", Options{Unit: "us"}, false}, {"table.csv", Options{}, false},
		{"vegeta.csv", Options{}, false}, {"vegeta.ndjson", Options{}, false}, {"vegeta.hdrplot", Options{}, false}, {"js.hgrm", Options{Unit: "us"}, false},
		{"c.hlog", Options{Unit: "us"}, false},
	} {
		all = append(all, lineFile{name: x.name, text: string(content(t, x.name)), o: x.o, summed: x.summed})
	}
	build := func(name string, o Options, head, tail string, line func(i int) string) {
		var b strings.Builder
		b.WriteString(head)
		for i := range 40 {
			b.WriteString(line(i))
		}
		x := lineFile{name: name, text: b.String() + tail, o: o, summed: tail != ""}
		if name == "k6 CSV" {
			x.free = len(k6Duration)
		}
		all = append(all, x)
	}
	build("windows", Options{}, "\nPinging x [10.0.0.1] with 32 bytes of data:\n",
		"\nPing statistics for 10.0.0.1:\n    Packets: Sent = 40, Received = 40, Lost = 0 (0% loss),\nApproximate round trip times in milli-seconds:\n    Minimum = 3ms, Maximum = 42ms, Average = 9ms\n",
		func(i int) string { return fmt.Sprintf("Reply from 10.0.0.1: bytes=32 time=%dms TTL=64\n", 3+i) })
	build("twping", Options{}, "--- twping statistics ---\n",
		"40 sent, 0 lost (0.000%), 0 send duplicates, 0 reflect duplicates\n",
		func(i int) string {
			return fmt.Sprintf("seq_no=%-10d fwd_delay=0.1 ms bck_delay=0.2 ms delay=0.%d ms proc_delay=0.01 ms\t(err=0.5 ms)\n", i, 3+i)
		})
	build("hey", Options{}, "response-time,DNS+dialup,DNS,Request-write,Response-delay,Response-read,status-code,offset\n", "", func(i int) string { return fmt.Sprintf("0.00%d,0,0,0,0,0,200,0.%d\n", 12+i, 10+i) })
	build("JMeter", Options{}, "timeStamp,elapsed,label,responseCode,success\n", "",
		func(i int) string { return fmt.Sprintf("%d,%d,a,200,true\n", 1795479891230+i, 5+i) })
	build("k6 JSON", Options{}, k6Head, "", func(i int) string { return k6Text(i, "200", "true") })
	build("k6 CSV", Options{},
		"metric_name,timestamp,metric_value,check,error,error_code,expected_response,group,method,name,proto,scenario,status,subproto,tls_version,url,extra_tags\n", "",
		func(i int) string {
			return fmt.Sprintf("http_req_duration,%d,%d.5,,,,true,,GET,x,HTTP/1.1,default,200,,,x,\n", 1671829514+i,
				20+i)
		})
	build("cloudprober", Options{}, "", "", func(i int) string {
		return fmt.Sprintf("cloudprober 1659947763765020110 %d labels=ptype=ping,probe=p,dst=h total=%d success=%d latency=%d\n", 1659947773+10*i, 5+5*i, 5+5*i, 1000+1000*i)
	})
	all = append(all, lineFile{name: "watch", text: string(watchLog(30))})
	all = append(all, lineFile{name: "Locust",
		text: "Type,Name,Request Count,Failure Count,Average Response Time,Min Response Time,Max Response Time,50%,99%\nGET,/,10,0,5.5,1.2,9.7,5,10\n,Aggregated,10,0,5.5,1.2,9.7,5,10\n"})
	return all
}

const k6Head = `{"metric":"http_req_duration","type":"Metric","data":{"name":"http_req_duration","type":"trend","contains":"time","thresholds":[],"submetrics":null}}` + "\n"

// k6Text is a point of a k6 stream.
func k6Text(i int, status, expected string) string {
	return fmt.Sprintf(`{"metric":"http_req_duration","type":"Point","data":{"time":"2026-11-28T08:00:%02d.5Z","value":%d.5,"tags":{"status":%q,"expected_response":%q}}}`+"\n", i, 20+i, status, expected)
}

// A lost run is a run of its folder, with its loss.
func TestLostRunInFolder(t *testing.T) {
	dir := t.TempDir()
	for i, text := range []string{string(content(t, "ping.txt")),
		"PING x\n7 packets transmitted, 0 received, 100% packet loss\n", string(content(t, "ping.txt"))} {
		must.OK(t, os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), []byte(text), 0o644))
	}
	r := must.Get(Read(dir, Options{}))(t)
	runs := r.ByRun()
	if r.Counts.Sent != 407 || r.Counts.Lost != 7 || len(runs) != 3 || runs[1] != nil || runs[2] == nil ||
		r.Main().Total.Count != 400 {
		t.Errorf("%+v, runs %v", r.Counts, runs)
	}
}

// A summary has no percentiles.
func TestSummaryOnly(t *testing.T) {
	r := must.Get(Read(write(t, "x",
		"PING x\n5 packets transmitted, 4 received\nrtt min/avg/max/mdev = 0.014/0.055/3.683/0.259 ms\n"), Options{}))(
		t)
	if least, most, mean := r.Extremes(); least != 14e3 || most != 3683e3 || mean != 55e3 ||
		!math.IsNaN(r.Quantile(0.5)) {
		t.Errorf("%v, %v, %v, p50 %v", least, most, mean, r.Quantile(0.5))
	}
}

// packed returns a text in every form that is read.
func packed(t *testing.T, text string) map[string][]byte {
	t.Helper()
	var gz bytes.Buffer
	w := gzip.NewWriter(&gz)
	must.Get(w.Write([]byte(text)))(t)
	must.OK(t, w.Close())
	z := must.Get(zstd.NewWriter(nil))(t)
	out := map[string][]byte{"gzip": gz.Bytes(), "zstd": z.EncodeAll([]byte(text), nil),
		"gzip in zstd": z.EncodeAll(gz.Bytes(), nil),
		"BOM":          []byte("\xef\xbb\xbf" + text), "CRLF": []byte(strings.ReplaceAll(text, "\n", "\r\n"))}
	for name, order := range map[string]unicode.Endianness{"UTF-16LE": unicode.LittleEndian,
		"UTF-16BE": unicode.BigEndian} {
		out[name] = must.Get(unicode.UTF16(order, unicode.UseBOM).NewEncoder().Bytes([]byte(text)))(t)
	}
	out["UTF-16LE without BOM"] = out["UTF-16LE"][2:]
	return out
}

func TestPackedFiles(t *testing.T) {
	for name, b := range packed(t, string(content(t, "ping.txt"))) {
		r, err := Read(write(t, "x", string(b)), Options{})
		if err != nil || r.Main().Total.Count != 200 || len(r.Warnings) > 0 {
			t.Errorf("%s: %v, %+v", name, err, r)
		}
	}
	for name, b := range packed(t, string(content(t, "table.csv"))) {
		if r, err := Read(write(t, "x", string(b)), Options{}); err != nil || r.Main().Total.Count != 200 {
			t.Errorf("table, %s: %v", name, err)
		}
	}
}

func TestDecompressionBombs(t *testing.T) {
	needs.Long(t)
	z := must.Get(zstd.NewWriter(nil))(t)
	bomb := z.EncodeAll(make([]byte, maxFile+10), nil)
	check.Fails(t, "a bomb", check.Err(Read(write(t, "x", string(bomb)), Options{})), errFormat,
		"more than 256 MiB of text")
	twice := z.EncodeAll(z.EncodeAll(z.EncodeAll([]byte("1\n"), nil), nil), nil)
	check.Fails(t, "three layers", check.Err(Read(write(t, "x", string(twice)), Options{})), errFormat,
		"compressed more than twice")
	cut := packed(t, string(content(t, "ping.txt")))["gzip"]
	check.Fails(t, "cut off", check.Err(Read(write(t, "x", string(cut[:len(cut)/2])), Options{})), errFormat,
		"its compressed data is cut off")
}

// A shell's <(...) is read, and a named pipe without a writer does not block.
func TestPipes(t *testing.T) {
	r, w, err := os.Pipe()
	must.OK(t, err)
	text := content(t, "table.csv")
	go func() {
		w.Write(text)
		w.Close()
	}()
	rep, err := Read(fmt.Sprintf("/dev/fd/%d", r.Fd()), Options{})
	if err != nil || rep.Main().Total.Count != 200 {
		t.Errorf("%v", err)
	}
	r.Close()
}

func FuzzProbes(f *testing.F) {
	for _, tool := range []string{
		"Reply from 10.0.0.1: bytes=32 time<1ms TTL=64\nPackets: Sent = 1, Received = 1, Lost = 0 (0% loss),\nMinimum = 0ms, Maximum = 3ms, Average = 1ms\n",
		`{"resp": {"host": "h", "seq": 0, "rtt": 5.12}}`,
		"seq_no=0 fwd_delay=0.1 ms bck_delay=0.2 ms delay=0.3 ms proc_delay=0.01 ms\n",
		`{"metrics":{"http_req_duration":{"med":4,"p(90)":7}}}`, `{"results":[{"command":"true","times":[0.01,0.02]}]}`,
		`{"fastest":5,"slowest":7,"rps":9,"latencyDistribution":[{"percentage":50,"latency":6}]}`,
		k6Head + k6Text(1, "200", "true"),
		"metric_name,timestamp,metric_value,status\nhttp_req_duration,1595325560,221.8,200\n",
		"cloudprober 16 1500590520 labels=ptype=udp,probe=p,dst=h total=4 success=4 latency=dist:sum:899|count:4|lb:-Inf,0.5,2,7.5|bc:0,1,2,1\n",
		"Type,Name,Request Count,Failure Count,50%\nGET,/,10,1,5\n",
		"timeStamp,elapsed,label,responseCode,success\n1795479891230,5,a,200,true\n",
		"response-time,status-code,offset\n0.0012,200,0.1\n",
	} {
		f.Add([]byte(tool))
	}
	fuzz(f, "ping.txt", Options{})
}
